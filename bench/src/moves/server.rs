//! The controlplane's end of a measurement, in a process of its own so that it
//! can be killed, and those it is compared with. It answers requests with the
//! number of its process, and sends the lines of a log that never ends.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use levers9_transport::accept::{Acceptor, Gate, Limits, Refusal, Session, SessionHandle};
use levers9_transport::cert::CertResolver;
use levers9_transport::link::Opened;
use levers9_transport::quic::{Identity, ServerKeys, bind};
use levers9_transport::tcp::{self, Listener};
use levers9_transport::{Endpoint, Settings, Stream, runtime};
use levers9_wire::clock::unix_millis;
use levers9_wire::v1::{self, call_answer::Answer as CallAnswer, follow_event, stream_open::Kind};
use levers9_wire::valid;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::count::{LINE_MS, line_at};
use super::peers;
use crate::transport::open_authority;

/// How long a server that says goodbye waits for its peers.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most lines in one frame.
const LINES: u64 = 200;
/// How often a port is looked for that is free for UDP and TCP.
const TRIES: usize = 50;

/// What serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Serves {
    /// Over QUIC and TCP on one port.
    Levers9,
    /// Over TCP, where nothing is to be had by UDP.
    Levers9Tcp,
    Quinn,
    Tls,
}

impl Serves {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Levers9 => "levers9",
            Self::Levers9Tcp => "levers9-tcp",
            Self::Quinn => "quinn",
            Self::Tls => "tls",
        }
    }
}

/// How a server is told what to be.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    #[arg(long, value_enum)]
    serves: Serves,
    /// Where the CA is.
    #[arg(long)]
    folder: PathBuf,
    /// The port to listen on; 0 for any.
    #[arg(long)]
    port: u16,
    /// When the log began, in milliseconds since 1970.
    #[arg(long)]
    epoch: u64,
}

/// What it is asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Send everybody to this address, as host:port, within so long.
    Drain { within_ms: u64, to: String },
    /// Say goodbye, be back after so long, and end.
    Bye { back_in_ms: u64 },
}

/// What it says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Said {
    Ready { address: String },
    Done,
}

/// Its whole life.
pub(crate) fn run(args: ServerArgs) -> Result<()> {
    runtime::current_thread()?.block_on(serve(args))
}

async fn serve(args: ServerArgs) -> Result<()> {
    let authority = open_authority(&args.folder)?;
    let certificate = authority.resolver();
    let (bound, acceptor) = match args.serves {
        Serves::Levers9 | Serves::Levers9Tcp => {
            let (bound, acceptor) = listen(certificate, &args)?;
            (bound, Some(acceptor))
        }
        Serves::Quinn => (peers::serve_quinn(certificate, args.port)?, None),
        Serves::Tls => (peers::serve_tls(certificate, args.port).await?, None),
    };
    say(&Said::Ready { address: format!("levers9://{bound}#{}", authority.pin()) })?;
    let mut asks = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = asks.next_line().await? {
        let acceptor = acceptor.as_ref().context("only levers9 is asked anything")?;
        match serde_json::from_str(&line)? {
            Ask::Drain { within_ms, to } => {
                acceptor.drain(Duration::from_millis(within_ms), vec![to]);
                say(&Said::Done)?;
            }
            Ask::Bye { back_in_ms } => {
                let told = acceptor.shutdown("restart", Duration::from_millis(back_in_ms), PATIENCE).await;
                ensure!(told, "the sessions did not end in time");
                return say(&Said::Done);
            }
        }
    }
    Ok(())
}

fn say(said: &Said) -> Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}

fn listen(certificate: Arc<CertResolver>, args: &ServerArgs) -> Result<(SocketAddr, Acceptor<Open>)> {
    let settings = Settings::default();
    let on = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let both = |port| -> Result<_> {
        let udp_port = if args.serves == Serves::Levers9 { port } else { 0 };
        let udp = bind(on(udp_port), settings.socket_buffer)?;
        let port = if args.serves == Serves::Levers9 { udp.local_addr()?.port() } else { port };
        Ok((udp, tcp::bind(on(port))?))
    };
    // Whoever may have any port tries until one is free for both.
    let tries = if args.port == 0 { TRIES } else { 1 };
    let mut found = both(args.port);
    for _ in 1..tries {
        if found.is_ok() {
            break;
        }
        found = both(args.port);
    }
    let (udp, tcp) = found.context("no port for UDP and TCP")?;
    let bound = tcp.local_addr()?;
    // Kept across restarts, as a controlplane's.
    let identity = Identity { certificate, keys: ServerKeys { reset: [9; 64] } };
    let endpoint = Endpoint::accepting(udp, &settings, &identity)?;
    let listener = Listener::new(tcp, &settings, &identity)?;
    let gate = Arc::new(Open { epoch: args.epoch });
    let acceptor = Acceptor::new(endpoint, gate, Limits::default(), Handle::current()).with_tcp(listener);
    let running = acceptor.clone();
    tokio::spawn(async move { running.run().await });
    Ok((bound, acceptor))
}

/// Lets everybody in, and back in.
struct Open {
    epoch: u64,
}

impl Gate for Open {
    type Admitted = ();

    async fn admit(&self, _: valid::Hello, _: SocketAddr) -> Result<(v1::Welcome, ()), Refusal> {
        Ok((v1::Welcome::default(), ()))
    }

    async fn rejoin(
        &self,
        _: &valid::Hello,
        _: &SessionHandle,
        _: SocketAddr,
    ) -> Result<Option<v1::Welcome>, Refusal> {
        Ok(Some(v1::Welcome::default()))
    }

    async fn serve(self: Arc<Self>, mut session: Session, (): ()) {
        let mut streams = JoinSet::new();
        loop {
            tokio::select! {
                opened = session.next() => match opened {
                    Some(opened) => drop(streams.spawn(answer(opened, self.epoch))),
                    None => return,
                },
                Some(_) = streams.join_next() => {}
            }
        }
    }
}

/// Answers one stream. An error needs no words here: the caller notices.
async fn answer(Opened { kind, mut stream }: Opened, epoch: u64) -> Result<()> {
    match kind {
        Kind::Call(_) => {
            let created =
                v1::WorkspaceCreateAnswer { workspace: None, token: std::process::id().to_string() };
            let answer = v1::CallAnswer { answer: Some(CallAnswer::WorkspaceCreate(created)) };
            stream.send.send(&answer).await?;
            stream.send.finish();
            let more = stream.recv.next::<v1::CallAnswer>().await?;
            ensure!(more.is_none(), "more than one frame");
            Ok(())
        }
        Kind::Follow(open) => send_lines(&mut stream, open.since_line, epoch).await,
        other => bail!("nobody here opens {other:?}"),
    }
}

/// Sends every line there is after one, and those to come, until the stream ends.
async fn send_lines(stream: &mut Stream, mut last: u64, epoch: u64) -> Result<()> {
    let mut every = tokio::time::interval(Duration::from_millis(LINE_MS));
    loop {
        every.tick().await;
        let there_is = line_at(epoch, unix_millis());
        while last < there_is {
            let until = there_is.min(last + LINES);
            let lines = (last + 1..=until).map(|line| v1::FollowLine {
                line,
                data: line.to_string().into_bytes().into(),
                ..v1::FollowLine::default()
            });
            let lines = follow_event::Kind::Lines(v1::FollowLines { lines: lines.collect() });
            stream.send.send(&v1::FollowEvent { kind: Some(lines) }).await?;
            last = until;
        }
    }
}
