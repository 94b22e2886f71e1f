//! Containers of the `process` runtime as a session sees them: how they end,
//! what they print, what they find around them, and what is refused.

use std::time::Duration;

use crate::common::*;
use levers9_wire::v1::{LogStream, Outcome, StopContainer, StopReason};
use levers9_wire::{Generation, WorkspaceId, v1};
use levers9_worker::containers::OpenError;
use levers9_worker::runtime::{Process, Settings};
use levers9_worker::{Containers, Refused, spool};

#[tokio::test]
async fn exit_codes_and_signals_are_told_apart() {
    for namespaces in [true, false] {
        let worker = worker_with(settings(namespaces), |_| {}).await;
        for code in [0, 3, 255] {
            let (ended, _) = run(&worker.containers, shell(&format!("exit {code}"))).await;
            assert_eq!(
                (ended.outcome(), ended.exit_code, ended.signal),
                (Outcome::Exited, code, 0),
                "{ended:?}"
            );
            assert_eq!(ended.reason, "");
        }
        let (ended, _) = run(&worker.containers, shell("kill -SEGV $$")).await;
        assert_eq!((ended.outcome(), ended.signal), (Outcome::Signaled, 11));
        assert_eq!(ended.reason, "killed by signal 11 (SIGSEGV)");
        // One that nix has no name for.
        let (ended, _) = run(&worker.containers, shell("kill -40 $$")).await;
        assert_eq!(ended.outcome(), Outcome::WorkerFailed, "{ended:?}");
        assert_eq!(ended.reason, "killed by a real-time signal");
    }
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let worker = worker().await;
    let start = async |words: &[&str]| run(&worker.containers, command(words)).await.0;
    let ended = start(&["no-such-command", "x"]).await;
    assert_eq!((ended.outcome(), ended.exit_code), (Outcome::StartFailed, 127));
    assert!(ended.reason.starts_with("command not found: \"no-such-command\" is in no folder of PATH"));
    let ended = start(&["./nothing/here"]).await;
    assert_eq!((ended.exit_code, ended.reason.as_str()), (127, "command not found: \"./nothing/here\""));
    let ended = start(&["/etc/passwd"]).await;
    assert_eq!((ended.outcome(), ended.exit_code), (Outcome::StartFailed, 126));
    assert_eq!(ended.reason, "not executable: \"/etc/passwd\": Permission denied");
    let ended = start(&["/usr"]).await;
    assert_eq!((ended.exit_code, ended.reason.as_str()), (126, "not executable: \"/usr\": Is a directory"));

    let folder = tempfile::tempdir().expect("a folder");
    let script = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("set");
        path.to_str().expect("text").to_owned()
    };
    let ended = start(&[&script("no-interpreter", "#!/no/such/interpreter\n")]).await;
    assert_eq!(ended.exit_code, 126);
    assert!(ended.reason.ends_with("its interpreter or loader does not exist"), "{}", ended.reason);
    let ended = start(&[&script("nonsense", "\u{1}\u{2}")]).await;
    assert_eq!(ended.exit_code, 126);
    assert!(ended.reason.contains("exec format error"), "{}", ended.reason);
    assert_eq!(ended.log_records, 0);
}

#[tokio::test]
async fn all_output_is_there_when_the_end_is_told() {
    let worker = worker().await;
    for _ in 0..20 {
        let handle = worker.containers.run(shell("seq 10000; seq 3 >&2")).expect("taken");
        let ended = end(&handle).await;
        let log = handle.log().progress().borrow().to_owned();
        assert!(log.ended);
        assert_eq!((log.next_index, ended.log_records), (10_003, 10_003));
        assert_eq!(stdout(&handle).await, (1..=10_000).map(|n| format!("{n}\n")).collect::<String>());
        assert_eq!(output(&handle, LogStream::Stderr).await, b"1\n2\n3\n");
    }
}

#[tokio::test]
async fn output_without_a_newline_shows_while_it_runs_and_at_the_end() {
    let worker = worker().await;
    let handle = worker.containers.run(shell("printf 'name? '; exec sleep 1000")).expect("taken");
    says(&handle, "name? ").await;
    assert!(!handle.has_ended());
    handle.stop(StopContainer {
        grace_ms: 60_000,
        reason: StopReason::Cancelled.into(),
        text: "enough".into(),
    });
    let ended = end(&handle).await;
    assert_eq!(
        (ended.outcome(), ended.signal, ended.reason.as_str()),
        (Outcome::Stopped, 15, "cancelled: enough")
    );
    assert_eq!(run(&worker.containers, shell("printf very")).await.1, "very");
}

#[tokio::test]
async fn bytes_are_bytes_and_long_lines_are_pieces() {
    let work = tempfile::tempdir().expect("a folder");
    let worker = worker_with(settings(true), |config| config.workdir = Some(work.path().to_owned())).await;
    let script = "head -c 3000000 /dev/urandom > random; cat random; head -c 10485760 /dev/zero | tr '\\0' a >&2; echo >&2";
    let handle = worker.containers.run(shell(script)).expect("taken");
    assert_eq!(end(&handle).await.exit_code, 0);
    let random = std::fs::read(work.path().join("random")).expect("the given folder was used and is left");
    assert!(output(&handle, LogStream::Stdout).await == random, "binary output differs");
    let long = output(&handle, LogStream::Stderr).await;
    assert_eq!((long.len(), long.iter().filter(|byte| **byte == b'a').count()), (10_485_761, 10_485_760));
    for record in records(&handle).await {
        assert!(record.data.len() <= levers9_wire::limits::LOG_PIECE);
        assert!(!record.data[..record.data.len() - 1].contains(&b'\n'));
    }
}

#[tokio::test]
async fn a_container_finds_a_clean_place() {
    let worker = worker().await;
    let mut asked = shell(
        "env; echo; pwd; ls -A; echo; cat; ls /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign)' /proc/self/status; umask",
    );
    spec(&mut asked).env.0 = vec![("LANG".into(), b"C".to_vec()), ("MINE".into(), b"a=b".to_vec())];
    spec(&mut asked).resources.gpu_type = "T4".into();
    spec(&mut asked).resources.gpu_count = 2;
    let (container, task) = (asked.container, spec(&mut asked).task);
    let (ended, text) = run(&worker.containers, asked).await;
    assert_eq!(ended.exit_code, 0, "{ended:?}");
    let mut parts = text.split("\n\n");
    let mut env: Vec<&str> = parts.next().expect("an environment").lines().collect();
    env.retain(|line| !line.starts_with("SHLVL=") && !line.starts_with("_="));
    env.sort_unstable();
    let work =
        worker.data.path().canonicalize().expect("exists").join(format!("containers/{container}.1/work"));
    let work = work.to_str().expect("text");
    let mut expected = vec![
        "CUDA_VISIBLE_DEVICES=0,1".to_owned(),
        format!("HOME={work}"),
        "LANG=C".to_owned(),
        "LEVERS9_ATTEMPT=1".to_owned(),
        format!("LEVERS9_CONTAINER_ID={container}"),
        format!("LEVERS9_PROCESS_GROUP={container}.1"),
        format!("LEVERS9_TASK_ID={task}"),
        "MINE=a=b".to_owned(),
        "NVIDIA_VISIBLE_DEVICES=0,1".to_owned(),
        format!("PATH={}", std::env::var("PATH").expect("a PATH")),
        format!("PWD={work}"),
    ];
    expected.sort_unstable();
    assert_eq!(env, expected);
    assert_eq!(parts.next(), Some(work), "an empty working folder");
    let rest = parts.next().expect("the rest");
    // 0, 1, 2 and the folder that ls reads.
    let fds = rest.lines().next().expect("a count");
    assert_eq!(fds.trim(), "4");
    // The C library keeps 32 and 33 for itself and lets nobody change them.
    let masks: Vec<u64> = rest
        .lines()
        .filter_map(|line| line.strip_prefix("Sig")?.split_once('\t'))
        .map(|(_, mask)| u64::from_str_radix(mask, 16).expect("a mask") & 0x7fff_ffff)
        .collect();
    assert_eq!(masks, [0, 0]);
}

#[tokio::test]
async fn the_private_folder_goes_with_the_end_and_the_rest_with_the_last_acknowledgement() {
    let worker = worker().await;
    let asked = shell("echo hello; echo > file");
    let key = (asked.container, asked.generation);
    let handle = worker.containers.run(asked.clone()).expect("taken");
    assert!(pid(&handle).await > 1);
    end(&handle).await;
    let folder = worker.data.path().join(format!("containers/{}.1", key.0));
    until("the working folder is removed", || !folder.join("work").exists()).await;
    assert!(folder.exists());
    // The same order again is the same container, ended as it is.
    let again = worker.containers.run(asked).expect("known");
    assert_eq!(again.events_since(0), handle.events_since(0));
    assert_eq!(again.events_since(1).len(), 1);
    assert_eq!(worker.containers.inventory()[0].last_event, 2);

    handle.acknowledge_event(99);
    assert!(worker.containers.get(key.0, key.1).is_some(), "the log is not acknowledged");
    handle.log().acknowledge(1).await;
    within("forgotten", worker.containers.all_forgotten()).await;
    assert!(worker.containers.get(key.0, key.1).is_none());
    assert!(worker.containers.inventory().is_empty());
    assert!(!folder.exists());
    let reattach =
        levers9_wire::valid::Run { container: key.0, generation: key.1, since_event: 2, spec: None };
    let refused = worker.containers.run(reattach).expect_err("forgotten");
    assert_eq!(refused.ended().outcome(), Outcome::UnknownContainer);
}

#[tokio::test]
async fn a_timeout_counts_from_the_start_and_is_told_as_one() {
    let worker =
        worker_with(settings(true), |config| config.timeout_grace = Duration::from_millis(100)).await;
    let mut asked = shell("exec sleep 1000");
    spec(&mut asked).timeout = Some(Duration::from_millis(300));
    let (ended, _) = run(&worker.containers, asked).await;
    assert_eq!((ended.outcome(), ended.signal), (Outcome::TimedOut, 15));
    assert_eq!(ended.reason, "timed out after 300ms");
    assert!((300..30_000).contains(&ended.duration_ms), "{}", ended.duration_ms);

    let mut asked = shell("trap '' TERM; while :; do sleep 0.01; done");
    spec(&mut asked).timeout = Some(Duration::from_millis(300));
    let (ended, _) = run(&worker.containers, asked).await;
    assert_eq!((ended.outcome(), ended.signal), (Outcome::TimedOut, 9));
    assert_eq!(ended.reason, "timed out after 300ms; it did not end within 100ms of SIGTERM and was killed");
}

#[tokio::test]
async fn capacity_is_kept_account_of() {
    let worker = worker().await;
    let with_cards = |count: u32| {
        let mut asked = shell("echo $CUDA_VISIBLE_DEVICES; exec sleep 1000");
        spec(&mut asked).resources.gpu_type = "T4".into();
        spec(&mut asked).resources.gpu_count = count;
        asked
    };
    let first = worker.containers.run(with_cards(2)).expect("fits");
    let second = worker.containers.run(with_cards(1)).expect("fits");
    says(&first, "0,1\n").await;
    says(&second, "2\n").await;
    let refused = worker.containers.run(with_cards(1)).expect_err("no card left");
    assert_eq!(refused.to_string(), "the container needs 1 T4 and 0 are free");
    assert_eq!(refused.ended().outcome(), Outcome::Refused);
    first.stop(StopContainer::default());
    end(&first).await;
    // Free as soon as the end is told, though nothing is acknowledged.
    let third = worker.containers.run(with_cards(1)).expect("fits again");
    says(&third, "0\n").await;
    assert!(worker.containers.shutdown(Duration::ZERO).await.is_empty());
    assert_eq!(third.events_since(0).len(), 2);
    assert!(matches!(worker.containers.run(with_cards(1)), Err(Refused::ShuttingDown)));
}

#[tokio::test]
async fn one_workspace_and_the_newest_generation_only() {
    let worker = worker().await;
    let asked = shell("exec sleep 1000");
    let old = worker.containers.run(asked.clone()).expect("taken");
    pid(&old).await;
    let mut foreign = shell("true");
    spec(&mut foreign).workspace = WorkspaceId::generate();
    assert!(matches!(worker.containers.run(foreign), Err(Refused::OtherWorkspace(_))));
    let newer = levers9_wire::valid::Run { generation: Generation(2), ..asked.clone() };
    let new = worker.containers.run(newer).expect("taken");
    let ended = end(&old).await;
    assert_eq!(
        ended.reason.split(": ").last(),
        Some("replaced by generation 2; it did not end after SIGTERM and was killed")
    );
    let oldest = levers9_wire::valid::Run { generation: Generation(0), ..asked };
    assert!(matches!(worker.containers.run(oldest), Err(Refused::Replaced { newer: Generation(2), .. })));
    assert!(!new.has_ended());
    assert!(worker.containers.shutdown(Duration::ZERO).await.is_empty());
    assert_eq!(end(&new).await.outcome(), Outcome::Stopped);
}

#[tokio::test]
async fn one_worker_has_the_data_folder() {
    let worker = worker().await;
    let second =
        Containers::open(config(worker.data.path()), std::sync::Arc::new(Process::new(Settings::default())));
    assert!(matches!(second.await, Err(OpenError::Locked(_))));
    let handle = worker.containers.run(shell("echo x")).expect("taken");
    end(&handle).await;
    drop(handle);
    worker.containers.close().await;
    let left = std::fs::read_dir(worker.data.path().join("containers")).expect("readable").count();
    assert_eq!(left, 0, "close leaves no ended container behind");
    let runtime = std::sync::Arc::new(Process::new(Settings::default()));
    let (again, _) = Containers::open(config(worker.data.path()), runtime).await.expect("opens");
    let logs = again.left_logs();
    assert_eq!(logs.len(), 1, "what was not acknowledged is kept");
    assert_eq!(&records_of(&logs[0].spool).await[0].data[..], b"x\n");
}

#[tokio::test]
async fn more_output_than_there_is_room_for_is_counted() {
    let limits = spool::Limits { chunk: 10_000, head: 50_000, tail: 50_000 };
    let worker = worker_with(settings(true), |config| config.log = limits).await;
    let handle = worker.containers.run(shell("seq 200000; echo done")).expect("taken");
    let ended = end(&handle).await;
    assert_eq!((ended.exit_code, ended.log_records), (0, 200_001));
    let records = records(&handle).await;
    let dropped: u64 = records.iter().map(|record| record.dropped_records).sum();
    let bytes: u64 = records.iter().map(|record| record.dropped_bytes + record.data.len() as u64).sum();
    assert_eq!(records.len() as u64 + dropped, 200_001);
    assert_eq!(bytes, (1..=200_000u64).map(|n| n.to_string().len() as u64 + 1).sum::<u64>() + 5);
    assert_eq!(&records[0].data[..], b"1\n");
    assert_eq!(records.last().map(|record| &record.data[..]), Some(&b"done\n"[..]));
    assert!(dropped > 100_000);
}

/// Memory that grows until something stops it.
const GROW: &str = "exec tail /dev/zero";

#[tokio::test]
async fn the_memory_limit_is_enforced_and_named() {
    for namespaces in [true, false] {
        let worker = worker_with(settings(namespaces), |_| {}).await;
        let limited = |script: &str| {
            let mut asked = shell(script);
            spec(&mut asked).resources.memory_bytes = 64 << 20;
            spec(&mut asked).resources.memory_given = true;
            asked
        };
        let asked = limited(GROW);
        let container = asked.container;
        let handle = worker.containers.run(asked).expect("taken");
        let ended = end(&handle).await;
        let system = output(&handle, LogStream::System).await;
        if system.is_empty() {
            assert_eq!((ended.outcome(), ended.exit_code), (Outcome::OutOfMemory, 137), "{ended:?}");
            assert_eq!(ended.reason, "out of memory: limit 64Mi");
            let (ended, _) = run(&worker.containers, limited("(exec tail /dev/zero); exit 5")).await;
            assert_eq!((ended.outcome(), ended.exit_code), (Outcome::Exited, 5));
            assert_eq!(ended.reason, "1 process was killed for lack of memory: limit 64Mi");
        } else {
            assert_fallback(&ended, &system);
        }
        assert_eq!(groups(container), Vec::<std::path::PathBuf>::new());
    }
}

#[tokio::test]
async fn without_control_groups_the_limits_are_what_can_be_had_and_that_is_said() {
    let worker = worker_with(Settings { control_groups: false, ..settings(true) }, |_| {}).await;
    let mut asked = shell(GROW);
    let resources = &mut spec(&mut asked).resources;
    (resources.memory_bytes, resources.memory_given) = (64 << 20, true);
    (resources.cpu_millis, resources.cpu_given) = (1_500, true);
    let handle = worker.containers.run(asked).expect("taken");
    let ended = end(&handle).await;
    let system = output(&handle, LogStream::System).await;
    assert_fallback(&ended, &system);
    let system = String::from_utf8_lossy(&system);
    assert!(
        system.ends_with("the CPU limit 1500m is not enforced: control groups are switched off\n"),
        "{system}"
    );
}

fn assert_fallback(ended: &v1::RunEnded, system: &[u8]) {
    let words = "the memory limit 64Mi holds for each process, not for all together: ";
    assert_eq!((ended.outcome(), ended.exit_code), (Outcome::Exited, 1), "tail gives up");
    assert!(ended.reason.starts_with(words), "{}", ended.reason);
    assert!(String::from_utf8_lossy(system).starts_with(words));
}

#[tokio::test]
async fn the_cpu_limit_is_enforced_or_it_is_said_that_it_is_not() {
    let worker = worker().await;
    // Half a second of work at a fifth of a core.
    let mut asked = shell("timeout 1 sh -c 'while :; do :; done'; times");
    let resources = &mut spec(&mut asked).resources;
    (resources.cpu_millis, resources.cpu_given) = (200, true);
    let container = asked.container;
    let handle = worker.containers.run(asked).expect("taken");
    let ended = end(&handle).await;
    let system = String::from_utf8_lossy(&output(&handle, LogStream::System).await).into_owned();
    let text = stdout(&handle).await;
    assert_eq!(ended.outcome(), Outcome::Exited);
    if system.is_empty() {
        // Children's user time, as 0m0.21s.
        let user = text.lines().nth(1).and_then(|line| line.split(' ').next()).expect("times");
        let seconds: f64 = user.trim_start_matches("0m").trim_end_matches('s').parse().expect("seconds");
        assert!(seconds < 0.5, "{text}");
    } else {
        assert!(system.starts_with("the CPU limit 200m is not enforced: no cpu control group"), "{system}");
    }
    assert_eq!(groups(container), Vec::<std::path::PathBuf>::new());
}
