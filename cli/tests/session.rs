#![cfg(test)]
//! The real binary against a controlplane that plays a script: what it does
//! with answers, refusals, lost sessions and signals.

mod cluster;
mod fake;
mod reach;
mod support;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::time::Duration;

use tokio::time::Instant;

use fake::{Fake, Step, ended, failure, line, lines, note, numbers, submitted};
use levers9_transport::accept::Refusal;
use levers9_wire::TaskId;
use levers9_wire::v1::{
    self, LogStream, RefuseCode, ResetCode, call_answer::Answer, call_open, stream_open::Kind,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Did, Home};

fn task() -> TaskId {
    "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a".parse().unwrap()
}

/// A controlplane whose only task behaves as told at each follow.
fn with_task(follow: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> Fake {
    Fake::start(move |kind, before| match kind {
        Kind::Follow(_) => follow(before),
        Kind::Call(v1::CallOpen { request: Some(call_open::Request::Submit(_)), .. }) => {
            submitted(task(), "")
        }
        _ => vec![Step::Answer(Answer::TaskStop(v1::TaskStopAnswer { status: "CANCELLED".to_owned() }))],
    })
}

fn home(fake: &Fake) -> Home {
    let home = Home::new().with_context("here", &fake.address());
    assert_eq!(home.run(&["config", "select", "here"]).code, 0);
    home
}

fn start(home: &Home, args: &[&str]) -> Child {
    home.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn tell(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

fn end(home: &Home, child: Child) -> Did {
    home.did(&child.wait_with_output().unwrap())
}

/// Waits for the first line of a stream and gives the stream back.
fn first_line<R: std::io::Read>(stream: R) -> (String, BufReader<R>) {
    let mut reader = BufReader::new(stream);
    let mut text = String::new();
    reader.read_line(&mut text).unwrap();
    (text, reader)
}

#[test]
fn run_keeps_the_streams_apart_and_ends_with_the_jobs_code() {
    let fake = with_task(|_| {
        let all = vec![
            line(1, LogStream::Stdout, "out\n"),
            line(2, LogStream::Stderr, "err\n"),
            line(3, LogStream::System, "nearly out of memory\n"),
            line(4, LogStream::Stdout, "no newline"),
        ];
        vec![
            note("waiting for a worker"),
            note("waiting for a worker"),
            lines(all),
            ended("ERROR", Some(7), ""),
        ]
    });
    let did = home(&fake).run(&["run", "--", "job"]);
    let err = "levers9: waiting for a worker\nerr\nlevers9: nearly out of memory";
    assert_eq!(did, Did { code: 7, out: "out\nno newline".to_owned(), err: err.to_owned() });
    assert!(fake.follows()[0].caller && fake.follows()[0].follow);
}

#[test]
fn what_levers9_ended_has_its_code_and_reason() {
    for (status, code, reason, exit, said) in [
        ("TIMEOUT", None, "ran for 10m", 124, "levers9: ran for 10m"),
        ("EXPIRED", None, "", 125, "levers9: the task expired before it was started"),
        ("CANCELLED", None, "stopped by kim", 125, "levers9: stopped by kim"),
        ("ERROR", Some(127), "no command \"jbo\"", 127, "levers9: no command \"jbo\""),
        ("COMPLETE", Some(0), "", 0, ""),
    ] {
        let fake = with_task(move |_| vec![ended(status, code, reason)]);
        let did = home(&fake).run(&["attach", &task().to_string()]);
        assert_eq!((did.code, did.out.as_str(), did.err.as_str()), (exit, "", said), "{status}");
    }
}

#[test]
fn a_lost_session_costs_no_line_and_repeats_none() {
    let fake = with_task(|before| match before {
        0 => vec![numbers(1, 3), Step::Close(ResetCode::CarrierLost)],
        // A stream that ends without a word is no end, and what comes twice is printed once.
        1 => vec![numbers(3, 4)],
        2 => vec![lines(vec![line(5, LogStream::Stdout, "ha")]), Step::Close(ResetCode::Internal)],
        _ => vec![lines(vec![line(1001, LogStream::Stdout, "lf\n")]), ended("COMPLETE", Some(0), "")],
    });
    let did = home(&fake).run(&["run", "--", "job"]);
    assert_eq!((did.code, did.out.as_str()), (0, "1\n2\n3\n4\nhalf"));
    assert_eq!(fake.follows().iter().map(|open| open.since_line).collect::<Vec<_>>(), [0, 3, 4, 5]);
    assert_eq!(did.err.matches("is lost").count(), 2, "{}", did.err);
    assert_eq!(
        did.err.matches("again\n").count() + usize::from(did.err.ends_with("again")),
        4,
        "{}",
        did.err
    );
}

#[test]
fn logs_count_from_the_end_only_until_something_was_printed() {
    let fake = with_task(|before| match before {
        0 => vec![Step::Close(ResetCode::CarrierLost)],
        1 => vec![numbers(98, 99), Step::Close(ResetCode::CarrierLost)],
        _ => vec![numbers(100, 100), ended("ERROR", Some(3), "")],
    });
    let did = home(&fake).run(&["logs", "-f", "--tail", "2", &task().to_string()]);
    assert_eq!((did.code, did.out.as_str()), (0, "98\n99\n100"));
    let asked: Vec<_> = fake.follows().iter().map(|open| (open.tail, open.since_line, open.caller)).collect();
    assert_eq!(asked, [(Some(2), 0, false), (Some(2), 0, false), (None, 99, false)]);
}

#[test]
fn an_unknown_task_is_an_error_at_once() {
    let hint = "tasks are kept for 30 days: levers9 task list";
    let refusal =
        move || v1::follow_event::Kind::Failure(failure(v1::FailureCode::NotFound, "no such task", hint));
    let fake = with_task(move |_| vec![Step::Event(refusal())]);
    let home = home(&fake);
    let said = format!("error: no such task\nhint: {hint}");
    let did = home.run(&["logs", "-f", &task().to_string()]);
    assert_eq!((did.code, did.err.as_str()), (1, said.as_str()));
    assert_eq!(home.run(&["attach", &task().to_string()]).code, 125);
}

#[test]
fn a_call_is_sent_again_with_the_same_id_when_its_session_is_lost() {
    let fake = Fake::start(|kind, before| match kind {
        Kind::Follow(_) => vec![ended("COMPLETE", Some(0), "")],
        _ if before == 0 => vec![Step::Close(ResetCode::CarrierLost)],
        _ if before == 1 => {
            vec![Step::Answer(Answer::Failure(failure(v1::FailureCode::Unavailable, "starting", "")))]
        }
        _ => submitted(task(), "no worker connected; waiting"),
    });
    let did = home(&fake).run(&["run", "--detach", "--", "job"]);
    assert_eq!((did.code, did.out), (0, task().to_string()));
    assert_eq!(did.err, "levers9: no worker connected; waiting");
    let calls = fake.calls();
    assert_eq!(calls.len(), 3);
    assert!(calls.iter().all(|call| call.request_id == calls[0].request_id));
}

#[test]
fn a_refused_job_says_why_and_what_to_do() {
    let fake = Fake::start(|_, _| {
        let refusal = failure(
            v1::FailureCode::Impossible,
            "no worker has 1Ti of memory; the largest has 4Gi",
            "ask for less",
        );
        vec![Step::Answer(Answer::Failure(refusal))]
    });
    let did = home(&fake).run(&["run", "--memory", "1Ti", "--", "job"]);
    assert_eq!((did.code, did.out.as_str()), (125, ""));
    assert_eq!(did.err, "error: no worker has 1Ti of memory; the largest has 4Gi\nhint: ask for less");
}

#[test]
fn json_has_one_object_per_line() {
    let fake = with_task(|_| vec![numbers(1, 1), ended("ERROR", Some(2), "why")]);
    let did = home(&fake).run(&["run", "--format", "json", "--", "job"]);
    let expected = "{\"task\":\"019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a\",\"note\":\"\",\"urls\":[]}\n\
                    {\"line\":1,\"unix_ms\":0,\"stream\":\"stdout\",\"text\":\"1\\n\"}\n\
                    {\"status\":\"ERROR\",\"exit_code\":2,\"reason\":\"why\"}";
    assert_eq!((did.code, did.out.as_str()), (2, expected));
}

#[test]
fn ctrl_c_cancels_and_waits_for_the_last_words() {
    let fake = with_task(|_| {
        vec![
            numbers(1, 1),
            Step::UntilStopped,
            numbers(2, 2),
            ended("CANCELLED", None, "cancelled by its caller"),
        ]
    });
    let home = home(&fake);
    let mut child = start(&home, &["run", "--", "job"]);
    let (first, mut rest) = first_line(child.stdout.take().unwrap());
    tell(&child, Signal::SIGINT);
    let mut last = String::new();
    rest.read_to_string(&mut last).unwrap();
    let did = end(&home, child);
    assert_eq!((did.code, first.as_str(), last.as_str()), (130, "1\n", "2\n"));
    assert_eq!(did.err, "levers9: cancelling the task; press Ctrl-C again to leave at once");
}

#[test]
fn a_second_ctrl_c_leaves_at_once() {
    let fake = with_task(|_| vec![numbers(1, 1), Step::Hang]);
    let home = home(&fake);
    let mut child = start(&home, &["run", "--", "job"]);
    let (_, _out) = first_line(child.stdout.take().unwrap());
    tell(&child, Signal::SIGINT);
    let (_, _err) = first_line(child.stderr.take().unwrap());
    let pressed = Instant::now();
    tell(&child, Signal::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(pressed.elapsed() < Duration::from_secs(1));
}

#[test]
fn being_told_to_leave_cancels_nothing() {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let fake = with_task(|_| vec![numbers(1, 1), Step::Hang]);
        let home = home(&fake);
        let mut child = start(&home, &["run", "--", "job"]);
        let (_, _out) = first_line(child.stdout.take().unwrap());
        tell(&child, signal);
        let did = end(&home, child);
        let id = task();
        let said = format!(
            "levers9: leaving; task {id} waits 120 s for a caller unless it is detached: levers9 attach {id}"
        );
        assert_eq!((did.code, did.err), (code, said));
        assert_eq!(fake.calls().len(), 1, "only the submit");
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    // One that writes on, and one that is silent from then on.
    let noisy: fn(usize) -> Vec<Step> = |_| (1..2000).map(|n| numbers(n, n)).chain([Step::Hang]).collect();
    let silent: fn(usize) -> Vec<Step> = |_| vec![numbers(1, 1), Step::Hang];
    for follow in [noisy, silent] {
        let fake = with_task(follow);
        let home = home(&fake);
        let mut child = start(&home, &["logs", "-f", &task().to_string()]);
        drop(first_line(child.stdout.take().unwrap()));
        let closed = Instant::now();
        let did = end(&home, child);
        assert_eq!((did.code, did.err.as_str()), (0, ""));
        assert!(closed.elapsed() < Duration::from_secs(1), "{:?}", closed.elapsed());
    }
}

#[test]
fn a_reader_that_does_not_read_does_not_hold_up_ctrl_c() {
    let long = || lines(vec![line(1, LogStream::Stdout, &"x".repeat(900_000))]);
    let fake = with_task(move |_| vec![long(), Step::Hang]);
    let home = home(&fake);
    let mut child = start(&home, &["run", "--", "job"]);
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0u8; 10]).unwrap();
    tell(&child, Signal::SIGINT);
    let (_, _err) = first_line(child.stderr.take().unwrap());
    tell(&child, Signal::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_full_disk_is_said_with_levers9s_own_code() {
    let fake = with_task(|_| vec![numbers(1, 1), Step::Hang]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let home = home(&fake);
    let output = home.command(&["run", "--", "job"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let did = home.did(&output);
    assert_eq!(did.code, 125);
    assert_eq!(did.err, "error: cannot write to standard output: No space left on device (os error 28)");
}

#[test]
fn a_refused_token_is_told_from_a_controlplane_that_is_not_there() {
    let refuse = |_: &str| Some(Refusal::new(RefuseCode::TokenUnknown, "this token is not known here"));
    let fake = Fake::with_door(|_, _| vec![], refuse);
    let did = home(&fake).run(&["worker", "list"]);
    assert_eq!(did.code, 1);
    assert_eq!(
        did.err,
        format!(
            "error: the controlplane at {} refuses: this token is not known here\nhint: log in again: levers9 login",
            fake.place()
        )
    );
}

#[test]
fn a_token_that_is_revoked_while_following_ends_it() {
    let fake = with_task(|_| vec![numbers(1, 1), Step::Close(ResetCode::Revoked)]);
    let home = home(&fake);
    let did = home.run(&["run", "--", "job"]);
    assert_eq!((did.code, did.out.as_str()), (125, "1"));
    assert!(did.err.contains("the token was revoked\nhint: log in again: levers9 login"), "{}", did.err);
}

#[test]
fn a_wrong_pin_is_not_retried() {
    let fake = with_task(|_| vec![]);
    let address = format!("levers9://{}#sha256:{}", fake.place(), "00".repeat(32));
    let home = Home::new().with_context("here", &address);
    let started = Instant::now();
    let did = home.run(&["-c", "here", "task", "list"]);
    assert_eq!(did.code, 3);
    assert!(did.err.contains("is not the pinned one"), "{}", did.err);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn login_trades_the_bootstrap_secret_and_stores_what_works() {
    let key = support::token('n');
    let answer = key.clone();
    let fake = Fake::start(move |kind, _| {
        let Kind::Call(v1::CallOpen { request, .. }) = kind else { return vec![] };
        vec![Step::Answer(match request {
            Some(call_open::Request::Authorize(asked)) if asked.bootstrap_secret == "s3cret" => {
                Answer::Authorize(v1::AuthorizeAnswer {
                    token: answer.clone(),
                    ..v1::AuthorizeAnswer::default()
                })
            }
            Some(call_open::Request::WhoAmI(_)) => Answer::WhoAmI(v1::WhoAmIAnswer {
                workspace_name: "main".to_owned(),
                token_kind: "admin".to_owned(),
                ..v1::WhoAmIAnswer::default()
            }),
            _ => Answer::Failure(failure(v1::FailureCode::Denied, "the bootstrap secret is wrong", "")),
        })]
    });
    let home = Home::new();
    let login =
        |secret| home.run_with(&["login", &fake.address()], &[("LEVERS9_BOOTSTRAP_SECRET", secret)], "");
    let did = login("wrong");
    assert_eq!((did.code, did.err.as_str()), (1, "error: the bootstrap secret is wrong"));
    assert!(!home.path().join(".levers9/config").exists(), "a failed login leaves no configuration");
    let did = login("s3cret");
    assert_eq!(
        (did.code, did.err),
        (
            0,
            format!(
                "levers9: logged in to \"main\" (admin) at {}\n\
                 levers9: context \"default\" is stored in [HOME]/.levers9/config",
                fake.place()
            )
        )
    );
    let config = std::fs::read_to_string(home.path().join(".levers9/config")).unwrap();
    assert!(config.contains(&format!("token = {key}\n")));
    // A token that is given is tried before it is stored.
    let did =
        home.run_with(&["login", "--token-stdin", "-c", "other", &fake.address()], &[], &support::token('o'));
    assert_eq!(did.code, 0);
    let build = env!("CARGO_PKG_VERSION");
    assert_eq!(
        home.run(&["version"]).out,
        format!("levers9       {build} (protocol 1)\ncontrolplane  {build}")
    );
}

#[test]
fn listings_show_what_came_without_control_characters() {
    let fake = Fake::start(|_, _| {
        let worker = v1::Worker {
            id: task().to_wire(),
            pool: "local".to_owned(),
            state: "online".to_owned(),
            hostname: "box\u{1b}[2J".to_owned(),
            cpu_millis: 8000,
            cpu_free_millis: 7500,
            memory_bytes: 16 << 30,
            memory_free_bytes: 15 << 30,
            gpu_type: "T4".to_owned(),
            gpu_count: 2,
            gpu_free: 1,
            rtt_us: 1234,
            ..v1::Worker::default()
        };
        vec![Step::Answer(Answer::WorkerList(v1::WorkerListAnswer { workers: vec![worker] }))]
    });
    let home = home(&fake);
    assert_eq!(
        home.run(&["worker", "list"]).out,
        "WORKER                                POOL   STATE   HOST          CPU FREE  MEMORY FREE  GPU FREE  JOBS  RTT    NOTE\n\
         019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a  local  online  box\\u{1b}[2J  7500m/8   15Gi/16Gi    1/2 T4    0     1.2ms"
    );
    let json: serde_json::Value =
        serde_json::from_str(&home.run(&["worker", "list", "--format", "json"]).out).unwrap();
    assert_eq!(
        (&json[0]["id"], &json[0]["memory_free_bytes"]),
        (&task().to_string().into(), &(15u64 << 30).into())
    );
}
