//! Settings of the commands that reach into a running container.

use std::net::{IpAddr, SocketAddr};

use levers9_wire::{ContainerId, v1, valid};

use super::job::variable;
use super::{Target, id};
use crate::args::{ExecArgs, Format, InsideArgs, PortForwardArgs, ShellArgs};
use crate::env::Env;
use crate::error::Error;

/// Whether a command gets a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminalWish {
    /// It gets none.
    No,
    /// It gets one, or the command fails.
    Yes,
    /// It gets one when there is one here.
    IfHere,
}

/// `levers9 exec` and `levers9 shell`
#[derive(Debug, Clone, PartialEq)]
pub struct ExecSettings {
    /// Whom to ask.
    pub target: Target,
    /// What to run and where, checked; without a terminal yet.
    pub open: v1::ExecOpen,
    /// Whether it gets a terminal.
    pub terminal: TerminalWish,
    /// What else it gets in its environment when it gets a terminal.
    pub term: Option<v1::EnvVar>,
}

/// `levers9 port-forward`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortForwardSettings {
    /// Whom to ask.
    pub target: Target,
    /// The container, or its task.
    pub container: ContainerId,
    /// What to forward; not empty.
    pub forwards: Vec<Forward>,
    /// How to print.
    pub format: Format,
}

/// One port to forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// Where to listen; port 0 for any free one.
    pub local: SocketAddr,
    /// The container's port; not 0.
    pub remote: u16,
}

pub(super) fn exec(
    args: ExecArgs,
    env: &Env,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<ExecSettings, Error> {
    let ExecArgs { container, stdin, tty, inside, command } = args;
    let terminal = if tty { TerminalWish::Yes } else { TerminalWish::No };
    let open = v1::ExecOpen { command, stdin: stdin || tty, ..v1::ExecOpen::default() };
    settings(&container, open, inside, terminal, env, target)
}

pub(super) fn shell(
    args: ShellArgs,
    env: &Env,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<ExecSettings, Error> {
    // No command stands for the container's shell.
    let open = v1::ExecOpen { stdin: true, ..v1::ExecOpen::default() };
    settings(&args.container, open, args.inside, TerminalWish::IfHere, env, target)
}

fn settings(
    container: &str,
    open: v1::ExecOpen,
    inside: InsideArgs,
    terminal: TerminalWish,
    env: &Env,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<ExecSettings, Error> {
    // Tasks and containers have ids of one form; the controlplane knows which it is.
    let container: ContainerId = id(container, "CONTAINER")?;
    let open = v1::ExecOpen {
        container: container.to_wire(),
        env: inside.env.iter().map(|pair| variable(pair, env)).collect::<Result<_, _>>()?,
        workdir: inside.workdir.unwrap_or_default(),
        ..open
    };
    // The controlplane checks by the same rules; here the answer costs nothing.
    valid::Exec::try_from(open.clone()).map_err(|e| Error::usage("the command is refused").because(e))?;
    let given = open.env.iter().any(|variable| variable.name == "TERM");
    let term = env.get("TERM").filter(|_| !given);
    let term = term.map(|term| v1::EnvVar { name: "TERM".to_owned(), value: term.as_bytes().to_vec() });
    Ok(ExecSettings { target: target()?, open, terminal, term })
}

pub(super) fn port_forward(
    args: &PortForwardArgs,
    target: impl Fn() -> Result<Target, Error>,
) -> Result<PortForwardSettings, Error> {
    let container = id(&args.container, "CONTAINER")?;
    let mut forwards: Vec<Forward> = Vec::with_capacity(args.ports.len());
    for text in &args.ports {
        let forward = forward(text, args.address)?;
        let local = forward.local;
        if local.port() != 0 && forwards.iter().any(|other| other.local == local) {
            return Err(Error::usage(format!("{text:?}: the local port {} is taken twice", local.port()))
                .hint("give each its own: LOCAL:REMOTE"));
        }
        forwards.push(forward);
    }
    Ok(PortForwardSettings { target: target()?, container, forwards, format: args.output.format })
}

/// `LOCAL:REMOTE`, `REMOTE` for both, or `:REMOTE` for any free one here.
fn forward(text: &str, address: IpAddr) -> Result<Forward, Error> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let local = if local.is_empty() { Some(0) } else { port(local) };
    let (Some(local), Some(remote @ 1..)) = (local, port(remote)) else {
        return Err(Error::usage(format!("{text:?} names no port to forward")).hint(
            "write [LOCAL:]REMOTE, as in 8080:8000; ports are 1 to 65535, a LOCAL of 0 is any free one",
        ));
    };
    Ok(Forward { local: SocketAddr::new(address, local), remote })
}

/// Digits only: a sign is none.
fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_in_three_forms() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let ports = |text: &str| forward(text, address).map(|f| (f.local.port(), f.remote)).ok();
        assert_eq!(ports("8000"), Some((8000, 8000)));
        assert_eq!(ports("80:8000"), Some((80, 8000)));
        assert_eq!(ports(":8000"), Some((0, 8000)));
        assert_eq!(ports("0:65535"), Some((0, 65535)));
        for bad in
            ["0", "65536", "65536:1", "1:65536", "1:0", "a:b:c", "1:2:3", "abc", "", ":", "8000:", "+1", "-1"]
        {
            assert_eq!(ports(bad), None, "{bad:?}");
            let said = forward(bad, address).unwrap_err().to_string();
            assert!(said.contains(&format!("{bad:?}")), "{said}");
        }
    }
}
