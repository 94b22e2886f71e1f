//! Where the binaries of the control plane are: in the folder that
//! `KUBEBUILDER_ASSETS` names, or where `.ci/kubernetes` has built them.
//! The script alone knows the place; it is asked once.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The path of a component, such as `kube-apiserver`.
///
/// # Panics
/// When it is not there.
pub(super) fn path(component: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(folder);
    let binary = folder.join(component);
    assert!(
        binary.is_file(),
        "{component} is not in {}: run `.ci/kubernetes`, which builds it once per machine (`make test` does), \
         or let KUBEBUILDER_ASSETS name a folder with etcd, kube-apiserver, kube-controller-manager and \
         kube-scheduler",
        folder.display()
    );
    binary
}

fn folder() -> PathBuf {
    let workspace =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above this crate");
    let mut asked = Command::new(workspace.join(".ci/kubernetes"));
    let said = asked.arg("where").stdin(Stdio::null()).output().expect(".ci/kubernetes starts");
    assert!(said.status.success(), ".ci/kubernetes where: {}", String::from_utf8_lossy(&said.stderr));
    PathBuf::from(String::from_utf8_lossy(&said.stdout).trim())
}
