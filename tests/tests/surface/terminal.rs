//! What is different at a terminal: prompts that show nothing, colours, and
//! progress. `script` of util-linux is the terminal.

use std::process::{Command, Stdio};

use levers9_tests::{Home, Live, Output, Person};

use crate::support::{PATIENCE, normal, shared};

/// A command at a terminal that types `input`.
fn at_terminal(command: &Command, input: &str) -> Output {
    let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"));
    let line: Vec<String> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(quoted).collect();
    let typed = input.replace('\n', r"\r");
    // What is typed before the prompt is there would be thrown away with the terminal's echo.
    let script = format!(
        "(until grep -q ': $' screen 2>/dev/null; do sleep 0.05; [ -e done ] && exit; done; printf '{typed}'; \
         until [ -e done ]; do sleep 0.05; done) | script -qfec \"$LINE\" screen; code=$?; exit $code"
    );
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).env_clear().stdin(Stdio::null());
    shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    shell.env("LINE", format!("{}; code=$?; touch done; exit $code", line.join(" "))).env("SHELL", "/bin/sh");
    shell.current_dir(command.get_current_dir().expect("a folder"));
    Output::of(shell)
}

#[test]
fn login_asks_for_the_token_and_shows_nothing_of_it() {
    let world = &shared().world;
    let (_, key) = world.new_token("workspace");
    let home = Home::new();
    let login = home.command("levers9", &["login", &world.controlplane.address()]);
    let did = at_terminal(&login, &format!("{key}\n"));
    let screen = normal(&did.text());
    assert_eq!(did.code, 0, "{screen}");
    assert!(screen.contains("Token (leave empty to use the bootstrap secret): "), "{screen}");
    assert!(screen.contains("levers9: logged in to \"default\" (workspace) at 127.0.0.1:[PORT]"), "{screen}");
    assert!(!did.text().contains(&key), "the token was shown");
    let _works = home.cli(&["task", "list"]).ok();
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let home = Home::new();
    let error = |env: &[(&str, &str)]| {
        let mut command = home.command("levers9", &["task", "list"]);
        command.env("TERM", "xterm").envs(env.iter().copied());
        let _gone = std::fs::remove_file(home.path().join("done"));
        at_terminal(&command, "").text()
    };
    let coloured = error(&[]);
    assert!(coloured.contains("\u{1b}[1;31merror:\u{1b}[0m no controlplane"), "{coloured:?}");
    for plain in [error(&[("NO_COLOR", "1")]), error(&[("TERM", "dumb")])] {
        assert!(!plain.contains('\u{1b}') && plain.contains("error: no controlplane"), "{plain:?}");
    }
    assert!(!home.cli(&["task", "list"]).stderr.contains('\u{1b}'));
}

#[test]
fn the_task_is_named_at_a_terminal_only() {
    let member = Person::of_kind(&shared().world, "workspace");
    let did = at_terminal(&member.command(&["run", "--", "echo", "out"]), "");
    assert_eq!(normal(&did.text()), "levers9: task [ID]\r\nout\r\n");
    let mut piped: Live = member.cli_spawn(&["run", "--", "echo", "out"]);
    assert_eq!((piped.wait(PATIENCE), piped.errors().as_str()), (0, ""));
}
