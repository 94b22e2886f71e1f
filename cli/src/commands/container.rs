//! `levers9 container`

use levers9_wire::v1::{self, call_open::Request};

use super::{attach, call_once, expect_answer};
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::settings::{ContainerAction, ContainerSettings};
use crate::view::ContainerView;

/// Runs the command.
///
/// # Errors
/// When the controlplane says no, or cannot be reached. Of an attach, the
/// task's own failure is its exit code.
pub fn run(settings: ContainerSettings, printer: &mut Printer) -> Result<u8, Error> {
    let target = &settings.target;
    match settings.action {
        ContainerAction::List { all, format } => {
            let request = Request::ContainerList(v1::ContainerListRequest { all });
            let answer = expect_answer!(call_once(target, request)?, ContainerList)?;
            let containers: Vec<ContainerView> =
                answer.containers.into_iter().map(ContainerView::from).collect();
            printer.list(format, &containers)?;
        }
        ContainerAction::Attach { container, since_line, format } => {
            return attach::follow_as_caller(target, container.to_wire(), None, since_line, format, printer);
        }
        ContainerAction::Stop(container) => {
            let request = Request::ContainerStop(v1::ContainerStopRequest { container: container.to_wire() });
            let answer = expect_answer!(call_once(target, request)?, ContainerStop)?;
            printer.note(&format!("container {container} is {}", answer.state));
        }
    }
    Ok(exit::DONE)
}
