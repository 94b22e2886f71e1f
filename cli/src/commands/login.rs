//! `levers9 login`: gets a token, makes sure that the controlplane takes it,
//! and stores both as a context. Without a token, the bootstrap secret of a
//! new controlplane is traded for its first admin token.

use std::io::{self, IsTerminal as _, Read as _};

use levers9_wire::token::{self, Secret};
use levers9_wire::v1::{self, call_open::Request};
use levers9_wire::{limits, name::printable};

use super::{call_once, expect_answer};
use crate::config::DEFAULT;
use crate::env;
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::settings::{LoginSettings, Target, TokenSource};

/// Runs the command.
///
/// # Errors
/// When there is no token, the controlplane refuses it or is not reached, or
/// the context cannot be stored.
pub fn run(settings: &LoginSettings, printer: &mut Printer) -> Result<u8, Error> {
    let address = settings.context.address.clone();
    let given = read_token(&settings.token, "Token (leave empty to use the bootstrap secret): ")?;
    let token = if given.is_empty() {
        // The first token is given out only once, so there must be a place for it.
        settings.store.check_writable()?;
        let secret = bootstrap_secret(settings)?;
        let request = v1::AuthorizeRequest { bootstrap_secret: secret.expose().to_owned() };
        let nobody =
            Target { address: address.clone(), token: Secret::default(), proxies: settings.proxies.clone() };
        let answer = expect_answer!(call_once(&nobody, Request::Authorize(request))?, Authorize)?;
        let token = Secret::new(answer.token);
        store(settings, token.clone(), printer)?;
        checked(token)?
    } else {
        checked(given)?
    };
    let target = Target { address, token: token.clone(), proxies: settings.proxies.clone() };
    let me = expect_answer!(call_once(&target, Request::WhoAmI(v1::WhoAmIRequest {}))?, WhoAmI)?;
    store(settings, token, printer)?;
    let (workspace, kind) = (printable(&me.workspace_name, limits::NAME), printable(&me.token_kind, 32));
    let name = &settings.context.name;
    printer.note(&format!("logged in to {workspace:?} ({kind}) at {}", target.address.authority()));
    printer.note(&format!("context {name:?} is stored in {}", settings.store.path().display()));
    Ok(exit::DONE)
}

/// Stores the context, and as the default one where there is none.
fn store(settings: &LoginSettings, token: Secret, printer: &mut Printer) -> Result<(), Error> {
    let name = &settings.context.name;
    let context = settings.context.with_token(token);
    let selected = settings.store.add(name, &context)?;
    if selected && name != DEFAULT {
        printer.note(&format!("context {name:?} is now the default"));
    }
    Ok(())
}

fn bootstrap_secret(settings: &LoginSettings) -> Result<Secret, Error> {
    let secret = match &settings.bootstrap_secret {
        Some(secret) => secret.clone(),
        None if settings.token == TokenSource::Ask && io::stdin().is_terminal() => ask("Bootstrap secret: ")?,
        None => Secret::default(),
    };
    if secret.is_empty() {
        return Err(Error::usage("there is neither a token nor a bootstrap secret").hint(format!(
            "pass a token by --token-stdin or {}, or the secret by {}",
            env::TOKEN,
            env::BOOTSTRAP_SECRET
        )));
    }
    Ok(secret)
}

/// Gets a token from where it is to come; empty when nothing was given.
pub(super) fn read_token(source: &TokenSource, prompt: &str) -> Result<Secret, Error> {
    match source {
        TokenSource::Given(token) => Ok(Secret::new(token.expose().trim())),
        TokenSource::Ask if io::stdin().is_terminal() => ask(prompt),
        TokenSource::Ask => Ok(Secret::default()),
        TokenSource::Stdin => {
            // A byte more than a token may have tells a long one from a cut one.
            let most = limits::TOKEN as u64 + 2;
            let mut text = String::new();
            io::stdin()
                .take(most)
                .read_to_string(&mut text)
                .map_err(|e| Error::failed("cannot read the token from standard input").because(e))?;
            Ok(Secret::new(text.trim()))
        }
    }
}

/// A token that looks like one.
pub(super) fn checked(token: Secret) -> Result<Secret, Error> {
    match token::kind_of(token.expose()) {
        Ok(_) => Ok(token),
        Err(problem) => Err(Error::failed(problem.to_string())
            .hint(format!("pass it by --token-stdin or {}, or type it at the prompt", env::TOKEN))),
    }
}

fn ask(prompt: &str) -> Result<Secret, Error> {
    let typed = rpassword::prompt_password(prompt)
        .map_err(|e| Error::failed("cannot ask for a secret on this terminal").because(e))?;
    Ok(Secret::new(typed.trim()))
}
