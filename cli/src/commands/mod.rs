//! One module per command: a function of its settings and a printer that
//! returns the exit code.

pub mod attach;
pub mod bench;
pub mod cluster;
pub mod completions;
pub mod config;
pub mod container;
pub mod doctor;
pub mod exec;
pub mod login;
pub mod logs;
pub mod port_forward;
pub mod run;
pub mod session;
pub mod task;
pub mod token;
pub mod version;
pub mod why;
pub mod worker;
pub mod workspace;

use levers9_wire::v1::{call_answer, call_open};

use crate::client::{CONNECT, Client, Patience, block_on, misanswered};
use crate::error::Error;
use crate::settings::Target;

/// Connects, makes one call, and says goodbye.
fn call_once(target: &Target, request: call_open::Request) -> Result<call_answer::Answer, Error> {
    block_on(async {
        let client = Client::connect(target).await?;
        let answer = client.call(request, Patience::Within(CONNECT)).await;
        client.close().await;
        answer
    })
}

/// Takes the answer of the kind that belongs to the question.
macro_rules! expect_answer {
    ($answer:expr, $kind:ident) => {
        match $answer {
            levers9_wire::v1::call_answer::Answer::$kind(answer) => Ok(answer),
            _ => Err($crate::client::misanswered()),
        }
    };
}
use expect_answer;

/// A part of an answer that has to be there.
fn required<T>(part: Option<T>) -> Result<T, Error> {
    part.ok_or_else(misanswered)
}
