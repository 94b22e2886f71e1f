//! `levers9 why`: place by place, the one reason a task is not there.

use levers9_wire::v1::{self, call_open::Request};

use super::{call_once, expect_answer};
use crate::args::Format;
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::settings::WhySettings;
use crate::view::{WhyPlaceView, WhyView};

/// Runs the command.
///
/// # Errors
/// When the controlplane says no, or cannot be reached.
pub fn run(settings: &WhySettings, printer: &mut Printer) -> Result<u8, Error> {
    let request = Request::TaskWhy(v1::TaskWhyRequest { task: settings.task.to_wire() });
    let answer = expect_answer!(call_once(&settings.target, request)?, TaskWhy)?;
    let view = WhyView {
        task: settings.task.to_string(),
        status: answer.status,
        summary: answer.summary,
        places: answer.places.into_iter().map(WhyPlaceView::from).collect(),
    };
    if settings.format == Format::Json {
        printer.json(&view)?;
        return Ok(exit::DONE);
    }
    if !view.places.is_empty() {
        printer.list(Format::Text, &view.places)?;
        printer.line("")?;
    }
    printer.line(&format!("{}: {}", view.status, view.summary))?;
    Ok(exit::DONE)
}
