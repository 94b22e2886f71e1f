//! Carriers without a session, for peers that say what they like: one that was
//! dialed with nothing said on it, and a server that accepts and leaves the
//! rest to the test.

use std::sync::Arc;

use bytes::BytesMut;
use levers9_transport::Carrier;
use levers9_transport::carrier::{RecvHalf, SendHalf};
use levers9_transport::dial::Dialer;
use levers9_transport::link::{Link, Opened};
use levers9_transport::quic::Endpoint;
use levers9_transport::tcp::{Fallback, Listener, Via};
use levers9_wire::v1::{self, control_frame, stream_open};
use levers9_wire::{frame, limits};
use prost::Message;
use tokio::sync::mpsc;

use crate::pipes::Pipes;
use crate::world::{Server, World, hole, s, server_address};

/// What a carrier goes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Quic,
    Tcp,
}

pub(crate) const BOTH: [Over; 2] = [Over::Quic, Over::Tcp];

/// A carrier that was dialed, with nothing said on it.
pub(crate) async fn dial(world: &World, pipes: &Arc<Pipes>, number: u16, over: Over) -> Carrier {
    let endpoint = world.endpoint(number);
    let mut dialer = Dialer::new(world.address()).without_probe();
    match over {
        Over::Quic => dialer.dial(&endpoint, s(10)).await.unwrap(),
        Over::Tcp => {
            let via: Arc<dyn Via> = Arc::<Pipes>::clone(pipes);
            let dialer = dialer.with_fallback(Fallback::default().with_via(via));
            dialer.examine_tcp(&endpoint, server_address()).await.1.unwrap()
        }
    }
}

/// A link that has only this way.
pub(crate) fn link(
    world: &World,
    pipes: &Arc<Pipes>,
    number: u16,
    over: Over,
) -> (Link, mpsc::Receiver<Box<Opened>>) {
    match over {
        Over::Quic => world.link(number),
        Over::Tcp => {
            world.network.set(hole());
            world.link_with_tcp(number, "token", pipes)
        }
    }
}

/// Accepts carriers, and does nothing with them.
pub(crate) struct Rude {
    endpoint: Endpoint,
    listener: Listener,
}

impl Rude {
    pub(crate) fn new(world: &World) -> (Self, Arc<Pipes>) {
        let (listener, pipes) = world.listener();
        (Self { endpoint: world.accepting_at(server_address()), listener }, pipes)
    }

    /// The next carrier that comes by this way.
    pub(crate) async fn accept(&self, over: Over) -> Carrier {
        loop {
            let carrier = match over {
                Over::Quic => self.endpoint.accept().await.expect("not closed").handshake().await,
                Over::Tcp => self.listener.accept().await.handshake().await,
            };
            if let Ok(carrier) = carrier {
                return carrier;
            }
        }
    }

    /// A server that behaves in its place.
    pub(crate) fn reformed(self, world: &World) -> Server {
        world.server_on(self.endpoint, Some(self.listener))
    }
}

/// Both ends of a carrier.
pub(crate) async fn pair(world: &World, over: Over) -> (Carrier, Carrier) {
    let (rude, pipes) = Rude::new(world);
    tokio::join!(dial(world, &pipes, 1, over), rude.accept(over))
}

/// A peer that was let in, with its control stream, which nobody keeps.
pub(crate) async fn let_in(
    world: &World,
    pipes: &Arc<Pipes>,
    number: u16,
    over: Over,
) -> (Carrier, SendHalf, RecvHalf) {
    let carrier = dial(world, pipes, number, over).await;
    let (mut send, mut recv) = carrier.open().await.unwrap();
    let mut bytes = opening(stream_open::Kind::Control(v1::ControlOpen {}));
    bytes.extend(control(control_frame::Kind::Hello(hello())));
    send.write_all(bytes.into()).await.unwrap();
    recv.read(64 * 1024).await.unwrap().expect("a welcome");
    (carrier, send, recv)
}

/// One message as a frame.
pub(crate) fn framed<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    frame::encode(message, 4 * limits::FRAME, &mut bytes).unwrap();
    bytes.to_vec()
}

pub(crate) fn opening(kind: stream_open::Kind) -> Vec<u8> {
    framed(&v1::StreamOpen { kind: Some(kind) })
}

pub(crate) fn control(kind: control_frame::Kind) -> Vec<u8> {
    framed(&v1::ControlFrame { kind: Some(kind) })
}

/// A Hello that is let in.
pub(crate) fn hello() -> v1::Hello {
    v1::Hello {
        version_min: 1,
        version_max: 1,
        role: 1,
        token: "t".into(),
        instance: vec![1; 16],
        ..Default::default()
    }
}

/// A Welcome to a new session.
pub(crate) fn welcome() -> v1::Welcome {
    v1::Welcome { session: vec![7; 16], version: 1, ping_interval_ms: 15_000, ..Default::default() }
}
