//! What people type that cannot be, and API servers that are none: each is
//! refused with one error that says what to do, and nothing is registered. And
//! the largest and the strangest that a real cluster may hold.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use levers9_tests::world::{Backend, Setup, World};
use levers9_tests::{Live, Output};
use serde_json::{Value, json};

use crate::support::{IMAGE, PRODUCT, SOON, Site};

/// A controlplane without a cluster.
fn world() -> World {
    let config = format!("worker:\n  image: {IMAGE}\n");
    World::start_with(Backend::Sqlite, Setup { config, ..Setup::default() })
}

fn run(world: &World, args: &[&str], kubeconfig: &Path) -> Output {
    let mut command = world.home.command("levers9", args);
    command.env("KUBECONFIG", kubeconfig);
    Output::of(command)
}

/// Asserts that a command has ended so, with one error that holds these words
/// and a hint, if it is one.
#[track_caller]
fn refused(output: Output, code: i32, words: &str, hint: &str) {
    let output = output.with_code(code);
    let errors: Vec<&str> = output.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{}: {}", output.what, output.stderr);
    assert!(errors[0].contains(words), "{words:?} is not in {}", output.stderr);
    let hinted = output.stderr.lines().any(|line| line.starts_with("hint: ") && line.contains(hint));
    assert!(hint.is_empty() || hinted, "{hint:?} is no hint in {}", output.stderr);
    assert!(output.stdout.is_empty(), "{}: {}", output.what, output.text());
    assert!(!output.stderr.contains("is registered"), "{}", output.stderr);
}

fn none_registered(world: &World) {
    assert_eq!(world.cli(&["cluster", "list", "--format", "json"]).ok().json(), json!([]));
}

/// Asks for a manifest alone, without a kubeconfig.
fn join(world: &World, name: &str, more: &[&str]) -> Output {
    let args = [&["cluster", "join", name, "--gpu", "L40S", "--manifest-only"], more].concat();
    run(world, &args, &world.home.path().join("nowhere"))
}

fn names_are_refused(world: &World) {
    let long = "a".repeat(64);
    let rule = "use 1 to 63 of the characters a-z, 0-9 and '-', starting with a letter";
    for name in [
        "my gke",
        " gke",
        "gke ",
        "",
        "Gke",
        "GKE",
        "7up",
        "gke-",
        "a/b",
        "a.b",
        "a_b",
        "Café",
        "Cafe\u{301}",
        "研究",
        "🚀",
        "a\u{200b}b",
        "a\nb",
        "a\u{1b}[31m",
        &long,
    ] {
        refused(join(world, name, &[]), 2, rule, "");
        for verb in [&["nodes"][..], &["manifest"], &["share"], &["leave", "--yes"], &["rotate-token"]] {
            refused(world.cli(&[&["cluster"], verb, &[name]].concat()), 2, rule, "");
        }
    }
    let said = join(world, "a\u{1b}[31m", &[]).stderr;
    assert!(!said.contains('\u{1b}'), "{said:?}");
}

/// With a mark below the character that is wrong.
fn selectors_are_refused(world: &World) {
    for (item, at, words) in [
        ("", 0, "is empty"),
        ("   ", 0, "is empty"),
        ("=a", 0, "cannot be a label's key"),
        ("pool!=b", 4, "none of the three forms"),
        ("pool in (a,b)", 4, "none of the three forms"),
        ("pool=in (a", 8, "is not closed"),
        ("pool=in (a) b", 12, "goes on after its list"),
        ("pool=notin (a)", 5, "unknown operator"),
        ("a,b", 1, "comma outside parentheses"),
        ("pööl=a", 1, "cannot be a label's key"),
        ("pool=a b", 6, "cannot be a value"),
        ("pool=研究", 5, "cannot be a value"),
        ("a/b/c=d", 3, "cannot be a label's key"),
    ] {
        let output = join(world, "lab", &["--selector", "good", "--selector", item]);
        let lines: Vec<&str> = output.stderr.lines().collect();
        if !item.trim().is_empty() {
            let shown = lines.iter().position(|line| line.trim() == item);
            let shown = shown.unwrap_or_else(|| panic!("{item} is not shown in {}", output.stderr));
            let indent = lines[shown].len() - lines[shown].trim_start().len();
            let mark = lines[shown + 1].chars().position(|c| c == '^');
            assert_eq!(mark, Some(indent + at), "{}", output.stderr);
        }
        refused(output, 2, words, "");
    }
    let twice = join(world, "lab", &["--selector", "pool=a", "--selector", "pool=b"]);
    refused(twice, 2, "no node fulfils both \"pool=a\" and \"pool=b\"", "--selector 'pool=in (a,b)'");
}

fn options_are_refused(world: &World) {
    let long = "a".repeat(64);
    for (option, value, words) in [
        ("--timeout", "0", "--timeout: \"0\" is zero"),
        ("--timeout", "0s", "--timeout: \"0s\" is zero"),
        ("--timeout", "soon", "\"soon\" is not a duration"),
        ("--timeout", "-5", "-5"),
        ("--timeout", "1e9", "\"1e9\" is not a duration"),
        ("--timeout", "99999999999999999999", "more than can be counted"),
        ("--gpu", "", "the type of the cluster's GPUs is missing"),
        ("--gpu", "L 40", "gpu type is \"L 40\""),
        ("--namespace", "My_Space", "namespace is \"My_Space\""),
        ("--namespace", "a.b", "namespace is \"a.b\""),
        ("--namespace", &long, "namespace"),
        ("--flavor", "gcp", "gcp"),
        ("--worker-image", "a b", "image"),
        ("--worker-image", "http://x/y", "image"),
        ("--pull-secret", "My Secret", "pull secret is \"My Secret\""),
    ] {
        let gpu: &[&str] = if option == "--gpu" { &[] } else { &["--gpu", "L40S"] };
        let one = format!("{option}={value}");
        let args = [&["cluster", "join", "lab", "--manifest-only", &one], gpu].concat();
        let output = run(world, &args, &world.home.path().join("nowhere")).with_code(2);
        assert!(
            output.stderr.starts_with("error: ") && output.stderr.contains(words),
            "{one}: {}",
            output.stderr
        );
        assert_eq!(output.stderr.matches("error: ").count(), 1, "{}", output.stderr);
    }
}

#[test]
fn what_cannot_be_typed_is_refused_with_its_rule() {
    let world = world();
    names_are_refused(&world);
    selectors_are_refused(&world);
    options_are_refused(&world);
    none_registered(&world);

    // Taken already: the one there is stays as it is.
    let _first = join(&world, "lab", &[]).ok();
    let before = world.cli(&["cluster", "list", "--format", "json"]).ok().json();
    let again = join(&world, "lab", &["--namespace", "other"]).with_code(1);
    let words = "error: this workspace has a cluster \"lab\" already\nhint: levers9 cluster manifest";
    assert!(again.stderr.contains(words) && again.stdout.is_empty(), "{}", again.stderr);
    let after = world.cli(&["cluster", "list", "--format", "json"]).ok().json();
    assert_eq!((before.as_array().map(Vec::len), &before[0]["id"]), (Some(1), &after[0]["id"]));
    assert_eq!(after[0]["namespace"], "levers9");
}

/// What something that is no API server does with a connection.
#[derive(Clone, Copy)]
enum Answers {
    Nothing,
    /// A byte now and then, without an end.
    Drips,
    Closes,
    Says(&'static str),
}

fn drip(stream: &mut TcpStream) {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n{\"gitVersion\": \"";
    // An answer that comes before its question is another failure.
    let _asked = stream.read(&mut [0; 16 * 1024]);
    let mut sent = stream.write_all(head);
    while sent.is_ok() {
        std::thread::sleep(Duration::from_millis(100));
        sent = stream.write_all(b"v");
    }
}

/// Something that listens where an API server should; it ends with the test.
fn impostor(answers: Answers) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for mut stream in listener.incoming().flatten() {
            match answers {
                Answers::Closes => {}
                Answers::Nothing => held.push(stream),
                Answers::Drips => drop(std::thread::spawn(move || drip(&mut stream))),
                Answers::Says(answer) => {
                    // What was asked first, or the answer may be lost with it.
                    let _read = stream.read(&mut [0; 16 * 1024]);
                    let _gone = stream.write_all(answer.as_bytes());
                }
            }
        }
    });
    format!("http://{place}")
}

fn kubeconfig(world: &World, name: &str, server: &str) -> PathBuf {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{ "name": "c", "cluster": { "server": server } }],
        "users": [{ "name": "u", "user": { "token": "hunter2" } }],
        "contexts": [{ "name": "lab", "context": { "cluster": "c", "user": "u" } }],
    });
    let file = world.home.path().join(name);
    std::fs::write(&file, config.to_string()).expect("a kubeconfig is written");
    file
}

#[test]
fn what_is_no_kubernetes_is_said_to_be_none() {
    let world = world();
    let join = |kubeconfig: &Path, more: &[&str]| {
        let args = [&["cluster", "join", "lab", "--gpu", "L40S", "--timeout", "5"], more].concat();
        let output = run(&world, &args, kubeconfig);
        assert!(!output.stderr.contains("hunter2"), "{}", output.stderr);
        output
    };
    let elsewhere = "--manifest-only";
    let file = |name: &str, text: &[u8]| {
        let file = world.home.path().join(name);
        std::fs::write(&file, text).expect("a file is written");
        file
    };
    refused(join(&world.home.path().join("nowhere"), &[]), 1, "there is no kubeconfig at", "KUBECONFIG");
    refused(join(world.home.path(), &[]), 1, "the kubeconfig cannot be read", elsewhere);
    refused(join(&file("empty", b""), &[]), 1, "kubeconfig", elsewhere);
    refused(
        join(&file("noise", b"\xff\xfe\x00token: hunter2"), &[]),
        1,
        "ends within a character",
        elsewhere,
    );
    let broken = b"users:\n- user:\n    token: hunter2\n  - bad: [\n";
    refused(join(&file("broken", broken), &[]), 1, "the kubeconfig cannot be understood", elsewhere);
    let fine = kubeconfig(&world, "fine", "http://127.0.0.1:1");
    refused(join(&fine, &["--kube-context", "prod"]), 1, "has no context \"prod\"", "there are lab");
    refused(join(&fine, &["--kube-context", ""]), 1, "has no context \"\"", "there are lab");
    refused(join(&fine, &[]), 1, "at http://127.0.0.1:1 cannot be reached", elsewhere);
    let name = kubeconfig(&world, "name", "https://no-such-host.invalid:6443");
    refused(join(&name, &[]), 1, "at https://no-such-host.invalid:6443 cannot be reached", elsewhere);
    let url = kubeconfig(&world, "url", "not a url");
    refused(join(&url, &[]), 1, "the kube context \"lab\" cannot be used", elsewhere);

    let none = "does not answer like a Kubernetes API server";
    let ok = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n";
    let with = |body: &str| -> &'static str {
        Box::leak(format!("{ok}content-length: {}\r\n\r\n{body}", body.len()).into_boxed_str())
    };
    let huge = with(&format!("{{\"gitVersion\": \"{}\"}}", "v".repeat(100_000)));
    for (what, answers, words) in [
        ("closes", Answers::Closes, "cannot be reached"),
        ("noise", Answers::Says("\u{0}\u{1}\u{2}SSH-2.0-OpenSSH\r\n\r\n"), "cannot be reached"),
        ("page", Answers::Says(with("<html>welcome</html>")), none),
        ("empty", Answers::Says(with("")), none),
        ("half", Answers::Says(with("{\"major\": \"1\", \"min")), none),
        ("other", Answers::Says(with("[1, 2, 3]")), none),
        ("huge", Answers::Says(huge), "may not list nodes"),
        ("short", Answers::Says("HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n{"), "cannot be reached"),
        (
            "fails",
            Answers::Says("HTTP/1.1 500 Oh\r\nconnection: close\r\ncontent-length: 4\r\n\r\noops"),
            "127.0.0.1",
        ),
    ] {
        let output = join(&kubeconfig(&world, what, &impostor(answers)), &[]);
        assert!(output.stderr.len() < 1_000, "{what}: {}", output.stderr.len());
        refused(output, 1, words, "");
    }
    // Each is given up after ten seconds, so they are asked at once.
    let slow = [("hangs", Answers::Nothing), ("drips", Answers::Drips)].map(|(what, answers)| {
        let args = ["cluster", "join", "lab", "--gpu", "L40S"];
        let mut command = world.home.command("levers9", &args);
        command.env("KUBECONFIG", kubeconfig(&world, what, &impostor(answers)));
        Live::spawn(command)
    });
    for mut live in slow {
        assert_eq!(live.wait(SOON), 1, "{}", live.shown());
        let said = live.errors();
        let words =
            "does not answer: nothing came in 10 s when it was to be asked for its version\nhint: is it up";
        assert!(said.starts_with("error: ") && said.contains(words), "{said}");
    }
    none_registered(&world);
}

#[test]
fn the_largest_and_the_strangest_of_a_real_cluster_are_shown_and_lent_with_care() {
    let site = Site::new(&[]);
    let api = site.cluster.api();
    let long = format!("{}.{}.{}.{}", "n".repeat(63), "o".repeat(63), "d".repeat(63), "e".repeat(61));
    assert_eq!(long.len(), 253);
    let key = format!("{}.{}/{}", "k".repeat(63), "e".repeat(63), "y".repeat(63));
    let value = "v".repeat(63);
    for node in [long.as_str(), "too-much", "held"] {
        let maker = site.cluster.node(node).label(PRODUCT, "NVIDIA-L40S").label(&key, &value);
        let maker = maker.label("kubernetes.io/hostname", "of-another-name");
        maker.allocatable("cpu", 8).allocatable("memory", "32Gi").allocatable("nvidia.com/gpu", 2).create();
    }
    let notes = json!({ "metadata": { "annotations": { "note": "x".repeat(250_000) } } });
    api.merge("nodes", "", &long, &notes).expect("annotated");
    site.kubelet.add_node(&long);
    let pools = format!("{key}={value}");
    site.cluster.cordon("too-much", true);
    site.cluster.cordon("held", true);
    let joined = site.join("lab", "L40S", &["--selector", &pools]).ok();
    assert!(joined.stderr.contains("lends 3 of the cluster's 3 nodes"), "{}", joined.stderr);

    // Now one has more than can be counted, and one a neighbour that asks for it.
    let huge = i64::MAX.to_string();
    site.cluster.set_allocatable("too-much", "cpu", &huge);
    site.cluster.pod("default", "greedy").request("cpu", &huge).on("held").create();
    site.cluster.cordon("too-much", false);
    site.cluster.cordon("held", false);
    let all = site.json(&["cluster", "nodes", "lab"])["nodes"].clone();
    assert_eq!(all.as_array().map(Vec::len), Some(3), "{all:#}");
    for node in ["too-much", "held"] {
        let shown = site.wait_node("lab", node, "is shown", |node| node["withheld"] == "unreadable");
        assert_eq!((&shown["offered"], &shown["free"]), (&json!(false), &Value::Null), "{shown:#}");
        assert!(shown["why"].as_str().is_some_and(|why| why.contains("cannot be read")), "{shown:#}");
    }
    let table = site.world.cli(&["cluster", "nodes", "lab", "--why"]).ok().text();
    assert!(table.contains("cannot be read"), "{table}");
    // The one that can be counted is lent, whatever it is called.
    let ran = site.world.cli(&["run", "--gpu", "L40S", "--", "echo", "counted"]);
    assert_eq!(ran.ok().text(), "counted\n");
    let worker = site.wait_worker_pod("is there", |_| true);
    assert_eq!(worker["spec"]["nodeName"], *long);
    // What the others could have is not refused, and not tried there.
    let holds = site.world.submit_with(&["--gpu", "L40S", "--gpu-count", "2"], "sleep 600");
    site.world.wait_status(&holds, "RUNNING", SOON);
    let waits = site.world.submit_with(&["--gpu", "L40S", "--gpu-count", "2"], "true");
    let why = site.world.cli(&["why", &waits]).ok().text();
    for said in ["too-much", "held", "unreadable"] {
        assert!(why.contains(said), "{said}: {why}");
    }
    let _ended = site.world.cli(&["task", "stop", &holds]).ok();
    site.world.wait_status(&waits, "COMPLETE", SOON);
    assert_eq!(site.worker_pods().len(), 1);
}
