//! What went wrong with the Kubernetes API, in one sentence and with a hint.
//! Nothing a server or a credential plugin sent is printed as it came: it may
//! be long, and what a plugin prints is a secret.

use std::error::Error as StdError;

use ::kube::client::AuthError;
use levers9_wire::name::printable;

use super::{Kube, PATIENCE};
use crate::error::Error;

/// The longest piece of somebody else's text.
const PIECE: usize = 300;

/// What the API server made of a request, as far as it came there.
pub(super) fn explain(kube: &Kube, what: &str, problem: &::kube::Error) -> Error {
    let Kube { context, server, .. } = kube;
    match problem {
        ::kube::Error::Api(status) if status.code == 401 => Error::failed(format!(
            "the API server at {server} does not accept the credentials of context {context:?}"
        ))
        .hint(format!("log in to the cluster again, and try: kubectl --context {context} get nodes")),
        ::kube::Error::Api(status) if status.code == 403 => {
            Error::failed(format!("context {context:?} may not {what}"))
                .because(printable(&status.message, PIECE))
        }
        ::kube::Error::Api(status) if status.reason == "Failed to parse error data" => {
            garbage(kube).because(format!("{} {}", status.code, printable(&status.message, PIECE)))
        }
        ::kube::Error::Api(status) => Error::failed(format!("the API server at {server} cannot {what}"))
            .because(printable(&status.message, PIECE)),
        ::kube::Error::SerdeError(cause) => garbage(kube).because(cause.to_string()),
        ::kube::Error::FromUtf8(_) => garbage(kube),
        other => Error::failed(format!("the API server at {server} cannot be reached"))
            .because(plain(other))
            .hint(format!("is it up, and may this machine reach it? kubectl --context {context} get nodes")),
    }
}

fn garbage(kube: &Kube) -> Error {
    let server = &kube.server;
    Error::failed(format!("what answers at {server} does not answer like a Kubernetes API server"))
        .hint(format!("is the address of context {:?} right?", kube.context))
}

/// No answer came in time.
pub(super) fn silent(kube: &Kube, what: &str) -> Error {
    let seconds = PATIENCE.as_secs();
    Error::failed(format!("the API server at {} does not answer", kube.server))
        .because(format!("nothing came in {seconds} s when it was to {what}"))
        .hint("is it up, and may this machine reach it?")
}

/// An error and those below it, each said once, without what a plugin printed.
pub(super) fn plain(problem: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(problem);
    while let Some(error) = next {
        if let Some(words) = error.downcast_ref::<AuthError>().and_then(plugin) {
            return words;
        }
        next = error.source();
        let words = error.to_string();
        // Many say their cause themselves; the last one has said it best.
        let said_below = next.is_some_and(|cause| words.ends_with(&cause.to_string()));
        if !said_below && !text.ends_with(&words) {
            text = if text.is_empty() { words } else { format!("{text}: {words}") };
        }
    }
    printable(&text, 2 * PIECE)
}

/// What a credential plugin did, without its arguments and its output, which
/// hold secrets.
fn plugin(problem: &AuthError) -> Option<String> {
    match problem {
        AuthError::AuthExecRun { out, .. } => {
            let said = String::from_utf8_lossy(&out.stderr);
            let said = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            let colon = if said.is_empty() { "" } else { ": " };
            let status = out.status;
            Some(format!("the credential plugin failed with {status}{colon}{}", printable(said, PIECE)))
        }
        AuthError::AuthExecStart(cause) => Some(format!("the credential plugin cannot be started: {cause}")),
        AuthError::AuthExec(_) => Some("the credential provider failed".to_owned()),
        AuthError::AuthExecParse(_) | AuthError::ParseTokenKey(_) | AuthError::ExecPluginFailed => {
            Some("what the credential plugin printed holds no credentials".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{ExitStatus, Output};

    use super::*;

    #[test]
    fn what_a_plugin_prints_to_standard_output_is_not_repeated() {
        let out = Output {
            status: ExitStatus::from_raw(256),
            stdout: b"hunter2".to_vec(),
            stderr: b"warning\ntoken expired\n\n".to_vec(),
        };
        let error = ::kube::Error::Auth(AuthError::AuthExecRun {
            cmd: "\"gke-auth\" \"--key=hunter2\"".into(),
            out: Box::new(out),
        });
        assert_eq!(plain(&error), "the credential plugin failed with exit status: 1: token expired");
    }

    #[test]
    fn causes_are_said_once() {
        let io = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file");
        let error = ::kube::Error::Auth(AuthError::AuthExecStart(io));
        assert_eq!(plain(&error), "the credential plugin cannot be started: no such file");
        let io = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file");
        let error = ::kube::Error::Service(Box::new(io));
        assert_eq!(plain(&error), "no such file");
    }
}
