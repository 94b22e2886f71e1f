//! `levers9 dev` is stopped, killed, and started where it cannot.

use std::time::Duration;

use levers9_tests::live::Signal;
use levers9_tests::{Home, Live, Output, wait};

use crate::support::{LONG, SOON, assert_counts, content, text, unique, wait_file, wait_no_process};

const FREE: [&str; 6] = ["--quic", "127.0.0.1:0", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];

/// Starts `levers9 dev` and waits until it says so.
fn dev(home: &Home) -> Live {
    let live = home.cli_spawn(&[&["dev"], &FREE[..]].concat());
    live.wait_text("dev is ready", SOON, |text| text.contains("Ctrl-C stops it"));
    live
}

/// Runs `levers9 dev -- CMD` in a folder.
fn job(home: &Home, command: &[&str]) -> Output {
    home.cli(&[&["dev"], &FREE[..], &["--"], command].concat())
}

fn submit(home: &Home, script: &str) -> String {
    home.cli(&["run", "--detach", "--", "sh", "-c", script]).ok().text().trim().to_owned()
}

fn task(home: &Home, id: &str) -> serde_json::Value {
    home.cli(&["task", "show", id, "--format", "json"]).ok().json()
}

#[test]
fn ctrl_c_ends_the_jobs_and_the_next_start_knows() {
    let home = Home::new();
    let mut first = dev(&home);
    let up = home.path().join("up");
    let id = submit(
        &home,
        &format!(": {}; echo up > {}; echo said; sleep 3600", unique("devctrlc"), up.display()),
    );
    wait_file(&up, SOON);
    first.signal(Signal::SIGINT);
    assert_eq!(first.wait(Duration::from_secs(20)), 0, "{}", first.shown());
    wait_no_process(&unique("devctrlc"), Duration::ZERO);
    let _second = dev(&home);
    let shown = task(&home, &id);
    assert_eq!(shown["status"], "CANCELLED", "{shown:#}");
    assert!(text(&shown, "reason").contains("levers9 dev is stopping"), "{shown:#}");
    assert_eq!(home.cli(&["logs", &id]).ok().text(), "said\n", "its log is kept");
    assert_eq!(home.cli(&["run", "--", "echo", "hi"]).ok().text(), "hi\n");
}

/// A job that ignores SIGTERM has 10 s.
#[test]
fn ctrl_c_ends_a_stubborn_job_too() {
    let home = Home::new();
    let mut first = dev(&home);
    let up = home.path().join("up");
    let script = format!(
        "trap '' TERM; : {}; echo up > {}; while :; do sleep 1; done",
        unique("devstubborn"),
        up.display()
    );
    let id = submit(&home, &script);
    wait_file(&up, SOON);
    first.signal(Signal::SIGINT);
    assert_eq!(first.wait(Duration::from_secs(20)), 0, "{}", first.shown());
    wait_no_process(&unique("devstubborn"), Duration::from_secs(1));
    let _second = dev(&home);
    assert_eq!(task(&home, &id)["status"], "CANCELLED");
}

#[test]
fn after_a_kill_the_next_start_retries_what_ran() {
    let home = Home::new();
    let mut first = dev(&home);
    let tries = home.path().join("tries");
    let script = format!(
        ": {word}; echo x >> {tries}; if [ $(wc -l < {tries}) = 1 ]; then echo first; sleep 3600; fi; echo second",
        word = unique("devkilled"),
        tries = tries.display()
    );
    let id = submit(&home, &script);
    let follower = home.cli_spawn(&["logs", "-f", &id]);
    follower.wait_text("the first attempt", SOON, |text| text == "first\n");
    first.kill9();
    wait_no_process(&unique("devkilled"), Duration::from_secs(10));
    let _second = dev(&home);
    wait::until("the task completes", LONG, || {
        let shown = task(&home, &id);
        if shown["status"] == "COMPLETE" { Ok(()) } else { Err(format!("{shown:#}")) }
    });
    assert_eq!(content(&tries).lines().count(), 2, "it was started twice");
    assert_eq!(task(&home, &id)["attempts"], 2);
    assert_eq!(home.cli(&["logs", &id]).ok().text(), "first\nsecond\n");
}

#[test]
fn a_taken_port_is_one_clear_line() {
    let home = Home::new();
    for (option, udp) in [("--quic", true), ("--http", false), ("--grpc", false)] {
        let (tcp, udp) = if udp {
            (None, Some(std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket")))
        } else {
            (Some(std::net::TcpListener::bind("127.0.0.1:0").expect("a socket")), None)
        };
        let at = tcp.as_ref().map(std::net::TcpListener::local_addr);
        let at = at.or(udp.as_ref().map(std::net::UdpSocket::local_addr)).expect("one").expect("an address");
        let at = at.to_string();
        let mut args = vec!["dev"];
        args.extend(FREE);
        let place = args.iter().position(|arg| *arg == option).expect("it is there") + 1;
        args[place] = &at;
        let out = home.cli(&args);
        assert_eq!(out.code, 1, "{out:?}");
        let lines: Vec<_> = out.stderr.lines().collect();
        assert!(
            lines.len() == 2
                && lines[0].contains(&at)
                && lines[0].contains(option)
                && lines[1].starts_with("hint:"),
            "one line and a hint:\n{}",
            out.stderr
        );
    }
}

#[test]
fn a_second_dev_on_the_same_data_is_one_clear_line() {
    let home = Home::new();
    let _first = dev(&home);
    let out = job(&home, &["echo", "never"]);
    assert_eq!(out.text(), "");
    assert_eq!(out.code, 125, "{out:?}");
    let lines: Vec<_> = out.stderr.lines().collect();
    assert!(
        lines.len() <= 2 && lines[0].contains("in use by another"),
        "one line, perhaps a hint:\n{}",
        out.stderr
    );
    assert_eq!(home.cli(&["run", "--", "echo", "hi"]).ok().text(), "hi\n", "the first one is well");
}

#[test]
fn dev_with_a_command_runs_it_here_and_ends_with_its_code() {
    let home = Home::new();
    assert_eq!(job(&home, &["pwd"]).ok().text().trim(), home.path().to_str().expect("a plain path"));
    let both = job(&home, &["sh", "-c", "echo out; echo err >&2; exit 42"]).with_code(42);
    assert_eq!(both.text(), "out\n");
    assert!(both.stderr.contains("err\n"), "{both:?}");
    assert_eq!(job(&home, &["sh", "-c", "kill -KILL $$"]).code, 137);
    assert_eq!(job(&home, &["no-such-command-anywhere"]).code, 127);
    assert_eq!(job(&home, &["/etc/passwd"]).code, 126);
    let lines = job(&home, &["seq", "10000"]).ok();
    assert_counts(&lines.text(), 10_000, "dev -- seq");
}

#[test]
fn ctrl_c_ends_a_dev_with_a_command() {
    let home = Home::new();
    let script = format!(": {}; echo up; sleep 3600", unique("devjob"));
    let args = [&["dev"], &FREE[..], &["--", "sh", "-c", &script]].concat();
    let mut live = home.cli_spawn(&args);
    live.wait_text("the job is up", SOON, |text| text == "up\n");
    live.signal(Signal::SIGINT);
    assert_eq!(live.wait(SOON), 130, "{}", live.shown());
    wait_no_process(&unique("devjob"), Duration::ZERO);
}
