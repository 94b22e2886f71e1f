//! A peer that says exactly what a test wants said: one carrier of either
//! kind, a Hello, and calls with ids of one's own choosing.

use std::sync::OnceLock;
use std::time::Duration;

use levers9_transport::dial::Dialer;
use levers9_transport::link::{Opened, open_on, read_open};
use levers9_transport::{Carrier, CarrierKind, Endpoint, FrameRecv, FrameSend, Settings, Stream};
use levers9_wire::v1::{self, CallAnswer, call_answer, call_open, control_frame, stream_open};
use levers9_wire::{InstanceId, VERSION_MAX, VERSION_MIN, limits};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(20);

/// One carrier that was welcomed.
pub(crate) struct Peer {
    pub(crate) carrier: Carrier,
    pub(crate) welcome: v1::Welcome,
    _endpoint: Endpoint,
    /// The control stream: it lasts as long as the carrier is wanted.
    control: (FrameSend, FrameRecv),
}

/// What peers live on, also while a test waits for something else.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let build = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    RUNTIME.get_or_init(|| build().expect("a runtime"))
}

/// What a person's command says.
pub(crate) fn hello(role: v1::Role, token: &str) -> v1::Hello {
    v1::Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        role: role.into(),
        token: token.to_owned(),
        instance: InstanceId::generate().to_wire(),
        build: "0.0.1".to_owned(),
        ..v1::Hello::default()
    }
}

/// Connects in one way only.
pub(crate) async fn connect(address: &str, kind: CarrierKind) -> (Endpoint, Carrier) {
    let dialer = Dialer::new(address.parse().expect("an address"));
    let endpoint = Endpoint::dialing(&Settings::default()).expect("a socket");
    let at = dialer.addresses().await.expect("an address")[0];
    let (_, carrier) = match kind {
        CarrierKind::Quic => dialer.examine(&endpoint, at).await,
        _ => dialer.examine_tcp(&endpoint, at).await,
    };
    (endpoint, carrier.unwrap_or_else(|error| panic!("{kind:?} to {address}: {error}")))
}

impl Peer {
    /// Connects and says hello; the refusal when it is refused.
    pub(crate) async fn greet(
        address: &str,
        kind: CarrierKind,
        hello: v1::Hello,
    ) -> Result<Self, v1::Refused> {
        let (endpoint, carrier) = connect(address, kind).await;
        let control = stream_open::Kind::Control(v1::ControlOpen {});
        let Stream { send, recv, .. } = open_on(&carrier, control).await.expect("a control stream");
        let (mut send, mut recv) = (send.with_limit(limits::CONTROL), recv.with_limit(limits::CONTROL));
        let hello = v1::ControlFrame { kind: Some(control_frame::Kind::Hello(hello)) };
        send.send(&hello).await.expect("it is sent");
        let answer = timeout(ANSWER, recv.expect::<v1::ControlFrame>()).await.expect("an answer in time");
        match answer.expect("an answer").kind {
            Some(control_frame::Kind::Welcome(welcome)) => {
                Ok(Self { carrier, welcome, _endpoint: endpoint, control: (send, recv) })
            }
            Some(control_frame::Kind::Refused(refused)) => Err(refused),
            other => panic!("neither a welcome nor a refusal: {other:?}"),
        }
    }

    /// Asks something under an id.
    pub(crate) async fn call(&self, id: &[u8], request: call_open::Request) -> call_answer::Answer {
        let open = v1::CallOpen { request_id: id.to_vec(), request: Some(request) };
        let mut stream =
            open_on(&self.carrier, stream_open::Kind::Call(open)).await.expect("a stream for the call");
        stream.send.finish();
        let answer = timeout(ANSWER, stream.recv.expect::<CallAnswer>()).await.expect("an answer in time");
        answer.expect("an answer").answer.expect("an answer of a kind")
    }

    /// Waits for a ping and answers it.
    pub(crate) async fn answer_ping(&mut self) {
        let (send, recv) = &mut self.control;
        loop {
            let frame = timeout(ANSWER, recv.expect::<v1::ControlFrame>()).await.expect("a ping in time");
            if let Some(control_frame::Kind::Ping(v1::Ping { nonce })) = frame.expect("a frame").kind {
                let pong = control_frame::Kind::Pong(v1::Pong { nonce });
                return send.send(&v1::ControlFrame { kind: Some(pong) }).await.expect("it is sent");
            }
        }
    }

    /// The next stream the controlplane opens, within a time.
    pub(crate) async fn opened(&self, within: Duration) -> Option<Opened> {
        let halves = timeout(within, self.carrier.accept()).await.ok()?.ok()?;
        let stream = Stream::new(halves.0, halves.1);
        Some(read_open(stream).await.expect("it says what it is"))
    }
}
