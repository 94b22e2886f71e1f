//! `exec`, `shell` and `container attach` without a terminal.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use levers9_wire::v1::{
    self, FailureCode, LogStream, Outcome, ResetCode, call_answer::Answer, call_open::Request, exec_input,
    exec_output, follow_event, stream_open::Kind,
};
use nix::sys::signal::Signal;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{CONTAINER, Played, end, wait_for, with_exec};
use crate::fake::{Fake, Step, ended, failure, line, lines};
use crate::support::{Did, Home};
use crate::{first_line, home, start, task, tell};

#[test]
fn the_commands_end_is_the_exit_code() {
    let because = |outcome, reason: &str| v1::ExecEnded { reason: reason.to_owned(), ..end(outcome) };
    for (ended, code, said) in [
        (end(Outcome::Exited), 0, ""),
        (v1::ExecEnded { exit_code: 7, ..end(Outcome::Exited) }, 7, ""),
        (v1::ExecEnded { signal: 9, ..end(Outcome::Signaled) }, 137, ""),
        (
            v1::ExecEnded { exit_code: 127, ..because(Outcome::StartFailed, "no command \"jbo\"") },
            127,
            "levers9: no command \"jbo\"",
        ),
        (
            v1::ExecEnded { exit_code: 126, ..end(Outcome::StartFailed) },
            126,
            "levers9: the command cannot be executed",
        ),
        (because(Outcome::Stopped, "the container was stopped"), 137, "levers9: the container was stopped"),
        (end(Outcome::Unspecified), 125, "levers9: the command ended as OUTCOME_UNSPECIFIED"),
    ] {
        let told = ended.clone();
        let fake = with_exec(move |mut command| {
            let told = told.clone();
            async move {
                command.started().await;
                command.ended(told).await
            }
        });
        let did = home(&fake).run(&["exec", CONTAINER, "--", "job"]);
        assert_eq!(did, Did { code, out: String::new(), err: said.to_owned() }, "{ended:?}");
    }
}

#[test]
fn what_is_asked_for_is_what_was_typed() {
    let fake = with_exec(|command| command.exit(0));
    let home = home(&fake);
    let args = ["exec", CONTAINER, "-e", "A=1=2", "-w", "/srv", "--", "ls", "-l"];
    assert_eq!(home.run(&args).code, 0);
    let did = home.run_with(&["shell", CONTAINER, "-e", "B=x"], &[("TERM", "xterm")], "ls\n");
    assert_eq!((did.code, did.err.as_str()), (0, ""));
    let execs = fake.execs();
    let asked = &execs[0];
    assert_eq!(asked.container, CONTAINER.parse::<levers9_wire::ContainerId>().unwrap().to_wire());
    assert_eq!(
        (asked.command.join(" "), asked.workdir.as_str(), asked.generation),
        ("ls -l".to_owned(), "/srv", 0)
    );
    assert_eq!((asked.env[0].name.as_str(), asked.env[0].value.as_slice()), ("A", &b"1=2"[..]));
    assert!(!asked.stdin && asked.terminal.is_none());
    let shell = &execs[1];
    assert!(shell.stdin && shell.terminal.is_none() && shell.command.is_empty());
    assert_eq!(shell.env.len(), 1, "TERM is for terminals");
}

#[test]
fn all_of_the_output_comes_before_the_end() {
    const PIECE: usize = 50_000;
    let fake = with_exec(|mut command| async move {
        command.started().await;
        for _ in 0..100 {
            command.out(&[b'o'; PIECE]).await;
            command.err(&[b'e'; PIECE]).await;
        }
        command.out(b"last").await;
        command.exit(3).await
    });
    let did = home(&fake).run(&["exec", CONTAINER, "--", "job"]);
    assert_eq!((did.code, did.out.len(), did.err.len()), (3, 100 * PIECE + 4, 100 * PIECE));
    assert!(did.out.ends_with("olast"));
}

#[test]
fn a_lost_connection_is_never_success() {
    type Play = fn(Played, Arc<Notify>) -> std::pin::Pin<Box<dyn Future<Output = Option<ResetCode>> + Send>>;
    let session: Play = |mut command, seen| {
        Box::pin(async move {
            command.started().await;
            command.out(b"half\n").await;
            seen.notified().await;
            Some(ResetCode::CarrierLost)
        })
    };
    let ends: Play = |mut command, _| {
        Box::pin(async move {
            command.started().await;
            command.out(b"half\n").await;
            let _left = command.0.send.finish_and_deliver().await;
            None
        })
    };
    let reset: Play = |mut command, seen| {
        Box::pin(async move {
            command.started().await;
            command.out(b"half\n").await;
            seen.notified().await;
            command.0.abort(ResetCode::CarrierLost);
            None
        })
    };
    for play in [session, ends, reset] {
        let seen = Arc::new(Notify::new());
        let told = Arc::clone(&seen);
        let fake = with_exec(move |command| play(command, Arc::clone(&told)));
        let home = home(&fake);
        let mut child = start(&home, &["exec", CONTAINER, "--", "job"]);
        let (first, _out) = first_line(child.stdout.take().unwrap());
        assert_eq!(first, "half\n");
        seen.notify_one();
        let did = home.did(&child.wait_with_output().unwrap());
        let said =
            format!("error: the connection to {} was lost; the command was ended with it: ", fake.place());
        assert_eq!(did.code, 125);
        assert!(did.err.starts_with(&said), "{}", did.err);
        assert_eq!(fake.execs().len(), 1, "nothing is tried again");
    }
}

#[test]
fn lost_before_its_start_says_so() {
    let fake = with_exec(|_| async { Some(ResetCode::CarrierLost) });
    let did = home(&fake).run(&["exec", CONTAINER, "--", "job"]);
    assert_eq!((did.code, did.out.as_str()), (125, ""));
    assert!(did.err.contains("was lost before the command was started: "), "{}", did.err);
}

#[test]
fn a_refusal_is_levers9s_own_failure() {
    let fake = with_exec(|mut command| async move {
        let refusal = failure(FailureCode::NotFound, "no such container", "look: levers9 container list");
        command.say(exec_output::Kind::Failure(refusal)).await;
        let _left = command.0.send.finish_and_deliver().await;
        None
    });
    let home = home(&fake);
    let did = home.run(&["exec", CONTAINER, "--", "job"]);
    let err = "error: no such container\nhint: look: levers9 container list";
    assert_eq!(did, Did { code: 125, out: String::new(), err: err.to_owned() });
    assert_eq!(home.run(&["shell", CONTAINER]).code, 125);
}

/// A command that gives back its input, and says how it ended.
fn cat() -> Fake {
    with_exec(|mut command| async move {
        command.started().await;
        loop {
            match command.hear().await {
                Some(exec_input::Kind::Stdin(bytes)) => command.out(&bytes).await,
                Some(exec_input::Kind::StdinEnd(_)) => break,
                _ => return Some(ResetCode::Protocol),
            }
        }
        command.exit(0).await
    })
}

#[test]
fn input_goes_to_the_command_with_its_end() {
    let fake = cat();
    let home = home(&fake);
    let did = home.run_with(&["exec", "-i", CONTAINER, "--", "cat"], &[], "foo\n");
    assert_eq!((did.code, did.out.as_str()), (0, "foo"));
    // Nothing at all ends at once.
    assert_eq!(home.run(&["exec", "-i", CONTAINER, "--", "cat"]).code, 0);
    let long = "0123456789abcde\n".repeat(200_000);
    let mut child = start_with_input(&home, &["exec", "-i", CONTAINER, "--", "cat"], Stdio::piped());
    let mut stdin = child.stdin.take().unwrap();
    let text = long.clone();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let did = home.did(&child.wait_with_output().unwrap());
    writer.join().unwrap();
    assert_eq!((did.code, did.out.len()), (0, long.len() - 1));
    assert!(fake.execs().iter().all(|asked| asked.stdin));
}

fn start_with_input(home: &Home, args: &[&str], input: impl Into<Stdio>) -> Child {
    let mut command = home.command(args);
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn input_nobody_asked_for_is_left_alone() {
    let fake = with_exec(|mut command| async move {
        command.started().await;
        command.out(b"ready\n").await;
        // Only a caller that is gone or signals would say anything.
        command.exit(0).await
    });
    let did = home(&fake).run_with(&["exec", CONTAINER, "--", "job"], &[], "unread");
    assert_eq!((did.code, did.out.as_str()), (0, "ready"));
    assert!(!fake.execs()[0].stdin);
}

#[test]
fn input_without_end_holds_up_no_command_that_has_ended() {
    let fake = with_exec(|mut command| async move {
        command.started().await;
        let _some = command.hear().await;
        command.exit(7).await
    });
    let home = home(&fake);
    let zeros = OpenOptions::new().read(true).open("/dev/zero").unwrap();
    let child = start_with_input(&home, &["exec", "-i", CONTAINER, "--", "head"], zeros);
    assert_eq!(home.did(&child.wait_with_output().unwrap()).code, 7);
    // Nor does one in which nothing ever comes.
    let fake = with_exec(|mut command| async move {
        command.started().await;
        command.exit(8).await
    });
    let home = crate::home(&fake);
    let mut child = start_with_input(&home, &["exec", "-i", CONTAINER, "--", "job"], Stdio::piped());
    let open = child.stdin.take();
    assert_eq!(home.did(&child.wait_with_output().unwrap()).code, 8);
    drop(open);
}

#[test]
fn much_input_takes_little_memory() {
    const MUCH: usize = 256 << 20;
    let (say, mut heard) = tokio::sync::mpsc::channel(1);
    let fake = with_exec(move |mut command| {
        let say = say.clone();
        async move {
            command.started().await;
            let mut taken = 0;
            while taken < MUCH {
                let Some(exec_input::Kind::Stdin(bytes)) = command.hear().await else { return None };
                assert!(bytes.len() <= levers9_wire::limits::EXEC_PIECE);
                taken += bytes.len();
            }
            say.send(taken).await.unwrap();
            // It is read on only as far as it is taken, so nothing grows from here on.
            std::future::pending().await
        }
    });
    let home = home(&fake);
    let zeros = OpenOptions::new().read(true).open("/dev/zero").unwrap();
    let mut child = start_with_input(&home, &["exec", "-i", CONTAINER, "--", "job"], zeros);
    assert!(heard.blocking_recv().unwrap() >= MUCH);
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 100 << 10, "{peak} kB");
    tell(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn the_first_ctrl_c_is_the_commands_and_the_second_leaves() {
    let fake = with_exec(|mut command| async move {
        command.started().await;
        command.out(b"ready\n").await;
        match command.hear().await {
            Some(exec_input::Kind::Signal(signal)) => command.exit(40 + i32::try_from(signal).unwrap()).await,
            _ => Some(ResetCode::Protocol),
        }
    });
    let home = home(&fake);
    for (signal, code) in [(Signal::SIGINT, 42), (Signal::SIGQUIT, 43)] {
        let mut child = start(&home, &["exec", CONTAINER, "--", "job"]);
        let (_, _out) = first_line(child.stdout.take().unwrap());
        tell(&child, signal);
        let did = home.did(&child.wait_with_output().unwrap());
        assert_eq!((did.code, did.err.as_str()), (code, ""));
    }
}

/// A command that takes no notice of signals, but for saying which came.
fn stubborn() -> Fake {
    with_exec(|mut command| async move {
        command.started().await;
        command.out(b"ready\n").await;
        while let Some(heard) = command.hear().await {
            if let exec_input::Kind::Signal(signal) = heard {
                command.out(format!("signal {signal}\n").as_bytes()).await;
            }
        }
        None
    })
}

#[test]
fn a_second_ctrl_c_leaves_at_once() {
    let fake = stubborn();
    let home = home(&fake);
    let mut child = start(&home, &["exec", CONTAINER, "--", "job"]);
    let (_, mut out) = first_line(child.stdout.take().unwrap());
    tell(&child, Signal::SIGINT);
    let mut told = [0; 9];
    out.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"signal 2\n");
    let pressed = Instant::now();
    tell(&child, Signal::SIGINT);
    let did = home.did(&child.wait_with_output().unwrap());
    assert_eq!((did.code, did.err.as_str()), (130, "levers9: leaving; the command is ended"));
    assert!(pressed.elapsed() < Duration::from_secs(1));
}

#[test]
fn told_to_leave_it_tells_the_command_and_leaves() {
    let fake = stubborn();
    let home = home(&fake);
    for (signal, code, told) in [(Signal::SIGTERM, 143, "signal 15"), (Signal::SIGHUP, 129, "signal 1")] {
        let mut child = start(&home, &["exec", CONTAINER, "--", "job"]);
        let (_, mut out) = first_line(child.stdout.take().unwrap());
        let sent = Instant::now();
        tell(&child, signal);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!((child.wait().unwrap().code(), rest.trim_end()), (Some(code), told));
        assert!(sent.elapsed() < Duration::from_secs(3));
    }
}

#[test]
fn before_the_start_any_signal_leaves() {
    let seen = Arc::new(Notify::new());
    let told = Arc::clone(&seen);
    let fake = with_exec(move |command| {
        told.notify_one();
        async move {
            let _kept = command;
            std::future::pending().await
        }
    });
    let home = home(&fake);
    let waiting = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let child = start(&home, &["exec", CONTAINER, "--", "job"]);
        waiting.block_on(seen.notified());
        tell(&child, signal);
        let did = home.did(&child.wait_with_output().unwrap());
        assert_eq!((did.code, did.err.as_str()), (code, ""));
    }
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly_and_a_full_disk_does_not() {
    let fake = stubborn();
    let home = home(&fake);
    let mut child = start(&home, &["exec", CONTAINER, "--", "job"]);
    drop(first_line(child.stdout.take().unwrap()));
    let did = home.did(&child.wait_with_output().unwrap());
    assert_eq!((did.code, did.err.as_str()), (0, ""));
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output =
        home.command(&["exec", CONTAINER, "--", "job"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let did = home.did(&output);
    assert_eq!(did.code, 125);
    assert_eq!(did.err, "error: cannot write to standard output: No space left on device (os error 28)");
}

#[test]
fn a_reader_that_does_not_read_does_not_hold_up_ctrl_c() {
    let fake = with_exec(|mut command| async move {
        command.started().await;
        let yes = v1::ExecOutput { kind: Some(exec_output::Kind::Stdout(vec![b'y'; 60_000].into())) };
        while command.0.send.send(&yes).await.is_ok() {}
        None
    });
    let home = home(&fake);
    let mut child = start(&home, &["exec", CONTAINER, "--", "yes"]);
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 10]).unwrap();
    tell(&child, Signal::SIGINT);
    // The second only counts once the first was taken.
    wait_for(
        || {
            tell(&child, Signal::SIGINT);
            child.try_wait().unwrap().map(|status| status.code())
        },
        |code| *code == Some(Some(130)),
    );
}

#[test]
fn a_container_is_attached_to_by_its_task() {
    let stopped = Arc::new(Mutex::new(None));
    let told = Arc::clone(&stopped);
    let fake = Fake::start(move |kind, before| match kind {
        Kind::Follow(_) => {
            let status = v1::FollowStatus { task: task().to_wire(), ..v1::FollowStatus::default() };
            let status = Step::Event(follow_event::Kind::Status(status));
            let first = lines(vec![line(1, LogStream::Stdout, "1\n")]);
            match before {
                0 => vec![status, first, ended("ERROR", Some(9), "")],
                _ => vec![status, first, Step::UntilStopped, ended("CANCELLED", None, "")],
            }
        }
        Kind::Call(v1::CallOpen { request, .. }) => {
            *told.lock().unwrap() = request.clone();
            let answer = v1::TaskStopAnswer { status: "CANCELLED".to_owned() };
            vec![Step::Answer(Answer::TaskStop(answer))]
        }
        _ => vec![],
    });
    let home = home(&fake);
    let attach = ["container", "attach", CONTAINER, "--since-line", "5"];
    let did = home.run(&attach);
    assert_eq!((did.code, did.out.as_str()), (9, ""), "line 1 is not after line 5");
    let mut child = start(&home, &attach[..3]);
    let (_, _out) = first_line(child.stdout.take().unwrap());
    tell(&child, Signal::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let asked = stopped.lock().unwrap().clone();
    let stop = Request::TaskStop(v1::TaskStopRequest { task: task().to_wire() });
    assert_eq!(asked, Some(stop));
    let follows = fake.follows();
    let container = CONTAINER.parse::<levers9_wire::ContainerId>().unwrap().to_wire();
    assert!(follows.iter().all(|open| open.caller && open.follow && open.id == container));
    assert_eq!(follows[0].since_line, 5);
}

/// A controlplane that gives a job's ports these URLs.
fn with_urls() -> Fake {
    let urls = || vec!["http://h/a".to_owned(), "http://h/b".to_owned()];
    Fake::start(move |kind, _| match kind {
        Kind::Call(v1::CallOpen { request: Some(Request::Submit(_)), .. }) => {
            let answer =
                v1::SubmitAnswer { task: task().to_wire(), urls: urls(), ..v1::SubmitAnswer::default() };
            vec![Step::Answer(Answer::Submit(answer))]
        }
        Kind::Call(_) => {
            let task = v1::Task {
                id: task().to_wire(),
                ports: vec![8000, 9000],
                public: true,
                urls: urls(),
                ..v1::Task::default()
            };
            let answer = v1::TaskShowAnswer { task: Some(task), attempts: vec![] };
            vec![Step::Answer(Answer::TaskShow(answer))]
        }
        _ => vec![ended("COMPLETE", Some(0), "")],
    })
}

#[test]
fn a_job_with_ports_says_where_they_are() {
    let fake = with_urls();
    let home = home(&fake);
    let ports = ["--port", "8000", "--port", "9000", "--port", "8000"];
    let did = home.run(&[&["run", "--detach"], &ports[..], &["--", "job"]].concat());
    assert_eq!((did.code, did.out), (0, task().to_string()));
    let lines = "levers9: port 8000: http://h/a\nlevers9: port 9000: http://h/b";
    assert_eq!(
        did.err,
        format!("{lines}\nlevers9: requests need the header \"Authorization: Bearer TOKEN\"")
    );
    let did = home.run(&[&["run", "--public"], &ports[..], &["--", "job"]].concat());
    assert_eq!((did.code, did.err.as_str()), (0, lines));
    let did = home.run(&[&["run", "--detach", "--format", "json"], &ports[..], &["--", "job"]].concat());
    let view: serde_json::Value = serde_json::from_str(&did.out).unwrap();
    assert_eq!((&view["urls"][1], did.err.as_str()), (&"http://h/b".into(), ""));
    let submitted: Vec<_> = fake
        .calls()
        .into_iter()
        .filter_map(|call| match call.request {
            Some(Request::Submit(job)) => Some((job.ports, job.public)),
            _ => None,
        })
        .collect();
    assert_eq!(submitted[0], (vec![8000, 9000], false));
    assert_eq!(submitted[1], (vec![8000, 9000], true));
}

#[test]
fn a_task_shows_its_ports() {
    let fake = with_urls();
    let home = home(&fake);
    let id = task().to_string();
    let shown = home.run(&["task", "show", &id]).out;
    for line in ["ports       8000, 9000", "public      yes", "urls        http://h/a http://h/b"] {
        assert!(shown.contains(line), "{shown}");
    }
    let view: serde_json::Value =
        serde_json::from_str(&home.run(&["task", "show", &id, "--format", "json"]).out).unwrap();
    assert_eq!(
        (&view["ports"][0], &view["public"], &view["urls"][0]),
        (&8000.into(), &true.into(), &"http://h/a".into())
    );
}
