//! Commands in a container: how they end, what goes in and what comes out.

use crate::world::*;
use levers9_wire::ContainerId;
use levers9_wire::v1::{self, FailureCode, Outcome, exec_output, stream_open};

#[tokio::test]
async fn the_end_of_a_command_is_told_as_it_was() {
    for namespaces in [true, false] {
        let world = World::new(namespaces).await;
        let container = world.run("exec sleep 1000").await;
        for code in [0, 3, 255] {
            let done = world.sh(&container, &format!("echo out; echo err >&2; exit {code}")).await;
            assert_eq!(done.how(), (Outcome::Exited, code, 0));
            assert_eq!((done.started, done.ended.reason.as_str()), (true, ""));
            assert_eq!((&done.stdout[..], &done.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        }
        let done = world.sh(&container, "kill -SEGV $$").await;
        assert_eq!(done.how(), (Outcome::Signaled, 139, 11));
        assert_eq!(done.ended.reason, "killed by signal 11 (SIGSEGV)");
        assert_eq!(world.sh(&container, "kill -40 $$").await.how(), (Outcome::Signaled, 168, 40));
    }
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let world = World::new(true).await;
    let container = world.run("exec sleep 1000").await;
    let start = async |words: &[&str]| {
        let done = world.exec(&container, ask(words)).await.done().await;
        assert!(!done.started);
        assert_eq!(done.how().0, Outcome::StartFailed);
        (done.ended.exit_code, done.ended.reason)
    };
    let (code, reason) = start(&["no-such-command", "x"]).await;
    assert_eq!(code, 127);
    assert!(reason.starts_with("command not found: \"no-such-command\" is in no folder of PATH"), "{reason}");
    assert_eq!(start(&["./none"]).await, (127, "command not found: \"./none\"".to_owned()));
    let denied = "not executable: \"/etc/passwd\": Permission denied".to_owned();
    assert_eq!(start(&["/etc/passwd"]).await, (126, denied));
    let lost = executable(&world.work, "lost", "#!/no/such/interpreter\n");
    let (code, reason) = start(&[&lost]).await;
    assert_eq!(code, 126);
    assert!(reason.ends_with("its interpreter or loader does not exist"), "{reason}");
    let elsewhere = Ask { workdir: "not/here".into(), ..ask(&["true"]) };
    let done = world.exec(&container, elsewhere).await.done().await;
    assert_eq!(done.how(), (Outcome::StartFailed, 126, 0));
    assert!(done.ended.reason.starts_with("working directory "), "{}", done.ended.reason);
}

#[tokio::test]
async fn a_container_that_is_not_there_or_does_not_run_is_a_failure() {
    let world = World::new(true).await;
    let mut container = world.run("exec sleep 1000").await;
    let asked = |id: ContainerId, generation| {
        let command = vec!["true".to_owned()];
        v1::ExecOpen { container: id.to_wire(), generation, command, ..v1::ExecOpen::default() }
    };
    let failure = async |open| {
        let stream = world.open(stream_open::Kind::Exec(open)).await;
        Exec { stream }.done().await.failure.expect("a failure")
    };
    let other = ContainerId::generate();
    let unknown = failure(asked(other, 1)).await;
    assert_eq!(unknown.code(), FailureCode::NotFound);
    assert_eq!(unknown.text, format!("this worker does not have container {other} of generation 1"));
    assert_eq!(failure(asked(container.id, 2)).await.code(), FailureCode::NotFound);
    assert_eq!(failure(asked(container.id, 0)).await.code(), FailureCode::Invalid);
    let nonsense = v1::ExecOpen { container: vec![1], ..asked(container.id, 1) };
    assert_eq!(failure(nonsense).await.code(), FailureCode::Invalid);
    container.stop(v1::StopReason::Cancelled).await;
    container.ended().await;
    let ended = failure(asked(container.id, 1)).await;
    assert!([FailureCode::NotRunning, FailureCode::NotFound].contains(&ended.code()), "{ended:?}");
}

#[tokio::test]
async fn a_command_finds_what_the_container_has_and_what_it_was_given() {
    for namespaces in [true, false] {
        let world = World::new(namespaces).await;
        std::fs::create_dir(world.work.join("sub")).expect("made");
        let own = "grep -E 'Sig(Blk|Ign)' /proc/self/status > signals; exec sleep 1000";
        let container = world.run_with(own, &[("MINE", "1"), ("BOTH", "1")], "").await;
        let signals = world.written("signals").await;
        let script = "echo $MINE $BOTH $THEIRS $LEVERS9_PROCESS_GROUP; pwd; cat; ls /proc/self/fd | wc -l;
            grep -E 'Sig(Blk|Ign)' /proc/self/status; ps -o sid= -p $$ | tr -d ' ' | grep -qx $$ && echo leader";
        let env = [("BOTH", "2"), ("THEIRS", "2"), ("LEVERS9_PROCESS_GROUP", "no")];
        let asked = Ask { workdir: "sub".into(), ..sh(script).env(&env) };
        let done = world.exec(&container, asked).await.done().await;
        let sub = world.work.join("sub");
        let expected = format!("1 2 2 {}.1\n{}\n4\n{signals}\nleader\n", container.id, sub.display());
        assert_eq!(done.text(), expected, "{done:?}");
        // The same processes are around it.
        let done = world.sh(&container, "ps -eo args | grep -c '[s]leep 1000'").await;
        assert!(done.text().trim().parse::<u32>().is_ok_and(|count| count > 0));
    }
}

#[tokio::test]
async fn without_a_command_it_is_a_shell() {
    let world = World::new(true).await;
    let own = executable(&world.work, "own", "#!/bin/sh\necho own shell\n");
    let container = world.run_with("exec sleep 1000", &[("SHELL", &own)], "").await;
    assert_eq!(world.exec(&container, ask(&[])).await.done().await.text(), "own shell\n");
    let mut shell = world.exec(&container, ask(&[]).env(&[("SHELL", "/none")]).stdin()).await;
    shell.send(stdin(b"echo a shell; exit 5\n")).await;
    let done = shell.done().await;
    assert_eq!((done.text().as_str(), done.how()), ("a shell\n", (Outcome::Exited, 5, 0)));
}

#[tokio::test]
async fn input_ends_and_output_goes_on() {
    let world = World::new(true).await;
    let container = world.run("exec sleep 1000").await;
    // By a frame, and by the end of the stream.
    for by_frame in [true, false] {
        let mut cat = world.exec(&container, sh("cat; echo end").stdin()).await;
        cat.send(stdin(b"foo")).await;
        cat.send(stdin(b"")).await;
        if by_frame {
            cat.send(stdin_end()).await;
            cat.send(stdin(b"too late")).await;
        } else {
            cat.stream.send.finish();
        }
        let done = within("cat", read(&mut cat)).await;
        assert_eq!((done.text().as_str(), done.how().1), ("fooend\n", 0));
    }
    // Without input there is an end at once, whatever is sent.
    let mut none = world.exec(&container, ask(&["cat"])).await;
    none.send(stdin(b"nobody asked")).await;
    assert_eq!(none.done().await.text(), "");
}

#[tokio::test]
async fn large_input_arrives_whole() {
    let world = World::new(true).await;
    let container = world.run("exec sleep 1000").await;
    let pieces = 3200;
    let piece = |number: u32| {
        let mut bytes = vec![0; 64 * 1024];
        bytes.chunks_mut(4).for_each(|chunk| chunk.copy_from_slice(&number.to_le_bytes()));
        bytes
    };
    // What the same bytes give here.
    let mut local = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("runs");
    let mut into = local.stdin.take().expect("piped");
    let mut sum = world.exec(&container, ask(&["sha256sum"]).stdin()).await;
    for number in 0..pieces {
        let bytes = piece(number);
        std::io::Write::write_all(&mut into, &bytes).expect("written");
        sum.send(stdin(&bytes)).await;
    }
    drop(into);
    sum.send(stdin_end()).await;
    let expected = local.wait_with_output().expect("ended").stdout;
    let done = sum.done().await;
    assert_eq!((done.how().1, done.text()), (0, String::from_utf8_lossy(&expected).into_owned()));
}

#[tokio::test]
async fn endless_input_does_not_keep_a_command_that_does_not_read_it() {
    let world = World::new(true).await;
    let container = world.run("exec sleep 1000").await;
    let mut exec = world.exec(&container, sh("exit 6").stdin()).await;
    let piece = stdin(&vec![7; 64 * 1024]);
    let Exec { stream: levers9_transport::Stream { send, recv } } = &mut exec;
    let mut sent = 0u64;
    let endless = async {
        while send.send(&piece).await.is_ok() {
            sent += 64 * 1024;
        }
    };
    let reading = async {
        loop {
            match recv.expect::<v1::ExecOutput>().await.expect("whole").kind.expect("a kind") {
                exec_output::Kind::Started(_) => {}
                exec_output::Kind::Ended(ended) => return ended,
                other => panic!("{other:?}"),
            }
        }
    };
    let ended = within("the end", async {
        tokio::select! {
            ended = reading => ended,
            () = endless => panic!("the worker stopped the input, which a relay takes for a break"),
        }
    })
    .await;
    assert_eq!((ended.outcome(), ended.exit_code), (Outcome::Exited, 6));
    // It goes on taking it, so that the end reaches the caller.
    within("more", send.send(&piece)).await.expect("taken");
}

#[tokio::test]
async fn signals_get_through_while_input_waits() {
    let world = World::new(true).await;
    let container = world.run("exec sleep 1000").await;
    let script = "trap 'echo usr; exit 9' USR1; echo ready; while :; do sleep 0.01; done";
    let mut exec = world.exec(&container, sh(script).stdin()).await;
    // More than the pipe takes, less than may wait.
    for _ in 0..3 {
        exec.send(stdin(&[0; 64 * 1024])).await;
    }
    exec.says("ready").await;
    exec.send(signal(10)).await;
    let done = exec.done().await;
    assert_eq!((done.text().as_str(), done.how()), ("usr\n", (Outcome::Exited, 9, 0)));
    // One that comes before the command runs is kept until it does.
    for _ in 0..20 {
        let mut exec = world.exec(&container, ask(&["sleep", "1000"])).await;
        exec.send(signal(15)).await;
        assert_eq!(exec.done().await.how(), (Outcome::Signaled, 143, 15));
    }
}

#[tokio::test]
async fn all_output_is_there_before_the_end() {
    for namespaces in [true, false] {
        let world = World::new(namespaces).await;
        let container = world.run("exec sleep 1000").await;
        for _ in 0..5 {
            let script = "seq 1 760000 & seq 1 760000 >&2; wait; echo last; echo last >&2";
            let done = world.sh(&container, script).await;
            let expected: String =
                (1..=760_000).map(|n| format!("{n}\n")).chain(["last\n".to_owned()]).collect();
            assert!(expected.len() > 5_000_000);
            assert!(done.stdout == expected.as_bytes(), "{} bytes of stdout", done.stdout.len());
            assert!(done.stderr == expected.as_bytes(), "{} bytes of stderr", done.stderr.len());
        }
        for round in 0..50 {
            let done = world.sh(&container, "seq 1 20000; exit 3").await;
            assert!(done.stdout.ends_with(b"\n20000\n"), "round {round}");
        }
    }
}

#[tokio::test]
async fn small_writes_go_together_and_the_first_at_once() {
    let world = World::new(true).await;
    let container = world.run("exec sleep 1000").await;
    let script =
        "printf first; read go; for n in 1 2 3 4; do seq 2000; done | while read n; do echo $n; done";
    let mut exec = world.exec(&container, sh(script).stdin()).await;
    assert_eq!(exec.says("first").await, "first");
    exec.send(stdin(b"go\n")).await;
    let (mut frames, mut bytes) = (0, 0);
    loop {
        match exec.next().await.expect("more") {
            exec_output::Kind::Stdout(piece) => (frames, bytes) = (frames + 1, bytes + piece.len()),
            exec_output::Kind::Ended(_) => break,
            other => panic!("{other:?}"),
        }
    }
    // 8,000 writes.
    assert_eq!(bytes, 4 * (1..=2000).map(|n: u32| n.to_string().len() + 1).sum::<usize>());
    assert!(frames < 800, "{frames} frames");
}

#[tokio::test]
async fn a_slow_caller_still_gets_everything() {
    let world = World::new(true).await;
    let container = world.run("exec sleep 1000").await;
    let mut exec = world.exec(&container, sh("seq 1 1500000; touch written; exit 2")).await;
    exec.started().await;
    // Far more than is on the way: it must wait for the caller.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!world.work.join("written").exists(), "nothing holds it back");
    let done = exec.done().await;
    assert_eq!(done.how().1, 2);
    assert!(done.stdout.ends_with(b"\n1500000\n"));
}

#[tokio::test]
async fn what_stays_in_the_background_does_not_delay_the_end_and_lives_on() {
    for namespaces in [true, false] {
        let world = World::new(namespaces).await;
        let mut container = world.run("exec sleep 1000").await;
        let begun = tokio::time::Instant::now();
        // One holds the pipes, one writes all the time, one is slow about it.
        for script in [
            "sleep 8642 & echo done",
            "yes & echo done",
            "(while :; do echo x; sleep 0.05; done) & echo done",
        ] {
            let done = world.sh(&container, script).await;
            assert!(done.text().contains("done\n"), "{:?}", done.text());
            assert_eq!(done.how(), (Outcome::Exited, 0, 0));
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
        let count = "ps -eo args | grep -cE '^sleep 8642$'";
        assert_eq!(world.sh(&container, count).await.text().trim().parse::<u32>().map(|n| n > 0), Ok(true));
        container.stop(v1::StopReason::Cancelled).await;
        container.ended().await;
    }
    until("nothing is left", || processes_with("sleep\08642").is_empty()).await;
}

#[tokio::test]
async fn there_are_not_more_than_may_be() {
    let world = World::new(true).await;
    let container = world.run("exec sleep 1000").await;
    let mut all = Vec::new();
    for _ in 0..256 {
        all.push(world.exec(&container, ask(&["sleep", "1000"])).await);
    }
    for exec in &mut all {
        exec.started().await;
    }
    let refused = world.exec(&container, ask(&["true"])).await.done().await.failure.expect("refused");
    assert_eq!(refused.code(), FailureCode::Busy);
    all.truncate(128);
    let works = async || world.exec(&container, ask(&["true"])).await.done().await.failure.is_none();
    Box::pin(within("room again", async { while !works().await {} })).await;
}
