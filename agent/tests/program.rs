//! `levers9-agent` as a process: what it says of itself, what it refuses, how
//! it ends. Nothing is there to talk to.
#![cfg(test)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tokio::time::Instant;

const PIN: &str = "sha256:a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";

fn agent() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_levers9-agent"));
    // Only what a test says: no cluster of whoever runs it.
    command.env_clear().env("KUBECONFIG", "/nowhere/config").stdin(Stdio::null());
    command
}

/// The command line that a manifest renders at least. Port 9 discards.
fn least() -> Command {
    let mut command = agent();
    command.args(["--controlplane", &format!("levers9://127.0.0.1:9#{PIN}")]);
    command.args(["--cluster", "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a", "--namespace", "levers9"]);
    command.args(["--image-repository", "r.example/levers9/worker"]);
    command
}

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

#[test]
fn it_says_its_version_and_every_option() {
    let (code, out, err) = run(agent().arg("--version"));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(out, format!("levers9-agent {}\n", env!("CARGO_PKG_VERSION")));
    let (code, out, _) = run(agent().arg("--help"));
    assert_eq!(code, Some(0));
    assert!(out.starts_with("Lends a Kubernetes cluster's nodes to a levers9 controlplane"), "{out}");
    for option in [
        "--controlplane <ADDRESS>",
        "--cluster <ID>",
        "--namespace <NS>",
        "--token-file <FILE>",
        "--selector <ITEM>",
        "--image-repository <REPOSITORY>",
        "--flavor <FLAVOR>",
        "--runtime <RUNTIME>",
        "--pull-secret <NAME>",
        "--signs <DIR>",
        "levers9-agent probe",
    ] {
        assert!(out.contains(option), "{option} is missing: {out}");
    }
    assert!(out.contains("/var/run/levers9/token"), "{out}");
}

#[test]
fn it_refuses_what_makes_no_sense_and_names_it() {
    let (code, _, err) = run(agent().args(["--cluster", "nonsense"]));
    assert_eq!((code, err.contains("nonsense")), (Some(2), true), "{err}");
    let (code, _, err) = run(least().args(["--flavor", "openshift"]));
    assert_eq!((code, err.contains("openshift") && err.contains("gke")), (Some(2), true), "{err}");
    let (code, _, err) = run(agent().args(["--cluster", "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a"]));
    assert_eq!((code, err.contains("--controlplane")), (Some(2), true), "{err}");
    let mut tagged = agent();
    tagged.args(["--controlplane", "levers9://cp.example", "--namespace", "levers9"]);
    tagged.args(["--cluster", "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a", "--image-repository", "a/b:1"]);
    let (code, out, err) = run(&mut tagged);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(
        err,
        "error: --image-repository \"a/b:1\" is not an image's reference without tag and digest\n"
    );
}

/// Ends a process that a failed test leaves behind.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn it_runs_with_nobody_there_says_why_and_ends_well_when_told_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "l9_cluster_this_is_never_shown").expect("written");
    let mut command = least();
    command.arg("--token-file").arg(&token).args(["--selector", "a=b,c"]);
    command.arg("--signs").arg(folder.path());
    command.env("LEVERS9_LOG", "trace,mio=info").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().expect("it starts"));
    let mut lines = BufReader::new(running.0.stderr.take().expect("piped"));
    let mut said = String::new();
    // What is wrong, once each: its selector, the API server, the controlplane.
    let wanted =
        ["the selector lends nothing", "the cluster cannot be seen", "no session with the controlplane"];
    while !wanted.iter().all(|words| said.contains(words)) {
        assert_ne!(lines.read_line(&mut said).expect("readable"), 0, "it ended: {said}");
    }
    // It lives, and is not ready.
    let ask = |question: &str| run(agent().args(["probe", question, "--signs"]).arg(folder.path()));
    assert_eq!(ask("alive"), (Some(0), String::new(), String::new()));
    let not_ready = "error: the agent is not connected, or does not see its cluster; its log says why\n";
    assert_eq!(ask("ready"), (Some(1), String::new(), not_ready.to_owned()));
    let pid = running.0.id().to_string();
    let begun = Instant::now();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("it is sent").success());
    lines.read_to_string(&mut said).expect("readable");
    let status = running.0.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(said.contains("stopping: workers and their jobs go on"), "{said}");
    assert!(!said.contains("never_shown"), "{said}");
    assert_eq!(said.matches("the selector lends nothing").count(), 1);
    let mut out = String::new();
    running.0.stdout.take().expect("piped").read_to_string(&mut out).expect("readable");
    assert_eq!(out, "");
}
