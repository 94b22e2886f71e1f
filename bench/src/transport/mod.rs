//! levers9's transport beside bare quinn with the same settings, HTTP/2 over
//! TLS 1.3 and TLS 1.3 over TCP.
//!
//! In each round every variant gets a fresh server process and a fresh client
//! process, each held to its own core. Row by row the variants take turns, in
//! reverse order every other round, so that what disturbs the machine disturbs
//! all. Bytes per CPU-second, of both processes together, is the stable figure.
//!
//! - `levers9`: a whole session, through `Acceptor` and `Link`; its streams as
//!   the controlplane and its callers use them.
//! - `levers9-tcp`: the same where nothing answers on UDP. What it takes to
//!   connect has the 250 ms in it that QUIC is given first.
//! - `quinn`: one connection; the settings, sockets, certificate and runtime of
//!   levers9.
//! - `h2`: one connection, `TCP_NODELAY`.
//! - `tls`: `TCP_NODELAY`; a connection has no streams, so each download has a
//!   connection of its own, open before the clock starts, and each request
//!   opens one, handshake included.

mod h2;
mod idle;
mod levers9;
pub(crate) mod peer;
pub(crate) mod protocol;
pub(crate) mod quinn;
pub(crate) mod rows;
pub(crate) mod tls;
mod work;

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use levers9_transport::cert::Authority;
use levers9_wire::clock::unix_millis;

use crate::report::Measure;
use peer::Pair;
use rows::{Row, Sample};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Variant {
    Levers9,
    Quinn,
    H2,
    Tls,
    Levers9Tcp,
}

impl Variant {
    const ALL: [Self; 5] = [Self::Levers9, Self::Quinn, Self::H2, Self::Tls, Self::Levers9Tcp];

    fn name(self) -> &'static str {
        match self {
            Self::Levers9 => "levers9",
            Self::Levers9Tcp => "levers9-tcp",
            Self::Quinn => "quinn",
            Self::H2 => "h2",
            Self::Tls => "tls",
        }
    }
}

/// How long to measure. A fresh TCP connection needs some 100 MB to reach its
/// pace, so that short downloads show `tls` slower than it is.
#[derive(Debug, Clone, Copy)]
struct Plan {
    rounds: usize,
    idle_rounds: usize,
    bulk_bytes: u64,
    requests_ms: u64,
    /// How long sessions are idle before memory is read. The long one spans a
    /// second ping of every session.
    settle_ms: u64,
}

const FULL: Plan =
    Plan { rounds: 5, idle_rounds: 2, bulk_bytes: 1 << 30, requests_ms: 1_000, settle_ms: 16_000 };
const QUICK: Plan =
    Plan { rounds: 3, idle_rounds: 1, bulk_bytes: 512 << 20, requests_ms: 250, settle_ms: 1_000 };

/// Measures all rows.
pub(crate) fn measure(quick: bool) -> Result<Vec<Measure>> {
    let plan = if quick { QUICK } else { FULL };
    let folder = tempfile::tempdir()?;
    // Made once; every server of every variant shows the same certificate.
    open_authority(folder.path())?;
    let rows = rows::rows(&plan);
    let mut samples: Vec<Vec<(Variant, Sample)>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 0..plan.rounds {
        say(&format!("round {} of {}", round + 1, plan.rounds))?;
        one_round(folder.path(), round, &rows, &mut samples)?;
    }
    let mut measures = Vec::new();
    for (row, samples) in rows.iter().zip(&samples) {
        measures.extend(row.measures(samples).with_context(|| format!("row {}", row.name))?);
    }
    say("idle sessions")?;
    measures.push(idle::measure(folder.path(), &plan)?);
    Ok(measures)
}

fn one_round(
    folder: &Path,
    round: usize,
    rows: &[Row],
    samples: &mut [Vec<(Variant, Sample)>],
) -> Result<()> {
    let mut order = Variant::ALL;
    if round % 2 == 1 {
        order.reverse();
    }
    let mut pairs = Vec::new();
    for variant in order {
        pairs.push((variant, Pair::start(variant, folder).context(variant.name())?));
    }
    for (row, samples) in rows.iter().zip(samples) {
        for (variant, pair) in &mut pairs {
            let sample =
                pair.work(row.work).with_context(|| format!("{} of {}", row.name, variant.name()))?;
            samples.push((*variant, sample));
        }
    }
    Ok(())
}

/// The CA of a run; opened by each server, made by whoever comes first.
pub(crate) fn open_authority(folder: &Path) -> Result<Authority> {
    Ok(Authority::open(folder, &["127.0.0.1".to_owned()], unix_millis() / 1_000)?)
}

pub(crate) fn say(what: &str) -> Result<()> {
    Ok(writeln!(io::stderr(), "{what}")?)
}
