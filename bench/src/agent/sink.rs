//! The controlplane's side: lets the agent in, takes its reports and says
//! thank you. It keeps no more of a report than when it came and how large it
//! was, and gives no orders.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Result;
use levers9_transport::accept::{Acceptor, Gate, Limits, Refusal, Session};
use levers9_transport::cert::Authority;
use levers9_transport::link::Opened;
use levers9_transport::quic::{Identity, ServerKeys, bind};
use levers9_transport::{Endpoint, Settings};
use levers9_wire::v1::{self, stream_open::Kind};
use levers9_wire::{limits, valid};
use prost::Message as _;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The reports that came.
#[derive(Debug, Clone, Default)]
pub(super) struct Reports {
    pub(super) count: u64,
    pub(super) bytes: u64,
    /// Those that tell of the whole cluster.
    pub(super) whole: u64,
    /// What the last one complained of.
    pub(super) problem: String,
}

/// The controlplane's side.
#[derive(Debug)]
pub(super) struct Sink {
    pub(super) address: SocketAddr,
    pub(super) reports: watch::Receiver<Reports>,
    serving: JoinHandle<()>,
}

impl Sink {
    /// Listens for the agent of a cluster of so many nodes. Must be called
    /// within a runtime.
    pub(super) fn listen(authority: &Authority, nodes: usize) -> Result<Self> {
        let settings = Settings::default();
        let socket = bind((Ipv4Addr::LOCALHOST, 0).into(), settings.socket_buffer)?;
        let identity = Identity { certificate: authority.resolver(), keys: ServerKeys { reset: [9; 64] } };
        let endpoint = Endpoint::accepting(socket, &settings, &identity)?;
        let address = endpoint.local_addr()?;
        let (told, reports) = watch::channel(Reports::default());
        let gate = Arc::new(Taker { nodes, told });
        let acceptor = Acceptor::new(endpoint, gate, Limits::default(), Handle::current());
        let serving = tokio::spawn(async move { acceptor.run().await });
        Ok(Self { address, reports, serving })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct Taker {
    nodes: usize,
    told: watch::Sender<Reports>,
}

impl Gate for Taker {
    type Admitted = ();

    async fn admit(&self, _: valid::Hello, _: SocketAddr) -> Result<(v1::Welcome, ()), Refusal> {
        Ok((v1::Welcome::default(), ()))
    }

    async fn serve(self: Arc<Self>, mut session: Session, (): ()) {
        while let Some(opened) = session.next().await {
            // One that was overtaken by another is reset.
            let _broken = self.take(opened).await;
        }
    }
}

impl Taker {
    async fn take(&self, Opened { kind, stream }: Opened) -> Result<()> {
        let Kind::NodeReport(_) = kind else { return Ok(()) };
        let (mut send, mut recv) = (stream.send, stream.recv.with_limit(limits::NODE_REPORT));
        let report: v1::NodeReport = recv.expect().await?;
        self.told.send_modify(|reports| {
            reports.count += 1;
            reports.bytes += report.encoded_len() as u64;
            let whole = report.nodes.len() == self.nodes && report.problem.is_empty();
            reports.whole += u64::from(whole);
            reports.problem.clone_from(&report.problem);
        });
        send.send(&v1::NodeReportAnswer { failure: None }).await?;
        send.finish();
        Ok(())
    }
}
