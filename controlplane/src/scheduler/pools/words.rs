//! What [`super::why()`] tells people: the fixed texts of reasons, what is left
//! of a node, the one sentence over all places.

use levers9_wire::quantity::{show_cpu, show_memory};

use super::types::Held;
use super::why::{Place, Reason};
use crate::scheduler::core::{Amounts, Waiting};

/// The text of a reason, and what ends it, where neither depends on more.
pub(super) const fn of(reason: Reason) -> (&'static str, &'static str) {
    match reason {
        Reason::Room => ("it has room; a worker is about to be ordered", "with the next pass"),
        Reason::Promised => ("it has room; the task goes elsewhere first", "when it is not taken there"),
        Reason::Resting => ("a worker failed there lately", "in a few minutes"),
        Reason::NoPodSlot => ("it takes no further pod", "when a pod leaves it"),
        Reason::NotReady => ("it is not ready", "when it is ready again"),
        Reason::Cordoned => ("it is cordoned", "when it is uncordoned"),
        Reason::Tainted => ("it has a taint that workers do not tolerate", "when the taint is taken off"),
        Reason::Unreadable => ("what it has cannot be read", "when its amounts can be read"),
        Reason::TooSmall => ("it is too small, even were it empty", ""),
        Reason::SharedCards => ("its cards are shared; no job gets two of them", ""),
        Reason::LabelContradicts => ("its labels say that its cards are others", ""),
        _ => ("", ""),
    }
}

/// Why an empty node would not do.
pub(super) fn too_small(all: &Amounts, need: &Amounts) -> String {
    if need.gpus > all.gpus {
        return match all.gpus {
            0 => "it has no cards".to_owned(),
            n => format!("it has {n} of {} cards", need.gpus),
        };
    }
    if need.memory_bytes > all.memory_bytes {
        return format!("it has {} of memory for jobs, were it empty", show_memory(all.memory_bytes));
    }
    format!("it has {} CPU, were it empty", show_cpu(all.cpu_millis))
}

/// What is left of what the task lacks first on a node.
pub(super) fn left(left: &Held, all: &Held, task: &Waiting) -> String {
    let (has, need) = (left.for_jobs(), &task.need);
    if need.gpus > has.gpus || (all.cards > 0 && has.gpus == 0) {
        return match (has.gpus, all.cards) {
            (0, 1) => "its card is taken".to_owned(),
            (0, n) => format!("all of its {n} cards are taken"),
            (free, n) => format!("{free} of its {n} cards are free, not {}", need.gpus),
        };
    }
    if need.memory_bytes > has.memory_bytes {
        let all = all.for_jobs().memory_bytes;
        return format!("{} of its {} of memory are free", show_memory(has.memory_bytes), show_memory(all));
    }
    format!("{} of its {} CPU are free", show_cpu(has.cpu_millis), show_cpu(all.cpu_millis))
}

/// One sentence over all places: the most hopeful one speaks.
pub(super) fn summary(places: &[Place], task: &Waiting) -> String {
    let asked = task.pool.as_ref().map(|pool| format!("there is no pool {pool:?}"));
    let elsewhere = |place: &&Place| place.reason != Reason::AnotherPool;
    let Some(best) = places.iter().filter(elsewhere).min_by_key(|place| place.reason) else {
        return asked.unwrap_or_else(|| "no cluster is attached that could run it".to_owned());
    };
    let place = match best.node.as_str() {
        "" => format!("pool {}", best.pool),
        node => format!("node {node} of pool {}", best.pool),
    };
    if best.reason.lasts() {
        let many = places.iter().filter(elsewhere).nth(1).is_some();
        let all = if many { "no place could ever take it; the nearest is " } else { "" };
        return format!("{all}{place}: {}", best.text);
    }
    match best.frees.as_str() {
        "" => format!("{place}: {}", best.text),
        frees => format!("{place}: {}; it goes on {frees}", best.text),
    }
}
