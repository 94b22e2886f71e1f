//! A carrier that claims another's session, at the real gate: whatever else
//! the Hello says, nobody gets what is another's, the owner is unharmed, and a
//! revoked token ends all that came with it.

use std::time::Duration;

use futures_util::future::join_all;
use levers9_tests::{Backend, Person, World};
use levers9_transport::{CarrierKind, Lost};
use levers9_wire::v1::{self, RefuseCode, ResetCode, Role, call_answer, call_open, stream_open};
use levers9_wire::{InstanceId, RequestId, SessionId};
use tokio::time::timeout;

use crate::peer::{Peer, hello, runtime};
use crate::support::SOON;

/// What comes to the wrong one comes within this.
const MOMENT: Duration = Duration::from_millis(150);
/// A revoked token's sessions end within this.
const REVOKED: Duration = Duration::from_secs(5);
/// An answered ping is noted within this.
const NOTED: Duration = Duration::from_secs(2);
const KINDS: [CarrierKind; 2] = [CarrierKind::Quic, CarrierKind::Tcp];

/// Tokens of those who claim what is not theirs.
struct Tokens {
    admin: String,
    same: String,
    theirs: String,
    worker: String,
}

impl Tokens {
    fn of(world: &World) -> Self {
        let theirs = world.cli(&["workspace", "create", "theirs", "--format", "json"]).ok().json();
        let enrolment =
            Person::of(world, theirs["token"].as_str().expect("a token")).json(&["worker", "enroll"]);
        Self {
            admin: world.new_token("admin").1,
            same: world.new_token("workspace").1,
            theirs: theirs["token"].as_str().expect("a token").to_owned(),
            worker: enrolment["token"].as_str().expect("a token").to_owned(),
        }
    }

    /// Who comes as what, with which token.
    fn claims(&self) -> [(&'static str, Role, &str); 9] {
        [
            ("an admin", Role::Cli, &self.admin),
            ("somebody of the same workspace", Role::Cli, &self.same),
            ("somebody of another workspace", Role::Cli, &self.theirs),
            ("nobody", Role::Cli, ""),
            ("another workspace's worker", Role::Worker, &self.worker),
            ("a person as a worker", Role::Worker, &self.same),
            ("nobody as a worker", Role::Worker, ""),
            ("a person as an agent", Role::Agent, &self.same),
            ("a replica", Role::Replica, &self.admin),
        ]
    }
}

fn facts() -> Option<v1::WorkerFacts> {
    Some(v1::WorkerFacts {
        hostname: "claimed".to_owned(),
        cpu_millis: 256_000,
        memory_bytes: 1 << 40,
        runtime: "process".to_owned(),
        ..v1::WorkerFacts::default()
    })
}

/// A Hello under somebody's session.
fn claim(role: Role, token: &str, instance: &[u8], session: &[u8], moving: bool) -> v1::Hello {
    v1::Hello {
        instance: instance.to_vec(),
        session: session.to_vec(),
        moving,
        worker: if role == Role::Worker { facts() } else { None },
        ..hello(role, token)
    }
}

async fn who_am_i(peer: &Peer) -> Result<(String, String), String> {
    let asked = call_open::Request::WhoAmI(v1::WhoAmIRequest {});
    match peer.call(&RequestId::generate().to_wire(), asked).await {
        call_answer::Answer::WhoAmI(answer) => Ok((answer.workspace_name, answer.token_kind)),
        call_answer::Answer::Failure(failure) => Err(failure.text),
        other => panic!("{other:?}"),
    }
}

/// Everything somebody may claim with another's session, over both carriers.
/// `after` looks at the owner, and at who was let in as somebody else.
fn claim_all(
    world: &World,
    tokens: &Tokens,
    instance: &[u8],
    session: &[u8],
    mut after: impl AsyncFnMut(&str, Option<&Peer>),
) {
    let runtime = runtime();
    let address = world.controlplane.address();
    let foreign = InstanceId::generate().to_wire();
    for (who, role, token) in tokens.claims() {
        for kind in KINDS {
            for (moving, instance) in [(true, instance), (false, instance), (true, &foreign)] {
                let what = format!("{who} over {kind:?}, moving: {moving}, own: {}", instance == foreign);
                runtime.block_on(async {
                    let peer =
                        Peer::greet(&address, kind, claim(role, token, instance, session, moving)).await;
                    if let Ok(peer) = &peer {
                        assert!(!peer.welcome.joined, "{what} joins the session of another");
                    }
                    after(&what, peer.as_ref().ok()).await;
                });
            }
        }
    }
}

#[test]
fn the_session_of_a_worker_is_its_own() {
    let world = World::start(Backend::Sqlite);
    let tokens = Tokens::of(&world);
    let address = world.controlplane.address();
    let enrolment = world.cli(&["worker", "enroll", "--format", "json"]).ok().json();
    let runtime = runtime();
    let instance = InstanceId::generate().to_wire();
    let enrolling = claim(Role::Worker, enrolment["token"].as_str().expect("a token"), &instance, &[], false);
    let owner = runtime.block_on(Peer::greet(&address, CarrierKind::Quic, enrolling)).expect("a welcome");
    let session = owner.welcome.session.clone();
    let id = enrolment["worker"].clone();
    claim_all(&world, &tokens, &instance, &session, async |what, peer| {
        let id = world.submit("true");
        let opened = owner.opened(SOON).await.unwrap_or_else(|| panic!("{what}: the owner is told of {id}"));
        let run = matches!(&opened.kind, stream_open::Kind::Run(_));
        assert!(run, "{what}: {:?}", opened.kind);
        if let Some(peer) = peer {
            let got = peer.opened(MOMENT).await;
            assert!(got.is_none(), "{what} gets what is the owner's: {:?}", got.map(|opened| opened.kind));
        }
        assert!(owner.carrier.lost().is_none(), "{what}: {:?}", owner.carrier.lost());
    });
    let list = world.cli(&["worker", "list", "--format", "json"]).ok().json();
    let row = list.as_array().into_iter().flatten().find(|row| row["id"] == id);
    assert_eq!(row.map(|row| &row["state"]), Some(&"ready".into()), "{list:#}");

    // Its own process with its own token joins it, over either carrier.
    let own = owner.welcome.worker_token.clone();
    for kind in [CarrierKind::Tcp, CarrierKind::Quic] {
        let hello = claim(Role::Worker, &own, &instance, &session, true);
        let moved = runtime.block_on(Peer::greet(&address, kind, hello)).expect("a welcome");
        assert!(moved.welcome.joined && moved.welcome.session == session, "{kind:?}");
    }
    assert!(owner.carrier.lost().is_none() || matches!(owner.carrier.lost(), Some(Lost::Closed(..))));
}

#[test]
fn the_session_of_a_person_is_their_own() {
    let world = World::start(Backend::Sqlite);
    let tokens = Tokens::of(&world);
    let address = world.controlplane.address();
    let (token_id, token) = world.new_token("workspace");
    let runtime = runtime();
    let instance = InstanceId::generate().to_wire();
    let greet = |kind, moving, session: &[u8]| {
        let hello = claim(Role::Cli, &token, &instance, session, moving);
        runtime.block_on(Peer::greet(&address, kind, hello)).expect("a welcome")
    };
    let owner = greet(CarrierKind::Tcp, false, &[]);
    let session = owner.welcome.session.clone();
    let mine = Ok(("default".to_owned(), "workspace".to_owned()));
    claim_all(&world, &tokens, &instance, &session, async |what, peer| {
        assert_eq!(who_am_i(&owner).await, mine, "{what}: the owner is who it was");
        let Some(peer) = peer else { return };
        if what.starts_with("somebody of another") {
            assert_eq!(who_am_i(peer).await, Ok(("theirs".to_owned(), "workspace".to_owned())), "{what}");
        } else if what.starts_with("nobody") {
            assert!(who_am_i(peer).await.is_err(), "{what}");
        } else if what.starts_with("an admin") {
            assert_eq!(who_am_i(peer).await, Ok(("default".to_owned(), "admin".to_owned())), "{what}");
        }
    });
    // The same twice, and once more as moved: whoever has this id and this token.
    let again = [greet(CarrierKind::Quic, false, &session), greet(CarrierKind::Tcp, false, &session)];
    let moved = greet(CarrierKind::Quic, true, &session);
    let stranger = claim(Role::Cli, &tokens.same, &instance, &session, false);
    let stranger = runtime.block_on(Peer::greet(&address, CarrierKind::Quic, stranger)).expect("a welcome");
    assert!(SessionId::from_wire(&stranger.welcome.session).is_ok_and(|id| id.is_some()));
    let _revoked = world.cli(&["token", "delete", &token_id]).ok();
    runtime.block_on(async {
        for peer in again.iter().chain([&owner, &moved]) {
            let lost = timeout(REVOKED, peer.carrier.closed()).await;
            let lost = lost.expect("a session of a revoked token ends");
            assert!(matches!(&lost, Lost::Closed(reset, _) if reset.code == ResetCode::Revoked), "{lost:?}");
        }
        assert!(who_am_i(&stranger).await.is_ok(), "another token's session goes on");
    });
}

/// An enrolment is one worker, however often its process asks before it has
/// its answer, and nobody else's.
#[test]
fn an_enrolment_is_one_worker() {
    let world = World::start(Backend::Sqlite);
    let address = world.controlplane.address();
    let enrolment = world.cli(&["worker", "enroll", "--format", "json"]).ok().json();
    let token = enrolment["token"].as_str().expect("a token");
    let instance = InstanceId::generate().to_wire();
    let ask =
        |kind, instance: &[u8]| Peer::greet(&address, kind, claim(Role::Worker, token, instance, &[], false));
    let runtime = runtime();
    let peers = runtime.block_on(join_all((0..6).map(|n| ask(KINDS[n % 2], &instance))));
    let mut peers: Vec<Peer> =
        peers.into_iter().map(|peer| peer.unwrap_or_else(|refused| panic!("{refused:?}"))).collect();
    assert!(peers.iter().all(|peer| peer.welcome.worker == peers[0].welcome.worker), "they are one worker");
    let stranger = InstanceId::generate().to_wire();
    let refused = runtime.block_on(ask(CarrierKind::Tcp, &stranger)).err().expect("it is another's");
    assert_eq!(refused.code(), RefuseCode::EnrolmentUsed, "{}", refused.text);
    let list = world.cli(&["worker", "list", "--format", "json"]).ok().json();
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list:#}");
    // What each was given is good, and the worker's.
    let again = claim(Role::Worker, &peers[0].welcome.worker_token, &instance, &[], false);
    let again = runtime.block_on(Peer::greet(&address, CarrierKind::Quic, again)).expect("a welcome");
    assert_eq!(again.welcome.worker, peers[0].welcome.worker);
    // Once its answer has arrived for certain, it is used up.
    let used_up = (0..10).any(|_| match runtime.block_on(ask(CarrierKind::Tcp, &instance)) {
        Ok(mut peer) => {
            runtime.block_on(peer.answer_ping());
            peers.push(peer);
            // Whoever asks takes the session over: it is left alone to be noted.
            std::thread::sleep(NOTED);
            false
        }
        Err(refused) => {
            assert_eq!(refused.code(), RefuseCode::EnrolmentUsed, "{}", refused.text);
            true
        }
    });
    assert!(used_up, "it is welcome still");
    drop((peers, again));
}
