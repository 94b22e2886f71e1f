//! The stream a log comes on, opened again after the last line printed when
//! it breaks.

use levers9_transport::link::Moved;
use levers9_transport::{Stream, StreamError};
use levers9_wire::v1::{self, stream_open};
use tokio::time::Instant;

use crate::client::{CONNECT, Client, Patience, Pause, again};
use crate::error::Error;

/// What a reader has to tell.
#[derive(Debug)]
pub(super) enum Event {
    /// The connection is gone, with the reason; told once until it is back.
    Lost(String),
    /// It is back.
    Back,
    /// The controlplane said something.
    Said(v1::FollowEvent),
}

/// Whether a refusal is one that passes.
pub(super) fn passes(code: v1::FailureCode) -> bool {
    code == v1::FailureCode::Unavailable
}

#[derive(Debug)]
pub(super) struct Reader {
    open: v1::FollowOpen,
    /// Wait for a lost controlplane for ever.
    patient: bool,
    /// The stream, and when it is better read elsewhere.
    stream: Option<(Stream, Moved)>,
    /// What came first after a loss, while that is told.
    held: Option<v1::FollowEvent>,
    lost: bool,
    pause: Pause,
    /// Whether to pause before the next try.
    paused: bool,
    /// Since when every stream broke before it said anything.
    failing_since: Option<Instant>,
}

impl Reader {
    pub(super) fn new(open: v1::FollowOpen, patient: bool) -> Self {
        let pause = Pause::default();
        Self {
            open,
            patient,
            stream: None,
            held: None,
            lost: false,
            pause,
            paused: false,
            failing_since: None,
        }
    }

    /// Lines up to this one are printed and not wanted again.
    pub(super) fn printed(&mut self, last_line: u64) {
        if last_line > self.open.since_line {
            self.open.since_line = last_line;
            // Counted from the end once more, lines between would be left out.
            self.open.tail = None;
        }
    }

    /// Opens another stream for the next event, after a pause.
    pub(super) fn give_up_stream(&mut self) {
        self.stream = None;
        self.paused = true;
    }

    /// The next event. Cancel safe.
    pub(super) async fn next(&mut self, client: &Client) -> Result<Event, Error> {
        loop {
            if let Some(held) = self.held.take() {
                return Ok(Event::Said(held));
            }
            if self.paused {
                self.pause.wait().await;
                self.paused = false;
            }
            let error = match &mut self.stream {
                None => {
                    client
                        .session(if self.patient { Patience::Forever } else { Patience::Within(CONNECT) })
                        .await?;
                    match client.open_until_moved(stream_open::Kind::Follow(self.open.clone())).await {
                        Ok(stream) => {
                            self.stream = Some(stream);
                            continue;
                        }
                        Err(error) => error,
                    }
                }
                Some((stream, moved)) => tokio::select! {
                    biased;
                    event = stream.recv.next::<v1::FollowEvent>() => match event {
                        Ok(Some(event)) => return Ok(self.heard(event)),
                        // A log that stops without a word about its end has not ended.
                        Ok(None) => StreamError::Early,
                        Err(error) => error,
                    },
                    // What is said from now on is said there.
                    () = moved.wait() => {
                        self.stream = None;
                        continue;
                    }
                },
            };
            self.give_up_stream();
            let failing_since = *self.failing_since.get_or_insert_with(Instant::now);
            let enough = !self.patient && failing_since.elapsed() >= CONNECT;
            if enough || !again(&error) {
                return Err(client.broken(&error));
            }
            if let (StreamError::Lost(why), false) = (&error, self.lost) {
                self.lost = true;
                return Ok(Event::Lost(client.why_lost(why)));
            }
        }
    }

    fn heard(&mut self, event: v1::FollowEvent) -> Event {
        self.pause = Pause::default();
        self.failing_since = None;
        // Whoever follows and has seen something wants to see the rest.
        self.patient |= self.open.follow;
        if std::mem::take(&mut self.lost) {
            self.held = Some(event);
            Event::Back
        } else {
            Event::Said(event)
        }
    }
}
