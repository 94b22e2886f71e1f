//! `levers9 logs`: prints a log, without becoming a caller.

use crate::client::{Client, block_on};
use crate::error::Error;
use crate::exit;
use crate::follow::{Plan, follow};
use crate::printer::Printer;
use crate::settings::LogsSettings;
use crate::signals::Signals;

/// Runs the command.
///
/// # Errors
/// When the log cannot be read. How the task ended makes no difference.
pub fn run(settings: &LogsSettings, printer: &mut Printer) -> Result<u8, Error> {
    block_on(async {
        let mut signals = Signals::listen()?;
        let client = signals.or(Client::connect(&settings.target)).await?;
        let plan = Plan {
            open: settings.open.clone(),
            format: settings.format,
            task: None,
            seen_note: String::new(),
        };
        let finish = follow(&client, &plan, &mut signals, printer).await;
        client.close().await;
        finish.map(|_| exit::DONE)
    })
}
