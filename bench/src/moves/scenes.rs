//! What is done to a session, and what of its service is away meanwhile.

use std::time::Duration;

use anyhow::Result;
use levers9_transport::{Address, CarrierKind};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until};

use super::child::{Place, Server};
use super::count::{Lines, gaps};
use super::peers::{Quinn, Tls};
use super::relay::Relay;
use super::server::Serves;
use super::service::{Asked, Asker, Guest, Reader, Service, socket_of};

/// How long service may be away before that is a failure of the measurement.
const PATIENCE: Duration = Duration::from_secs(75);
/// How long a session is used before something is done to it, and after.
const SETTLED: Duration = Duration::from_millis(500);
/// What a server that drains gives its sessions.
const DRAIN: Duration = Duration::from_secs(60);
/// When a server that says goodbye means to be back.
pub(super) const BACK_IN: Duration = Duration::from_secs(1);

/// A time without an answer that somebody would notice.
pub(super) const GAP: Duration = Duration::from_millis(50);

/// What was found once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// How long service was away.
    pub(super) away: Duration,
    /// How long the server itself was.
    pub(super) server_away: Option<Duration>,
    /// The log, where one was read.
    pub(super) lines: Option<Lines>,
    /// Requests that ended since it happened, and those of them without an answer.
    pub(super) asked: usize,
    pub(super) failed: usize,
    /// Times longer than [`GAP`] without an answer, where that is counted.
    pub(super) gaps: Option<usize>,
}

impl Found {
    /// Nothing but how long service was away.
    fn away(away: Duration) -> Self {
        Self { away, server_away: None, lines: None, asked: 0, failed: 0, gaps: None }
    }

    fn of(away: Duration, asked: &[Asked], since: Instant) -> Self {
        let later = || asked.iter().filter(|asked| asked.ended >= since);
        let failed = later().filter(|asked| asked.way.is_none()).count();
        Self { asked: later().count(), failed, ..Self::away(away) }
    }
}

/// A caller in use: it asks and reads.
struct Used {
    guest: Guest,
    asker: Asker,
    reader: Reader,
}

impl Used {
    /// Dials, and waits until all of it works.
    async fn start(address: &Address, place: &Place) -> Result<Self> {
        let guest = Guest::dial(address);
        guest.call().await?;
        let reader = Reader::start(&guest.link, place.epoch).await?;
        let asker = Asker::start(guest.clone());
        sleep(SETTLED).await;
        Ok(Self { guest, asker, reader })
    }

    /// Something happens now.
    fn mark(&self) -> Instant {
        self.reader.mark();
        Instant::now()
    }

    /// Goes on for a while, and ends.
    async fn finish(self, away: Duration, since: Instant) -> Result<(Found, Vec<Asked>)> {
        sleep(SETTLED).await;
        let lines = self.reader.finish().await;
        let asked = self.asker.stop().await;
        self.guest.leave().await;
        Ok((Found { lines: Some(lines), ..Found::of(away, &asked, since) }, asked))
    }
}

/// UDP is cut under a session that asks and reads, so long after its first
/// ping. It stays cut.
pub(super) async fn cut_while_used(
    on: &Handle,
    to: &Address,
    place: &Place,
    after: Duration,
) -> Result<Found> {
    let relay = Relay::start(on, socket_of(to)?).await?;
    let begun = Instant::now();
    let used = Used::start(&relay.in_place_of(to), place).await?;
    used.guest.rides_on(CarrierKind::Quic, PATIENCE).await?;
    sleep_until(begun + after).await;
    relay.pass_udp(false);
    let cut = used.mark();
    let back = used.asker.first(cut, PATIENCE, |way| way.carrier == CarrierKind::Tcp).await?;
    Ok(used.finish(back - cut, cut).await?.0)
}

/// The same under a session that nobody uses; then UDP is back, and it is
/// found again: the second.
pub(super) async fn cut_while_idle(on: &Handle, to: &Address, after: Duration) -> Result<(Found, Found)> {
    let relay = Relay::start(on, socket_of(to)?).await?;
    let begun = Instant::now();
    let guest = Guest::dial(&relay.in_place_of(to));
    guest.rides_on(CarrierKind::Quic, PATIENCE).await?;
    sleep_until(begun + after).await;
    relay.pass_udp(false);
    let cut = Instant::now();
    guest.rides_on(CarrierKind::Tcp, PATIENCE).await?;
    guest.call().await?;
    let away = cut.elapsed();
    relay.pass_udp(true);
    let back = Instant::now();
    guest.rides_on(CarrierKind::Quic, PATIENCE).await?;
    guest.call().await?;
    let found = (Found::away(away), Found::away(back.elapsed()));
    guest.leave().await;
    Ok(found)
}

/// UDP was never there, and is from now on.
pub(super) async fn unblocked(on: &Handle, to: &Address, place: &Place) -> Result<Found> {
    let relay = Relay::start(on, socket_of(to)?).await?;
    relay.pass_udp(false);
    let used = Used::start(&relay.in_place_of(to), place).await?;
    relay.pass_udp(true);
    let back = used.mark();
    let over_quic = used.asker.first(back, PATIENCE, |way| way.carrier == CarrierKind::Quic).await?;
    Ok(used.finish(over_quic - back, back).await?.0)
}

/// From nothing to the first answer, where UDP passes or not.
pub(super) async fn first_answer(on: &Handle, to: &Address, udp: bool) -> Result<Found> {
    let relay = Relay::start(on, socket_of(to)?).await?;
    relay.pass_udp(udp);
    let address = relay.in_place_of(to);
    let begun = Instant::now();
    let guest = Guest::dial(&address);
    guest.call().await?;
    let away = begun.elapsed();
    guest.leave().await;
    Ok(Found::away(away))
}

/// The same of TLS over TCP.
pub(super) async fn first_answer_of_tls(on: &Handle, to: &Address) -> Result<Found> {
    let relay = Relay::start(on, socket_of(to)?).await?;
    let address = relay.in_place_of(to);
    let begun = Instant::now();
    Tls::dial(&address)?.call().await?;
    Ok(Found::away(begun.elapsed()))
}

/// The TCP connection of a session that has no UDP is reset.
pub(super) async fn reset(on: &Handle, to: &Address, place: &Place) -> Result<Found> {
    let relay = Relay::start(on, socket_of(to)?).await?;
    relay.pass_udp(false);
    let used = Used::start(&relay.in_place_of(to), place).await?;
    relay.reset_tcp();
    let reset = used.mark();
    let back = used.asker.first(reset, PATIENCE, |_| true).await?;
    Ok(used.finish(back - reset, reset).await?.0)
}

/// The same of TLS over TCP.
pub(super) async fn reset_of_tls(on: &Handle, to: &Address) -> Result<Found> {
    let relay = Relay::start(on, socket_of(to)?).await?;
    let asker = Asker::start(Tls::dial(&relay.in_place_of(to))?);
    sleep(SETTLED).await;
    relay.reset_tcp();
    let reset = Instant::now();
    let back = asker.first(reset, PATIENCE, |_| true).await?;
    Ok(Found::of(back - reset, &asker.stop().await, reset))
}

/// The server is killed, and started again at once.
pub(super) async fn kill(serves: Serves, place: &Place) -> Result<Found> {
    let server = Server::start(serves, place).await?;
    let used = Used::start(&server.address, place).await?;
    used.mark();
    let gone = server.kill().await?;
    // What is asked from now on only another can answer.
    let killed = Instant::now();
    let server = gone.start().await?;
    let server_away = Some(killed.elapsed());
    let back = used.asker.first(killed, PATIENCE, |way| way.server == server.id()).await?;
    let (found, _) = used.finish(back - killed, killed).await?;
    Ok(Found { server_away, ..found })
}

/// The same of quinn or TLS.
pub(super) async fn kill_of_peer(serves: Serves, place: &Place) -> Result<Found> {
    let server = Server::start(serves, place).await?;
    let asker = match serves {
        Serves::Quinn => Asker::start(Quinn::dial(&server.address)?),
        _ => Asker::start(Tls::dial(&server.address)?),
    };
    asker.first(Instant::now(), PATIENCE, |_| true).await?;
    sleep(SETTLED).await;
    let gone = server.kill().await?;
    let killed = Instant::now();
    let server = gone.start().await?;
    let back = asker.first(killed, PATIENCE, |_| true).await?;
    let found = Found::of(back - killed, &asker.stop().await, killed);
    drop(server);
    Ok(found)
}

/// A server sends its sessions to another, and goes when they have gone.
pub(super) async fn drain(place: &Place) -> Result<Found> {
    let mut old = Server::start(Serves::Levers9, place).await?;
    let new = Server::start(Serves::Levers9, place).await?;
    let used = Used::start(&old.address, place).await?;
    let drained = used.mark();
    old.drain(DRAIN, &new.address).await?;
    used.asker.first(drained, PATIENCE, |way| way.server == new.id()).await?;
    sleep(SETTLED).await;
    old.bye(Duration::ZERO).await?;
    let (found, asked) = used.finish(Duration::ZERO, drained).await?;
    let answers = asked.iter().filter(|asked| asked.way.is_some()).map(|asked| asked.ended);
    // Until the last request began: what comes after that is no service.
    let until = asked.iter().map(|asked| asked.begun).max().unwrap_or(drained);
    let gaps = gaps(answers, drained, until);
    let away = gaps.iter().max().copied().unwrap_or_default();
    Ok(Found { away, gaps: Some(gaps.iter().filter(|gap| **gap > GAP).count()), ..found })
}

/// A server says goodbye, and is started again when it said.
pub(super) async fn bye(place: &Place) -> Result<Found> {
    let server = Server::start(Serves::Levers9, place).await?;
    let used = Used::start(&server.address, place).await?;
    let said = used.mark();
    let back_at = said + BACK_IN;
    let gone = server.bye(BACK_IN).await?;
    sleep_until(back_at).await;
    let server = gone.start().await?;
    let server_away = Some(said.elapsed());
    let back = used.asker.first(said, PATIENCE, |way| way.server == server.id()).await?;
    let (found, _) = used.finish(back - said, said).await?;
    Ok(Found { server_away, ..found })
}
