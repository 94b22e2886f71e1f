//! `levers9 logs`: from which line, which stream, and until when.

use std::sync::OnceLock;

use crate::support::{PATIENCE, says, shared, wait_lines};

/// A task of six lines, three on each stream, that has ended.
fn task() -> &'static str {
    static TASK: OnceLock<String> = OnceLock::new();
    TASK.get_or_init(|| {
        let world = &shared().world;
        // A pause between the streams: two pipes have no order of their own.
        let script = "for i in 1 2 3; do echo out$i; sleep 0.1; echo err$i >&2; sleep 0.1; done";
        let task = world.submit(script);
        let _done = world.wait_status(&task, "COMPLETE", PATIENCE);
        task
    })
}

/// The numbers of the task's lines, from `logs --format json`.
fn numbers() -> Vec<u64> {
    let lines = shared().world.cli(&["logs", task(), "--format", "json"]).ok().json_lines();
    lines.iter().map(|line| line["line"].as_u64().expect("a number")).collect()
}

/// What `logs` with these arguments writes, on each stream.
fn logs(args: &[&str]) -> (String, String) {
    let did = shared().world.cli(&[&["logs", task()], args].concat()).ok();
    let joined = |text: &str| text.lines().collect::<Vec<_>>().join(" ");
    (joined(&did.text()), joined(&did.stderr))
}

#[track_caller]
fn prints(args: &[&str], out: &str, err: &str) {
    assert_eq!(logs(args), (out.to_owned(), err.to_owned()), "{args:?}");
}

#[test]
fn all_of_it_with_its_streams_apart() {
    prints(&[], "out1 out2 out3", "err1 err2 err3");
    prints(&["-f"], "out1 out2 out3", "err1 err2 err3");
    prints(&["--stdout"], "out1 out2 out3", "");
    prints(&["--stderr"], "", "err1 err2 err3");
    prints(&["--stderr", "-f"], "", "err1 err2 err3");
    let did = shared().world.cli(&["logs", task(), "--stdout", "--stderr"]);
    assert_eq!((did.code, did.text().as_str()), (2, ""), "{}", did.stderr);
}

#[test]
fn line_numbers_start_at_one_and_leave_none_out() {
    assert_eq!(numbers(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn since_line_is_exclusive() {
    prints(&["--since-line", "0"], "out1 out2 out3", "err1 err2 err3");
    prints(&["--since-line", "1"], "out2 out3", "err1 err2 err3");
    prints(&["--since-line", "5"], "", "err3");
    prints(&["--since-line", "6"], "", "");
    prints(&["--since-line", "18446744073709551615"], "", "");
    prints(&["--since-line", "4", "-f"], "out3", "err3");
}

#[test]
fn tail_is_exact() {
    prints(&["--tail", "0"], "", "");
    prints(&["--tail", "1"], "", "err3");
    prints(&["--tail", "2"], "out3", "err3");
    prints(&["--tail", "6"], "out1 out2 out3", "err1 err2 err3");
    prints(&["--tail", "1000000"], "out1 out2 out3", "err1 err2 err3");
    prints(&["--tail", "18446744073709551615"], "out1 out2 out3", "err1 err2 err3");
    prints(&["--tail", "2", "-f"], "out3", "err3");
    let did = shared().world.cli(&["logs", task(), "--tail", "1", "--since-line", "1"]);
    assert_eq!((did.code, did.text().as_str()), (2, ""), "{}", did.stderr);
}

#[test]
fn the_last_n_lines_are_of_what_is_shown() {
    // `--tail 2 --stdout` as `logs --stdout | tail -2`: two lines of that stream.
    prints(&["--tail", "2", "--stdout"], "out2 out3", "");
    prints(&["--tail", "1", "--stdout"], "out3", "");
}

#[test]
fn by_the_id_of_its_container() {
    let world = &shared().world;
    let container = world.task(task())["container"].as_str().expect("a container").to_owned();
    says(&world.cli(&["logs", &container, "--stdout"]), 0, "out1\nout2\nout3", "");
}

#[test]
fn a_follow_ends_with_its_task() {
    let world = &shared().world;
    let flag = world.home.path().join("go-on");
    let script =
        format!("echo first; while ! [ -e '{}' ]; do sleep 0.05; done; echo last; exit 3", flag.display());
    let task = world.submit(&script);
    let mut follow = world.cli_spawn(&["logs", "-f", &task]);
    wait_lines(&follow, 1);
    assert_eq!(
        world.cli(&["logs", &task]).ok().text(),
        "first\n",
        "without -f it prints what there is and ends"
    );
    std::fs::write(&flag, "").expect("a file");
    // How the task ended is not how reading its log ended.
    assert_eq!(follow.wait(PATIENCE), 0, "{}", follow.shown());
    assert_eq!((follow.text().as_str(), follow.errors().as_str()), ("first\nlast\n", ""));
}

#[test]
fn a_follow_from_before_there_is_a_container() {
    let world = levers9_tests::World::start(levers9_tests::Backend::Sqlite);
    let task = world.submit("echo at last");
    let mut follow = world.cli_spawn(&["logs", "-f", &task]);
    follow.wait_errors("levers9: no worker is connected; waiting for one\n", PATIENCE);
    let _worker = world.worker("late");
    assert_eq!(follow.wait(PATIENCE), 0, "{}", follow.shown());
    assert_eq!(follow.text(), "at last\n");
}

#[test]
fn bytes_come_out_as_they_went_in() {
    let world = &shared().world;
    let script = r"printf 'no newline at the end \377\000\033[31m'";
    let run = world.cli(&["run", "--", "sh", "-c", script]).ok();
    assert_eq!(run.stdout, b"no newline at the end \xff\0\x1b[31m");
}
