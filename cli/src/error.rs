//! Why a command did not succeed: what failed and with which value, the cause
//! below it, one hint, and the exit code that follows. The printer renders it.

use std::error::Error as StdError;

use levers9_wire::v1::FailureCode;

use crate::exit;

/// What class of failure, which decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Failed,
    Usage,
    Unreachable,
    /// Ends the command with a code and without a word.
    Silent(u8),
}

/// A failure as people read it.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    kind: Kind,
    what: String,
    #[source]
    cause: Option<Box<dyn StdError + Send + Sync>>,
    hint: Option<String>,
    /// A text with the place in it that is meant, in characters.
    pointer: Option<(String, usize)>,
    /// Of a refusal of the controlplane: its kind.
    code: Option<FailureCode>,
}

impl Error {
    fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), cause: None, hint: None, pointer: None, code: None }
    }

    /// Something was refused or did not work.
    #[must_use]
    pub fn failed(what: impl Into<String>) -> Self {
        Self::new(Kind::Failed, what)
    }

    /// The command line or the environment asks for something that makes no sense.
    #[must_use]
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Kind::Usage, what)
    }

    /// The controlplane was not reached.
    #[must_use]
    pub fn unreachable(what: impl Into<String>) -> Self {
        Self::new(Kind::Unreachable, what)
    }

    /// The command ends with a code, and all there is to say has been said.
    #[must_use]
    pub fn silent(code: u8) -> Self {
        Self::new(Kind::Silent(code), "")
    }

    /// With what caused it.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// With what to do about it. An empty hint is none.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into()).filter(|hint| !hint.is_empty());
        self
    }

    /// With what to do about it, unless that was said already.
    #[must_use]
    pub fn hint_if_none(self, hint: Option<&str>) -> Self {
        match hint {
            Some(hint) if self.hint.is_none() => self.hint(hint),
            _ => self,
        }
    }

    /// With the text that is wrong, and where in it.
    #[must_use]
    pub fn pointing_at(mut self, text: impl Into<String>, at: usize) -> Self {
        self.pointer = Some((text.into(), at));
        self
    }

    /// The text that is wrong, and where in it, in characters.
    #[must_use]
    pub fn pointer(&self) -> Option<(&str, usize)> {
        self.pointer.as_ref().map(|(text, at)| (text.as_str(), *at))
    }

    /// As a refusal of this kind.
    #[must_use]
    pub fn of_code(mut self, code: FailureCode) -> Self {
        self.code = Some(code);
        self
    }

    /// Which kind of refusal of the controlplane it is.
    #[must_use]
    pub fn code(&self) -> Option<FailureCode> {
        self.code
    }

    /// Whether there is nothing to print.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        matches!(self.kind, Kind::Silent(_))
    }

    /// What to do about it.
    #[must_use]
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// What failed and each cause below it, once.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.what.clone();
        let mut next = self.source();
        while let Some(cause) = next {
            let words = cause.to_string();
            if !text.ends_with(&words) {
                text.push_str(": ");
                text.push_str(&words);
            }
            next = cause.source();
        }
        text
    }

    /// The exit code of a command that runs no job.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Failed => exit::FAILED,
            Kind::Usage => exit::USAGE,
            Kind::Unreachable => exit::UNREACHABLE,
            Kind::Silent(code) => code,
        }
    }

    /// The exit code of a command that otherwise ends with its job's own.
    #[must_use]
    pub fn job_exit_code(&self) -> u8 {
        match self.kind {
            Kind::Silent(code) => code,
            _ => exit::LEVERS9_FAILED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let io = std::io::Error::other("disk full");
        assert_eq!(Error::failed("cannot write \"x\"").because(io).chain(), "cannot write \"x\": disk full");
        let io = std::io::Error::other("disk full");
        assert_eq!(Error::failed("cannot write: disk full").because(io).chain(), "cannot write: disk full");
    }

    #[test]
    fn codes_follow_the_kind() {
        assert_eq!(Error::usage("x").exit_code(), 2);
        assert_eq!(Error::usage("x").job_exit_code(), 125);
        assert_eq!(Error::unreachable("x").exit_code(), 3);
        assert_eq!(Error::silent(0).job_exit_code(), 0);
    }
}
