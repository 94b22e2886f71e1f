//! What reaches into a container, with the controlplane and the command at the
//! other end played by the test.

mod exec;
mod forward;
pub(crate) mod terminal;

use std::sync::Arc;
use std::time::Duration;

use levers9_transport::Stream;
use levers9_wire::v1::{self, Outcome, ResetCode, exec_input, exec_output, stream_open::Kind};
use tokio::time::Instant;

use crate::fake::{Fake, with};

/// A container.
pub(crate) const CONTAINER: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6b";
/// How long anything may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A command in a container, as a test plays it.
pub(crate) struct Played(Stream);

impl Played {
    async fn say(&mut self, kind: exec_output::Kind) {
        // One that has left does not hear it.
        let _left = self.0.send.send(&v1::ExecOutput { kind: Some(kind) }).await;
    }

    async fn started(&mut self) {
        self.say(exec_output::Kind::Started(v1::ExecStarted {})).await;
    }

    async fn out(&mut self, bytes: &[u8]) {
        self.say(exec_output::Kind::Stdout(bytes.to_vec().into())).await;
    }

    async fn err(&mut self, bytes: &[u8]) {
        self.say(exec_output::Kind::Stderr(bytes.to_vec().into())).await;
    }

    /// The next input; `None` when the caller is gone.
    async fn hear(&mut self) -> Option<exec_input::Kind> {
        let input: v1::ExecInput = self.0.recv.next().await.ok()??;
        input.kind
    }

    async fn ended(mut self, ended: v1::ExecEnded) -> Option<ResetCode> {
        self.say(exec_output::Kind::Ended(ended)).await;
        let _left = self.0.send.finish_and_deliver().await;
        None
    }

    async fn exit(self, exit_code: i32) -> Option<ResetCode> {
        self.ended(v1::ExecEnded { exit_code, ..end(Outcome::Exited) }).await
    }
}

fn end(outcome: Outcome) -> v1::ExecEnded {
    v1::ExecEnded { outcome: outcome.into(), ..v1::ExecEnded::default() }
}

/// A controlplane that runs commands as told.
fn with_exec<F>(play: impl Fn(Played) -> F + Send + Sync + 'static) -> Fake
where
    F: Future<Output = Option<ResetCode>> + Send + 'static,
{
    let play = Arc::new(play);
    Fake::start(move |kind, _| match kind {
        Kind::Exec(_) => {
            let play = Arc::clone(&play);
            with(move |stream| play(Played(stream)))
        }
        _ => vec![],
    })
}

/// Waits until something holds, and says what was seen last when it does not.
#[track_caller]
fn wait_for<T: std::fmt::Debug>(mut look: impl FnMut() -> T, good: impl Fn(&T) -> bool) -> T {
    let start = Instant::now();
    loop {
        let seen = look();
        if good(&seen) {
            return seen;
        }
        assert!(start.elapsed() < PATIENCE, "it never came to that; last seen: {seen:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
