//! `levers9 attach`: becomes a caller of a task and follows it.

use levers9_wire::v1;

use super::run::code_of;
use crate::client::{Client, block_on};
use crate::error::Error;
use crate::follow::{Plan, follow};
use crate::printer::Printer;
use crate::settings::AttachSettings;
use crate::signals::Signals;

/// Runs the command.
///
/// # Errors
/// When the task cannot be followed. Its own failure is its exit code.
pub fn run(settings: &AttachSettings, printer: &mut Printer) -> Result<u8, Error> {
    let AttachSettings { target, task, since_line, format } = settings;
    block_on(async {
        let mut signals = Signals::listen()?;
        let client = signals.or(Client::connect(target)).await?;
        let open = v1::FollowOpen {
            id: task.to_wire(),
            since_line: *since_line,
            follow: true,
            caller: true,
            ..v1::FollowOpen::default()
        };
        let plan = Plan { open, format: *format, task: Some(*task), seen_note: String::new() };
        let finish = follow(&client, &plan, &mut signals, printer).await;
        client.close().await;
        code_of(finish?, *format, printer)
    })
}
