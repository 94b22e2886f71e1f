//! What the origin has seen, and what it waits for a test to say.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a step is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Shared by all connections.
#[derive(Debug, Default)]
pub(crate) struct State {
    events: Mutex<Vec<String>>,
    steps: Mutex<HashMap<String, usize>>,
    stepped: Condvar,
}

impl State {
    /// Something happened.
    pub(crate) fn saw(&self, event: String) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Everything that happened, one on each line.
    pub(crate) fn events(&self) -> String {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    fn steps(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets whoever has this id take one more step.
    pub(crate) fn step(&self, id: &str) {
        *self.steps().entry(id.to_owned()).or_default() += 1;
        self.stepped.notify_all();
    }

    /// Waits for a step; false when none comes.
    pub(crate) fn wait_step(&self, id: &str) -> bool {
        let none_left = |steps: &mut HashMap<String, usize>| steps.get(id).is_none_or(|left| *left == 0);
        let waited = self.stepped.wait_timeout_while(self.steps(), PATIENCE, none_left);
        let (mut steps, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match steps.get_mut(id) {
            Some(left @ 1..) => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }
}
