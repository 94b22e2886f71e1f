//! How a controlplane makes way for another on the same database: it says
//! where it is as long as it runs, and when it is to stop, whether another is
//! there. If so it sends its sessions there and waits until what runs here has
//! ended. It closes nothing; [`crate::server`] does.

use std::net::SocketAddr;
use std::time::Duration;

use levers9_transport::accept::Acceptor;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::gate::Porter;
use crate::ports::Ports;
use crate::reach::What;
use crate::state::{Shared, now_ms};
use crate::store::{Dialect, StoreError};

/// How often to say that this process is here.
const ANNOUNCE: Duration = Duration::from_secs(5);
/// One that has not said so for this long is not.
const GONE_AFTER: Duration = Duration::from_secs(15);
/// How long containers that were ordered just now may take to be heard of.
const BEGIN: Duration = Duration::from_secs(5);
/// How long whoever leads requests here may take to notice that others are to
/// be preferred.
const LINGER: Duration = Duration::from_secs(5);
/// How often to look whether all have gone.
const LOOK: Duration = Duration::from_millis(200);

/// Where peers may dial this very process; empty when it cannot tell.
#[must_use]
pub fn address_of(bound: SocketAddr) -> String {
    if bound.ip().is_unspecified() { String::new() } else { bound.to_string() }
}

/// Says that this process is here.
///
/// # Errors
/// When the database fails.
pub async fn announce(state: &Shared, address: &str) -> Result<(), StoreError> {
    // An SQLite database has one controlplane.
    if state.store.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    let ttl_ms = i64::try_from(GONE_AFTER.as_millis()).unwrap_or(i64::MAX);
    state.store.announce_replica(state.instance, address, ttl_ms, now_ms()).await
}

/// Goes on saying so for ever.
pub async fn announce_on(state: Shared, address: String) {
    let mut tick = interval(ANNOUNCE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if let Err(error) = announce(&state, &address).await {
            tracing::debug!(%error, "other controlplanes cannot be told of this one now");
        }
    }
}

/// Says that this process is not here any more, and where the others are;
/// `None` when there are none.
pub async fn withdraw(state: &Shared) -> Option<Vec<String>> {
    if state.store.dialect() == Dialect::Sqlite {
        return None;
    }
    match timeout(BEGIN, state.store.withdraw_replica(state.instance, now_ms())).await {
        Ok(Ok(others)) if others.is_empty() => None,
        Ok(Ok(others)) => Some(others.into_iter().filter(|address| !address.is_empty()).collect()),
        Ok(Err(error)) => {
            tracing::warn!(%error, "whether there is another controlplane is not known; stopping at once");
            None
        }
        Err(_) => None,
    }
}

/// Sends everybody to the others and waits until what runs here has ended, for
/// `within` at most, or until `hurry`. Says who was late.
pub async fn make_way(
    state: &Shared,
    acceptor: &Acceptor<Porter>,
    ports: Ports,
    (others, within): (Vec<String>, Duration),
    hurry: &CancellationToken,
) -> Option<&'static str> {
    let deadline = Instant::now() + within;
    // Else the others would take what was ordered just now for lost.
    let _late = timeout(BEGIN.min(within), state.runs.all_begun()).await;
    tracing::info!(
        seconds = within.as_secs(),
        ?others,
        "another controlplane takes over; what runs may end here"
    );
    acceptor.drain(deadline.saturating_duration_since(Instant::now()), others);
    ports.leave();
    let _hurried = hurry.run_until_cancelled(sleep_until(deadline.min(Instant::now() + LINGER))).await;
    let by = if hurry.is_cancelled() { Instant::now() } else { deadline };
    let all_gone = async {
        let (cut, ()) = tokio::join!(ports.shutdown(by), until_quiet(state, acceptor));
        cut
    };
    tokio::select! {
        cut = all_gone => (cut > 0).then_some("connections of the HTTP and gRPC ports"),
        () = sleep_until(by) => Some("what ran here"),
        () = hurry.cancelled() => None,
    }
}

/// Until every peer has gone elsewhere and nothing leads into a container.
async fn until_quiet(state: &Shared, acceptor: &Acceptor<Porter>) {
    let of_people = [What::Tunnel, What::Exec, What::Bench, What::Door, What::Request];
    let is_quiet = || acceptor.staying() == 0 && of_people.iter().all(|what| state.open.open(*what) == 0);
    while !is_quiet() {
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_listens_everywhere_names_no_place() {
        assert_eq!(address_of("0.0.0.0:443".parse().unwrap()), "");
        assert_eq!(address_of("[::]:443".parse().unwrap()), "");
        assert_eq!(address_of("10.0.0.7:443".parse().unwrap()), "10.0.0.7:443");
        assert_eq!(address_of("[2001:db8::7]:443".parse().unwrap()), "[2001:db8::7]:443");
    }
}
