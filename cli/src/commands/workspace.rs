//! `levers9 workspace`

use levers9_wire::v1::{self, call_open::Request};
use serde::Serialize;

use super::{call_once, expect_answer, required};
use crate::args::Format;
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::settings::{WorkspaceAction, WorkspaceSettings};
use crate::view::WorkspaceView;

/// A new workspace, with its first token this once.
#[derive(Debug, Serialize)]
struct NewWorkspaceView {
    #[serde(flatten)]
    workspace: WorkspaceView,
    token: String,
}

/// Runs the command.
///
/// # Errors
/// When the controlplane says no, or cannot be reached.
pub fn run(settings: WorkspaceSettings, printer: &mut Printer) -> Result<u8, Error> {
    let target = &settings.target;
    match settings.action {
        WorkspaceAction::List { format } => {
            let answer = call_once(target, Request::WorkspaceList(v1::WorkspaceListRequest {}))?;
            let answer = expect_answer!(answer, WorkspaceList)?;
            let workspaces: Vec<WorkspaceView> =
                answer.workspaces.into_iter().map(WorkspaceView::from).collect();
            printer.list(format, &workspaces)?;
        }
        WorkspaceAction::Create { name, format } => {
            let request = Request::WorkspaceCreate(v1::WorkspaceCreateRequest { name: name.clone() });
            let answer = expect_answer!(call_once(target, request)?, WorkspaceCreate)?;
            let workspace = WorkspaceView::from(required(answer.workspace)?);
            if format == Format::Json {
                printer.json(&NewWorkspaceView { workspace, token: answer.token })?;
            } else {
                printer.line(&answer.token)?;
                printer
                    .note(&format!("workspace {name:?} is there; its token above is shown only this once"));
            }
        }
    }
    Ok(exit::DONE)
}
