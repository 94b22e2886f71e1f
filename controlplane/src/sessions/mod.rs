//! Who is connected: workers by their id, everybody by their token. The gate
//! fills it, the scheduler and the calls read it. It never talks to a peer
//! itself but to end a session.

pub mod takeover;

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use levers9_transport::accept::SessionHandle;
use levers9_wire::v1::{ResetCode, WorkerFacts};
use levers9_wire::{ClusterId, InstanceId, SessionId, TokenId, WorkerId, WorkspaceId, name};
use tokio::time::Instant;

use crate::scheduler::core::Amounts;
use crate::store::{Worker, WorkerState};
use takeover::{Claims, Verdict};

/// What a session rides on and why, for people.
#[must_use]
pub fn riding(session: Option<&SessionHandle>) -> (String, String) {
    let Some(carrier) = session.map(SessionHandle::carrier) else { return Default::default() };
    (carrier.kind().word().to_owned(), name::printable(&carrier.why(), 200))
}

/// A worker as it is known now.
#[derive(Debug, Clone)]
pub struct WorkerNow {
    /// Which.
    pub id: WorkerId,
    /// Its pool.
    pub pool: String,
    /// Whom it may serve; `None` for everybody.
    pub workspace: Option<WorkspaceId>,
    /// Whom it serves, once it is bound by its first job.
    pub bound: Option<WorkspaceId>,
    /// What it has.
    pub facts: WorkerFacts,
    /// Its build.
    pub build: String,
    /// When it enrolled, in Unix milliseconds.
    pub created_ms: i64,
    /// Its session, while it has one.
    pub session: Option<SessionHandle>,
    /// The token it came with.
    pub token: Option<TokenId>,
    /// Since when it has none; `None` while it has one.
    pub away_since: Option<Instant>,
    /// Its attempts were given up already.
    pub given_up: bool,
    /// The cluster it was ordered on.
    pub cluster: Option<ClusterId>,
}

impl WorkerNow {
    /// One that has no session here.
    pub(crate) fn away(row: Worker, since: Instant) -> Self {
        Self {
            id: row.id,
            pool: row.pool,
            workspace: row.workspace,
            bound: row.bound_workspace,
            facts: row.facts,
            build: row.build,
            created_ms: row.created_ms,
            session: None,
            token: None,
            away_since: Some(since),
            given_up: row.state == WorkerState::Unreachable,
            cluster: row.cluster,
        }
    }

    /// All it has.
    #[must_use]
    pub fn total(&self) -> Amounts {
        let WorkerFacts { cpu_millis, memory_bytes, gpu_count, .. } = self.facts;
        Amounts { cpu_millis, memory_bytes, gpus: gpu_count }
    }

    /// Whether it is here and has not said that it takes nothing more.
    #[must_use]
    pub fn takes_more(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.is_draining())
    }

    /// Whom it serves, bound or by enrolment.
    #[must_use]
    pub fn serves(&self) -> Option<WorkspaceId> {
        self.workspace.or(self.bound)
    }
}

#[derive(Debug, Default)]
struct Inner {
    workers: HashMap<WorkerId, WorkerNow>,
    claims: HashMap<WorkerId, Claims>,
    /// A process may come anew under the id of a session it still has.
    by_session: HashMap<SessionId, Vec<(TokenId, SessionHandle)>>,
}

/// Everybody connected.
#[derive(Debug, Default)]
pub struct Sessions {
    inner: Mutex<Inner>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker process says Hello.
    pub fn claim(&self, worker: WorkerId, instance: InstanceId, now: Instant) -> Verdict {
        self.lock().claims.entry(worker).or_default().claim(instance, now)
    }

    /// The processes that fight over a worker's identity.
    #[must_use]
    pub fn fighting(&self, worker: WorkerId, now: Instant) -> Vec<InstanceId> {
        self.lock().claims.get(&worker).map(|claims| claims.fighting(now)).unwrap_or_default()
    }

    /// Puts a worker in, or its newer state in the place of the older. An
    /// older session of it is ended.
    pub fn put_worker(&self, worker: WorkerNow) {
        let older = {
            let mut inner = self.lock();
            let older = inner.workers.insert(worker.id, worker.clone()).and_then(|before| before.session);
            older.filter(|old| worker.session.as_ref().is_some_and(|new| !new.is_same(old)))
        };
        if let Some(older) = older {
            older.close(ResetCode::Superseded, "superseded by a newer session of this worker");
        }
    }

    /// The workers that have no session here.
    #[must_use]
    pub fn away(&self) -> HashSet<WorkerId> {
        let inner = self.lock();
        inner.workers.values().filter(|worker| worker.session.is_none()).map(|worker| worker.id).collect()
    }

    /// Takes over what the database says of workers. Who is here says more of
    /// itself, but whom it is bound to; who was `away` before the database was
    /// asked, still is, and is gone there, goes.
    pub fn merge(&self, rows: Vec<Worker>, away: &HashSet<WorkerId>, now: Instant) {
        let mut inner = self.lock();
        let mut gone = away.clone();
        for row in rows.into_iter().filter(|row| row.state != WorkerState::Gone) {
            gone.remove(&row.id);
            let entry = inner.workers.entry(row.id).or_insert_with(|| WorkerNow::away(row.clone(), now));
            entry.bound = row.bound_workspace.or(entry.bound);
            if entry.session.is_none() {
                let (since, given_up) = (entry.away_since.unwrap_or(now), entry.given_up);
                *entry = WorkerNow { given_up, ..WorkerNow::away(row, since) };
            }
        }
        inner.workers.retain(|id, worker| worker.session.is_some() || !gone.contains(id));
    }

    /// A worker's session has ended. `false` when it was not the current one.
    pub fn worker_left(
        &self,
        worker: WorkerId,
        instance: InstanceId,
        session: &SessionHandle,
        now: Instant,
    ) -> bool {
        let mut inner = self.lock();
        let Some(entry) = inner.workers.get_mut(&worker) else { return false };
        let current = entry.session.as_ref().is_some_and(|s| s.is_same(session));
        if !current {
            return false;
        }
        entry.session = None;
        entry.away_since = Some(now);
        inner.claims.entry(worker).or_default().ended(instance);
        true
    }

    /// Takes a worker out for good.
    pub fn forget_worker(&self, worker: WorkerId) {
        self.lock().workers.remove(&worker);
    }

    /// Changes what is known of a worker.
    pub fn update_worker(&self, worker: WorkerId, change: impl FnOnce(&mut WorkerNow)) {
        if let Some(entry) = self.lock().workers.get_mut(&worker) {
            change(entry);
        }
    }

    /// One worker.
    #[must_use]
    pub fn worker(&self, worker: WorkerId) -> Option<WorkerNow> {
        self.lock().workers.get(&worker).cloned()
    }

    /// All workers, by id.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerNow> {
        let mut workers: Vec<_> = self.lock().workers.values().cloned().collect();
        workers.sort_by_key(|worker| worker.id);
        workers
    }

    /// A session came in with a token.
    pub fn opened(&self, token: TokenId, session: &SessionHandle) {
        self.lock().by_session.entry(session.id()).or_default().push((token, session.clone()));
    }

    /// Whether a session came in with a token, and goes on.
    #[must_use]
    pub fn holds(&self, token: TokenId, session: &SessionHandle) -> bool {
        let inner = self.lock();
        let mut named = inner.by_session.get(&session.id()).into_iter().flatten();
        named.any(|(of, kept)| *of == token && kept.is_same(session))
    }

    /// A session has ended.
    pub fn closed(&self, session: &SessionHandle) {
        let mut inner = self.lock();
        let Some(named) = inner.by_session.get_mut(&session.id()) else { return };
        named.retain(|(_, kept)| !kept.is_same(session));
        if named.is_empty() {
            inner.by_session.remove(&session.id());
        }
    }

    /// Ends every session of a token. Says how many there were.
    pub fn revoke(&self, token: TokenId) -> usize {
        let revoked: Vec<_> = {
            let inner = self.lock();
            inner
                .by_session
                .values()
                .flatten()
                .filter(|(of, _)| *of == token)
                .map(|(_, s)| s.clone())
                .collect()
        };
        for session in &revoked {
            session.close(ResetCode::Revoked, "the token was revoked");
        }
        revoked.len()
    }

    /// How many sessions there are, and of them workers'.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let inner = self.lock();
        (
            inner.by_session.values().map(Vec::len).sum(),
            inner.workers.values().filter(|w| w.session.is_some()).count(),
        )
    }
}
