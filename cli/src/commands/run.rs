//! `levers9 run`: submits a job and follows it.

use levers9_wire::TaskId;
use levers9_wire::v1::{self, call_open};
use serde::Serialize;

use super::expect_answer;
use crate::args::Format;
use crate::client::{CONNECT, Client, Patience, block_on, misanswered};
use crate::error::Error;
use crate::exit;
use crate::follow::{Finish, Plan, follow};
use crate::printer::Printer;
use crate::settings::RunSettings;
use crate::signals::Signals;

/// What a submitted task is printed as, and the first line of a followed one.
#[derive(Debug, Serialize)]
struct SubmittedView {
    task: String,
    note: String,
    urls: Vec<String>,
}

/// The last line of a followed task.
#[derive(Debug, Serialize)]
struct EndView {
    status: String,
    exit_code: Option<i32>,
    reason: String,
}

/// Runs the command.
///
/// # Errors
/// When the job cannot be submitted or followed. Its own failure is its exit code.
pub fn run(settings: RunSettings, printer: &mut Printer) -> Result<u8, Error> {
    block_on(async {
        let mut signals = Signals::listen()?;
        let client = signals.or(Client::connect(&settings.target)).await?;
        let code = run_job(&client, settings.job, settings.format, &mut signals, printer).await;
        client.close().await;
        code
    })
}

/// Submits a job over a session there is and, unless it is detached, prints
/// its output and waits for its end. Returns the exit code.
pub(crate) async fn run_job(
    client: &Client,
    job: v1::SubmitRequest,
    format: Format,
    signals: &mut Signals,
    printer: &mut Printer,
) -> Result<u8, Error> {
    let (detached, ports, public) = (job.detached, job.ports.clone(), job.public);
    let submit = client.call(call_open::Request::Submit(job), Patience::Within(CONNECT));
    let submitted = expect_answer!(signals.or(submit).await?, Submit)?;
    let task = TaskId::try_from(submitted.task.as_slice()).map_err(|_| misanswered())?;
    let view = SubmittedView { task: task.to_string(), note: submitted.note, urls: submitted.urls };
    match format {
        Format::Json => printer.json_line(&view)?,
        Format::Text if detached => printer.line(&view.task)?,
        Format::Text => printer.progress(&format!("task {task}")),
    }
    if !view.note.is_empty() {
        printer.note(&view.note);
    }
    if format == Format::Text {
        say_urls(&ports, &view.urls, public, printer);
    }
    if detached {
        return Ok(exit::DONE);
    }
    let open = v1::FollowOpen { id: task.to_wire(), follow: true, caller: true, ..v1::FollowOpen::default() };
    let plan = Plan { open, format, task: Some(task), seen_note: view.note };
    let finish = follow(client, &plan, signals, printer).await?;
    code_of(finish, format, printer)
}

/// Says where HTTP requests reach each port.
fn say_urls(ports: &[u32], urls: &[String], public: bool, printer: &mut Printer) {
    for (port, url) in ports.iter().zip(urls) {
        printer.note(&format!("port {port}: {url}"));
    }
    if !urls.is_empty() && !public {
        printer.note("requests need the header \"Authorization: Bearer TOKEN\"");
    }
}

/// Says how a task ended, and which exit code that is.
pub(super) fn code_of(finish: Finish, format: Format, printer: &mut Printer) -> Result<u8, Error> {
    let (code, reason) = exit::of_task(&finish.ended, finish.interrupted);
    if let Some(reason) = reason {
        printer.note(&reason);
    }
    if format == Format::Json {
        let v1::FollowEnded { status, exit_code, reason, complete: _ } = finish.ended;
        printer.json_line(&EndView { status, exit_code, reason })?;
    }
    Ok(code)
}
