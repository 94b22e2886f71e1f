//! What is in the images runs as pods run it: not root, read-only, without a
//! capability. The last ones are whole: a worker that does a job, an agent and
//! a controlplane that start.

use std::net::SocketAddr;
use std::time::Duration;

use levers9_tests::http::Wire;
use levers9_tests::{Backend, World, wait};

use crate::container::Container;
use crate::images;

const START: Duration = Duration::from_secs(30);

/// Where the agent's template mounts an empty folder into a worker's pod.
const DATA: &str = "/var/lib/levers9/worker";

#[test]
fn every_binary_is_found_by_its_name_and_runs() {
    let images = images();
    for (image, binary) in [
        (&images.worker, "levers9-agent"),
        (&images.worker, "levers9-worker"),
        (&images.controlplane, "levers9-controlplane"),
    ] {
        let said = Container::of(image, &[binary, "--version"]).run().ok();
        assert_eq!(said.text(), format!("{binary} {}\n", env!("CARGO_PKG_VERSION")));
    }
}

#[test]
fn a_job_has_no_right_it_could_use() {
    let script = "id -u; id -g; grep -E '^(Cap|NoNewPrivs)' /proc/self/status; touch /usr/x /etc/x 2>&1; touch /tmp/x && echo kept";
    let said = Container::of(&images().worker, &["sh", "-c", script]).empty_dir("/tmp").run().ok().text();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[..2], ["65532", "65532"]);
    let capabilities: Vec<_> = lines.iter().filter(|line| line.starts_with("Cap")).collect();
    assert_eq!(capabilities.len(), 5, "{said}");
    assert!(capabilities.iter().all(|line| line.ends_with("\t0000000000000000")), "{said}");
    assert!(lines.contains(&"NoNewPrivs:\t1"), "{said}");
    assert_eq!(said.matches("Read-only file system").count(), 2, "{said}");
    assert!(said.ends_with("kept\n"), "{said}");
}

#[test]
fn a_job_has_a_shell_and_python() {
    let script = "seq 3 | sort -r | xargs echo | sed 's/ /-/g' | awk '{ print $1 }'; find /etc -name passwd | wc -l; tar --version | head -n 1 | grep -c GNU";
    let said = Container::of(&images().worker, &["sh", "-c", script]).run().ok();
    assert_eq!(said.text(), "3-2-1\n1\n1\n");
    let python = "
import asyncio, ctypes, json, os, socket, sqlite3, ssl, subprocess, zlib
print(len(ssl.create_default_context().get_ca_certs()) > 100)
print(sqlite3.connect(':memory:').execute('select 1').fetchone())
# Compiled when the image was made: nothing can be kept on a read-only root.
print(os.path.exists(json.__cached__))
print(subprocess.run(['sh', '-c', 'whoami'], capture_output=True, text=True).stdout, end='')
";
    let said = Container::of(&images().worker, &["python3", "-c", python]).run().ok();
    assert_eq!(said.text(), "True\n(1,)\nTrue\nlevers9\n", "{}", said.stderr);
}

#[test]
fn a_worker_of_the_image_does_a_job() {
    let world = World::start(Backend::Sqlite);
    let enrolment = world.cli(&["worker", "enroll", "--format", "json"]).ok().json();
    let text = |key: &str| enrolment[key].as_str().expect("an enrolment has text fields").to_owned();
    // As the agent's template has it.
    let words = [
        "levers9-worker",
        "--allow-unisolated",
        "--cpu",
        "1000m",
        "--memory",
        "262144Ki",
        "--data",
        DATA,
        "--exit-when-refused",
    ];
    let pod = Container::of(&images().worker, &words).host_network().empty_dir(DATA).empty_dir("/tmp");
    let pod = pod.env("LEVERS9_CONTROLPLANE", &text("address")).env("LEVERS9_WORKER_TOKEN", &text("token"));
    let mut worker = pod.start();
    wait::until("the worker in the container is ready", START, || {
        assert_eq!(worker.live.poll(), None, "the worker has ended:\n{}", worker.live.errors());
        let list = world.cli(&["worker", "list", "--format", "json"]).ok().json();
        let ready = list.as_array().is_some_and(|rows| rows.iter().any(|row| row["state"] == "ready"));
        if ready { Ok(()) } else { Err(format!("{list}\n{}", worker.live.errors())) }
    });
    let job = "import os, sys; print(os.getuid(), sys.version_info.major); open('mine', 'w').write('x')";
    let said = world.cli(&["run", "--", "python3", "-c", job]).ok();
    assert_eq!(said.text(), "65532 3\n", "{}", said.stderr);
    let said = world.cli(&["run", "--", "sh", "-c", "echo no >&2; exit 7"]).with_code(7);
    assert!(said.stderr.contains("no\n"), "{}", said.stderr);
}

#[test]
fn a_controlplane_of_the_image_serves() {
    let any = "127.0.0.1:0";
    // A folder of its own in the volume, whose top belongs to root.
    let config = format!("data: /var/lib/levers9/data\nquic: {any}\ngrpc: {any}\nhttp: {any}\n");
    let pod = Container::of(&images().controlplane, &["levers9-controlplane"]).host_network();
    let pod = pod.file("/etc/levers9/controlplane.yaml", &config).empty_dir("/var/lib/levers9");
    let mut controlplane = pod.start();
    let port = wait::until("the controlplane in the container is ready", START, || {
        let log = controlplane.live.errors();
        assert_eq!(controlplane.live.poll(), None, "the controlplane has ended:\n{log}");
        let at = log.split(" http=").nth(1).and_then(|rest| rest.split_whitespace().next());
        at.and_then(|at| at.rsplit(':').next()?.parse::<u16>().ok()).ok_or(log)
    });
    let mut wire = Wire::connect(SocketAddr::from(([127, 0, 0, 1], port)));
    wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it is sent");
    let answer = wire.answer("GET").expect("an answer");
    assert_eq!(answer.status(), 200, "{}", answer.text());
}

#[test]
fn an_agent_of_the_image_starts_and_says_what_it_lacks() {
    let words = [
        "levers9-agent",
        "--controlplane",
        "levers9://127.0.0.1:9",
        "--cluster",
        "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a",
        "--namespace",
        "levers9",
        "--image-repository",
        "registry.example.org/levers9/worker",
    ];
    let mut agent = Container::of(&images().worker, &words).start();
    wait::until("the agent misses the API server of Kubernetes", START, || {
        let log = agent.live.errors();
        assert_eq!(agent.live.poll(), None, "the agent has ended:\n{log}");
        if log.contains("API server") { Ok(()) } else { Err(log) }
    });
}
