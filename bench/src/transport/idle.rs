//! Memory of idle sessions on the server: how much its resident set grows by a
//! thousand of them. levers9's are whole sessions with control streams and
//! pings, quinn's are bare connections.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::peer::Pair;
use super::{Plan, Variant};
use crate::report::{Better, Measure, Peer};
use crate::stats::Spread;

const SESSIONS: u32 = 1_000;
/// The most an idle session may cost, in units of 1,000 bytes.
const GOAL_KB: f64 = 50.0;

/// Measures levers9 and quinn in turns.
pub(super) fn measure(folder: &Path, plan: &Plan) -> Result<Measure> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..plan.idle_rounds {
        ours.push(each(Variant::Levers9, folder, plan.settle_ms)?);
        theirs.push(each(Variant::Quinn, folder, plan.settle_ms)?);
    }
    let quinn = Peer {
        name: Variant::Quinn.name().to_owned(),
        values: Spread::of(&theirs).context("no rounds")?,
        ratio: Spread::of_ratios(&ours, &theirs).context("a round is missing")?,
        goal: None,
    };
    Ok(Measure {
        row: "idle".to_owned(),
        metric: "kb_per_session".to_owned(),
        unit: "KB",
        better: Better::Lower,
        ours: Spread::of(&ours).context("no rounds")?,
        goal: Some(GOAL_KB),
        peers: vec![quinn],
    })
}

fn each(variant: Variant, folder: &Path, settle_ms: u64) -> Result<f64> {
    let mut pair = Pair::start(variant, folder)?;
    let before = pair.server_usage()?.rss_kib;
    pair.hold(SESSIONS, settle_ms).with_context(|| format!("idle sessions of {}", variant.name()))?;
    let after = pair.server_usage()?.rss_kib;
    let grown = after.saturating_sub(before) as f64 * 1_024.0;
    Ok(grown / f64::from(SESSIONS) / 1_000.0)
}
