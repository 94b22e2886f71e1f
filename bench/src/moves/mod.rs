//! How long service is away when the ground moves, and what is lost: UDP is
//! cut, comes back or was never there, a connection is reset, a server is
//! killed, drained or restarted.
//!
//! Everything runs over real sockets on loopback: levers9's own `Link` on one
//! side, its `Acceptor` in a process of its own on the other, and where the
//! path is to change a relay between them, on a thread of its own. Service is
//! a request on a new stream, asked every 10 ms, and a log whose lines have
//! numbers, that is read on after the last one wherever it breaks. Away is the
//! time from the event to the first answer to a request made after it. Lines
//! are read until all have come that there are; what has not come by then is
//! lost. Lines and requests are counted over all rounds together.
//!
//! - `levers9-tcp`, `levers9-quic`: the same where UDP does not pass, or does.
//! - `quinn`: one connection with default settings, made again when it is
//!   lost. By default a server that starts has new reset keys, so that its
//!   clients wait for their idle timeout.
//! - `tls`: one connection over TCP, made again when it fails.
//!
//! Nothing here is bound by the CPU but by timers, so that what takes long is
//! measured side by side, and its sessions are at different points between two
//! pings.

mod child;
mod count;
mod peers;
mod relay;
mod rows;
mod scenes;
pub(crate) mod server;
mod service;

use std::time::Duration;

use anyhow::{Context as _, Result};
use levers9_transport::runtime::{self, TransportThread};
use levers9_wire::clock::unix_millis;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::report::Measure;
use crate::transport::{open_authority, say};
use child::{Place, Server};
use rows::{Compared, Row};
use scenes::Found;
use server::Serves;

/// How often each is done.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// What takes long, side by side.
    cuts: u32,
    starts: usize,
    resets: usize,
    kills: usize,
    drains: usize,
    byes: usize,
}

const FULL: Plan = Plan { cuts: 6, starts: 15, resets: 10, kills: 10, drains: 6, byes: 6 };
const QUICK: Plan = Plan { cuts: 3, starts: 5, resets: 3, kills: 3, drains: 2, byes: 2 };

/// When after the first ping the first cut is, and how far apart the others
/// are spread: until just before the next.
const CUTS: (Duration, Duration) = (Duration::from_millis(1_500), Duration::from_secs(13));

/// Measures all rows.
pub(crate) fn measure(quick: bool) -> Result<Vec<Measure>> {
    let plan = if quick { QUICK } else { FULL };
    let folder = tempfile::tempdir()?;
    open_authority(folder.path())?;
    let place = Place { folder: folder.path().to_owned(), epoch: unix_millis() };
    let relays = TransportThread::start()?;
    runtime::current_thread()?.block_on(all(&plan, &place, relays.handle()))
}

async fn all(plan: &Plan, place: &Place, relays: &Handle) -> Result<Vec<Measure>> {
    let levers9 = Server::start(Serves::Levers9, place).await?;
    let tls = Server::start(Serves::Tls, place).await?;
    say("from nothing, without UDP")?;
    let mut blocked = Compared::default();
    for _ in 0..plan.starts {
        blocked.ours.push(scenes::first_answer(relays, &levers9.address, false).await?);
        blocked.of("levers9-quic").push(scenes::first_answer(relays, &levers9.address, true).await?);
        blocked.of("tls").push(scenes::first_answer_of_tls(relays, &tls.address).await?);
    }
    say("TCP is reset")?;
    let mut reset = Compared::default();
    for _ in 0..plan.resets {
        reset.ours.push(scenes::reset(relays, &levers9.address, place).await?);
        reset.of("tls").push(scenes::reset_of_tls(relays, &tls.address).await?);
    }
    say("drains and restarts")?;
    let (mut drain, mut bye) = (Compared::default(), Compared::default());
    for _ in 0..plan.drains {
        drain.ours.push(scenes::drain(place).await?);
    }
    for _ in 0..plan.byes {
        bye.ours.push(scenes::bye(place).await?);
    }
    say("a server is killed")?;
    // It waits for half a minute, beside all that follows.
    let mut waiting = JoinSet::new();
    let mut kill = Compared::default();
    for _ in 0..plan.kills {
        let place_too = place.clone();
        waiting.spawn(async move { scenes::kill_of_peer(Serves::Quinn, &place_too).await });
        kill.ours.push(scenes::kill(Serves::Levers9, place).await?);
        kill.of("levers9-tcp").push(scenes::kill(Serves::Levers9Tcp, place).await?);
        kill.of("tls").push(scenes::kill_of_peer(Serves::Tls, place).await?);
    }
    say("UDP is cut, and back; this takes most of a minute")?;
    let [idle, back, used, unblocked] = cuts(plan, place, relays, &levers9).await?;
    while let Some(waited) = waiting.join_next().await {
        kill.of("quinn").push(waited??);
    }
    rows::measures([
        (Row::CutIdle, idle),
        (Row::CutUsed, used),
        (Row::Back, back),
        (Row::Unblocked, unblocked),
        (Row::Blocked, blocked),
        (Row::Reset, reset),
        (Row::Kill, kill),
        (Row::Drain, drain),
        (Row::Bye, bye),
    ])
}

/// UDP is cut under idle sessions, and is back; is cut under busy ones; is back
/// where it never was.
async fn cuts(plan: &Plan, place: &Place, relays: &Handle, server: &Server) -> Result<[Compared; 4]> {
    let (mut idle, mut used, mut unblocked) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
    for nth in 0..plan.cuts {
        let (first, span) = CUTS;
        let after = first + span * nth / plan.cuts.max(2).saturating_sub(1);
        let with = || (relays.clone(), server.address.clone(), place.clone());
        let (on, to, _) = with();
        idle.spawn(async move { scenes::cut_while_idle(&on, &to, after).await });
        let (on, to, at) = with();
        used.spawn(async move { scenes::cut_while_used(&on, &to, &at, after).await });
        let (on, to, at) = with();
        unblocked.spawn(async move { scenes::unblocked(&on, &to, &at).await });
    }
    let (cut, back): (Vec<Found>, Vec<Found>) =
        ended(idle).await.context("idle sessions")?.into_iter().unzip();
    let used = ended(used).await.context("busy sessions")?;
    let unblocked = ended(unblocked).await.context("sessions without UDP")?;
    Ok([cut, back, used, unblocked].map(Compared::alone))
}

async fn ended<T: 'static>(mut tasks: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    while let Some(one) = tasks.join_next().await {
        all.push(one??);
    }
    Ok(all)
}
