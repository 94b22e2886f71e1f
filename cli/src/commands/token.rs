//! `levers9 token`

use levers9_wire::v1::{self, call_open::Request};
use serde::Serialize;

use super::{call_once, expect_answer, required};
use crate::args::Format;
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::settings::{TokenAction, TokenSettings};
use crate::view::TokenView;

/// A new token, with its secret this once.
#[derive(Debug, Serialize)]
struct NewTokenView {
    #[serde(flatten)]
    token: TokenView,
    key: String,
}

/// Runs the command.
///
/// # Errors
/// When the controlplane says no, or cannot be reached.
pub fn run(settings: TokenSettings, printer: &mut Printer) -> Result<u8, Error> {
    let target = &settings.target;
    match settings.action {
        TokenAction::List { format } => {
            let answer = call_once(target, Request::TokenList(v1::TokenListRequest {}))?;
            let answer = expect_answer!(answer, TokenList)?;
            let tokens: Vec<TokenView> = answer.tokens.into_iter().map(TokenView::from).collect();
            printer.list(format, &tokens)?;
        }
        TokenAction::Create { kind, format } => {
            let request = v1::TokenCreateRequest { kind: kind.word().to_owned(), container: Vec::new() };
            let answer = expect_answer!(call_once(target, Request::TokenCreate(request))?, TokenCreate)?;
            let token = TokenView::from(required(answer.token)?);
            if format == Format::Json {
                printer.json(&NewTokenView { token, key: answer.key })?;
            } else {
                printer.line(&answer.key)?;
                printer.note(&format!("token {} above is shown only this once", token.id));
            }
        }
        TokenAction::Delete(token) => {
            let request = Request::TokenDelete(v1::TokenDeleteRequest { token: token.to_wire() });
            expect_answer!(call_once(target, request)?, TokenDelete)?;
            printer.note(&format!("token {token} is revoked"));
        }
    }
    Ok(exit::DONE)
}
