//! Which of two processes with one identity is the real one. The newer wins;
//! the older is refused while the winner lives. Two takeovers by different
//! processes within a minute mean that somebody runs the same identity twice:
//! then nothing is placed there, and both are shown. Pure; time is an argument.

use std::time::Duration;

use levers9_wire::InstanceId;
use tokio::time::Instant;

/// Takeovers this close together are a fight.
const FIGHT: Duration = Duration::from_secs(60);

/// What to do with a process that says Hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is the first, or the same as before.
    Welcome,
    /// It is newer: it replaces the one before.
    TakesOver,
    /// It is an older one, and the winner still lives.
    Superseded,
}

/// The processes that have used one identity.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    holder: Option<InstanceId>,
    /// Whether the holder has a session now.
    alive: bool,
    beaten: Vec<InstanceId>,
    takeovers: Vec<Instant>,
}

/// Beaten processes that are remembered; older ones have ids that sort before.
const REMEMBERED: usize = 8;

impl Claims {
    /// A process says Hello at `now`.
    pub fn claim(&mut self, instance: InstanceId, now: Instant) -> Verdict {
        match self.holder {
            Some(holder) if holder == instance => {
                self.alive = true;
                Verdict::Welcome
            }
            Some(_) if self.alive && self.beaten.contains(&instance) => Verdict::Superseded,
            Some(holder) => {
                if self.alive {
                    self.takeovers.push(now);
                }
                self.takeovers.retain(|at| now - *at <= FIGHT);
                self.beaten.retain(|old| *old != instance);
                self.beaten.push(holder);
                if self.beaten.len() > REMEMBERED {
                    self.beaten.remove(0);
                }
                (self.holder, self.alive) = (Some(instance), true);
                Verdict::TakesOver
            }
            None => {
                (self.holder, self.alive) = (Some(instance), true);
                Verdict::Welcome
            }
        }
    }

    /// The session of a process has ended. Says whether it was the holder's.
    pub fn ended(&mut self, instance: InstanceId) -> bool {
        let was_holder = self.holder == Some(instance);
        if was_holder {
            self.alive = false;
        }
        was_holder
    }

    /// The processes that fight over the identity at `now`; empty when none do.
    #[must_use]
    pub fn fighting(&self, now: Instant) -> Vec<InstanceId> {
        if self.takeovers.iter().filter(|at| now - **at <= FIGHT).count() < 2 {
            return Vec::new();
        }
        self.beaten.last().copied().into_iter().chain(self.holder).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::StdRng};

    fn instance(n: u64) -> InstanceId {
        InstanceId::new(n, &mut StdRng::seed_from_u64(n))
    }

    /// B22
    #[test]
    fn the_newer_wins_and_the_older_is_refused_while_the_winner_lives() {
        let now = Instant::now();
        let mut claims = Claims::default();
        assert_eq!(claims.claim(instance(1), now), Verdict::Welcome);
        assert_eq!(claims.claim(instance(2), now), Verdict::TakesOver);
        assert_eq!(claims.claim(instance(1), now), Verdict::Superseded);
        assert!(!claims.ended(instance(1)), "a late end of the old session changes nothing");
        assert_eq!(claims.claim(instance(2), now), Verdict::Welcome);
        assert!(claims.ended(instance(2)));
        assert_eq!(claims.claim(instance(1), now), Verdict::TakesOver);
        assert!(claims.fighting(now).is_empty(), "one takeover is a replacement, not a fight");
    }

    #[test]
    fn two_takeovers_within_a_minute_are_a_fight_that_ends() {
        let now = Instant::now();
        let mut claims = Claims::default();
        for n in 1..=3 {
            claims.claim(instance(n), now);
        }
        assert_eq!(claims.fighting(now), [instance(2), instance(3)]);
        assert!(claims.fighting(now + FIGHT + Duration::from_secs(1)).is_empty());
    }
}
