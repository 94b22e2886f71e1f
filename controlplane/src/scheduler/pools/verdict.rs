//! Whether any known pool could ever take a task, asked when the task is
//! submitted. Nodes are taken as they would be empty, offered or not; what is
//! not known counts for the task.

use levers9_wire::quantity::{show_cpu, show_memory};

use super::types::{Node, Pool};
use crate::scheduler::core::{Amounts, Waiting};

/// What became of the question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// A node that was reported could.
    Could,
    /// A pool of which too little is known might: it has not reported yet, has
    /// no node just now, or has one whose amounts cannot be read.
    Might,
    /// No pool is known that may serve the task at all; workers without a pool
    /// have the word.
    NoPool,
    /// None ever could, and why, in words without a name of a node or of
    /// another workspace's pool.
    Never(String),
}

/// Whether a known pool could ever take the task.
#[must_use]
pub fn impossible(pools: &[Pool], task: &Waiting) -> Verdict {
    let serving: Vec<&Pool> = pools.iter().filter(|pool| pool.serves(task)).collect();
    if serving.is_empty() {
        return Verdict::NoPool;
    }
    let with_cards: Vec<&Pool> = serving.into_iter().filter(|pool| pool.has_cards_for(task)).collect();
    if with_cards.is_empty() {
        return Verdict::Never(match &task.pool {
            Some(pool) => format!("pool {pool:?} has no {} GPUs", task.gpu_type),
            None => format!("no attached cluster has {} GPUs", task.gpu_type),
        });
    }
    let mut nodes = Vec::new();
    let mut might = false;
    for pool in with_cards {
        let reported = pool.report.as_ref().map_or(&[][..], |picture| &picture.nodes);
        might |= reported.is_empty() || reported.iter().any(|n| n.allocatable == super::Held::default());
        nodes.extend(reported.iter().map(|node| offer(node, pool, task)));
    }
    if nodes.iter().any(|offer| offer.amounts.covers(&task.need)) {
        return Verdict::Could;
    }
    if might { Verdict::Might } else { Verdict::Never(words(&nodes, task)) }
}

/// What an empty node has for the task.
struct Offer {
    amounts: Amounts,
    contradicts: bool,
    shared: bool,
}

fn offer(node: &Node, pool: &Pool, task: &Waiting) -> Offer {
    let mut amounts = node.allocatable.for_jobs();
    let has_cards = amounts.gpus > 0;
    let contradicts = has_cards && task.need.gpus > 0 && !node.label_allows(&pool.gpu_type, &task.gpu_type);
    if contradicts {
        amounts.gpus = 0;
    } else if node.shared_cards {
        amounts.gpus = amounts.gpus.min(1);
    }
    Offer { amounts, contradicts, shared: has_cards && node.shared_cards }
}

fn words(nodes: &[Offer], task: &Waiting) -> String {
    let need = &task.need;
    let most = |pick: fn(&Amounts) -> u64| nodes.iter().map(|offer| pick(&offer.amounts)).max().unwrap_or(0);
    let (memory, cpu) = (most(|a| a.memory_bytes), most(|a| a.cpu_millis));
    let cards = most(|a| u64::from(a.gpus));
    if need.memory_bytes > memory {
        let asked = show_memory(need.memory_bytes);
        format!(
            "{asked} of memory is more than any node has; the largest has {} for jobs",
            show_memory(memory)
        )
    } else if need.cpu_millis > cpu {
        format!(
            "{} CPU is more than any node has; the largest has {}",
            show_cpu(need.cpu_millis),
            show_cpu(cpu)
        )
    } else if u64::from(need.gpus) > cards {
        few_cards(nodes, task, cards)
    } else {
        "no single node has this much CPU, memory and GPUs together".to_owned()
    }
}

fn few_cards(nodes: &[Offer], task: &Waiting, most: u64) -> String {
    let (wanted, card) = (task.need.gpus, &task.gpu_type);
    if most == 0 && nodes.iter().any(|offer| offer.contradicts) {
        return format!("the nodes' own labels say that their cards are not {card}");
    }
    if most == 0 {
        return format!("no node has {card} GPUs that could be handed out");
    }
    if wanted > 1 && nodes.iter().any(|offer| offer.shared) {
        return format!(
            "{wanted} {card} GPUs are more than any one node gives; shared cards are given one by one, and the most are {most}"
        );
    }
    format!("{wanted} {card} GPUs are more than any one node has; the most are {most}")
}
