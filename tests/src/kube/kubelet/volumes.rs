//! The volumes of a pod as folders on this machine: Secrets, config maps,
//! projected volumes with tokens of service accounts, what a pod says of
//! itself, empty folders and folders of the machine. What is written from
//! objects is changed as a real kubelet does it: a new folder beside the old,
//! and a link that is moved from one to the other at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::environment::{field, items, keys, text};
use super::state::Shared;

/// The files of a volume: contents and mode by path.
type Files = BTreeMap<String, (Vec<u8>, u32)>;

/// The volumes of one pod.
#[derive(Debug)]
pub(super) struct Volumes {
    folder: PathBuf,
    written: HashMap<String, Files>,
    /// Tokens by volume and path, with the rotation they are of.
    tokens: HashMap<(String, String), (u64, String)>,
    writes: u32,
}

/// What of a volume's definition is needed for its files.
struct Asked<'a> {
    shared: &'a Shared,
    pod: &'a Value,
    namespace: &'a str,
    ip: &'a str,
}

impl Volumes {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, written: HashMap::new(), tokens: HashMap::new(), writes: 0 }
    }

    /// Where a volume is on this machine.
    pub(super) fn source(&self, pod: &Value, name: &str) -> PathBuf {
        let volume = items(&pod["spec"]["volumes"]).iter().find(|volume| volume["name"] == name);
        let path = volume.and_then(|volume| volume["hostPath"]["path"].as_str());
        path.map_or_else(|| self.folder.join(name), PathBuf::from)
    }

    /// Makes what is missing and renews what has changed; an error in the
    /// words of a kubelet when something is not to be had.
    pub(super) fn refresh(&mut self, shared: &Shared, pod: &Value, ip: &str) -> Result<(), String> {
        let asked = Asked { shared, pod, namespace: text(&pod["metadata"]["namespace"]), ip };
        for volume in items(&pod["spec"]["volumes"]) {
            let name = text(&volume["name"]);
            let failed = |why: String| format!("MountVolume.SetUp failed for volume \"{name}\" : {why}");
            self.refresh_one(&asked, volume, name).map_err(failed)?;
        }
        Ok(())
    }

    fn refresh_one(&mut self, asked: &Asked<'_>, volume: &Value, name: &str) -> Result<(), String> {
        let known = ["secret", "configMap", "projected", "downwardAPI", "emptyDir", "hostPath"];
        let kind = known.into_iter().find(|kind| !volume[*kind].is_null());
        let kind = kind.ok_or_else(|| format!("the kubelet of the tests does not know {volume}"))?;
        let about = &volume[kind];
        let mode = mode(&about["defaultMode"]).unwrap_or(0o644);
        let mut files = Files::new();
        match kind {
            "emptyDir" => return self.empty(asked.pod, name),
            "hostPath" => return machine_folder(about),
            "projected" => {
                for source in items(&about["sources"]) {
                    self.projected(asked, name, source, mode, &mut files)?;
                }
            }
            "downwardAPI" => own_words(asked, about, mode, &mut files)?,
            _ => object(asked, kind, about, mode, &mut files)?,
        }
        if self.written.get(name) != Some(&files) {
            self.writes += 1;
            write(&self.folder.join(name), &files, self.writes, group(asked.pod))
                .map_err(|error| error.to_string())?;
            self.written.insert(name.to_owned(), files);
        }
        Ok(())
    }

    fn projected(
        &mut self,
        asked: &Asked<'_>,
        volume: &str,
        source: &Value,
        mode: u32,
        files: &mut Files,
    ) -> Result<(), String> {
        let about = &source["serviceAccountToken"];
        if !about.is_null() {
            let path = text(&about["path"]).to_owned();
            let token = self.token(asked, (volume.to_owned(), path.clone()), about)?;
            files.insert(path, (token.into_bytes(), mode));
            return Ok(());
        }
        if !source["downwardAPI"].is_null() {
            return own_words(asked, &source["downwardAPI"], mode, files);
        }
        let kind = ["secret", "configMap"].into_iter().find(|kind| !source[*kind].is_null());
        let kind = kind.ok_or_else(|| format!("the kubelet of the tests does not know {source}"))?;
        object(asked, kind, &source[kind], mode, files)
    }

    fn token(&mut self, asked: &Asked<'_>, whose: (String, String), about: &Value) -> Result<String, String> {
        let rotation = asked.shared.state().rotations;
        if let Some((of, token)) = self.tokens.get(&whose)
            && *of == rotation
        {
            return Ok(token.clone());
        }
        let metadata = &asked.pod["metadata"];
        let pod =
            json!({ "kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"] });
        let audiences = about["audience"].as_str().map(|audience| vec![audience]).unwrap_or_default();
        let seconds = about["expirationSeconds"].as_u64().unwrap_or(3600);
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": { "audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": pod },
        });
        let account = asked.pod["spec"]["serviceAccountName"].as_str().unwrap_or("default");
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", asked.namespace);
        let api = &asked.shared.api;
        let made = api.request(http::Method::POST, &path, "application/json", Some(&request));
        let made = made.map_err(|refused| format!("failed to fetch token: {}", refused.message))?;
        let token = text(&made["status"]["token"]).to_owned();
        self.tokens.insert(whose, (rotation, token.clone()));
        Ok(token)
    }

    fn empty(&self, pod: &Value, name: &str) -> Result<(), String> {
        let folder = self.folder.join(name);
        if folder.is_dir() {
            return Ok(());
        }
        let make = || {
            std::fs::create_dir_all(&folder)?;
            let group = group(pod);
            chown(&folder, None, group)?;
            let mode = if group.is_some() { 0o2777 } else { 0o777 };
            std::fs::set_permissions(&folder, Permissions::from_mode(mode))
        };
        make().map_err(|error: std::io::Error| error.to_string())
    }
}

/// Some or all keys of an object as files.
fn object(asked: &Asked<'_>, kind: &str, about: &Value, mode: u32, files: &mut Files) -> Result<(), String> {
    let plural = if kind == "secret" { "secrets" } else { "configmaps" };
    let Some(all) = keys(asked.shared, plural, asked.namespace, about)? else { return Ok(()) };
    if about["items"].is_null() {
        files.extend(all.into_iter().map(|(key, value)| (key, (value, mode))));
        return Ok(());
    }
    for item in items(&about["items"]) {
        let key = text(&item["key"]);
        let found = all.iter().find(|(name, _)| name == key);
        let mode = self::mode(&item["mode"]).unwrap_or(mode);
        match found {
            Some((_, value)) => {
                files.insert(text(&item["path"]).to_owned(), (value.clone(), mode));
            }
            None if about["optional"] == true => {}
            None => return Err(format!("references non-existent {kind} key: {key}")),
        }
    }
    Ok(())
}

/// What a pod says of itself as files.
fn own_words(asked: &Asked<'_>, about: &Value, mode: u32, files: &mut Files) -> Result<(), String> {
    for item in items(&about["items"]) {
        let value = field(asked.pod, text(&item["fieldRef"]["fieldPath"]), asked.ip)?;
        files.insert(text(&item["path"]).to_owned(), (value.into_bytes(), mode));
    }
    Ok(())
}

fn machine_folder(about: &Value) -> Result<(), String> {
    let path = Path::new(text(&about["path"]));
    if about["type"] == "DirectoryOrCreate" {
        std::fs::create_dir_all(path).map_err(|error| error.to_string())?;
    }
    if path.exists() { Ok(()) } else { Err(format!("hostPath {} is not there", path.display())) }
}

/// Puts new files in the place of the old ones.
fn write(folder: &Path, files: &Files, number: u32, group: Option<u32>) -> std::io::Result<()> {
    let data = format!("..{number}");
    let fresh = folder.join(&data);
    std::fs::create_dir_all(&fresh)?;
    // Its parent is not for everybody, the mount is.
    std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    for (path, (contents, mode)) in files {
        let path = fresh.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(&fresh))?;
        std::fs::write(&path, contents)?;
        chown(&path, None, group)?;
        let mode = if group.is_some() { mode | 0o040 } else { *mode };
        std::fs::set_permissions(&path, Permissions::from_mode(mode))?;
    }
    let current = folder.join("..data");
    let before = std::fs::read_link(&current).ok();
    let next = folder.join("..data_tmp");
    symlink(&data, &next)?;
    std::fs::rename(&next, &current)?;
    let tops: BTreeSet<&str> = files.keys().filter_map(|path| path.split('/').next()).collect();
    for entry in std::fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("..") && !tops.contains(name.as_ref()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    for top in tops.into_iter().filter(|top| folder.join(top).symlink_metadata().is_err()) {
        symlink(format!("..data/{top}"), folder.join(top))?;
    }
    before.map_or(Ok(()), |before| std::fs::remove_dir_all(folder.join(before)))
}

fn group(pod: &Value) -> Option<u32> {
    pod["spec"]["securityContext"]["fsGroup"].as_u64().and_then(|group| u32::try_from(group).ok())
}

fn mode(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|mode| u32::try_from(mode).ok())
}
