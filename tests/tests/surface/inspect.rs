//! `doctor`: each way it can break is found at its step, with its side and a
//! hint. `bench`: its figures, and its bounds.

use std::net::UdpSocket;

use levers9_tests::{Backend, Home, Output, Person, World};
use serde_json::Value;

use crate::support::{Operator, fails, running, shared, terminate, unknown_token, wait_lines};

const STEPS: [&str; 8] = ["resolve", "udp", "tcp", "certificate", "session", "ping", "stream", "worker"];

/// The step that failed, whose side it is on, and what is said of it. Those
/// before it are well, or have another beside them; those after it were not
/// tried, but for TCP where UDP fails.
fn failed(output: &Output) -> (String, String, String, String) {
    assert_eq!(output.code, 1, "{}{}", output.text(), output.stderr);
    let report = output.json();
    assert_eq!(report["ok"], false, "{report}");
    let steps = report["steps"].as_array().expect("steps");
    let names: Vec<&str> = steps.iter().filter_map(|step| step["step"].as_str()).collect();
    assert_eq!(names, STEPS);
    let states: Vec<&str> = steps.iter().filter_map(|step| step["state"].as_str()).collect();
    let at = states.iter().position(|state| *state == "failed").unwrap_or_else(|| panic!("{report}"));
    let way = |name: &str| matches!(name, "udp" | "tcp");
    let well = |at: usize| states[at] == "ok" || (states[at] == "warned" && way(names[at]));
    assert!((0..at).all(well), "{report}");
    let tried = usize::from(names[at] == "udp");
    assert!(states[at + 1..][..tried].iter().all(|state| *state == "failed"), "{report}");
    assert!(states[at + 1 + tried..].iter().all(|state| *state == "skipped"), "{report}");
    let text = |field: &str| steps[at][field].as_str().unwrap_or_default().to_owned();
    (text("step"), text("side"), text("detail"), text("hint"))
}

fn doctor(person: &Person) -> Output {
    person.cli(&["doctor", "--format", "json"])
}

#[test]
fn all_is_well() {
    let world = &shared().world;
    let mut run = world.cli_spawn(&["run", "--", "sh", "-c", "echo on; exec sleep 300"]);
    wait_lines(&run, 1);
    let report = world.cli(&["doctor", "--format", "json"]).ok().json();
    assert_eq!(report["ok"], true, "{report}");
    let worker = &report["steps"][7];
    let detail = worker["detail"].as_str().expect("a detail");
    assert!(detail.contains("a stream to the one of container"), "{detail}");
    let text = world.cli(&["doctor"]).ok().text();
    let words: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(words[..8], STEPS, "{text}");
    assert!(text.trim_end().ends_with(&format!("and {}.", report["address"].as_str().expect("an address"))));
    let _left = terminate(&mut run);
}

#[test]
fn nothing_listens() {
    let place = crate::support::closed_port();
    let (step, side, detail, hint) =
        failed(&doctor(&Person::new(format!("levers9://{place}"), unknown_token())));
    assert_eq!((step.as_str(), side.as_str()), ("udp", "controlplane"));
    assert_eq!(detail, format!("nothing is listening on UDP {place}"));
    assert!(hint.contains("is the controlplane running"), "{hint}");
}

#[test]
fn nobody_answers() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let place = silent.local_addr().expect("an address");
    let (step, side, detail, hint) =
        failed(&doctor(&Person::new(format!("levers9://{place}"), unknown_token())));
    assert_eq!((step.as_str(), side.as_str()), ("udp", "network"));
    assert_eq!(detail, format!("no answer from UDP {place}"));
    assert!(hint.contains("firewall"), "{hint}");
}

#[test]
fn no_such_name() {
    let (step, side, detail, _) =
        failed(&doctor(&Person::new("levers9://no-such-host.invalid:443", unknown_token())));
    assert_eq!((step.as_str(), side.as_str()), ("resolve", "this_machine"));
    assert!(detail.starts_with("cannot resolve \"no-such-host.invalid\""), "{detail}");
}

#[test]
fn another_ca() {
    let address = shared().world.controlplane.address();
    let (place, _) = address.split_once("#sha256:").expect("an address with a pin");
    let stranger = Person::new(format!("{place}#sha256:{}", "0".repeat(64)), unknown_token());
    let (step, side, detail, hint) = failed(&doctor(&stranger));
    assert_eq!((step.as_str(), side.as_str()), ("certificate", "token"));
    assert!(detail.contains("levers9 CA") && hint.contains("pin"), "{detail} {hint}");
}

#[test]
fn a_token_that_is_no_good() {
    let stranger = Person::of(&shared().world, unknown_token());
    let did = doctor(&stranger);
    let (step, side, detail, hint) = failed(&did);
    assert_eq!((step.as_str(), side.as_str()), ("session", "token"));
    assert!(detail.contains("does not know this token") && hint.contains("levers9 login"), "{detail} {hint}");
    assert!(!did.text().contains(&unknown_token()), "the token is shown");
}

#[test]
fn no_worker() {
    let world = World::start(Backend::Sqlite);
    let (step, side, detail, hint) = failed(&world.cli(&["doctor", "--format", "json"]));
    assert_eq!((step.as_str(), side.as_str()), ("worker", "worker"));
    assert_eq!(detail, "none of 0 workers is connected");
    assert!(hint.contains("levers9 worker enroll"), "{hint}");
    let text = world.cli(&["doctor"]).with_code(1).text();
    assert!(text.contains("The trouble is on the side of the worker.\nhint: "), "{text}");
}

#[test]
fn another_server_than_levers9() {
    // A UDP port that echoes: something answers, and it is no QUIC that levers9 speaks.
    let echo = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let place = echo.local_addr().expect("an address");
    let echoing = std::thread::spawn(move || {
        let mut packet = [0; 2048];
        while let Ok((length, from)) = echo.recv_from(&mut packet) {
            if length == 1 || echo.send_to(&packet[..length], from).is_err() {
                return;
            }
        }
    });
    let (step, _, detail, _) = failed(&doctor(&Person::new(format!("levers9://{place}"), unknown_token())));
    assert_eq!(step, "certificate", "{detail}");
    let stop = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    stop.send_to(&[0], place).expect("it can be stopped");
    echoing.join().expect("it stops");
}

fn figures(report: &Value) -> Vec<(&str, f64)> {
    let flows = report["flows"].as_array().expect("flows");
    flows
        .iter()
        .map(|flow| {
            assert!(flow["bytes"].as_u64().expect("bytes") > 1 << 20, "{report}");
            (flow["direction"].as_str().expect("a direction"), flow["mb_per_s"].as_f64().expect("a rate"))
        })
        .collect()
}

#[test]
fn a_bench_measures_both_ends() {
    let world = &shared().world;
    let task = world.submit("exec sleep 300");
    running(world, &task);
    let short = ["--duration", "300ms", "--streams", "2", "--format", "json"];
    let ask = |more: &[&str]| world.cli(&[&["bench"][..], more, &short].concat()).ok().json();
    let report = ask(&[]);
    assert_eq!(report["to"], "controlplane");
    let directions: Vec<&str> = figures(&report).iter().map(|(direction, _)| *direction).collect();
    assert_eq!(directions, ["up", "down"]);
    assert_eq!(report["flows"][0]["cpu"].as_array().map(Vec::len), Some(2), "here and there: {report}");
    // By its task's id as well as by its own.
    let report = ask(&["--to", &task, "--direction", "down"]);
    assert_eq!(figures(&report).len(), 1);
    let ends: Vec<_> =
        report["flows"][0]["cpu"].as_array().expect("ends").iter().map(|end| &end["end"]).collect();
    assert_eq!(ends, ["levers9 bench", "controlplane", "worker"]);
    assert!(report["worker_rtt_ms"].as_f64().expect("a round trip") > 0.0, "{report}");
    let _stopped = world.cli(&["task", "stop", &task]);
}

#[test]
fn a_bench_is_for_admins_and_bounded() {
    let world = &shared().world;
    let said = "error: a token of kind workspace may not fill the line\nhint: benches are for admins";
    fails(&Person::of_kind(world, "workspace").cli(&["bench", "--duration", "100ms"]), 1, said);
    let did = world.cli(&["bench", "--to", "01890000-0000-7000-8000-000000000000"]);
    fails(&did, 1, "error: no such container\nhint: levers9 container list shows them");
    for (option, value) in
        [("--duration", "0"), ("--duration", "61s"), ("--streams", "0"), ("--streams", "65"), ("--to", "x")]
    {
        let did = world.cli(&["bench", option, value]);
        assert_eq!(did.code, 2, "{option} {value}: {}", did.stderr);
        assert!(did.stderr.contains(value) && did.stderr.contains(option), "{}", did.stderr);
    }
}

#[test]
fn a_doctor_is_for_everybody_with_a_token() {
    let operator = Operator::start(Home::new(), "", &[]);
    let stranger = operator.person(unknown_token());
    assert_eq!(failed(&doctor(&stranger)).0, "session");
    let member = Person::of_kind(&shared().world, "workspace");
    let report = doctor(&member).ok().json();
    assert_eq!(report["ok"], true, "{report}");
}
