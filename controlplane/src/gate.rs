//! Lets peers in by their token and gives each its server: a worker to
//! [`crate::workers`], a person's CLI to [`crate::calls`], an agent to
//! [`crate::clusters::agents`]. It decides nothing about tasks.

use std::net::SocketAddr;
use std::sync::Arc;

use levers9_transport::accept::{Gate, Refusal, Session, SessionHandle};
use levers9_wire::token::{self, BadToken, TokenKind};
use levers9_wire::v1::{self, RefuseCode, Role};
use levers9_wire::{InstanceId, TokenId, WorkerId, valid};
use tokio::time::Instant;

use crate::auth::{Identity, mint};
use crate::clusters::agents;
use crate::logs::follow::Callers;
use crate::sessions::takeover::Verdict;
use crate::state::{Shared, now_ms};
use crate::store::{EnrolmentClaim, PoolWorkerState, StoreError, Token, TokenHash};
use crate::{calls, recover, workers};

/// Who was let in.
#[derive(Debug)]
pub enum Admitted {
    /// Somebody without a token, who may ask for the first one.
    Nobody,
    /// A person's CLI.
    Person(Identity, TokenHash),
    /// A worker.
    Worker(Box<workers::Arrival>),
    /// The agent of a cluster.
    Agent(Box<agents::Arrival>),
}

/// The gate of a controlplane.
#[derive(Debug)]
pub struct Porter {
    state: Shared,
    callers: Arc<Callers>,
}

impl Porter {
    /// A gate over the shared state.
    #[must_use]
    pub fn new(state: Shared) -> Self {
        Self { state, callers: Arc::default() }
    }

    async fn decide(
        &self,
        hello: valid::Hello,
        peer: SocketAddr,
    ) -> Result<(v1::Welcome, Admitted), Refusal> {
        if hello.token.is_empty() {
            return nobody(&hello);
        }
        let kind = token::kind_of(hello.token.expose())
            .map_err(|bad: BadToken| Refusal::new(RefuseCode::TokenMalformed, bad.to_string()))?;
        check_role(hello.role, kind)?;
        let token = self.token(&hello).await?;
        let now = now_ms();
        if let Err(error) = self.state.store.touch_token(token.id, now).await {
            tracing::debug!(%error, "the use of a token was not noted");
        }
        let mut welcome = self.welcome(&token).await?;
        if hello.role == Role::Cli {
            return Ok((welcome, Admitted::Person(Identity::from(&token), token.hash)));
        }
        if hello.role == Role::Agent {
            let arrival = self.agent(&token, hello, now).await?;
            tracing::info!(cluster = %arrival.cluster, %peer, namespace = %arrival.facts.namespace, "an agent connects");
            return Ok((welcome, Admitted::Agent(Box::new(arrival))));
        }
        let (token, enrolment) = match kind {
            TokenKind::Enrolment => {
                let enrolment = token.id;
                (self.enrol(&token, hello.instance, &mut welcome, now).await?, Some(enrolment))
            }
            _ => (token, None),
        };
        let worker =
            token.worker.ok_or_else(|| Refusal::new(RefuseCode::TokenKind, "the token names no worker"))?;
        self.check_place(&token, hello.worker.as_ref()).await?;
        welcome.worker = worker.to_wire();
        self.claim(worker, hello.instance)?;
        let facts = hello.worker.unwrap_or_default();
        tracing::info!(%worker, %peer, host = %facts.hostname, containers = hello.inventory.len(), "a worker connects");
        let arrival = workers::Arrival {
            token,
            enrolment,
            worker,
            instance: hello.instance,
            facts,
            build: hello.build,
            inventory: hello.inventory,
        };
        Ok((welcome, Admitted::Worker(Box::new(arrival))))
    }

    /// Registers a session under its token. A revocation between the Hello and
    /// here found no session to end; this finds the revocation.
    async fn opened(&self, token: TokenId, hash: TokenHash, session: &SessionHandle) {
        self.state.sessions.opened(token, session);
        let row = self.state.store.token_by_hash(hash).await;
        if row.is_ok_and(|row| row.is_none_or(|row| row.revoked_ms.is_some())) {
            self.state.sessions.revoke(token);
        }
    }

    async fn token(&self, hello: &valid::Hello) -> Result<Token, Refusal> {
        let found = self.state.store.token_by_hash(TokenHash::of(&hello.token)).await.map_err(busy)?;
        let unknown = || Refusal::new(RefuseCode::TokenUnknown, "the controlplane does not know this token");
        let token = found.ok_or_else(unknown)?;
        if token.revoked_ms.is_some() {
            return Err(Refusal::new(RefuseCode::TokenRevoked, "the token was revoked"));
        }
        // An enrolment that was claimed in time may be repeated after its end; the claim decides.
        let expired =
            token.expires_ms.is_some_and(|end| end <= now_ms()) && token.kind != TokenKind::Enrolment;
        if expired {
            return Err(Refusal::new(RefuseCode::TokenRevoked, "the token has expired"));
        }
        Ok(token)
    }

    async fn welcome(&self, token: &Token) -> Result<v1::Welcome, Refusal> {
        let name = match token.workspace {
            Some(id) => {
                self.state.store.workspace(id).await.map_err(busy)?.map(|w| w.name).unwrap_or_default()
            }
            None => String::new(),
        };
        Ok(v1::Welcome {
            workspace: token.workspace.map(levers9_wire::WorkspaceId::to_wire).unwrap_or_default(),
            workspace_name: name,
            token_kind: token.kind.word().to_owned(),
            ..v1::Welcome::default()
        })
    }

    /// Exchanges an enrolment token for a worker token, once per process.
    async fn enrol(
        &self,
        token: &Token,
        instance: InstanceId,
        welcome: &mut v1::Welcome,
        now: i64,
    ) -> Result<Token, Refusal> {
        let claim = self.state.store.claim_enrolment(token.id, instance, now).await.map_err(busy)?;
        match claim {
            Some(EnrolmentClaim::First | EnrolmentClaim::Repeat) => {}
            Some(EnrolmentClaim::UsedByOther) => {
                tracing::warn!(token = %token.hint, "an enrolment token was used a second time by another process");
                let text = "this enrolment token was used already; make another: levers9 worker enroll";
                return Err(Refusal::new(RefuseCode::EnrolmentUsed, text));
            }
            Some(EnrolmentClaim::Expired) | None => {
                let text = "this enrolment token has expired; make another: levers9 worker enroll";
                return Err(Refusal::new(RefuseCode::TokenRevoked, text));
            }
        }
        let (secret, row) = mint(TokenKind::Worker, token.workspace, now, &mut rand::rng());
        let row = Token {
            worker: token.worker,
            pool: token.pool.clone(),
            shared: token.shared,
            cluster: token.cluster,
            node: token.node.clone(),
            ..row
        };
        self.state.store.insert_token(&row).await.map_err(busy)?;
        welcome.worker_token = secret.expose().to_owned();
        welcome.token_kind = TokenKind::Worker.word().to_owned();
        Ok(row)
    }

    /// A worker on a cluster comes from the node it was ordered on, while it
    /// is wanted there.
    async fn check_place(&self, token: &Token, facts: Option<&v1::WorkerFacts>) -> Result<(), Refusal> {
        let (Some(_), Some(worker)) = (token.cluster, token.worker) else { return Ok(()) };
        let node = facts.map(|facts| facts.node.as_str()).unwrap_or_default();
        if let Some(wanted) = token.node.as_deref().filter(|wanted| *wanted != node) {
            let text = format!("this token is for a worker on node {wanted}, not on {node:?}");
            return Err(Refusal::new(RefuseCode::BadHello, text));
        }
        if self.state.clusters.worker(worker).is_none() {
            // Another process may have ordered it.
            recover::refresh(&self.state).await.map_err(busy)?;
        }
        match self.state.clusters.worker(worker).map(|w| w.row.state) {
            Some(PoolWorkerState::Pending | PoolWorkerState::Running) => Ok(()),
            Some(PoolWorkerState::Stopping) | None => {
                Err(Refusal::new(RefuseCode::TokenRevoked, "this worker is no longer wanted"))
            }
        }
    }

    /// Lets the agent of a cluster in. A token that is newer than others of the
    /// cluster ends those.
    async fn agent(&self, token: &Token, hello: valid::Hello, now: i64) -> Result<agents::Arrival, Refusal> {
        let bad = |text: &str| Refusal::new(RefuseCode::BadHello, text);
        if token.cluster.is_some_and(|id| self.state.clusters.get(id).is_none()) {
            // Another process may have attached it.
            recover::refresh(&self.state).await.map_err(busy)?;
        }
        let cluster = token
            .cluster
            .filter(|id| self.state.clusters.get(*id).is_some())
            .ok_or_else(|| Refusal::new(RefuseCode::TokenRevoked, "the cluster was detached"))?;
        let agent = hello.agent.ok_or_else(|| bad("an agent has to say which cluster it is of"))?;
        if agent.cluster != cluster {
            return Err(bad("this token is of another cluster; apply that cluster's own manifest"));
        }
        match self.state.clusters.claim(cluster, hello.instance, Instant::now()) {
            Some(Verdict::Welcome) => {}
            Some(Verdict::TakesOver) => {
                tracing::info!(%cluster, instance = %hello.instance, "a newer agent takes over a cluster");
            }
            Some(Verdict::Superseded) | None => {
                let text = "superseded: a newer agent serves this cluster";
                return Err(Refusal::new(RefuseCode::Superseded, text));
            }
        }
        for old in self.state.store.retire_cluster_tokens(cluster, token.id, now).await.map_err(busy)? {
            tracing::info!(%cluster, "an agent's earlier token is no longer good");
            self.state.sessions.revoke(old);
        }
        Ok(agents::Arrival {
            token: token.id,
            hash: token.hash,
            cluster,
            instance: hello.instance,
            facts: agent.facts,
            build: hello.build,
        })
    }

    fn claim(&self, worker: WorkerId, instance: InstanceId) -> Result<(), Refusal> {
        match self.state.sessions.claim(worker, instance, Instant::now()) {
            Verdict::Welcome => Ok(()),
            Verdict::TakesOver => {
                tracing::info!(%worker, %instance, "a newer process takes over a worker's identity");
                let fighting = self.state.sessions.fighting(worker, Instant::now());
                if !fighting.is_empty() {
                    tracing::warn!(%worker, ?fighting, "two processes use one worker's identity; nothing is placed there");
                }
                Ok(())
            }
            Verdict::Superseded => {
                let text = "superseded: a newer process uses this worker's identity";
                Err(Refusal::new(RefuseCode::Superseded, text))
            }
        }
    }
}

fn nobody(hello: &valid::Hello) -> Result<(v1::Welcome, Admitted), Refusal> {
    if hello.role == Role::Cli {
        Ok((v1::Welcome::default(), Admitted::Nobody))
    } else {
        Err(Refusal::new(RefuseCode::TokenMalformed, BadToken::Empty.to_string()))
    }
}

/// Which tokens each kind of peer may come with.
fn check_role(role: Role, kind: TokenKind) -> Result<(), Refusal> {
    use TokenKind::{Admin, Cluster, Enrolment, Worker, Workspace, WorkspaceRestricted};
    let good = match role {
        Role::Cli => matches!(kind, Admin | Workspace | WorkspaceRestricted),
        Role::Worker => matches!(kind, Worker | Enrolment),
        Role::Agent => kind == Cluster,
        Role::Replica | Role::Unspecified => false,
    };
    if good {
        return Ok(());
    }
    let text = match role {
        Role::Cli => {
            format!("a token of kind {} is not for people; log in with another: levers9 login", kind.word())
        }
        Role::Worker => {
            format!("a token of kind {} cannot start a worker; make one: levers9 worker enroll", kind.word())
        }
        Role::Agent => {
            format!(
                "a token of kind {} is not an agent's; join the cluster: levers9 cluster join",
                kind.word()
            )
        }
        _ => "this controlplane takes no replicas yet".to_owned(),
    };
    Err(Refusal::new(RefuseCode::TokenKind, text))
}

fn busy(error: StoreError) -> Refusal {
    tracing::warn!(%error, "a token cannot be checked");
    Refusal::new(RefuseCode::Busy, "the controlplane cannot check the token now")
}

impl Gate for Porter {
    type Admitted = Admitted;

    async fn admit(&self, hello: valid::Hello, peer: SocketAddr) -> Result<(v1::Welcome, Admitted), Refusal> {
        let address = peer.ip().to_canonical();
        if self.state.failures.must_wait(address, Instant::now()) {
            let text = "too many refused attempts from this address; wait a minute";
            return Err(Refusal::new(RefuseCode::Busy, text));
        }
        let decided = self.decide(hello, peer).await;
        if let Err(refusal) = &decided
            && matches!(refusal.code, RefuseCode::TokenUnknown | RefuseCode::TokenMalformed)
        {
            self.state.failures.failed(address, Instant::now());
        }
        decided
    }

    /// A session may move to another carrier as whoever it came in as.
    async fn rejoin(
        &self,
        hello: &valid::Hello,
        session: &SessionHandle,
        peer: SocketAddr,
    ) -> Result<Option<v1::Welcome>, Refusal> {
        if hello.token.is_empty() {
            return Ok(None);
        }
        let token = self.token(hello).await?;
        if !self.state.sessions.holds(token.id, session) {
            return Ok(None);
        }
        tracing::debug!(session = %session.id(), %peer, "a session moves");
        let worker = token.worker.map(WorkerId::to_wire).unwrap_or_default();
        Ok(Some(v1::Welcome { worker, ..self.welcome(&token).await? }))
    }

    async fn serve(self: Arc<Self>, session: Session, admitted: Admitted) {
        match admitted {
            Admitted::Nobody => calls::serve_nobody(&self.state, session).await,
            Admitted::Person(who, hash) => {
                let handle = session.handle().clone();
                self.opened(who.token, hash, &handle).await;
                calls::serve(&self.state, &self.callers, who, session).await;
                self.state.sessions.closed(&handle);
            }
            Admitted::Agent(arrival) => {
                let handle = session.handle().clone();
                self.opened(arrival.token, arrival.hash, &handle).await;
                agents::serve(&self.state, session, *arrival).await;
                self.state.sessions.closed(&handle);
            }
            Admitted::Worker(arrival) => {
                let handle = session.handle().clone();
                self.opened(arrival.token.id, arrival.token.hash, &handle).await;
                workers::serve(&self.state, session, *arrival).await;
                self.state.sessions.closed(&handle);
            }
        }
    }
}
