//! `levers9 worker`

use std::time::Duration;

use levers9_transport::Address;
use levers9_wire::quantity::show_duration;
use levers9_wire::v1::{self, call_open::Request};
use serde::Serialize;

use super::{call_once, expect_answer};
use crate::args::Format;
use crate::client::misanswered;
use crate::contexts::shell_quoted;
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::settings::{WorkerAction, WorkerSettings};
use crate::view::{WorkerView, id_text};

/// An enrolment, with its token this once.
#[derive(Debug, Serialize)]
struct EnrolmentView {
    worker: String,
    pool: String,
    shared: bool,
    address: String,
    token: String,
    expires_unix_ms: u64,
    /// The line that starts the worker.
    start: String,
}

/// Runs the command.
///
/// # Errors
/// When the controlplane says no, or cannot be reached.
pub fn run(settings: WorkerSettings, printer: &mut Printer) -> Result<u8, Error> {
    let target = &settings.target;
    match settings.action {
        WorkerAction::List { format } => {
            let answer = call_once(target, Request::WorkerList(v1::WorkerListRequest {}))?;
            let answer = expect_answer!(answer, WorkerList)?;
            let workers: Vec<WorkerView> = answer.workers.into_iter().map(WorkerView::from).collect();
            printer.list(format, &workers)?;
        }
        WorkerAction::Enroll { pool, shared, allow_unisolated, format } => {
            let request = Request::WorkerEnroll(v1::WorkerEnrollRequest { pool, shared });
            let answer = expect_answer!(call_once(target, request)?, WorkerEnroll)?;
            let view = enrolment(answer, &target.address, shared, allow_unisolated)?;
            match format {
                Format::Json => printer.json(&view)?,
                Format::Text => explain(&view, allow_unisolated, printer)?,
            }
        }
    }
    Ok(exit::DONE)
}

fn enrolment(
    answer: v1::WorkerEnrollAnswer,
    dialed: &Address,
    shared: bool,
    allow_unisolated: bool,
) -> Result<EnrolmentView, Error> {
    // The controlplane knows what workers should dial; without that, what this command dials.
    let address = match answer.address.as_str() {
        "" => dialed.clone(),
        text => text.parse().map_err(|_| misanswered())?,
    };
    let (token, quoted) = (shell_quoted(&answer.token), shell_quoted(&address.to_string()));
    let flag = if allow_unisolated { " --allow-unisolated" } else { "" };
    Ok(EnrolmentView {
        worker: id_text(&answer.worker),
        pool: answer.pool,
        shared,
        address: address.to_string(),
        start: format!("LEVERS9_WORKER_TOKEN={token} levers9-worker --controlplane {quoted}{flag}"),
        token: answer.token,
        expires_unix_ms: answer.expires_unix_ms,
    })
}

/// The line alone on standard output; what to know about it beside it.
fn explain(view: &EnrolmentView, allow_unisolated: bool, printer: &mut Printer) -> Result<(), Error> {
    printer.line(&view.start)?;
    let left = view.expires_unix_ms.saturating_sub(levers9_wire::clock::unix_millis());
    let left = show_duration(Duration::from_secs(left / 1000));
    printer.note(&format!("starts worker {} in pool {:?}, once, within {left}", view.worker, view.pool));
    if !allow_unisolated {
        printer.note("add --allow-unisolated where the machine has no container runtime: jobs then run as plain processes");
    }
    if view.shared {
        printer.note("it will run jobs of every workspace: its owner has to be trusted by all of them");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_line_can_be_pasted_and_has_no_token_among_its_arguments() {
        let address = format!("levers9://h:443#sha256:{}", "a1".repeat(32));
        let answer =
            v1::WorkerEnrollAnswer { token: "l9_enrol_x".into(), ..v1::WorkerEnrollAnswer::default() };
        let view = enrolment(answer, &address.parse().unwrap(), false, true).unwrap();
        assert_eq!(
            view.start,
            format!(
                "LEVERS9_WORKER_TOKEN=l9_enrol_x levers9-worker --controlplane '{address}' --allow-unisolated"
            )
        );
    }

    #[test]
    fn the_controlplanes_address_counts_and_must_be_one() {
        let answer = |address: &str| v1::WorkerEnrollAnswer { address: address.into(), ..Default::default() };
        let dialed = "levers9://inside:443".parse().unwrap();
        let view = enrolment(answer("levers9://outside:443"), &dialed, false, false).unwrap();
        assert_eq!(view.address, "levers9://outside:443");
        assert!(enrolment(answer("$(reboot)"), &dialed, false, false).is_err());
    }
}
