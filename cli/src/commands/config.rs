//! `levers9 config`: the contexts on this machine. Contacts nobody.

use levers9_wire::token::{self, BadToken};

use super::login::{checked, read_token};
use crate::config::DEFAULT;
use crate::contexts::Contexts;
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::settings::{ConfigAction, ConfigSettings};
use crate::view::ContextView;

/// Runs the command.
///
/// # Errors
/// When the files cannot be read or written, or there is no such context.
pub fn run(settings: ConfigSettings, printer: &mut Printer) -> Result<u8, Error> {
    let store = &settings.store;
    match &settings.action {
        ConfigAction::List { format } => {
            let contexts = store.load()?;
            let views: Vec<ContextView> = contexts.names().filter_map(|name| view(name, &contexts)).collect();
            printer.list(*format, &views)?;
        }
        ConfigAction::Create { context, token, overwrite } => {
            let name = &context.name;
            let exists =
                |contexts: &Contexts| contexts.get(name).is_some_and(|known| !known.section.token.is_empty());
            let taken = || {
                Error::failed(format!("there is a context {name:?} in {}", store.path().display()))
                    .hint("replace it with --overwrite, or take another name")
            };
            // Asked before the token is, and again under the lock.
            if !overwrite && exists(&store.load()?) {
                return Err(taken());
            }
            let fresh = context.with_token(checked(read_token(token, "Token: ")?)?);
            store.change(|contexts| {
                if !overwrite && exists(contexts) {
                    return Err(taken());
                }
                contexts.put(name, &fresh);
                Ok(())
            })?;
            printer.note(&format!("context {name:?} is stored in {}", store.path().display()));
        }
        ConfigAction::Select(name) => {
            store.change(|contexts| match contexts.select(name) {
                true => Ok(()),
                false => Err(settings.unknown(name, contexts)),
            })?;
            printer.note(&format!("context {name:?} is now the default"));
        }
        ConfigAction::Delete(name) => {
            store.change(|contexts| match contexts.remove(name) {
                true => Ok(()),
                false => Err(settings.unknown(name, contexts)),
            })?;
            printer.note(&format!("context {name:?} is forgotten"));
            if name != DEFAULT && store.load()?.has_default() {
                printer.progress("the default context is a copy and stays as it is");
            }
        }
    }
    Ok(exit::DONE)
}

fn view(name: &str, contexts: &Contexts) -> Option<ContextView> {
    let context = contexts.get(name)?;
    let section = context.section;
    Some(ContextView {
        name: name.to_owned(),
        default: contexts.is_default(name),
        address: context.address.map(|address| address.to_string()),
        token_kind: match token::kind_of(section.token.expose()) {
            Ok(kind) => kind.word(),
            Err(BadToken::Empty) => "none",
            Err(BadToken::Malformed) => "malformed",
        },
        controlplane_host: section.controlplane_host,
        controlplane_port: section.controlplane_port,
        controlplane_http_url: section.controlplane_http_url,
        tls: section.tls,
    })
}
