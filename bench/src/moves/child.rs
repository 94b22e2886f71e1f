//! A server process as its parent sees it: started, asked, killed and started
//! again on its port. All of that waits, so it is done beside the runtime.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use levers9_transport::Address;
use tokio::task::spawn_blocking;

use super::server::{Ask, Said, Serves};
use crate::process::Helper;

/// Where a run takes place.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Where the CA is.
    pub(super) folder: PathBuf,
    /// When the log began, in milliseconds since 1970.
    pub(super) epoch: u64,
}

/// A server.
pub(super) struct Server {
    helper: Helper,
    serves: Serves,
    place: Place,
    pub(super) address: Address,
}

impl Server {
    /// Starts one on any port.
    pub(super) async fn start(serves: Serves, place: &Place) -> Result<Self> {
        Self::start_on(serves, place.clone(), 0).await
    }

    async fn start_on(serves: Serves, place: Place, port: u16) -> Result<Self> {
        spawn_blocking(move || Self::start_now(serves, place, port)).await?
    }

    fn start_now(serves: Serves, place: Place, port: u16) -> Result<Self> {
        let mut helper = Helper::start([
            "moved".as_ref(),
            "--serves".as_ref(),
            serves.name().as_ref(),
            "--folder".as_ref(),
            place.folder.as_os_str(),
            "--port".as_ref(),
            port.to_string().as_ref(),
            "--epoch".as_ref(),
            place.epoch.to_string().as_ref(),
        ])?;
        match helper.listen()? {
            Said::Ready { address } => Ok(Self { helper, serves, place, address: address.parse()? }),
            Said::Done => bail!("a server is done before it is ready"),
        }
    }

    /// The number of its process.
    pub(super) fn id(&self) -> u32 {
        self.helper.id()
    }

    /// Kills it; it has no time for a word.
    pub(super) async fn kill(self) -> Result<Gone> {
        let Self { helper, serves, place, address } = self;
        spawn_blocking(move || drop(helper)).await?;
        Ok(Gone { serves, place, port: address.port })
    }

    /// Has it send everybody elsewhere.
    pub(super) async fn drain(&mut self, within: Duration, to: &Address) -> Result<()> {
        let within_ms = u64::try_from(within.as_millis())?;
        // Answered at once.
        self.ask(&Ask::Drain { within_ms, to: to.authority() })
    }

    /// Has it say goodbye and end.
    pub(super) async fn bye(mut self, back_in: Duration) -> Result<Gone> {
        let back_in_ms = u64::try_from(back_in.as_millis())?;
        let said = spawn_blocking(move || self.ask(&Ask::Bye { back_in_ms }).map(|()| self)).await?;
        said?.kill().await
    }

    fn ask(&mut self, ask: &Ask) -> Result<()> {
        match self.helper.ask(ask)? {
            Said::Done => Ok(()),
            Said::Ready { .. } => bail!("a server is ready once more"),
        }
    }
}

/// Where a server was.
pub(super) struct Gone {
    serves: Serves,
    place: Place,
    port: u16,
}

impl Gone {
    /// Starts it again on its port.
    pub(super) async fn start(self) -> Result<Server> {
        Server::start_on(self.serves, self.place, self.port).await
    }
}
