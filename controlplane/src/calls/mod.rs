//! The calls of a person's CLI: one request, one answer. Who may ask what is
//! [`crate::auth`]'s; a request that changes something has its effect once,
//! however often it is sent.

mod bootstrap;
mod clusters;
mod manage;
mod work;

use std::sync::Arc;
use std::time::Duration;

use levers9_transport::accept::Session;
use levers9_transport::link::Opened;
use levers9_transport::stream::Stream;
use levers9_wire::v1::{self, FailureCode, ResetCode, call_answer, call_open, stream_open};
use levers9_wire::{RequestId, WorkspaceId};
use prost::Message as _;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::auth::{Action, Identity, authorize};
use crate::jobs::answer_aad;
use crate::logs::follow::{self, Callers};
use crate::reach;
use crate::seal::Sealed;
use crate::state::{Shared, now_ms};
use crate::store::{Answer, StoreError};

pub use bootstrap::{Authorized, Denied, authorize_first, create_first};
pub use manage::ENROLMENT_MS;

/// Calls and follows of one session that are served at once.
const AT_ONCE: usize = 64;
/// Tunnels, execs and benches of one session that are served at once.
const REACHING_AT_ONCE: usize = 1024;
/// Streams that somebody who reaches into containers may have open.
const REACHING_STREAMS: u32 = 1024 + 64;
/// How long a session without a token may stay.
const NOBODY_STAYS: Duration = Duration::from_secs(30);

/// A refusal with words.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) v1::Failure);

impl Refused {
    fn new(code: FailureCode, text: impl Into<String>) -> Self {
        Self(v1::Failure { code: code.into(), text: text.into(), hint: String::new() })
    }

    fn hint(mut self, hint: &str) -> Self {
        hint.clone_into(&mut self.0.hint);
        self
    }

    fn not_found(what: &str) -> Self {
        Self::new(FailureCode::NotFound, format!("no such {what}"))
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        // Causes are the operator's to see; a caller learns what kind of trouble it is.
        tracing::error!(error = %error.chain(), "a call failed");
        let code = if error.is_retryable() { FailureCode::Unavailable } else { FailureCode::Internal };
        Self::new(code, error.to_string())
    }
}

type Answered = Result<call_answer::Answer, Refused>;

/// Serves a person's session until it ends.
pub async fn serve(state: &Shared, callers: &Arc<Callers>, who: Identity, mut session: Session) {
    let (slots, reaching) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Semaphore::new(REACHING_AT_ONCE)));
    while let Some(Opened { kind, mut stream }) = session.next().await {
        use stream_open::Kind::{Bench, Call, Exec, Follow, Tunnel};
        let reaches = matches!(kind, Tunnel(_) | Exec(_) | Bench(_));
        if reaches {
            session.handle().carrier().permit_streams(REACHING_STREAMS);
        }
        let Ok(slot) = Arc::clone(if reaches { &reaching } else { &slots }).try_acquire_owned() else {
            stream.abort(ResetCode::Busy);
            continue;
        };
        let (state, who) = (state.clone(), who.clone());
        match kind {
            Call(open) => {
                // A call that changes something is finished even when its caller goes.
                state.clone().tasks.spawn(async move {
                    answer(&state, &who, open, stream).await;
                    drop(slot);
                });
            }
            Tunnel(open) => {
                state.clone().tasks.spawn(async move {
                    reach::tunnel(state, who, open, stream).await;
                    drop(slot);
                });
            }
            Exec(open) => {
                state.clone().tasks.spawn(async move {
                    reach::exec(state, who, open, stream).await;
                    drop(slot);
                });
            }
            Bench(open) => {
                state.clone().tasks.spawn(async move {
                    state.benches.serve(&state, &who, open, stream).await;
                    drop(slot);
                });
            }
            Follow(open) => {
                let callers = Arc::clone(callers);
                state.clone().tasks.spawn(async move {
                    follow::serve(state, callers, who, open, stream).await;
                    drop(slot);
                });
            }
            _ => stream.abort(ResetCode::Unsupported),
        }
    }
}

/// Serves somebody without a token: one call, to ask for the first one.
pub async fn serve_nobody(state: &Shared, mut session: Session) {
    let peer = session.handle().carrier().peer();
    let Ok(Some(Opened { kind, mut stream })) = timeout(NOBODY_STAYS, session.next()).await else { return };
    let answered = match kind {
        stream_open::Kind::Call(v1::CallOpen {
            request: Some(call_open::Request::Authorize(asked)),
            request_id,
        }) => {
            let secret = levers9_wire::token::Secret::new(asked.bootstrap_secret);
            let request = RequestId::from_wire(&request_id).ok().flatten();
            authorize_first(state, &secret, peer.ip(), request)
                .await
                .map(bootstrap::to_answer)
                .map_err(bootstrap::to_refused)
        }
        stream_open::Kind::Call(_) => {
            Err(Refused::new(FailureCode::Denied, "this needs a token").hint("log in: levers9 login"))
        }
        _ => return stream.abort(ResetCode::Refused),
    };
    reply(&mut stream, answered).await;
}

async fn answer(state: &Shared, who: &Identity, open: v1::CallOpen, mut stream: Stream) {
    let answered = match (RequestId::from_wire(&open.request_id), open.request) {
        (Ok(Some(id)), Some(request)) => dispatch(state, who, id, request).await,
        (_, None) => {
            Err(Refused::new(FailureCode::Unsupported, "this controlplane does not know the request")
                .hint("the controlplane may be older than your levers9"))
        }
        _ => Err(Refused::new(FailureCode::Invalid, "the request has no id")),
    };
    reply(&mut stream, answered).await;
}

async fn reply(stream: &mut Stream, answered: Answered) {
    let answer = answered.unwrap_or_else(|Refused(failure)| call_answer::Answer::Failure(failure));
    if stream.send.send(&v1::CallAnswer { answer: Some(answer) }).await.is_ok() {
        let _read = timeout(Duration::from_secs(10), stream.send.finish_and_deliver()).await;
    }
}

async fn dispatch(state: &Shared, who: &Identity, id: RequestId, request: call_open::Request) -> Answered {
    use call_open::Request as R;
    match request {
        R::Authorize(_) => Err(Refused::new(FailureCode::Denied, "you have a token already")),
        R::WhoAmI(_) => manage::who_am_i(state, who).await,
        R::Submit(asked) => work::submit(state, who, id, asked).await,
        R::TaskList(asked) => work::task_list(state, who, asked).await,
        R::TaskShow(asked) => work::task_show(state, who, asked).await,
        R::TaskStop(asked) => work::task_stop(state, who, asked).await,
        R::ContainerList(asked) => work::container_list(state, who, asked).await,
        R::ContainerStop(asked) => work::container_stop(state, who, asked).await,
        R::WorkerList(_) => manage::worker_list(state, who).await,
        R::WorkspaceList(_) => manage::workspace_list(state, who).await,
        R::TokenList(_) => manage::token_list(state, who).await,
        R::TokenDelete(asked) => manage::token_delete(state, who, asked).await,
        R::WorkerEnroll(asked) => {
            once(state, who, id, |once| manage::worker_enroll(state, who, once, asked)).await
        }
        R::WorkspaceCreate(asked) => {
            once(state, who, id, |once| manage::workspace_create(state, who, once, asked)).await
        }
        R::TokenCreate(asked) => {
            once(state, who, id, |once| manage::token_create(state, who, once, asked)).await
        }
        R::ClusterJoin(asked) => once(state, who, id, |once| clusters::join(state, who, once, asked)).await,
        R::ClusterList(_) => clusters::list(state, who).await,
        R::ClusterNodes(asked) => clusters::nodes(state, who, asked).await,
        R::ClusterShow(asked) => clusters::show(state, who, &asked).await,
        R::ClusterShare(asked) => clusters::share(state, who, asked).await,
        R::ClusterLeave(asked) if asked.dry_run => clusters::leave(state, who, None, asked).await,
        R::ClusterLeave(asked) => {
            once(state, who, id, |once| clusters::leave(state, who, Some(once), asked)).await
        }
        R::ClusterRotateToken(asked) => {
            once(state, who, id, |once| clusters::rotate_token(state, who, once, asked)).await
        }
        R::TaskWhy(asked) => work::task_why(state, who, asked).await,
    }
}

/// The workspace of somebody who may do something in it.
fn allowed(who: &Identity, action: Action) -> Result<WorkspaceId, Refused> {
    let denied =
        || Refused::new(FailureCode::Denied, format!("a token of kind {} may not do this", who.kind.word()));
    let workspace = who.workspace.ok_or_else(denied)?;
    if authorize(who, action, Some(workspace)) { Ok(workspace) } else { Err(denied()) }
}

/// A request that changes something, to be answered once: what it changes is
/// stored together with its answer.
struct Request<'a> {
    state: &'a Shared,
    workspace: Option<WorkspaceId>,
    id: RequestId,
}

impl Request<'_> {
    /// An answer, sealed to be kept.
    fn keep(&self, answer: &call_answer::Answer) -> Result<Answer, Refused> {
        let plain = v1::CallAnswer { answer: Some(answer.clone()) }.encode_to_vec();
        let sealed = self.state.keyring.seal(&answer_aad(self.id), &plain);
        let answer = sealed.map_err(|error| Refused::new(FailureCode::Internal, error.to_string()))?;
        Ok(Answer { workspace: self.workspace, request: self.id, answer, created_ms: now_ms() })
    }

    /// The answer that was kept.
    fn reopen(&self, kept: &Sealed) -> Answered {
        let lost = || Refused::new(FailureCode::Internal, "the answer given before cannot be read");
        let plain = self.state.keyring.open(&answer_aad(self.id), kept).map_err(|_| lost())?;
        v1::CallAnswer::decode(plain.as_slice()).ok().and_then(|kept| kept.answer).ok_or_else(lost)
    }

    async fn before(&self) -> Result<Option<call_answer::Answer>, Refused> {
        let kept = self.state.store.answer(self.workspace, self.id).await?;
        kept.map(|kept| self.reopen(&kept)).transpose()
    }
}

/// Has an effect once per request id: the answer is kept with what it did,
/// sealed, and given again. `act` keeps it.
async fn once<'a, F: Future<Output = Answered>>(
    state: &'a Shared,
    who: &Identity,
    id: RequestId,
    act: impl FnOnce(Request<'a>) -> F,
) -> Answered {
    let request = || Request { state, workspace: who.workspace, id };
    if let Some(before) = request().before().await? {
        return Ok(before);
    }
    match act(request()).await {
        Ok(answer) => Ok(answer),
        // What was refused now may have been done by the same request meanwhile.
        Err(refused) => request().before().await?.ok_or(refused),
    }
}
