//! Workspaces, tokens, workers, submissions and lists.

use levers9_controlplane::seal::Sealed;
use levers9_controlplane::store::{
    Answer, AttemptState, EnrolmentClaim, Exposed, Finish, NewTask, Once, Placement, Scope, StoreError,
    Submitted, TaskFilter, TaskStatus, Then, Token, Worker, WorkerState,
};
use levers9_wire::token::TokenKind;
use levers9_wire::v1::WorkerFacts;
use levers9_wire::{Generation, InstanceId, RequestId, TaskId, TokenId, WorkerId, WorkspaceId};

use crate::fixtures::*;

pub(crate) async fn the_first_workspace_is_created_once(place: Place) {
    let store = place.open().await;
    assert!(store.workspaces().await.unwrap().is_empty());
    let request = RequestId::generate();
    let tries: Vec<_> = (0..8u8)
        .map(|n| {
            let (store, workspace) = (store.clone(), workspace(&format!("w{n}")));
            let admin = token(TokenKind::Admin, Some(workspace.id));
            let answer = Answer { workspace: None, request, answer: Sealed(vec![n]), created_ms: T0 };
            tokio::spawn(
                async move { (n, store.first_workspace(workspace, admin, Some(answer)).await.unwrap()) },
            )
        })
        .collect();
    let mut won = Vec::new();
    for one in tries {
        let (n, made) = one.await.unwrap();
        won.extend(made.then_some(n));
    }
    assert_eq!(won.len(), 1);
    // Who asks with the same id can be told what was made.
    assert_eq!(store.answer(None, request).await.unwrap(), Some(Sealed(won)));
    assert!(!store.workspaces().await.unwrap().is_empty());
    assert_eq!(store.workspaces().await.unwrap().len(), 1);
    assert_eq!(store.tokens(Scope::All, true, T0).await.unwrap().len(), 1);
}

pub(crate) async fn workspace_names_are_unique_and_kept_as_they_are(place: Place) {
    let store = place.open().await;
    let names = ["Cafe\u{301}", "Café", "数据", "🚀", "a/b", "a", "A"];
    for name in names {
        let made = workspace(name);
        store.create_workspace(made.clone(), None).await.unwrap();
        assert_eq!(store.workspace(made.id).await.unwrap(), Some(made.clone()));
        assert_eq!(store.workspace(made.id).await.unwrap(), Some(made));
    }
    let again = store.create_workspace(workspace("a"), Some(token(TokenKind::Workspace, None))).await;
    assert!(matches!(again, Err(StoreError::Conflict(_))), "{again:?}");
    assert_eq!(store.workspaces().await.unwrap().len(), names.len());
    assert!(store.tokens(Scope::All, true, T0).await.unwrap().is_empty(), "all or nothing");
    assert_eq!(store.workspace(WorkspaceId::generate()).await.unwrap(), None);
}

pub(crate) async fn tokens_are_found_listed_and_revoked_within_their_scope(place: Place) {
    let store = place.open().await;
    let (mine, theirs) = (a_workspace(&store).await, a_workspace(&store).await);
    let mut good = token(TokenKind::Workspace, Some(mine));
    good.expires_ms = Some(T0 + 100);
    let other = token(TokenKind::WorkspaceRestricted, Some(theirs));
    let shared = token(TokenKind::Admin, None);
    for token in [&good, &other, &shared] {
        store.insert_token(token).await.unwrap();
    }
    assert!(matches!(store.insert_token(&good).await, Err(StoreError::Conflict(_))));
    assert_eq!(store.token_by_hash(good.hash).await.unwrap(), Some(good.clone()));
    let of = |scope, all, now| {
        let store = store.clone();
        async move {
            store.tokens(scope, all, now).await.unwrap().iter().map(|token| token.id).collect::<Vec<_>>()
        }
    };
    assert_eq!(of(Scope::Workspace(mine), false, T0).await, [good.id]);
    assert_eq!(of(Scope::Workspace(mine), false, T0 + 100).await, [], "expired");
    assert_eq!(of(Scope::Workspace(mine), true, T0 + 100).await, [good.id]);
    assert_eq!(of(Scope::All, false, T0).await.len(), 3);

    assert_eq!(store.revoke_token(other.id, Scope::Workspace(mine), T0 + 5).await.unwrap(), None);
    assert_eq!(store.revoke_token(TokenId::generate(), Scope::All, T0 + 5).await.unwrap(), None);
    let revoked = store.revoke_token(other.id, Scope::Workspace(theirs), T0 + 5).await.unwrap().unwrap();
    assert_eq!(revoked.revoked_ms, Some(T0 + 5));
    let again = store.revoke_token(other.id, Scope::All, T0 + 9).await.unwrap().unwrap();
    assert_eq!(again.revoked_ms, Some(T0 + 5), "the first time stays");
    assert_eq!(of(Scope::Workspace(theirs), false, T0).await, []);

    for (at, then) in [(T0 + 7, T0 + 7), (T0 + 3, T0 + 7), (T0 + 8, T0 + 8)] {
        store.touch_token(good.id, at).await.unwrap();
        assert_eq!(store.token_by_hash(good.hash).await.unwrap().unwrap().last_used_ms, Some(then));
    }
}

pub(crate) async fn an_enrolment_token_is_used_once(place: Place) {
    let store = place.open().await;
    let mut enrolment = token(TokenKind::Enrolment, None);
    enrolment.expires_ms = Some(T0 + 100);
    enrolment.worker = Some(WorkerId::generate());
    enrolment.pool = Some("machines".to_owned());
    enrolment.shared = true;
    store.insert_token(&enrolment).await.unwrap();
    let (me, other) = (InstanceId::generate(), InstanceId::generate());
    let claim = |who, at| {
        let (store, id) = (store.clone(), enrolment.id);
        async move { store.claim_enrolment(id, who, at).await.unwrap() }
    };
    assert!(!store.confirm_enrolment(enrolment.id).await.unwrap(), "nothing to confirm yet");
    assert_eq!(claim(me, T0 + 100).await, Some(EnrolmentClaim::Expired));
    assert_eq!(claim(me, T0 + 99).await, Some(EnrolmentClaim::First));
    assert_eq!(claim(me, T0 + 101).await, Some(EnrolmentClaim::Repeat));
    assert_eq!(claim(other, T0 + 99).await, Some(EnrolmentClaim::UsedByOther));
    assert!(store.confirm_enrolment(enrolment.id).await.unwrap());
    assert_eq!(claim(me, T0 + 99).await, Some(EnrolmentClaim::UsedByOther));
    let found = store.token_by_hash(enrolment.hash).await.unwrap().unwrap();
    assert_eq!((found.claimed_instance, found.confirmed, found.shared), (Some(me), true, true));

    let (admin, revoked) = (token(TokenKind::Admin, None), token(TokenKind::Enrolment, None));
    store.insert_token(&admin).await.unwrap();
    store.insert_token(&revoked).await.unwrap();
    store.revoke_token(revoked.id, Scope::All, T0).await.unwrap();
    for id in [admin.id, revoked.id] {
        assert_eq!(store.claim_enrolment(id, me, T0).await.unwrap(), Some(EnrolmentClaim::Expired));
    }
    assert_eq!(store.claim_enrolment(TokenId::generate(), me, T0).await.unwrap(), None);
}

pub(crate) async fn a_worker_keeps_its_scope_and_binds_once(place: Place) {
    let store = place.open().await;
    let (mine, theirs) = (a_workspace(&store).await, a_workspace(&store).await);
    let worker = |workspace| Worker {
        id: WorkerId::generate(),
        workspace,
        bound_workspace: None,
        pool: "local".to_owned(),
        facts: WorkerFacts {
            hostname: "host".to_owned(),
            cpu_millis: 8000,
            gpu_count: 1,
            ..WorkerFacts::default()
        },
        build: "0.1.0".to_owned(),
        state: WorkerState::Ready,
        created_ms: T0,
        last_seen_ms: T0,
        cluster: None,
    };
    let shared = worker(None);
    store.upsert_worker(&shared).await.unwrap();
    let tries: Vec<_> = [mine, theirs]
        .map(|workspace| {
            let (store, id) = (store.clone(), shared.id);
            tokio::spawn(async move { store.bind_worker(id, workspace).await.unwrap() })
        })
        .into();
    let mut won = Vec::new();
    for one in tries {
        won.push(one.await.unwrap());
    }
    assert_eq!(won.iter().filter(|won| **won).count(), 1);
    let bound = if won[0] { mine } else { theirs };
    assert!(store.bind_worker(shared.id, bound).await.unwrap(), "to the same again");

    let mut again = shared.clone();
    again.facts.hostname = "renamed".to_owned();
    (again.pool, again.workspace, again.last_seen_ms) = ("stolen".to_owned(), Some(theirs), T0 + 50);
    store.upsert_worker(&again).await.unwrap();
    let found = store.worker(shared.id).await.unwrap().unwrap();
    assert_eq!((found.facts.hostname.as_str(), found.last_seen_ms), ("renamed", T0 + 50));
    assert_eq!((found.pool.as_str(), found.workspace, found.bound_workspace), ("local", None, Some(bound)));

    let private = worker(Some(mine));
    store.upsert_worker(&private).await.unwrap();
    assert!(!store.bind_worker(private.id, theirs).await.unwrap());
    assert!(store.set_worker_state(private.id, WorkerState::Draining).await.unwrap());
    let found = store.worker(private.id).await.unwrap().unwrap();
    assert_eq!((found.state, found.last_seen_ms), (WorkerState::Draining, T0));
    assert_eq!(store.workers().await.unwrap().len(), 2);
    assert!(!store.set_worker_state(WorkerId::generate(), WorkerState::Gone).await.unwrap());
    assert_eq!(store.worker(WorkerId::generate()).await.unwrap(), None);
}

pub(crate) async fn a_repeated_submission_changes_nothing(place: Place) {
    let store = place.open().await;
    let workspace = a_workspace(&store).await;
    let request = RequestId::generate();
    let tries: Vec<_> = (0..8u8)
        .map(|n| {
            let (store, task) = (store.clone(), task(workspace, T0));
            tokio::spawn(async move { store.submit(stub(), task, request, Sealed(vec![n])).await.unwrap() })
        })
        .collect();
    let mut answers = Vec::new();
    for one in tries {
        answers.push(one.await.unwrap());
    }
    let new = answers.iter().position(|answer| *answer == Submitted::New).unwrap();
    let kept = Sealed(vec![u8::try_from(new).unwrap()]);
    for (n, answer) in answers.into_iter().enumerate() {
        let expected = if n == new { Submitted::New } else { Submitted::Repeated(kept.clone()) };
        assert_eq!(answer, expected);
    }
    assert_eq!(store.live_tasks().await.unwrap().len(), 1);

    // The same id in another workspace is another request; the stub of one
    // configuration is registered once.
    let other = a_workspace(&store).await;
    let elsewhere = store.submit(stub(), task(other, T0), request, Sealed(vec![])).await.unwrap();
    assert_eq!(elsewhere, Submitted::New);
    let more = submitted(&store, task(other, T0)).await;
    let mut renamed = stub();
    renamed.name = "named".to_owned();
    let named = task(other, T0);
    let named_id = named.id;
    store.submit(renamed, named, RequestId::generate(), Sealed(vec![])).await.unwrap();
    let stubs: Vec<_> =
        store.live_tasks().await.unwrap().into_iter().filter(|now| now.task.workspace == other).collect();
    assert_eq!(stubs.len(), 3);
    let stub_of = |id| stubs.iter().find(|now| now.task.id == id).unwrap().task.stub;
    assert_eq!(stubs.iter().filter(|now| now.task.stub == stub_of(more)).count(), 2);
    assert_ne!(stub_of(more), stub_of(named_id));

    let nowhere = store.submit(stub(), task(WorkspaceId::generate(), T0), request, Sealed(vec![])).await;
    assert!(matches!(nowhere, Err(StoreError::Conflict(_))), "{nowhere:?}");
}

pub(crate) async fn answers_are_remembered_and_forgotten(place: Place) {
    let store = place.open().await;
    let request = RequestId::generate();
    let answer = |workspace, bytes: &[u8], created_ms| Answer {
        workspace,
        request,
        answer: Sealed(bytes.to_vec()),
        created_ms,
    };
    let workspace = Some(a_workspace(&store).await);
    assert_eq!(store.answer(workspace, request).await.unwrap(), None);
    let keep =
        async |answer| store.insert_token_once(token(TokenKind::Workspace, None), answer).await.unwrap();
    let before = |bytes: &[u8]| Once::Before(Sealed(bytes.to_vec()));
    assert_eq!(keep(answer(workspace, b"one", T0)).await, Once::Done(()));
    assert_eq!(keep(answer(workspace, b"two", T0)).await, before(b"one"));
    assert_eq!(keep(answer(None, b"three", T0 + 1)).await, Once::Done(()));
    assert_eq!(keep(answer(None, b"four", T0 + 1)).await, before(b"three"));
    assert_eq!(store.forget_answers(T0 + 1).await.unwrap(), 1);
    assert_eq!(store.answer(workspace, request).await.unwrap(), None);
    assert_eq!(store.answer(None, request).await.unwrap(), Some(Sealed(b"three".to_vec())));
}

/// Of many at once with one id one acts, and all have its answer.
pub(crate) async fn a_request_repeated_at_once_has_one_effect(place: Place) {
    let store = place.open().await;
    let workspace = Some(a_workspace(&store).await);
    let request = RequestId::generate();
    let tries: Vec<_> = (0..8u8)
        .map(|n| {
            let answer = Answer { workspace, request, answer: Sealed(vec![n]), created_ms: T0 };
            let (store, token) = (store.clone(), token(TokenKind::Workspace, workspace));
            tokio::spawn(async move { (n, store.insert_token_once(token, answer).await.unwrap()) })
        })
        .collect();
    let (mut winners, mut told) = (Vec::new(), Vec::new());
    for one in tries {
        match one.await.unwrap() {
            (n, Once::Done(())) => winners.push(n),
            (_, Once::Before(Sealed(answer))) => told.push(answer),
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(told, vec![winners; 7]);
    assert_eq!(store.tokens(Scope::All, true, T0).await.unwrap().len(), 1);
}

/// What is refused leaves no answer behind, and what fails neither.
pub(crate) async fn a_refusal_is_not_remembered(place: Place) {
    let store = place.open().await;
    let own = workspace("own");
    let request = RequestId::generate();
    let answer = || Answer { workspace: None, request, answer: Sealed(vec![1]), created_ms: T0 };
    store.create_workspace(own.clone(), None).await.unwrap();
    let create = async |workspace| {
        store.create_workspace_once(workspace, token(TokenKind::Workspace, None), answer()).await
    };
    assert!(matches!(create(workspace("own")).await, Err(StoreError::Conflict(_))));
    assert_eq!(store.answer(None, request).await.unwrap(), None);
    assert_eq!(create(workspace("other")).await.unwrap(), Once::Done(()));
    assert_eq!(create(workspace("third")).await.unwrap(), Once::Before(Sealed(vec![1])));
    assert_eq!(store.workspaces().await.unwrap().len(), 2);
}

pub(crate) async fn a_task_is_stored_whole(place: Place) {
    let store = place.open().await;
    let workspace = a_workspace(&store).await;
    let mut new = task(workspace, T0);
    (new.timeout_ms, new.detached, new.pool) = (Some(1500), true, Some("gpus".to_owned()));
    let id = submitted(&store, new.clone()).await;
    let now = now(&store, id).await;
    assert_eq!((&now.attempt, &now.container), (&None, &None));
    let found = now.task;
    assert_eq!((found.id, found.workspace, found.name), (new.id, workspace, new.name));
    assert_eq!((found.command, found.resources), (new.command, new.resources));
    assert_eq!((found.timeout_ms, found.detached, found.pool), (new.timeout_ms, true, new.pool));
    assert_eq!((found.status, found.created_ms, found.max_retries), (TaskStatus::Pending, T0, 3));
    assert_eq!((found.started_ms, found.ended_ms, found.exit_code), (None, None, None));
    assert_eq!((found.attempts, found.lines_reserved, found.reason.as_str()), (0, 0, ""));
    assert_eq!(store.task_env(id).await.unwrap(), Some(Sealed(vec![1, 2, 3])));
    assert_eq!(store.task(TaskId::generate()).await.unwrap(), None);
    assert_eq!(store.task_env(TaskId::generate()).await.unwrap(), None);
    assert_eq!(store.attempts(id).await.unwrap(), []);
}

pub(crate) async fn lists_are_scoped_filtered_and_paged(place: Place) {
    let store = place.open().await;
    let (mine, theirs) = (a_workspace(&store).await, a_workspace(&store).await);
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(submitted(&store, task(mine, T0 + n)).await);
    }
    let other = submitted(&store, task(theirs, T0 + 9)).await;
    store.cancel(ids[2], "no longer wanted".to_owned(), T0).await.unwrap();
    let list = |filter: TaskFilter| {
        let store = store.clone();
        async move { store.tasks(filter).await.unwrap().iter().map(|now| now.task.id).collect::<Vec<_>>() }
    };
    let all = TaskFilter { scope: Scope::Workspace(mine), statuses: vec![], before: None, limit: 1000 };
    assert_eq!(list(all.clone()).await, ids.iter().rev().copied().collect::<Vec<_>>());
    let page = TaskFilter { before: Some(ids[4]), limit: 2, ..all.clone() };
    assert_eq!(list(page).await, [ids[3], ids[2]]);
    let cancelled = TaskFilter { statuses: vec![TaskStatus::Cancelled, TaskStatus::Error], ..all.clone() };
    assert_eq!(list(cancelled).await, [ids[2]]);
    let everyone = TaskFilter { scope: Scope::All, limit: u32::MAX, ..all.clone() };
    assert_eq!(list(everyone).await.len(), 6);
    assert_eq!(list(TaskFilter { limit: 0, ..all }).await.len(), 1, "a page holds at least one");

    let waiting: Vec<_> = store.waiting_tasks(1000).await.unwrap().iter().map(|now| now.task.id).collect();
    assert_eq!(waiting, [ids[0], ids[1], ids[3], ids[4], other], "oldest first, none that ended");
    assert_eq!(store.waiting_tasks(2).await.unwrap().len(), 2);
    assert_eq!(store.live_tasks().await.unwrap().len(), 5);
}

pub(crate) async fn numbers_beyond_the_database_are_refused(place: Place) {
    let store = place.open().await;
    let workspace = a_workspace(&store).await;
    let mut large = task(workspace, T0);
    large.resources.memory_bytes = u64::MAX;
    let refused = store.submit(stub(), large.clone(), RequestId::generate(), Sealed(vec![])).await;
    assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
    large.resources.memory_bytes = i64::MAX.try_into().unwrap();
    let id = submitted(&store, large.clone()).await;
    assert_eq!(now(&store, id).await.task.resources, large.resources);
    assert!(store.reserve_lines(id, u64::MAX).await.is_err());
}

pub(crate) async fn text_of_any_script_is_kept(place: Place) {
    let store = place.open().await;
    let workspace = a_workspace(&store).await;
    for name in ["", "é", "数据 🚀", "'; DROP TABLE tasks; --", "$1", "a\nb\u{202e}"] {
        let mut named = task(workspace, T0);
        (named.name, named.command) = (name.to_owned(), vec![name.to_owned(), "\u{1}\u{7f}".to_owned()]);
        let id = submitted(&store, named.clone()).await;
        let found = now(&store, id).await.task;
        assert_eq!((found.name, found.command), (named.name, named.command));
    }
}

pub(crate) async fn tasks_left_by_their_callers_are_found(place: Place) {
    let store = place.open().await;
    let workspace = a_workspace(&store).await;
    let left = submitted(&store, task(workspace, T0)).await;
    let mut detached = task(workspace, T0);
    detached.detached = true;
    let detached = submitted(&store, detached).await;
    let followed = submitted(&store, task(workspace, T0)).await;
    let cancelled = submitted(&store, task(workspace, T0)).await;
    for id in [left, detached, followed, cancelled] {
        assert!(store.set_callers_gone(id, Some(T0 + 10)).await.unwrap());
    }
    store.set_callers_gone(followed, None).await.unwrap();
    store.cancel(cancelled, String::new(), T0).await.unwrap();
    assert_eq!(store.tasks_without_callers(T0 + 9).await.unwrap(), []);
    assert_eq!(store.tasks_without_callers(T0 + 10).await.unwrap(), [left]);
    assert!(!store.set_callers_gone(TaskId::generate(), None).await.unwrap());
    // Whoever takes over lets a grace go on that has begun; a start begins all anew.
    assert_eq!(store.begin_graces(T0 + 20, false).await.unwrap(), 1);
    assert_eq!(store.tasks_without_callers(T0 + 10).await.unwrap(), [left]);
    assert_eq!(store.tasks_without_callers(T0 + 20).await.unwrap(), [left, followed]);
    assert_eq!(store.begin_graces(T0 + 30, true).await.unwrap(), 2);
    assert_eq!(store.tasks_without_callers(T0 + 29).await.unwrap(), []);
}

pub(crate) async fn a_task_that_is_asked_to_end_is_found_while_a_worker_has_it(place: Place) {
    let store = place.open().await;
    let (running, _) = a_running_task(&store).await;
    let waiting = a_task(&store).await;
    assert_eq!(store.tasks_asked_to_end().await.unwrap(), []);
    for task in [running.task, waiting] {
        store.cancel(task, "enough".to_owned(), T0 + 30).await.unwrap();
    }
    let asked = store.tasks_asked_to_end().await.unwrap();
    assert_eq!(asked.iter().map(|now| now.task.id).collect::<Vec<_>>(), [running.task]);
    store.unreachable(running, None, T0 + 40).await.unwrap();
    assert_eq!(store.tasks_asked_to_end().await.unwrap(), []);
}

pub(crate) async fn what_is_exposed_is_found_by_its_slug(place: Place) {
    let store = place.open().await;
    let workspace = a_workspace(&store).await;
    let exposed = Exposed { slug: "web-abcdefgh".to_owned(), ports: vec![8000, 65535], public: true };
    let id = submitted(&store, NewTask { exposed: Some(exposed.clone()), ..task(workspace, T0) }).await;
    let hidden = submitted(&store, task(workspace, T0)).await;
    let found = store.task_by_slug(exposed.slug.clone()).await.unwrap().unwrap();
    assert_eq!((found.task.id, found.task.exposed), (id, Some(exposed.clone())));
    assert_eq!(store.task(hidden).await.unwrap().unwrap().task.exposed, None);
    assert_eq!(store.task_by_slug("web-other".to_owned()).await.unwrap(), None);
    let named = async |name: &str| {
        let found = store.exposed_task(workspace, name.to_owned()).await.unwrap();
        found.map(|now| now.task.id)
    };
    assert_eq!(
        (named("a job").await, named("another").await),
        (Some(id), None),
        "the one that exposes something"
    );
    let slug = Exposed { slug: "web-newer".to_owned(), ..exposed.clone() };
    let newer = submitted(&store, NewTask { exposed: Some(slug), ..task(workspace, T0 + 1) }).await;
    assert_eq!(named("a job").await, Some(newer));
    store.cancel(newer, String::new(), T0 + 2).await.unwrap();
    assert_eq!(named("a job").await, Some(id), "the newest of those that live");
    let twin = NewTask { exposed: Some(exposed), ..task(workspace, T0) };
    let refused = store.submit(stub(), twin, RequestId::generate(), Sealed(vec![9])).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
}

pub(crate) async fn a_containers_token_lives_as_long_as_the_container(place: Place) {
    let store = place.open().await;
    let (task, lease) = (a_task(&store).await, a_lease(&store).await);
    let workspace = store.task(task).await.unwrap().unwrap().task.workspace;
    let first = placement(task, 1, &lease);
    let of = |container| Token {
        container: Some(container),
        ..token(TokenKind::WorkspaceRestricted, Some(workspace))
    };
    let (old, new) = (of(first.container), of(first.container));
    assert!(store.place(Placement { token: Some(old.clone()), ..first.clone() }).await.unwrap());
    assert_eq!(store.token_by_hash(old.hash).await.unwrap(), Some(old.clone()));
    assert!(store.tokens(Scope::All, false, T0).await.unwrap().is_empty(), "nobody made it");
    // Its worker is away; the next incarnation takes the place of the first.
    store.unreachable(fence(&first), None, T0 + 20).await.unwrap();
    let second = Placement {
        container: first.container,
        generation: Generation(2),
        token: Some(new.clone()),
        ..placement(task, 2, &lease)
    };
    assert!(store.place(second.clone()).await.unwrap());
    assert_eq!(store.token_by_hash(old.hash).await.unwrap(), None);
    assert!(store.token_by_hash(new.hash).await.unwrap().is_some());
    let end = Finish {
        state: AttemptState::Complete,
        reason: String::new(),
        then: Then::End { status: TaskStatus::Complete, exit_code: Some(0), reason: String::new() },
        log_total: Some(0),
        event: Some(1),
        now_ms: T0 + 30,
    };
    store.finish(fence(&second), end).await.unwrap();
    assert_eq!(store.token_by_hash(new.hash).await.unwrap(), None);
}
