//! What a node is apart from the pods on it: its size and whether its own
//! state lets a worker in.
//!
//! The shell makes one when a node's object comes and keeps it instead of the
//! object; two that are equal differ in nothing that is counted or reported.

use super::amounts::{Amounts, BadResource, Millis};
use super::books::Terms;
use super::objects::Node;
use super::report::{self, Withheld};

/// A node without its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The node's name.
    pub name: String,
    /// What pods may use.
    pub(super) allocatable: Result<Amounts, BadResource>,
    /// Whether labels say that cards are time-sliced.
    pub(super) shared_cards: bool,
    /// Why the node's own state lets no worker in.
    pub closed: Option<Withheld>,
}

impl Site {
    /// Takes from a node what counting and reporting need.
    #[must_use]
    pub fn of(node: &Node, terms: &Terms) -> Self {
        Self {
            name: node.metadata.name.clone(),
            allocatable: allocatable(node),
            shared_cards: report::shares_cards(node),
            closed: report::closed(node, terms),
        }
    }
}

/// What pods may use; all of the capacity where the kubelet has not said.
fn allocatable(node: &Node) -> Result<Amounts, BadResource> {
    let list = node.status.allocatable.as_ref().unwrap_or(&node.status.capacity);
    Ok(Millis::read(list)?.round_up())
}
