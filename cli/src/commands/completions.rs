//! `levers9 completions`: contacts nobody.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;

/// Runs the command.
///
/// # Errors
/// When the script cannot be written.
pub fn run(shell: Shell, printer: &mut Printer) -> Result<u8, Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "levers9", &mut script);
    printer.script(&script)?;
    Ok(exit::DONE)
}
