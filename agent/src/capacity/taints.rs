//! Which taints of a node a worker tolerates.
//!
//! [`super::NodeReport`] asks whether any taint closes the node to a new
//! worker. Pods that already run there are none of its business.

use serde::Deserialize;

use super::objects::Taint;

/// A toleration of the worker's pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Toleration {
    /// The taint's key; with [`Comparison::Exists`] an empty one means any.
    pub key: String,
    /// How the value is compared.
    pub operator: Comparison,
    /// The taint's value, for [`Comparison::Equal`].
    pub value: String,
    /// The taint's effect; empty for any.
    pub effect: String,
}

/// How a toleration compares a taint's value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum Comparison {
    /// The values are the same.
    #[default]
    Equal,
    /// Any value will do.
    Exists,
}

impl Toleration {
    fn tolerates(&self, taint: &Taint) -> bool {
        let effect = self.effect.is_empty() || self.effect == taint.effect;
        effect
            && match self.operator {
                Comparison::Exists => self.key.is_empty() || self.key == taint.key,
                Comparison::Equal => self.key == taint.key && self.value == taint.value,
            }
    }
}

/// Whether a taint keeps a new pod with these tolerations away.
pub(super) fn closes(taint: &Taint, tolerations: &[Toleration]) -> bool {
    taint.effect != "PreferNoSchedule" && !tolerations.iter().any(|toleration| toleration.tolerates(taint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(effect: &str) -> Taint {
        Taint { key: "sku".to_owned(), value: "gpu".to_owned(), effect: effect.to_owned() }
    }

    #[test]
    fn a_preference_closes_nothing() {
        assert!(!closes(&taint("PreferNoSchedule"), &[]));
        assert!(closes(&taint("NoSchedule"), &[]));
        assert!(closes(&taint("NoExecute"), &[]));
    }

    #[test]
    fn only_exists_goes_without_a_key() {
        let any = |operator| Toleration { operator, value: "gpu".to_owned(), ..Toleration::default() };
        assert!(!closes(&taint("NoSchedule"), &[any(Comparison::Exists)]));
        assert!(closes(&taint("NoSchedule"), &[any(Comparison::Equal)]));
    }
}
