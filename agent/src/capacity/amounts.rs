//! Amounts per resource: in thousandths while one pod or node is worked out,
//! in whole units once it is entered in the books.
//!
//! Only cpu, memory, pods and extended resources are counted, each under its
//! exact name; nothing else a list holds is read. Negative amounts are
//! refused here, so whatever is added later only makes less free.

use std::collections::BTreeMap;

use super::objects::Quantities;
use crate::quantity::{self, BadQuantity, Quantity};

/// Amounts of everything that is counted on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amounts {
    /// CPU in thousandths of a core.
    pub cpu_millis: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// Pods, by number.
    pub pods: i64,
    /// Extended resources by exact name, in whole units: cards, MIG slices of
    /// each profile, adapters. A missing name is none.
    pub extended: BTreeMap<String, i64>,
}

impl Amounts {
    /// Adds amounts that are zero or more; the sum stays within 64 bits.
    pub(super) fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    /// Takes amounts away, below zero if need be.
    pub(super) fn subtract(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
    }

    /// The same with zero in place of everything below.
    pub(super) fn at_least_zero(mut self) -> Self {
        self.combine(&Self::default(), i64::max);
        self.extended.values_mut().for_each(|amount| *amount = (*amount).max(0));
        self
    }

    fn combine(&mut self, other: &Self, with: fn(i64, i64) -> i64) {
        self.cpu_millis = with(self.cpu_millis, other.cpu_millis);
        self.memory_bytes = with(self.memory_bytes, other.memory_bytes);
        self.pods = with(self.pods, other.pods);
        for (name, amount) in other.extended.iter().filter(|(_, amount)| **amount != 0) {
            let own = self.extended.entry(name.clone()).or_default();
            *own = with(*own, *amount);
        }
    }
}

/// A quantity of one resource that cannot be read or counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the amount of {resource} cannot be counted")]
pub struct BadResource {
    /// The resource's name.
    pub resource: String,
    /// What is wrong with its quantity.
    pub source: BadQuantity,
}

/// Thousandths per resource. A resource that is named with zero differs from
/// one that is not named: only the latter takes a default.
#[derive(Debug, Clone, Default)]
pub(super) struct Millis<'a>(BTreeMap<&'a str, i128>);

impl<'a> Millis<'a> {
    /// Reads the resources of a list that are counted.
    pub(super) fn read(list: &'a Quantities) -> Result<Self, BadResource> {
        let counted = list.iter().filter(|(name, _)| is_counted(name));
        counted
            .map(|(name, text)| match read_millis(name, text) {
                Ok(millis) => Ok((name.as_str(), millis)),
                Err(source) => Err(BadResource { resource: name.clone(), source }),
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether no resource is named.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds, resource by resource.
    pub(super) fn add(&mut self, other: &Self) {
        for (name, millis) in &other.0 {
            let own = self.0.entry(name).or_default();
            *own = own.saturating_add(*millis);
        }
    }

    /// Takes the larger of the two, resource by resource.
    pub(super) fn raise(&mut self, other: &Self) {
        for (name, millis) in &other.0 {
            let own = self.0.entry(name).or_default();
            *own = (*own).max(*millis);
        }
    }

    /// Takes over what is not named here.
    pub(super) fn fill(&mut self, other: &Self) {
        for (name, millis) in &other.0 {
            self.0.entry(name).or_insert(*millis);
        }
    }

    /// Takes over what is named there.
    pub(super) fn replace(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Forgets what is named there.
    pub(super) fn forget(&mut self, other: &Self) {
        self.0.retain(|name, _| !other.0.contains_key(name));
    }

    /// Keeps only cpu and memory.
    pub(super) fn keep_cpu_and_memory(&mut self) {
        self.0.retain(|name, _| matches!(*name, CPU | MEMORY));
    }

    /// Forgets cpu and memory.
    pub(super) fn forget_cpu_and_memory(&mut self) {
        self.0.retain(|name, _| !matches!(*name, CPU | MEMORY));
    }

    /// Whole units, each rounded up.
    pub(super) fn round_up(&self) -> Amounts {
        let millis = |name| self.0.get(name).copied().unwrap_or_default();
        let extended = self.0.iter().filter(|(name, _)| is_extended(name));
        let extended = extended.map(|(name, millis)| ((*name).to_owned(), quantity::whole_units(*millis)));
        Amounts {
            cpu_millis: i64::try_from(millis(CPU)).unwrap_or(i64::MAX),
            memory_bytes: quantity::whole_units(millis(MEMORY)),
            pods: quantity::whole_units(millis(PODS)),
            extended: extended.collect(),
        }
    }
}

fn read_millis(name: &str, text: &str) -> Result<i128, BadQuantity> {
    let millis =
        if name == CPU { quantity::cpu_millis(text)?.into() } else { text.parse::<Quantity>()?.millis() };
    if millis < 0 { Err(BadQuantity::Negative(text.to_owned())) } else { Ok(millis) }
}

fn is_counted(name: &str) -> bool {
    matches!(name, CPU | MEMORY | PODS) || is_extended(name)
}

/// Extended resources have a slash and are not Kubernetes' own.
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
const PODS: &str = "pods";
