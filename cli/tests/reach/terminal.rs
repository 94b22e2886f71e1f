//! `exec -t` and `shell` at a real terminal: which size the command is told,
//! what keys are, and that the terminal is as it was whatever happened.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier, Mutex};

use levers9_wire::v1::{self, Outcome, ResetCode, call_answer::Answer, exec_input, stream_open::Kind};
use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, Termios, tcgetattr};
use rustix::termios::tcsetwinsize;
use tokio::sync::Notify;

use super::{CONTAINER, Played, end, wait_for, with_exec};
use crate::fake::{Fake, Step, with};
use crate::support::Home;
use crate::{home, tell};

/// A terminal with somebody who looks at it.
pub(crate) struct Screen {
    keys: File,
    line: OwnedFd,
    found: Termios,
    shown: Arc<Mutex<Vec<u8>>>,
}

/// Both ends of a new terminal. No other child of this process gets them.
fn pair() -> (File, OwnedFd) {
    let end = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = posix_openpt(end).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname_r(&master).unwrap();
    let mut line = OpenOptions::new();
    let line = line.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(name).unwrap();
    (File::from(OwnedFd::from(master)), line.into())
}

/// Starts the command with a terminal of its own.
fn start_at(line: &OwnedFd, home: &Home, args: &[&str]) -> Child {
    let plain = home.command(args);
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(plain.get_program()).args(plain.get_args()).env_clear();
    command.env("HOME", home.path()).env("TERM", "xterm-256color");
    let line = || Stdio::from(line.try_clone().unwrap());
    command.stdin(line()).stdout(line()).stderr(line()).spawn().unwrap()
}

impl Screen {
    pub(crate) fn new(rows: u16, columns: u16) -> Self {
        let (keys, line) = pair();
        let found = tcgetattr(&line).unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, screen) = (keys.try_clone().unwrap(), Arc::clone(&shown));
        // Ends with an error once nobody holds the other end.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                screen.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        let screen = Self { keys, line, found, shown };
        screen.resize(rows, columns);
        screen
    }

    /// Starts the command at this terminal, as a shell would.
    pub(crate) fn start(&self, home: &Home, args: &[&str]) -> Child {
        start_at(&self.line, home, args)
    }

    fn now(&self) -> Termios {
        tcgetattr(&self.line).unwrap()
    }

    fn is_raw(&self) -> bool {
        !self.now().local_flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG)
    }

    #[track_caller]
    fn wait_until_raw(&self) {
        wait_for(|| self.is_raw(), |raw| *raw);
    }

    #[track_caller]
    fn is_as_found(&self) {
        assert_eq!(self.now(), self.found);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until this is shown.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        wait_for(|| self.text(), |shown| shown.contains(text));
    }

    pub(crate) fn types(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keys, size).unwrap();
    }
}

fn size(rows: u32, columns: u32) -> v1::TerminalSize {
    v1::TerminalSize { rows, columns }
}

#[test]
fn a_shell_has_this_terminals_size_name_and_keys() {
    let fake = with_exec(|mut command| async move {
        command.started().await;
        command.out(b"$ ").await;
        let mut keys = Vec::new();
        while keys.last() != Some(&4) {
            match command.hear().await {
                Some(exec_input::Kind::Stdin(bytes)) => keys.extend(bytes),
                _ => return Some(ResetCode::Protocol),
            }
        }
        command.out(format!("{keys:?}\r\n").as_bytes()).await;
        command.exit(5).await
    });
    let home = home(&fake);
    let mut screen = Screen::new(40, 120);
    let mut child = screen.start(&home, &["shell", CONTAINER]);
    screen.shows("$ ");
    assert!(screen.is_raw());
    // Ctrl-C, Ctrl-Z, Ctrl-\, Enter: all of them are the command's.
    screen.types(b"a\x03\x1a\x1c\r\x04");
    assert_eq!(child.wait().unwrap().code(), Some(5));
    screen.shows("[97, 3, 26, 28, 13, 4]\r\n");
    screen.is_as_found();
    assert_eq!(screen.text(), "$ [97, 3, 26, 28, 13, 4]\r\n");
    let asked = &fake.execs()[0];
    assert_eq!(asked.terminal, Some(size(40, 120)));
    assert_eq!((asked.env[0].name.as_str(), asked.env[0].value.as_slice()), ("TERM", &b"xterm-256color"[..]));
}

#[test]
fn an_unknown_size_is_the_usual_one_and_term_can_be_chosen() {
    let fake = with_exec(|command| command.exit(0));
    let home = home(&fake);
    let screen = Screen::new(0, 0);
    let args = ["exec", "-t", "-e", "TERM=dumb", CONTAINER, "--", "tty"];
    assert_eq!(screen.start(&home, &args).wait().unwrap().code(), Some(0));
    let asked = &fake.execs()[0];
    assert_eq!(asked.terminal, Some(size(24, 80)));
    assert_eq!(asked.env.len(), 1);
    assert_eq!(asked.env[0].value, b"dumb");
    assert!(asked.stdin, "a terminal comes with its keys");
}

#[test]
fn a_new_size_is_told_also_one_from_before_the_start() {
    let (asked, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell_asked, wait_go) = (Arc::clone(&asked), Arc::clone(&go));
    let fake = with_exec(move |mut command| {
        let (asked, go) = (Arc::clone(&tell_asked), Arc::clone(&wait_go));
        async move {
            asked.notify_one();
            go.notified().await;
            command.started().await;
            loop {
                match command.hear().await {
                    Some(exec_input::Kind::Resize(size)) => {
                        command.out(format!("{}x{}\r\n", size.rows, size.columns).as_bytes()).await;
                        if size.rows == 60 {
                            return command.exit(0).await;
                        }
                    }
                    _ => return Some(ResetCode::Protocol),
                }
            }
        }
    });
    let home = home(&fake);
    let screen = Screen::new(40, 120);
    let mut child = screen.start(&home, &["shell", CONTAINER]);
    let waiting = tokio::runtime::Builder::new_current_thread().build().unwrap();
    waiting.block_on(asked.notified());
    screen.resize(50, 200);
    go.notify_one();
    screen.shows("50x200\r\n");
    // The last of many counts.
    for rows in 51..=60 {
        screen.resize(rows, 100);
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    screen.shows("60x100\r\n");
    assert_eq!(fake.execs()[0].terminal, Some(size(40, 120)));
}

/// A shell that waits for keys, and loses its session at Enter.
fn waiting_shell() -> Fake {
    with_exec(|mut command: Played| async move {
        command.started().await;
        command.out(b"$ ").await;
        while let Some(heard) = command.hear().await {
            match heard {
                exec_input::Kind::Stdin(keys) if *keys == b"\r"[..] => return Some(ResetCode::CarrierLost),
                exec_input::Kind::Stdin(keys) if *keys == b"s"[..] => {
                    let reason = "the container was stopped".to_owned();
                    return command.ended(v1::ExecEnded { reason, ..end(Outcome::Stopped) }).await;
                }
                _ => {}
            }
        }
        None
    })
}

#[test]
fn the_terminal_is_given_back_when_the_connection_is_lost() {
    let fake = waiting_shell();
    let home = home(&fake);
    let mut screen = Screen::new(24, 80);
    let mut child = screen.start(&home, &["shell", CONTAINER]);
    screen.shows("$ ");
    screen.types(b"\r");
    assert_eq!(child.wait().unwrap().code(), Some(125));
    screen.is_as_found();
    screen.shows("nothing is resumed");
    let shown = screen.text();
    let said = format!("error:\u{1b}[0m the connection to {} was lost; the command was ended", fake.place());
    assert!(shown.starts_with("$ \r\n") && shown.contains(&said), "{shown:?}");
    assert!(!shown.replace("\r\n", "").contains('\n'), "{shown:?}");
}

#[test]
fn the_terminal_is_given_back_when_the_container_ends() {
    let fake = waiting_shell();
    let home = home(&fake);
    let mut screen = Screen::new(24, 80);
    let mut child = screen.start(&home, &["shell", CONTAINER]);
    screen.shows("$ ");
    screen.types(b"s");
    assert_eq!(child.wait().unwrap().code(), Some(137));
    screen.is_as_found();
    screen.shows("$ \r\nlevers9: the container was stopped\r\n");
}

#[test]
fn the_terminal_is_given_back_whatever_signal_ends_it() {
    let fake = waiting_shell();
    let home = home(&fake);
    for (signal, code) in
        [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGINT, 130), (Signal::SIGQUIT, 131)]
    {
        let screen = Screen::new(24, 80);
        let mut child = screen.start(&home, &["shell", CONTAINER]);
        screen.shows("$ ");
        screen.wait_until_raw();
        tell(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}: {:?}", screen.text());
        screen.is_as_found();
        screen.shows("$ \r\nlevers9: leaving; the command is ended\r\n");
    }
}

#[test]
fn a_terminal_that_goes_away_ends_it() {
    let fake = waiting_shell();
    let home = home(&fake);
    // Nobody looks at this one, so that the last to hold it is here.
    let (keys, line) = pair();
    let mut child = start_at(&line, &home, &["shell", CONTAINER]);
    let raw = || !tcgetattr(&line).unwrap().local_flags.contains(LocalFlags::ICANON);
    wait_for(raw, |raw| *raw);
    drop(keys);
    assert_eq!(child.wait().unwrap().code(), Some(129));
}

#[test]
fn a_controlplane_that_hangs_can_be_left() {
    let (hang, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (hanging, going_on) = (Arc::clone(&hang), Arc::clone(&go_on));
    let fake = with_exec(move |mut command| {
        let (hanging, going_on) = (Arc::clone(&hanging), Arc::clone(&going_on));
        async move {
            command.started().await;
            command.out(b"$ ").await;
            let _typed = command.hear().await;
            // Nothing of it does anything while its only thread is held.
            hanging.wait();
            going_on.wait();
            None
        }
    });
    let home = home(&fake);
    let mut screen = Screen::new(24, 80);
    let mut child = screen.start(&home, &["shell", CONTAINER]);
    screen.shows("$ ");
    screen.types(b"x");
    hang.wait();
    screen.types(b"\x03\x03");
    screen.shows("does not answer; press Ctrl-C again to leave\r\n");
    assert!(screen.is_raw());
    screen.types(b"\x03");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    screen.is_as_found();
    go_on.wait();
}

#[test]
fn a_command_that_ignores_ctrl_c_is_not_left() {
    let (say, mut heard) = tokio::sync::mpsc::channel(64);
    let fake = Fake::start(move |kind, _| match kind {
        Kind::Exec(_) => with(|stream| async move {
            let mut command = Played(stream);
            command.started().await;
            command.out(b"$ ").await;
            while let Some(heard) = command.hear().await {
                // Keys that are typed together may come together.
                if matches!(heard, exec_input::Kind::Stdin(keys) if keys.ends_with(b"q")) {
                    return command.exit(0).await;
                }
            }
            None
        }),
        _ => {
            say.try_send(()).unwrap();
            vec![Step::Answer(Answer::WhoAmI(v1::WhoAmIAnswer::default()))]
        }
    });
    let home = home(&fake);
    let mut screen = Screen::new(24, 80);
    let mut child = screen.start(&home, &["shell", CONTAINER]);
    screen.shows("$ ");
    screen.types(b"\x03");
    assert_eq!(heard.blocking_recv(), Some(()), "the controlplane was asked");
    screen.types(b"\x03");
    screen.types(b"q");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(screen.text(), "$ ");
}

#[test]
fn one_that_was_stopped_goes_on_in_raw_mode() {
    let fake = waiting_shell();
    let home = home(&fake);
    let mut screen = Screen::new(24, 80);
    let mut child = screen.start(&home, &["shell", CONTAINER]);
    screen.shows("$ ");
    tell(&child, Signal::SIGSTOP);
    let cooked = nix::sys::termios::SetArg::TCSANOW;
    nix::sys::termios::tcsetattr(&screen.line, cooked, &screen.found).unwrap();
    tell(&child, Signal::SIGCONT);
    screen.wait_until_raw();
    screen.types(b"s");
    assert_eq!(child.wait().unwrap().code(), Some(137));
    screen.is_as_found();
}

#[test]
fn a_terminal_that_is_not_there_cannot_be_given() {
    let fake = with_exec(|command| command.exit(0));
    let home = home(&fake);
    let did = home.run(&["exec", "-it", CONTAINER, "--", "sh"]);
    let said = "error: the input is not a terminal\nhint: leave out -t, or use -i to pipe input";
    assert_eq!((did.code, did.err.as_str()), (125, said));
    assert!(fake.execs().is_empty());
}
