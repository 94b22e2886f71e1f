//! `levers9 port-forward`: ports of a container on this machine.

use serde::Serialize;

use crate::args::Format;
use crate::client::{Client, block_on};
use crate::error::Error;
use crate::forward::{Local, bind, check, serve};
use crate::printer::Printer;
use crate::settings::PortForwardSettings;
use crate::signals::Signals;

/// One forwarded port, for scripts.
#[derive(Debug, Serialize)]
struct ForwardView {
    /// Where it is reached here.
    local: String,
    /// The container's port.
    remote: u16,
}

/// Runs the command.
///
/// # Errors
/// When a port here cannot be taken, or the container does not run (any more).
pub fn run(settings: &PortForwardSettings, printer: &mut Printer) -> Result<u8, Error> {
    block_on(async {
        let mut signals = Signals::listen()?;
        // Before anything else, so that a port that is taken is said at once.
        let locals = settings.forwards.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        let client = signals.or(Client::connect(&settings.target)).await?;
        let forwarded = async {
            signals.or(check(&client, settings.container)).await?;
            say(&locals, settings.format, printer)?;
            serve(&client, settings.container, locals, &mut signals, printer).await
        };
        let code = forwarded.await;
        client.close().await;
        code
    })
}

fn say(locals: &[Local], format: Format, printer: &mut Printer) -> Result<(), Error> {
    for Local { address, remote, .. } in locals {
        match format {
            Format::Json => {
                printer.json_line(&ForwardView { local: address.to_string(), remote: *remote })?
            }
            Format::Text => {
                printer.line(&format!("Forwarding {address} -> container port {remote}"))?;
            }
        }
    }
    Ok(())
}
