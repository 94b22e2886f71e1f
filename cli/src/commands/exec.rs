//! `levers9 exec` and `levers9 shell`: a command in a running container.

use levers9_wire::valid;

use crate::client::{Client, block_on};
use crate::error::Error;
use crate::exec::{Window, exec};
use crate::printer::Printer;
use crate::settings::{ExecSettings, TerminalWish};
use crate::signals::Signals;
use crate::terminal;

/// Runs the command.
///
/// # Errors
/// When there is no terminal for a command that needs one, the controlplane
/// says no, or the connection is lost. The command's own failure is the exit
/// code.
pub fn run(settings: ExecSettings, printer: &mut Printer) -> Result<u8, Error> {
    let ExecSettings { target, mut open, terminal, term } = settings;
    let here = terminal::is_here();
    if terminal == TerminalWish::Yes && !here {
        return Err(
            Error::failed("the input is not a terminal").hint("leave out -t, or use -i to pipe input")
        );
    }
    block_on(async {
        let mut signals = Signals::listen_to_quit_too()?;
        let window = (here && terminal != TerminalWish::No).then(Window::open).transpose()?;
        if let Some(window) = &window {
            open.terminal = Some(window.size());
            open.env.extend(term);
            valid::Exec::try_from(open.clone())
                .map_err(|e| Error::usage("the command is refused").because(e))?;
        }
        let client = signals.or(Client::connect(&target)).await?;
        let code = exec(&client, open, window, &mut signals, printer).await;
        client.close().await;
        code
    })
}
