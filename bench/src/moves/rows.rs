//! The rows of the table, what is read from each, and what it has to reach.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::scenes::{Found, GAP};
use crate::report::{Better, Measure, Peer};
use crate::stats::Spread;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    CutIdle,
    CutUsed,
    Back,
    Unblocked,
    Blocked,
    Reset,
    Kill,
    Drain,
    Bye,
}

impl Row {
    fn name(self) -> &'static str {
        match self {
            Self::CutIdle => "udp_cut_idle",
            Self::CutUsed => "udp_cut_busy",
            Self::Back => "udp_back",
            Self::Unblocked => "udp_unblocked",
            Self::Blocked => "udp_blocked",
            Self::Reset => "tcp_reset",
            Self::Kill => "server_killed",
            Self::Drain => "server_drained",
            Self::Bye => "server_restarted",
        }
    }

    /// What is read as the time that service was away, and the most of it, in ms.
    fn away(self) -> (&'static str, f64) {
        match self {
            // A ping that is missed, twice the time one may be late, and the head start.
            Self::CutIdle | Self::CutUsed => ("first_answer_over_tcp", 25_500.0),
            // The first look, a quarter later at most.
            Self::Back | Self::Unblocked => ("first_answer_over_quic", 13_000.0),
            // QUIC's head start.
            Self::Blocked => ("first_answer", 300.0),
            // The same, after the shortest pause.
            Self::Reset => ("first_answer", 400.0),
            Self::Kill => ("first_answer", 500.0),
            Self::Drain => ("longest_gap", GAP.as_secs_f64() * 1e3),
            // The second it said, and the least span over which sessions come back.
            Self::Bye => ("first_answer", 1_400.0),
        }
    }

    /// Whether each request is to be answered.
    fn answers_all(self) -> bool {
        matches!(self, Self::Drain | Self::Back | Self::Unblocked)
    }
}

/// What was found of levers9, and of those it is compared with.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub(super) ours: Vec<Found>,
    others: Vec<(&'static str, Vec<Found>)>,
}

impl Compared {
    /// Where there is nothing to compare with.
    pub(super) fn alone(ours: Vec<Found>) -> Self {
        Self { ours, others: Vec::new() }
    }

    /// What was found of another.
    pub(super) fn of(&mut self, name: &'static str) -> &mut Vec<Found> {
        let at = self.others.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            self.others.push((name, Vec::new()));
            self.others.len() - 1
        });
        &mut self.others[at].1
    }
}

/// All figures of all rows.
pub(super) fn measures<const N: usize>(rows: [(Row, Compared); N]) -> Result<Vec<Measure>> {
    let mut measures = Vec::new();
    for (row, found) in rows {
        measures.extend(of_row(row, &found).with_context(|| format!("row {}", row.name()))?);
    }
    Ok(measures)
}

fn of_row(row: Row, found: &Compared) -> Result<Vec<Measure>> {
    let (metric, most) = row.away();
    let away = ms(&found.ours, |found| Some(found.away));
    let mut peers = Vec::new();
    let server = ms(&found.ours, |found| found.server_away);
    let others = found.others.iter().map(|(name, found)| (*name, ms(found, |found| Some(found.away))));
    // How long the process itself took to be there again.
    let floor = (!server.is_empty()).then_some(("the restart itself", server));
    for (name, values) in others.chain(floor) {
        peers.push(Peer {
            name: name.to_owned(),
            values: Spread::of(&values).context("no rounds")?,
            ratio: Spread::of_ratios(&away, &values).context("a round is missing")?,
            goal: None,
        });
    }
    let figure = |metric: &str, unit, values: &[f64], goal, peers| -> Result<Measure> {
        let ours = Spread::of(values).context("no rounds")?;
        let (row, metric) = (row.name().to_owned(), metric.to_owned());
        Ok(Measure { row, metric, unit, better: Better::Lower, ours, goal, peers })
    };
    let mut measures = vec![figure(metric, "ms", &away, Some(most), peers)?];
    let lines: Vec<_> = found.ours.iter().filter_map(|found| found.lines).collect();
    if !lines.is_empty() {
        let sum = |of: fn(&super::count::Lines) -> u64| [lines.iter().map(of).sum::<u64>() as f64];
        let pause = ms(&found.ours, |found| found.lines.map(|lines| lines.longest));
        measures.push(figure("longest_pause_of_log", "ms", &pause, None, Vec::new())?);
        measures.push(figure("lines_read", "lines", &sum(|lines| lines.came), None, Vec::new())?);
        measures.push(figure("lines_lost", "lines", &sum(|lines| lines.lost), Some(0.0), Vec::new())?);
        measures.push(figure("lines_doubled", "lines", &sum(|lines| lines.doubled), Some(0.0), Vec::new())?);
    }
    let gaps: Vec<usize> = found.ours.iter().filter_map(|found| found.gaps).collect();
    if !gaps.is_empty() {
        let metric = format!("gaps_above_{}_ms", GAP.as_millis());
        let all = [gaps.iter().sum::<usize>() as f64];
        measures.push(figure(&metric, "gaps", &all, Some(0.0), Vec::new())?);
    }
    let sum = |of: fn(&Found) -> usize| [found.ours.iter().map(of).sum::<usize>() as f64];
    let (asked, failed) = (sum(|found| found.asked), sum(|found| found.failed));
    if asked[0] > 0.0 {
        let none = row.answers_all().then_some(0.0);
        measures.push(figure("requests", "requests", &asked, None, Vec::new())?);
        measures.push(figure("requests_failed", "requests", &failed, none, Vec::new())?);
    }
    Ok(measures)
}

fn ms(found: &[Found], of: impl Fn(&Found) -> Option<Duration>) -> Vec<f64> {
    found.iter().filter_map(of).map(|span| span.as_secs_f64() * 1e3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moves::count::Lines;
    use crate::report;
    use tokio::time::Instant;

    /// A round in which so many lines were left out, and one came twice.
    fn found(away: u64, lost: u64) -> Found {
        let now = Instant::now();
        let mut lines = Lines::after(0, now);
        [1, 1, 2 + lost].into_iter().for_each(|line| lines.take(line, now));
        let away = Duration::from_millis(away);
        Found {
            away,
            server_away: Some(away / 2),
            lines: Some(lines),
            asked: 10,
            failed: 1,
            gaps: Some(lost.min(1) as usize),
        }
    }

    #[test]
    fn a_line_that_is_lost_in_any_round_is_shown() {
        let mut drain = Compared::alone(vec![found(10, 0), found(20, 3), found(40, 0)]);
        drain.of("tls").extend([found(5, 0), found(10, 0), found(20, 0)]);
        let measures = measures([(Row::Drain, drain)]).unwrap();
        let seen: Vec<_> = measures.iter().map(|m| (m.metric.as_str(), m.ours.median, m.goal)).collect();
        let expected = [
            ("longest_gap", 20.0, Some(50.0)),
            ("longest_pause_of_log", 0.0, None),
            ("lines_read", 9.0, None),
            ("lines_lost", 3.0, Some(0.0)),
            ("lines_doubled", 3.0, Some(0.0)),
            ("gaps_above_50_ms", 1.0, Some(0.0)),
            ("requests", 30.0, None),
            ("requests_failed", 3.0, Some(0.0)),
        ];
        assert_eq!(seen, expected);
        let peers: Vec<_> =
            measures[0].peers.iter().map(|p| (p.name.as_str(), p.ratio.min, p.ratio.max)).collect();
        assert_eq!(peers, [("tls", 2.0, 2.0), ("the restart itself", 2.0, 2.0)]);
        let table = report::table(&measures);
        assert_eq!(table.lines().filter(|line| line.ends_with("NO")).count(), 4, "{table}");
    }
}
