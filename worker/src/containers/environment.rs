//! The environment a container starts with, and where. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use levers9_wire::ContainerId;
use levers9_wire::valid::Spec;

/// The private working folder's name in the container's folder.
pub(super) const WORK: &str = "work";

/// The folder a container runs in.
pub(super) fn workdir(given: Option<&Path>, folder: &Path) -> PathBuf {
    given.map_or_else(|| folder.join(WORK), Path::to_owned)
}

/// The whole environment, the user's own variables last. `door` is the port
/// of the container's door, where its token is shown.
pub(super) fn build(
    container: ContainerId,
    spec: &Spec,
    path: &OsStr,
    workdir: &Path,
    gpus: &str,
    door: Option<u16>,
) -> Vec<(String, Vec<u8>)> {
    let folder = workdir.as_os_str().as_bytes();
    let own: [(&str, &[u8]); 9] = [
        ("PATH", path.as_bytes()),
        ("HOME", folder),
        ("PWD", folder),
        ("LANG", b"C.UTF-8"),
        ("LEVERS9_TASK_ID", &spec.task.to_string().into_bytes()),
        ("LEVERS9_CONTAINER_ID", &container.to_string().into_bytes()),
        ("LEVERS9_ATTEMPT", &spec.attempt.to_string().into_bytes()),
        // Empty hides the cards that were given to others.
        ("NVIDIA_VISIBLE_DEVICES", gpus.as_bytes()),
        ("CUDA_VISIBLE_DEVICES", gpus.as_bytes()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_vec()));
    let own = own.chain(door.into_iter().flat_map(|port| door_variables(spec, port)));
    own.chain(spec.env.0.iter().cloned()).collect()
}

/// Where what runs in the container finds the controlplane, and as whom.
fn door_variables(spec: &Spec, port: u16) -> [(String, Vec<u8>); 5] {
    let variables = [
        ("LEVERS9_TOKEN", spec.token.expose().to_owned()),
        ("LEVERS9_CONTROLPLANE_HOST", "127.0.0.1".to_owned()),
        ("LEVERS9_CONTROLPLANE_PORT", port.to_string()),
        ("LEVERS9_CONTROLPLANE_TLS", "false".to_owned()),
        ("LEVERS9_CONTROLPLANE_HTTP_URL", format!("http://127.0.0.1:{port}")),
    ];
    variables.map(|(name, value)| (name.to_owned(), value.into_bytes()))
}
