//! The rows of the table: what is done, which figures come of it, and the
//! goals that `transport-notes.md` and the first issue set.

use anyhow::{Context as _, Result};

use super::protocol::{Done, Work};
use super::{Plan, Variant};
use crate::report::{Better, Measure, Peer};
use crate::stats::Spread;

/// One thing to do and what to read from it.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) work: Work,
    figures: &'static [Figure],
}

/// One variant's turn at a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) done: Done,
    /// Of server and client together.
    pub(crate) cpu_us: u64,
}

struct Figure {
    metric: &'static str,
    unit: &'static str,
    better: Better,
    value: fn(&Sample) -> f64,
    /// What levers9 / this peer has to reach.
    goal: Option<(Variant, f64)>,
    /// What levers9's own value has to reach.
    own_goal: Option<f64>,
}

/// All rows.
pub(super) fn rows(plan: &Plan) -> Vec<Row> {
    let (bytes, millis) = (plan.bulk_bytes, plan.requests_ms);
    let row = |name, work, figures| Row { name, work, figures };
    vec![
        row("stream_1", Work::Bulk { streams: 1, bytes }, BULK),
        row("stream_100", Work::Bulk { streams: 100, bytes }, BULK),
        row("requests_1", Work::Calls { in_flight: 1, millis }, SEQUENTIAL),
        row("requests_64", Work::Calls { in_flight: 64, millis }, PARALLEL),
        row("first_byte", Work::FirstByte { millis }, FIRST_BYTE),
        row("ping_beside_bulk", Work::Pinged { streams: 8, millis: 3 * millis }, PINGED),
    ]
}

const BULK: &[Figure] = &[
    Figure {
        metric: "mb_per_cpu_s",
        unit: "MB/CPU-s",
        better: Better::Higher,
        value: |sample| sample.done.count as f64 / sample.cpu_us as f64,
        goal: Some((Variant::Quinn, 0.97)),
        own_goal: None,
    },
    CPU_PER_GB,
    Figure {
        metric: "mb_per_s",
        unit: "MB/s",
        better: Better::Higher,
        value: |sample| sample.done.count as f64 / sample.done.wall_us as f64,
        goal: Some((Variant::Quinn, 0.95)),
        own_goal: None,
    },
];

/// The same the other way round, as a cost. A GB is 1e9 bytes.
const CPU_PER_GB: Figure = Figure {
    metric: "cpu_s_per_gb",
    unit: "CPU-s/GB",
    better: Better::Lower,
    value: |sample| sample.cpu_us as f64 * 1e3 / sample.done.count as f64,
    goal: None,
    own_goal: None,
};

const SEQUENTIAL: &[Figure] = &[P50, CPU_EACH];
const FIRST_BYTE: &[Figure] = &[Figure { goal: Some((Variant::Quinn, 1.15)), ..P50 }, CPU_EACH];
const PARALLEL: &[Figure] = &[
    Figure {
        metric: "per_s",
        unit: "1/s",
        better: Better::Higher,
        value: |sample| sample.done.count as f64 * 1e6 / sample.done.wall_us as f64,
        goal: Some((Variant::H2, 3.5)),
        own_goal: None,
    },
    CPU_EACH,
    Figure {
        metric: "p99_us",
        unit: "µs",
        better: Better::Lower,
        value: |sample| sample.done.p99_ns as f64 / 1e3,
        goal: None,
        own_goal: None,
    },
];

/// What a call may take while downloads take all there is.
const PINGED: &[Figure] = &[
    P50,
    Figure {
        metric: "p99_us",
        value: |sample| sample.done.p99_ns as f64 / 1e3,
        own_goal: Some(1_000.0),
        ..P50
    },
];

const P50: Figure = Figure {
    metric: "p50_us",
    unit: "µs",
    better: Better::Lower,
    value: |sample| sample.done.p50_ns as f64 / 1e3,
    goal: None,
    own_goal: None,
};

const CPU_EACH: Figure = Figure {
    metric: "cpu_us",
    unit: "CPU µs each",
    better: Better::Lower,
    value: |sample| sample.cpu_us as f64 / sample.done.count as f64,
    goal: None,
    own_goal: None,
};

impl Row {
    /// Its figures over all rounds, and for bulk those of the fallback beside
    /// what it stands in for.
    pub(super) fn measures(&self, samples: &[(Variant, Sample)]) -> Result<Vec<Measure>> {
        let rest = [Variant::Quinn, Variant::H2, Variant::Tls];
        let others = [&rest[..], &[Variant::Levers9Tcp]].concat();
        let of = |figure| self.measure(figure, samples, Variant::Levers9, &others);
        let mut measures: Vec<Measure> = self.figures.iter().map(of).collect::<Result<_>>()?;
        if matches!(self.work, Work::Bulk { .. }) {
            let others = [&[Variant::Levers9], &rest[..]].concat();
            let mut fallback = self.measure(&CPU_PER_GB, samples, Variant::Levers9Tcp, &others)?;
            // In a row of its own, so that both are levers9 there.
            fallback.peers[0].name = "levers9-quic".to_owned();
            measures.push(Measure { row: format!("{}_over_tcp", self.name), ..fallback });
        }
        Ok(measures)
    }

    /// One figure of a variant of levers9, and of others in the same rounds.
    fn measure(
        &self,
        figure: &Figure,
        samples: &[(Variant, Sample)],
        of: Variant,
        others: &[Variant],
    ) -> Result<Measure> {
        let values = |wanted: Variant| -> Vec<f64> {
            samples.iter().filter(|(variant, _)| *variant == wanted).map(|(_, s)| (figure.value)(s)).collect()
        };
        let ours = values(of);
        let peer = |variant: Variant| -> Result<Peer> {
            let theirs = values(variant);
            Ok(Peer {
                name: variant.name().to_owned(),
                values: Spread::of(&theirs).context("no rounds")?,
                ratio: Spread::of_ratios(&ours, &theirs).context("a round is missing")?,
                goal: figure.goal.filter(|(peer, _)| *peer == variant).map(|(_, goal)| goal),
            })
        };
        Ok(Measure {
            row: self.name.to_owned(),
            metric: figure.metric.to_owned(),
            unit: figure.unit,
            better: figure.better,
            ours: Spread::of(&ours).context("no rounds")?,
            goal: figure.own_goal,
            peers: others.iter().copied().map(peer).collect::<Result<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_stands_beside_its_peer_and_ratios_are_of_the_same_round() {
        let plan = super::super::QUICK;
        let sample =
            |cpu_us| Sample { done: Done { wall_us: 1_000, count: 1_000_000, ..Done::default() }, cpu_us };
        let samples: Vec<(Variant, Sample)> = [1_000, 4_000]
            .into_iter()
            .flat_map(|slow| Variant::ALL.map(|variant| (variant, sample(slow * (1 + variant as u64)))))
            .collect();
        let measures = rows(&plan)[0].measures(&samples).unwrap();
        let cpu = &measures[0];
        let seen: Vec<_> =
            cpu.peers.iter().map(|p| (p.name.as_str(), p.ratio.min, p.ratio.max, p.goal)).collect();
        let others = [("h2", 3.0, 3.0, None), ("tls", 4.0, 4.0, None), ("levers9-tcp", 5.0, 5.0, None)];
        assert_eq!(seen, [&[("quinn", 2.0, 2.0, Some(0.97))][..], &others].concat());
        assert_eq!((cpu.ours.min, cpu.ours.max), (250.0, 1_000.0));
        assert_eq!(measures[2].peers[0].goal, Some(0.95));
        // 1 and 4 ms for a MB.
        assert_eq!((measures[1].ours.min, measures[1].ours.max), (1.0, 4.0));
        let fallback = &measures[3];
        assert_eq!((fallback.row.as_str(), fallback.ours.min), ("stream_1_over_tcp", 5.0));
        let seen: Vec<_> = fallback.peers.iter().map(|p| (p.name.as_str(), p.ratio.median)).collect();
        assert_eq!(seen, [("levers9-quic", 5.0), ("quinn", 2.5), ("h2", 5.0 / 3.0), ("tls", 1.25)]);
    }
}
