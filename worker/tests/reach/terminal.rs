//! Commands at a terminal.

use crate::world::*;
use levers9_wire::v1::Outcome;

#[tokio::test]
async fn a_terminal_has_its_size_from_the_start_and_takes_another() {
    for namespaces in [true, false] {
        let world = World::new(namespaces).await;
        let container = world.run("exec sleep 1000").await;
        for _ in 0..50 {
            let done = world.exec(&container, ask(&["stty", "size"]).terminal(40, 120)).await.done().await;
            assert_eq!((done.text().as_str(), done.how().1), ("40 120\r\n", 0));
        }
        // Before the command can have started.
        for _ in 0..10 {
            let asked = sh("read go; stty size").terminal(40, 120).stdin();
            let mut exec = world.exec(&container, asked).await;
            exec.send(resize(50, 200)).await;
            exec.send(stdin(b"go\n")).await;
            assert!(exec.done().await.text().ends_with("50 200\r\n"));
        }
        // While it runs: it is told.
        let asked = sh("trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.01; done");
        let mut exec = world.exec(&container, asked.terminal(24, 80)).await;
        exec.says("ready").await;
        exec.send(resize(30, 90)).await;
        let done = exec.done().await;
        assert!(done.text().ends_with("30 90\r\n"), "{:?}", done.text());
        assert_eq!(done.how(), (Outcome::Exited, 4, 0));
    }
}

#[tokio::test]
async fn it_is_the_command_s_own_terminal() {
    for namespaces in [true, false] {
        let world = World::new(namespaces).await;
        let container = world.run("exec sleep 1000").await;
        let script =
            "test -t 0 && test -t 1 && test -t 2 && echo three; echo to it > /dev/tty; echo err >&2; tty";
        let done = world.exec(&container, sh(script).terminal(24, 80)).await.done().await;
        let text = done.text();
        assert!(text.starts_with("three\r\nto it\r\nerr\r\n/dev/pts/"), "{text:?}");
        assert_eq!((done.stderr.len(), done.how().1), (0, 0));
        // Ctrl-C, to whoever is in front.
        let mut exec =
            world.exec(&container, sh("echo ready; exec sleep 1000").terminal(24, 80).stdin()).await;
        exec.says("ready").await;
        exec.send(stdin(&[3])).await;
        assert_eq!(exec.done().await.how(), (Outcome::Signaled, 130, 2));
        // The end of the input, and its echo.
        let mut exec = world.exec(&container, ask(&["cat"]).terminal(24, 80).stdin()).await;
        exec.send(stdin(b"line\n")).await;
        exec.send(stdin_end()).await;
        let done = exec.done().await;
        assert_eq!((done.text().as_str(), done.how()), ("line\r\nline\r\n", (Outcome::Exited, 0, 0)));
    }
}

#[tokio::test]
async fn a_shell_at_a_terminal_has_jobs_and_its_output_is_whole() {
    let world = World::new(true).await;
    let container = world.run("exec sleep 1000").await;
    let mut exec = world.exec(&container, ask(&["bash", "--norc", "-i"]).terminal(24, 80).stdin()).await;
    exec.send(stdin(b"sleep 1000 & jobs; echo status $((6 * 7))\n")).await;
    let text = exec.says("status 42").await;
    assert!(text.contains("Running") && !text.contains("no job control"), "{text:?}");
    exec.send(stdin(b"exit 3\n")).await;
    assert_eq!(exec.done().await.how(), (Outcome::Exited, 3, 0));
    let done = world.exec(&container, sh("seq 1 200000").terminal(24, 80)).await.done().await;
    assert!(done.text().ends_with("\r\n200000\r\n"));
    assert_eq!(done.text().lines().count(), 200_000);
}
