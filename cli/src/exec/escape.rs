//! The way out when every key goes to a command that is not reached any more.
//! Ctrl-C is the command's; one that nothing answers is followed by a question
//! to the controlplane, and when that is not answered either, the next Ctrl-C
//! is this side's. A command that is only busy is never left by mistake.

use std::time::Duration;

use levers9_wire::v1::{self, call_open};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::client::{Client, Patience};

/// What Ctrl-C is in raw mode.
const INTERRUPT: u8 = 3;
/// How long the command has to answer Ctrl-C with anything at all.
const COMMAND: Duration = Duration::from_secs(1);
/// How long the controlplane has then.
const CONTROLPLANE: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct Escape {
    /// Finds out whether the controlplane answers.
    question: Option<JoinHandle<bool>>,
    /// It does not, and nothing has come since.
    open: bool,
}

impl Escape {
    /// Something came: what is typed is heard.
    pub(super) fn heard(&mut self) {
        self.stop();
        self.open = false;
    }

    /// Takes what is typed. Whether it means to leave.
    pub(super) fn typed(&mut self, keys: &[u8], client: &Client) -> bool {
        if !keys.contains(&INTERRUPT) {
            return false;
        }
        if self.open {
            return true;
        }
        if self.question.is_none() {
            let client = client.clone();
            self.question = Some(tokio::spawn(async move {
                sleep(COMMAND).await;
                let ask = call_open::Request::WhoAmI(v1::WhoAmIRequest {});
                // Whatever it says, it says something.
                timeout(CONTROLPLANE, client.call(ask, Patience::Forever)).await.is_ok()
            }));
        }
        false
    }

    /// Returns once the controlplane was asked and does not answer. Cancel safe.
    pub(super) async fn hangs(&mut self) {
        while let Some(question) = &mut self.question {
            let answered = question.await.unwrap_or(true);
            self.question = None;
            if !answered {
                self.open = true;
                return;
            }
        }
        std::future::pending().await
    }

    fn stop(&mut self) {
        if let Some(question) = self.question.take() {
            question.abort();
        }
    }
}

impl Drop for Escape {
    fn drop(&mut self) {
        self.stop();
    }
}
