//! `levers9 task`

use std::time::Duration;

use levers9_wire::quantity::show_duration;
use levers9_wire::v1::{self, call_open::Request};

use super::{call_once, expect_answer, required};
use crate::args::Format;
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::settings::{TaskAction, TaskSettings};
use crate::view::{TaskDetails, TaskView};

/// Runs the command.
///
/// # Errors
/// When the controlplane says no, or cannot be reached.
pub fn run(settings: TaskSettings, printer: &mut Printer) -> Result<u8, Error> {
    let target = &settings.target;
    match settings.action {
        TaskAction::List { status, limit, before, format } => {
            let before = before.map(|id| id.to_wire()).unwrap_or_default();
            let request = Request::TaskList(v1::TaskListRequest { limit, status, before });
            let answer = expect_answer!(call_once(target, request)?, TaskList)?;
            let tasks: Vec<TaskView> = answer.tasks.into_iter().map(TaskView::from).collect();
            printer.list(format, &tasks)?;
        }
        TaskAction::Show { task, format } => {
            let request = Request::TaskShow(v1::TaskShowRequest { task: task.to_wire() });
            let answer = expect_answer!(call_once(target, request)?, TaskShow)?;
            let task = required(answer.task)?.into();
            let attempt_list = answer.attempts.into_iter().map(Into::into).collect();
            show(&TaskDetails { task, attempt_list }, format, printer)?;
        }
        TaskAction::Stop(task) => {
            let request = Request::TaskStop(v1::TaskStopRequest { task: task.to_wire() });
            let answer = expect_answer!(call_once(target, request)?, TaskStop)?;
            printer.note(&format!("task {task} is {}", answer.status));
        }
    }
    Ok(exit::DONE)
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

fn show(details: &TaskDetails, format: Format, printer: &mut Printer) -> Result<(), Error> {
    if format == Format::Json {
        return printer.json(details);
    }
    let task = &details.task;
    let now = levers9_wire::clock::unix_millis();
    let ago = |at: u64| format!("{} ago", show_duration(Duration::from_secs(now.saturating_sub(at) / 1000)));
    let code = task.exit_code.map(|code| code.to_string());
    let ports: Vec<String> = task.ports.iter().map(u32::to_string).collect();
    printer.pairs(&[
        ("task", task.id.clone()),
        ("name", task.name.clone()),
        ("status", task.status.clone()),
        ("exit code", code.unwrap_or_default()),
        ("reason", task.reason.clone()),
        ("command", task.command.join(" ")),
        ("resources", task.resources.words()),
        (
            "time limit",
            if task.timeout_ms == 0 {
                String::new()
            } else {
                show_duration(Duration::from_millis(task.timeout_ms))
            },
        ),
        ("detached", yes_no(task.detached).to_owned()),
        ("ports", ports.join(", ")),
        ("public", if ports.is_empty() { "" } else { yes_no(task.public) }.to_owned()),
        ("urls", task.urls.join(" ")),
        ("pool", task.pool.clone()),
        ("container", task.container.clone()),
        ("worker", task.worker.clone()),
        ("submitted", ago(task.created_unix_ms)),
        ("started", task.started_unix_ms.map(ago).unwrap_or_default()),
        ("ended", task.ended_unix_ms.map(ago).unwrap_or_default()),
    ])?;
    if details.attempt_list.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    printer.list(format, &details.attempt_list)
}
