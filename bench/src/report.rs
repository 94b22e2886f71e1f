//! What a measurement found, for people (a table with every variant) and for
//! programs (a list with one entry for each goal).

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use crate::stats::Spread;

/// Which direction is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Higher,
    Lower,
}

impl Better {
    fn meets(self, value: f64, goal: f64) -> bool {
        match self {
            Self::Higher => value >= goal,
            Self::Lower => value <= goal,
        }
    }

    fn sign(self) -> char {
        match self {
            Self::Higher => '≥',
            Self::Lower => '≤',
        }
    }
}

/// One figure of levers9 and of those it is compared with.
#[derive(Debug)]
pub(crate) struct Measure {
    /// What was done.
    pub(crate) row: String,
    /// What was counted, the last part of its name in JSON.
    pub(crate) metric: String,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) ours: Spread,
    /// What levers9's own value has to reach.
    pub(crate) goal: Option<f64>,
    pub(crate) peers: Vec<Peer>,
}

/// One peer in a measure.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) values: Spread,
    /// levers9 / this peer.
    pub(crate) ratio: Spread,
    /// What the ratio has to reach.
    pub(crate) goal: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Entry<'a> {
    name: String,
    value: f64,
    unit: &'a str,
    goal: f64,
    better: Better,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<&'a str>,
}

/// Every goal, as a JSON list. Where there is a peer, the goal is the ratio's.
pub(crate) fn json(measures: &[Measure]) -> Result<String> {
    let mut text = serde_json::to_string_pretty(&entries(measures))?;
    text.push('\n');
    Ok(text)
}

fn entries(measures: &[Measure]) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    for measure in measures {
        let entry = |goal, peer: Option<&'_ Peer>| Entry {
            name: format!("{}_{}", measure.row, measure.metric),
            value: rounded(measure.ours.median),
            unit: measure.unit,
            goal,
            better: measure.better,
            ratio: peer.map(|peer| rounded(peer.ratio.median)),
            peer: None,
        };
        entries.extend(measure.goal.map(|goal| entry(goal, None)));
        for peer in &measure.peers {
            let named = |goal| Entry { peer: Some(&peer.name), ..entry(goal, Some(peer)) };
            entries.extend(peer.goal.map(named));
        }
    }
    entries
}

/// To a ten-thousandth: more is noise.
fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

/// Every figure, as text in columns.
pub(crate) fn table(measures: &[Measure]) -> String {
    let mut lines = vec![
        ["row", "figure", "variant", "min / median / max", "levers9 / it", "goal", "met"].map(str::to_owned),
    ];
    for measure in measures {
        let figure = format!("{}, {}", measure.metric, measure.unit);
        let (goal, met) = judged(measure.better, measure.ours.median, measure.goal);
        let ours = shown(measure.ours);
        lines.push([measure.row.clone(), figure, "levers9".to_owned(), ours, String::new(), goal, met]);
        for peer in &measure.peers {
            let (goal, met) = judged(measure.better, peer.ratio.median, peer.goal);
            let (values, ratio) = (shown(peer.values), shown(peer.ratio));
            lines.push([String::new(), String::new(), peer.name.clone(), values, ratio, goal, met]);
        }
    }
    aligned(&lines)
}

fn judged(better: Better, value: f64, goal: Option<f64>) -> (String, String) {
    let Some(goal) = goal else { return Default::default() };
    let met = if better.meets(value, goal) { "yes" } else { "NO" };
    (format!("{} {goal}", better.sign()), met.to_owned())
}

fn shown(spread: Spread) -> String {
    let digits = if spread.median.abs() >= 100.0 {
        0
    } else if spread.median.abs() >= 10.0 {
        1
    } else {
        2
    };
    let Spread { min, median, max } = spread;
    format!("{min:.digits$} / {median:.digits$} / {max:.digits$}")
}

fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let width =
        |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (cell, width) in line.iter().zip(widths) {
            // Writing to a string does not fail.
            let _infallible = write!(row, "{cell:width$}  ");
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn all(value: f64) -> Spread {
        Spread { min: value, median: value, max: value }
    }

    fn measure(goal: Option<f64>, peers: Vec<Peer>) -> Measure {
        let (row, metric) = ("stream_1".to_owned(), "mb_per_s".to_owned());
        Measure { row, metric, unit: "MB/s", better: Better::Higher, ours: all(970.0), goal, peers }
    }

    fn peer(name: &str, ratio: f64, goal: Option<f64>) -> Peer {
        Peer { name: name.to_owned(), values: all(970.0 / ratio), ratio: all(ratio), goal }
    }

    #[test]
    fn json_has_an_entry_for_each_goal_and_a_ratio_where_there_is_a_peer() {
        let measures = [
            measure(None, vec![peer("quinn", 0.97, Some(0.95)), peer("tls", 0.3, None)]),
            measure(Some(50.0), Vec::new()),
        ];
        let text = json(&measures).unwrap();
        let expected = json!([
            { "name": "stream_1_mb_per_s", "value": 970.0, "unit": "MB/s", "goal": 0.95, "better": "higher",
              "ratio": 0.97, "peer": "quinn" },
            { "name": "stream_1_mb_per_s", "value": 970.0, "unit": "MB/s", "goal": 50.0, "better": "higher" },
        ]);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected);
    }

    #[test]
    fn the_table_says_whether_a_goal_is_met() {
        let text = table(&[measure(None, vec![peer("quinn", 0.9, Some(0.95)), peer("h2", 4.0, Some(3.5))])]);
        let ends: Vec<&str> =
            text.lines().skip(2).filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(ends, ["NO", "yes"], "{text}");
        assert!(text.contains("≥ 0.95"), "{text}");
    }
}
