//! `levers9 version`: of this command and, where it can be reached, of the
//! controlplane.

use std::time::Duration;

use levers9_wire::name::printable;
use levers9_wire::{BUILD, VERSION_MAX};
use serde::Serialize;

use crate::args::Format;
use crate::client::{Client, Patience, block_on};
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::settings::{Target, VersionSettings};

/// How long to wait for a controlplane nobody asked about in particular.
const CONNECT: Duration = Duration::from_secs(3);

#[derive(Debug, Serialize)]
struct VersionView {
    client: &'static str,
    protocol: u32,
    /// `null` when it was not reached.
    controlplane: Option<String>,
    /// Why it was not reached.
    problem: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// When the version cannot be printed. A controlplane that is not there is
/// said and no failure.
pub fn run(settings: &VersionSettings, printer: &mut Printer) -> Result<u8, Error> {
    let (controlplane, problem) = match settings.target.as_ref().map(build_of) {
        None => (None, None),
        Some(Ok(build)) => (Some(build), None),
        Some(Err(error)) => (None, Some(error.chain())),
    };
    let view = VersionView { client: BUILD, protocol: VERSION_MAX, controlplane, problem };
    if settings.format == Format::Json {
        printer.json(&view)?;
        return Ok(exit::DONE);
    }
    printer.line(&format!("levers9       {} (protocol {})", view.client, view.protocol))?;
    match (&view.controlplane, &view.problem) {
        (Some(build), _) => printer.line(&format!("controlplane  {build}"))?,
        (None, Some(problem)) => printer.note(&format!("the controlplane's version is not known: {problem}")),
        (None, None) => {}
    }
    Ok(exit::DONE)
}

fn build_of(target: &Target) -> Result<String, Error> {
    block_on(async {
        let client = Client::connect_within(target, CONNECT).await?;
        let welcome = client.session(Patience::Within(CONNECT)).await?;
        client.close().await;
        Ok(printable(&welcome.build, 64))
    })
}
