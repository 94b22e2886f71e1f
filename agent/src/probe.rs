//! What Kubernetes is told of the agent's health: a file that is touched as
//! long as the agent's core moves, and one that is there while the agent can
//! do its work. `levers9-agent probe` looks at them.
//!
//! The network is never a reason to restart the agent: an outage is ridden out
//! better by the process that is there. It only makes the agent not ready.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, ValueEnum};
use levers9_transport::link::Status;
use levers9_wire::clock;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::eyes::Eyes;

/// How often the core says that it moves.
const BEAT: Duration = Duration::from_secs(5);
/// After this without a beat the core is taken for stuck.
const STUCK: Duration = Duration::from_secs(30);
/// Is touched at every beat.
const ALIVE: &str = "alive";
/// Is there while the agent is connected and sees its cluster.
const READY: &str = "ready";

/// The first argument that asks for a probe instead of an agent.
pub const WORD: &str = "probe";

/// Says how the agent beside it is, for Kubernetes: ends with 0 or 1
#[derive(Debug, Parser)]
#[command(name = "levers9-agent probe")]
pub struct ProbeArgs {
    /// Which question
    #[arg(value_enum)]
    question: Question,
    /// Where the agent leaves its signs
    #[arg(long, value_name = "DIR")]
    signs: PathBuf,
}

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Question {
    /// Does its core still move?
    Alive,
    /// Is it connected, and does it see its cluster?
    Ready,
}

/// Why the answer is no.
#[derive(Debug, thiserror::Error)]
pub enum No {
    /// There is no sign of life yet, or its folder is gone.
    #[error("no sign of the agent in {}: {source}", folder.display())]
    Nothing {
        /// Where it was looked for.
        folder: PathBuf,
        /// Why it was not seen.
        source: io::Error,
    },
    /// The core has stopped moving.
    #[error("the agent's core has not moved for {} s", .0.as_secs())]
    Stuck(Duration),
    /// It moves and cannot do its work.
    #[error("the agent is not connected, or does not see its cluster; its log says why")]
    NotReady,
}

impl ProbeArgs {
    /// Answers the question.
    ///
    /// # Errors
    /// When the answer is no.
    pub fn answer(&self) -> Result<(), No> {
        let nothing = |source| No::Nothing { folder: self.signs.clone(), source };
        let beat = std::fs::metadata(self.signs.join(ALIVE)).and_then(|meta| meta.modified());
        alive(beat.map_err(nothing)?, now())?;
        match self.question {
            Question::Ready if !self.signs.join(READY).exists() => Err(No::NotReady),
            Question::Ready | Question::Alive => Ok(()),
        }
    }
}

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(clock::unix_millis())
}

/// Whether a beat is young enough. One from the future is: the clock was set.
fn alive(beat: SystemTime, now: SystemTime) -> Result<(), No> {
    match now.duration_since(beat) {
        Ok(age) if age > STUCK => Err(No::Stuck(age)),
        _ => Ok(()),
    }
}

/// Leaves the signs, for ever. What cannot be written is said once.
pub(crate) async fn keep(signs: PathBuf, eyes: Eyes, status: watch::Receiver<Status>) {
    let mut said = false;
    loop {
        // The lock that every part needs: a core that is stuck does not come back from here.
        let sees = eyes.sees();
        let ready = sees && matches!(&*status.borrow(), Status::Online { .. });
        match leave(&signs, ready) {
            Ok(()) => said = false,
            Err(error) if !said => {
                said = true;
                tracing::error!(%error, folder = %signs.display(), "Kubernetes cannot be told that the agent lives");
            }
            Err(_) => {}
        }
        sleep(BEAT).await;
    }
}

fn leave(signs: &Path, ready: bool) -> io::Result<()> {
    std::fs::write(signs.join(ALIVE), "")?;
    let sign = signs.join(READY);
    if ready {
        return std::fs::write(sign, "");
    }
    match std::fs::remove_file(sign) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(folder: &Path, question: Question) -> Result<(), No> {
        ProbeArgs { question, signs: folder.to_owned() }.answer()
    }

    #[test]
    fn a_core_that_moves_is_alive_and_the_network_makes_it_ready() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(ask(folder.path(), Question::Alive), Err(No::Nothing { .. })));
        leave(folder.path(), false).unwrap();
        assert!(ask(folder.path(), Question::Alive).is_ok());
        assert!(matches!(ask(folder.path(), Question::Ready), Err(No::NotReady)));
        leave(folder.path(), true).unwrap();
        assert!(ask(folder.path(), Question::Ready).is_ok());
        leave(folder.path(), false).unwrap();
        assert!(matches!(ask(folder.path(), Question::Ready), Err(No::NotReady)));
    }

    #[test]
    fn a_core_that_is_stuck_is_found_however_ready_it_was() {
        let folder = tempfile::tempdir().unwrap();
        leave(folder.path(), true).unwrap();
        let file = std::fs::File::options().write(true).open(folder.path().join(ALIVE)).unwrap();
        file.set_modified(now() - STUCK - BEAT).unwrap();
        for question in [Question::Alive, Question::Ready] {
            assert!(matches!(ask(folder.path(), question), Err(No::Stuck(_))), "{question:?}");
        }
        // Clocks are set now and then.
        file.set_modified(now() + Duration::from_secs(3600)).unwrap();
        assert!(ask(folder.path(), Question::Alive).is_ok());
    }
}
