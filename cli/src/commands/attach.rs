//! `levers9 attach`, and `container attach`: becomes a caller of a task and
//! follows it.

use levers9_wire::{TaskId, v1};

use super::run::code_of;
use crate::args::Format;
use crate::client::{Client, block_on};
use crate::error::Error;
use crate::follow::{Plan, follow};
use crate::printer::Printer;
use crate::settings::{AttachSettings, Target};
use crate::signals::Signals;

/// Runs the command.
///
/// # Errors
/// When the task cannot be followed. Its own failure is its exit code.
pub fn run(settings: &AttachSettings, printer: &mut Printer) -> Result<u8, Error> {
    let AttachSettings { target, task, since_line, format } = settings;
    follow_as_caller(target, task.to_wire(), Some(*task), *since_line, *format, printer)
}

/// Follows a task, or the task of a container, to its end.
pub(super) fn follow_as_caller(
    target: &Target,
    id: Vec<u8>,
    task: Option<TaskId>,
    since_line: u64,
    format: Format,
    printer: &mut Printer,
) -> Result<u8, Error> {
    block_on(async {
        let mut signals = Signals::listen()?;
        let client = signals.or(Client::connect(target)).await?;
        let open = v1::FollowOpen { id, since_line, follow: true, caller: true, ..v1::FollowOpen::default() };
        let plan = Plan { open, format, task, seen_note: String::new() };
        let finish = follow(&client, &plan, &mut signals, printer).await;
        client.close().await;
        code_of(finish?, format, printer)
    })
}
