//! Builds the images with whichever engine is here, takes them out of its
//! storage at once, and leaves nothing of its own there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use levers9_tests::{Home, Output, binaries};
use serde_json::Value;

use crate::Images;

/// What must be nowhere in an image, though whoever builds one has it at hand.
pub(crate) const CANARY: &str = "levers9-canary-5d1f0c";
/// Where the sources are, with and without a password.
const REMOTE: &str = "https://somebody:levers9-canary-5d1f0c@git.example.org/levers9.git";
pub(crate) const SOURCE: &str = "https://git.example.org/levers9.git";

/// What the images' names begin with, before the id of the test's process.
const PREFIX: &str = "localhost/levers9-test-";

/// An image: what its configuration says, and its root as a folder.
pub(crate) struct Image {
    pub(crate) config: Config,
    pub(crate) root: PathBuf,
}

/// What runtimes read of an image.
pub(crate) struct Config {
    pub(crate) user: String,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) env: Vec<String>,
    pub(crate) labels: BTreeMap<String, String>,
    /// All of it, with the history.
    pub(crate) whole: Value,
}

#[derive(Clone, Copy)]
enum Engine {
    Docker,
    Buildah,
}

/// A program with arguments, which must succeed.
fn run(program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    Output::of(command).ok()
}

/// Whether a program is on this machine.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

impl Engine {
    fn here() -> Self {
        let answers = |mut docker: Command| {
            docker.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        let mut info = Command::new("docker");
        info.arg("info");
        if has("docker") && answers(info) {
            return Self::Docker;
        }
        assert!(
            has("buildah"),
            "neither a docker daemon nor buildah is here: run .ci/services, or install buildah"
        );
        Self::Buildah
    }

    fn word(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Buildah => "buildah",
        }
    }

    fn run(self, args: &[&str]) -> Output {
        run(self.word(), args)
    }

    fn config(self, image: &str) -> Config {
        let (whole, at) = match self {
            Self::Docker => (self.run(&["image", "inspect", image]).json()[0].take(), "/Config"),
            Self::Buildah => (self.run(&["inspect", "--type", "image", image]).json(), "/OCIv1/config"),
        };
        let config = whole.pointer(at).expect("an image has a configuration");
        let texts = |key: &str| -> Vec<String> {
            let list = config[key].as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let labels = config["Labels"].as_object().expect("labels");
        let label = |(key, value): (&String, &Value)| {
            (key.clone(), value.as_str().expect("labels are texts").to_owned())
        };
        Config {
            user: config["User"].as_str().unwrap_or_default().to_owned(),
            entrypoint: texts("Entrypoint"),
            env: texts("Env"),
            labels: labels.iter().map(label).collect(),
            whole,
        }
    }

    /// Unpacks an image into a folder, with owners and modes.
    fn unpack(self, image: &str, root: &Path) {
        std::fs::create_dir(root).expect("a folder for an image");
        let to = root.to_str().expect("a path in UTF-8");
        match self {
            Self::Docker => {
                let container = self.run(&["create", image]).text().trim().to_owned();
                let script = "docker export \"$1\" | tar -x --numeric-owner --exclude=.dockerenv -C \"$2\"";
                run("bash", &["-o", "pipefail", "-c", script, "bash", &container, to]);
                self.run(&["rm", &container]);
            }
            Self::Buildah => {
                let container = self.run(&["from", "--pull-never", image]).text().trim().to_owned();
                let from = self.run(&["mount", &container]).text().trim().to_owned();
                run("cp", &["-a", &format!("{from}/."), to]);
                self.run(&["rm", &container]);
            }
        }
    }

    /// Removes what a test left here that was killed while it built.
    fn tidy(self) {
        let orphan = |image: &str| {
            let pid = image.strip_prefix(PREFIX).and_then(|rest| rest.split('/').next());
            pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
        };
        let containers = match self {
            Self::Docker => self.run(&["ps", "--all", "--format", "{{.ID}} {{.Image}}"]),
            Self::Buildah => self.run(&["containers", "--format", "{{.ContainerID}} {{.ImageName}}"]),
        };
        for (id, image) in containers.text().lines().filter_map(|line| line.split_once(' ')) {
            if orphan(image.trim_start()) {
                self.run(&["rm", id]);
            }
        }
        let images = match self {
            Self::Docker => self.run(&["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]),
            Self::Buildah => self.run(&["images", "--format", "{{.Name}}:{{.Tag}}"]),
        };
        images.text().lines().filter(|image| orphan(image)).for_each(|image| self.remove(image));
    }

    /// Removes an image by its name; what others use of it stays.
    fn remove(self, image: &str) {
        match self {
            Self::Docker => self.run(&["image", "rm", image]),
            Self::Buildah => self.run(&["rmi", image]),
        };
    }
}

/// Builds both as `make images` does, with things around that must not get in.
pub(crate) fn build() -> Images {
    assert!(
        nix::unistd::geteuid().is_root(),
        "to unpack images and to start containers these tests need root"
    );
    assert!(has("runc"), "runc is not here: run .ci/services, or install it");
    let engine = Engine::here();
    engine.tidy();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/docker/build");
    let binaries = binaries::path("levers9-worker");
    let prefix = format!("{PREFIX}{}", std::process::id());
    let mut build = Command::new(script);
    build.arg(binaries.parent().expect("binaries are in a folder"));
    build.env("ENGINE", engine.word()).env("IMAGE_PREFIX", &prefix).env("TAG", "a");
    build.env("LEVERS9_BOOTSTRAP_SECRET", CANARY).env("LEVERS9_WORKER_TOKEN", CANARY);
    build.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "remote.origin.url");
    build.env("GIT_CONFIG_VALUE_0", REMOTE).env("SOURCE", "");
    let said = Output::of(build).ok().text();

    let folder = Home::new();
    let image = |name: &str| {
        let full = format!("{prefix}/{name}:a");
        let line =
            said.lines().find(|line| line.starts_with(&full)).unwrap_or_else(|| panic!("{full}: {said}"));
        assert!(line.ends_with("MB"), "its size is told: {line}");
        let image = Image { config: engine.config(&full), root: folder.path().join(name) };
        engine.unpack(&full, &image.root);
        engine.remove(&full);
        image
    };
    let (worker, controlplane) = (image("worker"), image("controlplane"));
    Images { worker, controlplane, _folder: folder }
}
