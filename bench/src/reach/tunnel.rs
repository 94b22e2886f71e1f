//! A tunnel and nothing else: a TCP listener beside an acceptor, a link beside
//! the target, and the transport's own splice at both ends. What its two
//! processes use, beside a bare download, is what tunnelling costs.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use levers9_transport::accept::{Acceptor, Gate, Limits, Refusal, Session, SessionHandle};
use levers9_transport::link::{Introduce, Link};
use levers9_transport::quic::{Identity, ServerKeys, bind};
use levers9_transport::tunnel::{Raw, splice};
use levers9_transport::{Address, Endpoint, Settings, dial, runtime};
use levers9_wire::v1::{self, stream_open::Kind};
use levers9_wire::{InstanceId, valid};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::process::{self, Helper, Usage};
use crate::transport::open_authority;

/// Which side to be.
#[derive(Debug, clap::Args)]
pub(crate) struct TunnelArgs {
    #[arg(long)]
    core: Option<usize>,
    /// Listen, with the CA in this folder.
    #[arg(long)]
    serve: Option<PathBuf>,
    /// Dial this address.
    #[arg(long)]
    dial: Option<Address>,
    /// Lead to this port.
    #[arg(long, default_value_t = 0)]
    target: u16,
}

/// Where a side is.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    dial: String,
    listener: Option<SocketAddr>,
}

/// Both sides.
#[derive(Debug)]
pub(super) struct Tunnel {
    near: Helper,
    far: Helper,
    pub(super) listener: SocketAddr,
}

impl Tunnel {
    /// Starts both, each on a core of its own.
    pub(super) fn start(folder: &std::path::Path, target: u16) -> Result<Self> {
        let cores = process::two_cores();
        let start = |mut args: Vec<String>, core: Option<usize>| -> Result<(Helper, Ready)> {
            args.insert(0, "tunnel".to_owned());
            args.extend(core.into_iter().flat_map(|core| ["--core".to_owned(), core.to_string()]));
            let mut helper = Helper::start(args)?;
            let ready = helper.listen()?;
            Ok((helper, ready))
        };
        let folder = folder.to_str().context("the temporary folder's name is not UTF-8")?;
        let (near, ready) = start(vec!["--serve".into(), folder.into()], cores.map(|(first, _)| first))?;
        let far = vec!["--dial".into(), ready.dial, "--target".into(), target.to_string()];
        let (far, _) = start(far, cores.map(|(_, second)| second))?;
        Ok(Self { near, far, listener: ready.listener.context("no listener")? })
    }

    /// What both have used.
    pub(super) fn cpu_us(&mut self) -> Result<u64> {
        let (near, far): (Usage, Usage) = (self.near.ask(&())?, self.far.ask(&())?);
        Ok(near.cpu_us + far.cpu_us)
    }
}

/// The whole life of one side.
pub(crate) fn run(args: TunnelArgs) -> Result<()> {
    args.core.map(process::pin).transpose()?;
    runtime::current_thread()?.block_on(async {
        let ready = match (args.serve, args.dial) {
            (Some(folder), None) => serve(&folder).await?,
            (None, Some(address)) => dial_out(address, args.target).await?,
            _ => bail!("either --serve or --dial"),
        };
        say(&ready)?;
        let mut asks = BufReader::new(tokio::io::stdin()).lines();
        while asks.next_line().await?.is_some() {
            say(&Usage::now()?)?;
        }
        Ok(())
    })
}

fn say(answer: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}

async fn serve(folder: &std::path::Path) -> Result<Ready> {
    let authority = open_authority(folder)?;
    let settings = Settings::default();
    let socket = bind((Ipv4Addr::LOCALHOST, 0).into(), settings.socket_buffer)?;
    let identity = Identity { certificate: authority.resolver(), keys: ServerKeys { reset: [9; 64] } };
    let endpoint = Endpoint::accepting(socket, &settings, &identity)?;
    let dial = format!("levers9://{}#{}", endpoint.local_addr()?, authority.pin());
    let gate = Arc::new(Open { session: watch::Sender::new(None) });
    let session = gate.session.subscribe();
    let here = tokio::runtime::Handle::current();
    let acceptor = Acceptor::new(endpoint, gate, Limits::default(), here);
    tokio::spawn(async move { acceptor.run().await });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let ready = Ready { dial, listener: Some(listener.local_addr()?) };
    tokio::spawn(async move {
        while let Ok((visitor, _)) = listener.accept().await {
            tokio::spawn(lead(visitor, session.clone()));
        }
    });
    Ok(ready)
}

/// Leads a visitor to the other side.
async fn lead(visitor: TcpStream, mut session: watch::Receiver<Option<SessionHandle>>) -> Result<()> {
    let handle = session.wait_for(Option::is_some).await?.clone().context("no session")?;
    let stream = handle.open(Kind::Tunnel(v1::TunnelOpen::default())).await?;
    Ok(splice(visitor, Raw::of(stream).await?).await?)
}

/// Lets everybody in, and remembers who came last.
struct Open {
    session: watch::Sender<Option<SessionHandle>>,
}

impl Gate for Open {
    type Admitted = ();

    async fn admit(&self, _: valid::Hello, _: SocketAddr) -> Result<(v1::Welcome, ()), Refusal> {
        Ok((v1::Welcome::default(), ()))
    }

    async fn serve(self: Arc<Self>, mut session: Session, (): ()) {
        self.session.send_replace(Some(session.handle().clone()));
        while session.next().await.is_some() {}
    }
}

async fn dial_out(address: Address, target: u16) -> Result<Ready> {
    let dial = address.to_string();
    let (link, mut incoming) = Link::start(
        dial::Dialer::new(address),
        Box::new(|| Endpoint::dialing(&Settings::default())),
        Arc::new(Me(InstanceId::generate())),
        StdRng::from_os_rng(),
    );
    link.online().await?;
    tokio::spawn(async move {
        while let Some(opened) = incoming.recv().await {
            tokio::spawn(async move {
                let target = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await?;
                anyhow::Ok(splice(target, Raw::of(opened.stream).await?).await?)
            });
        }
        drop(link);
    });
    Ok(Ready { dial, listener: None })
}

struct Me(InstanceId);

impl Introduce for Me {
    fn hello(&self) -> v1::Hello {
        v1::Hello { role: v1::Role::Worker.into(), instance: self.0.to_wire(), ..v1::Hello::default() }
    }
}
