//! The environment of a container, as a kubelet makes it of a pod's words.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::state::Shared;

/// Where images have their commands; what an image would say.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The keys of an object and what they hold.
pub(super) type Keys = Vec<(String, Vec<u8>)>;

/// The variables of a container, in their order; an error in the words that
/// its status shows.
pub(super) fn of(
    shared: &Shared,
    pod: &Value,
    container: &Value,
    ip: &str,
) -> Result<Vec<(String, String)>, String> {
    let mut all = Variables(Vec::new());
    all.set("PATH", PATH);
    all.set("HOME", "/");
    all.set("HOSTNAME", text(&pod["metadata"]["name"]));
    all.set("KUBERNETES_SERVICE_HOST", "127.0.0.1");
    all.set("KUBERNETES_SERVICE_PORT", &shared.port.to_string());
    all.set("KUBERNETES_SERVICE_PORT_HTTPS", &shared.port.to_string());
    let namespace = text(&pod["metadata"]["namespace"]);
    for from in items(&container["envFrom"]) {
        let (plural, reference) = match &from["secretRef"] {
            Value::Null => ("configmaps", &from["configMapRef"]),
            secret => ("secrets", secret),
        };
        let prefix = text(&from["prefix"]);
        for (key, value) in keys(shared, plural, namespace, reference)?.unwrap_or_default() {
            all.set(&format!("{prefix}{key}"), &String::from_utf8_lossy(&value));
        }
    }
    for variable in items(&container["env"]) {
        let name = text(&variable["name"]);
        let from = &variable["valueFrom"];
        let value = if from.is_null() {
            Some(all.expand(text(&variable["value"])))
        } else if !from["fieldRef"].is_null() {
            Some(field(pod, text(&from["fieldRef"]["fieldPath"]), ip)?)
        } else if !from["secretKeyRef"].is_null() {
            one_key(shared, "secrets", namespace, &from["secretKeyRef"])?
        } else if !from["configMapKeyRef"].is_null() {
            one_key(shared, "configmaps", namespace, &from["configMapKeyRef"])?
        } else {
            return Err(format!("the kubelet of the tests does not know {from}"));
        };
        if let Some(value) = value {
            all.set(name, &value);
        }
    }
    Ok(all.0)
}

/// Replaces `$(NAME)` by variables; `$$` is a dollar, an unknown name stays.
pub(super) fn expand(text: &str, variables: &[(String, String)]) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let name = rest.strip_prefix("$(").and_then(|rest| rest.split_once(')')).map(|(name, _)| name);
        let value = name.and_then(|name| variables.iter().find(|(key, _)| key == name));
        let taken = match (name, value) {
            _ if rest.starts_with("$$") => {
                out.push('$');
                2
            }
            (Some(name), Some((_, value))) => {
                out.push_str(value);
                name.len() + 3
            }
            _ => {
                out.push('$');
                1
            }
        };
        rest = &rest[taken..];
    }
    out.push_str(rest);
    out
}

/// What a field of a pod says.
pub(super) fn field(pod: &Value, path: &str, ip: &str) -> Result<String, String> {
    let of_map = |map: &str| {
        let key = path.strip_prefix(map)?.strip_prefix("['")?.strip_suffix("']")?;
        let map = map.strip_prefix("metadata.")?;
        Some(text(&pod["metadata"][map][key]).to_owned())
    };
    Ok(match path {
        "metadata.name" | "metadata.namespace" | "metadata.uid" => {
            text(&pod["metadata"][&path["metadata.".len()..]]).to_owned()
        }
        "spec.nodeName" | "spec.serviceAccountName" => text(&pod["spec"][&path["spec.".len()..]]).to_owned(),
        "status.hostIP" | "status.hostIPs" => super::status::HOST_IP.to_owned(),
        "status.podIP" | "status.podIPs" => ip.to_owned(),
        _ => of_map("metadata.labels")
            .or_else(|| of_map("metadata.annotations"))
            .ok_or_else(|| format!("the kubelet of the tests does not know the field {path}"))?,
    })
}

/// The keys of a Secret or ConfigMap; none when it may be missing and is.
pub(super) fn keys(
    shared: &Shared,
    plural: &str,
    namespace: &str,
    reference: &Value,
) -> Result<Option<Keys>, String> {
    let name = reference["name"].as_str().or(reference["secretName"].as_str()).unwrap_or_default();
    let object = match shared.api.get(plural, namespace, name) {
        Ok(object) => object,
        Err(refused) if refused.code == 404 && reference["optional"] == true => return Ok(None),
        Err(refused) if refused.code == 404 => {
            return Err(format!("{} \"{name}\" not found", plural.trim_end_matches('s')));
        }
        Err(refused) => return Err(refused.message),
    };
    let pairs = |map: &Value, encoded: bool| {
        let decode = |value: &Value| match (value.as_str().unwrap_or_default(), encoded) {
            (value, true) => STANDARD.decode(value).unwrap_or_default(),
            (value, false) => value.as_bytes().to_vec(),
        };
        let map = map.as_object().into_iter().flatten();
        map.map(|(key, value)| (key.clone(), decode(value))).collect::<Keys>()
    };
    let mut all = pairs(&object["data"], plural == "secrets");
    all.extend(pairs(&object["binaryData"], true));
    Ok(Some(all))
}

fn one_key(
    shared: &Shared,
    plural: &str,
    namespace: &str,
    reference: &Value,
) -> Result<Option<String>, String> {
    let key = text(&reference["key"]);
    let Some(all) = keys(shared, plural, namespace, reference)? else { return Ok(None) };
    match all.iter().find(|(name, _)| name == key) {
        Some((_, value)) => Ok(Some(String::from_utf8_lossy(value).into_owned())),
        None if reference["optional"] == true => Ok(None),
        None => {
            let kind = if plural == "secrets" { "Secret" } else { "ConfigMap" };
            let name = text(&reference["name"]);
            Err(format!("couldn't find key {key} in {kind} {namespace}/{name}"))
        }
    }
}

struct Variables(Vec<(String, String)>);

impl Variables {
    /// The last word about a variable counts.
    fn set(&mut self, name: &str, value: &str) {
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_owned(), value.to_owned()));
    }

    fn expand(&self, text: &str) -> String {
        expand(text, &self.0)
    }
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn variables_are_put_in_as_kubernetes_does() {
        let variables = [("A".to_owned(), "x".to_owned()), ("B".to_owned(), "$(A)".to_owned())];
        let expanded = |text: &str| expand(text, &variables);
        assert_eq!(expanded("a-$(A)-$(B)"), "a-x-$(A)");
        assert_eq!(expanded("$$(A) $(NONE) $A $"), "$(A) $(NONE) $A $");
        assert_eq!(expanded("$(A"), "$(A");
    }
}
