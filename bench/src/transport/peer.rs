//! The two processes of a variant: the child's side, which serves or dials and
//! does what it is asked, and the parent's handle on both.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use levers9_transport::{Address, runtime};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

use super::protocol::{Answer, Ask, Work};
use super::rows::Sample;
use super::work::{self, Dialer};
use super::{Variant, h2, levers9, quinn, tls};
use crate::process::{self, Helper, Usage};

/// No single piece of work takes this long on a machine worth measuring on.
const PATIENCE: Duration = Duration::from_secs(120);
/// What a fresh pair does before it is measured.
const WARM_UP: [Work; 2] =
    [Work::Bulk { streams: 1, bytes: 32 << 20 }, Work::Calls { in_flight: 16, millis: 50 }];

/// How a child is told what to be.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    #[arg(long, value_enum)]
    variant: Variant,
    /// The core to stay on.
    #[arg(long)]
    core: Option<usize>,
    #[command(flatten)]
    role: Role,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Role {
    /// Serve, with the CA in this folder.
    #[arg(long)]
    serve: Option<PathBuf>,
    /// Dial this address.
    #[arg(long)]
    dial: Option<Address>,
}

/// The child's whole life.
pub(crate) fn run(args: PeerArgs) -> Result<()> {
    args.core.map(process::pin).transpose()?;
    let runtime = runtime::current_thread()?;
    runtime.block_on(async {
        if let Some(folder) = &args.role.serve {
            return serve(args.variant, folder).await;
        }
        let address = args.role.dial.context("neither --serve nor --dial")?;
        match args.variant {
            Variant::Levers9 | Variant::Levers9Tcp => dial::<levers9::Dialer>(&address).await,
            Variant::Quinn => dial::<quinn::Dialer>(&address).await,
            Variant::H2 => dial::<h2::Dialer>(&address).await,
            Variant::Tls => dial::<tls::Dialer>(&address).await,
        }
    })
}

async fn serve(variant: Variant, folder: &Path) -> Result<()> {
    let authority = super::open_authority(folder)?;
    let certificate = authority.resolver();
    let bound = match variant {
        Variant::Levers9 => levers9::serve(certificate)?,
        Variant::Levers9Tcp => levers9::serve_tcp(certificate)?,
        Variant::Quinn => quinn::serve(certificate)?,
        Variant::H2 => h2::serve(certificate).await?,
        Variant::Tls => tls::serve(certificate).await?,
    };
    say(&Answer::Ready { address: format!("levers9://{bound}#{}", authority.pin()) })?;
    let mut asks = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = asks.next_line().await? {
        let Ask::Usage = serde_json::from_str(&line)? else { bail!("a server only says what it used") };
        say(&Answer::Usage(Usage::now()?))?;
    }
    Ok(())
}

async fn dial<D: Dialer>(address: &Address) -> Result<()> {
    let dialer = D::new(address)?;
    let client = timeout(PATIENCE, dialer.connect()).await??;
    for work in WARM_UP {
        timeout(PATIENCE, work::run(&client, work)).await??;
    }
    let ready = Answer::Ready { address: address.to_string() };
    say(&ready)?;
    let mut held = Vec::new();
    let mut asks = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = asks.next_line().await? {
        let done = async {
            Ok(match serde_json::from_str(&line)? {
                Ask::Usage => Answer::Usage(Usage::now()?),
                Ask::Prepare(work) => work::prepare(&client, work).await.map(|()| ready.clone())?,
                Ask::Work(work) => Answer::Done(work::run(&client, work).await?),
                Ask::Hold { sessions } => {
                    for _ in 0..sessions {
                        held.push(dialer.connect().await?);
                    }
                    ready.clone()
                }
            })
        };
        let answer =
            timeout(PATIENCE, done).await.unwrap_or_else(|_| Err(anyhow!("it took over {PATIENCE:?}")));
        say(&answer.unwrap_or_else(|error| Answer::Failed { why: format!("{error:#}") }))?;
    }
    Ok(())
}

fn say(answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}

/// A server and a client connected to it.
#[derive(Debug)]
pub(crate) struct Pair {
    server: Helper,
    client: Helper,
}

impl Pair {
    /// Starts both and waits until they are warm.
    pub(crate) fn start(variant: Variant, folder: &Path) -> Result<Self> {
        let cores = process::two_cores();
        let start = |role: &str, what: &str, core: Option<usize>| -> Result<(Helper, String)> {
            let mut args = vec!["peer".to_owned(), "--variant".to_owned(), variant.name().to_owned()];
            args.extend([role.to_owned(), what.to_owned()]);
            args.extend(core.into_iter().flat_map(|core| ["--core".to_owned(), core.to_string()]));
            let mut helper = Helper::start(args)?;
            match helper.listen()? {
                Answer::Ready { address } => Ok((helper, address)),
                other => bail!("a helper says {other:?} before it is ready"),
            }
        };
        let folder = folder.to_str().context("the temporary folder's name is not UTF-8")?;
        let (server, address) = start("--serve", folder, cores.map(|(first, _)| first))?;
        let (client, _) = start("--dial", &address, cores.map(|(_, second)| second))?;
        Ok(Self { server, client })
    }

    /// Has a piece of work done, and counts what both used for it.
    pub(crate) fn work(&mut self, work: Work) -> Result<Sample> {
        self.ready(&Ask::Prepare(work))?;
        let before = usage(&mut self.server)?.cpu_us + usage(&mut self.client)?.cpu_us;
        let done = match self.client.ask(&Ask::Work(work))? {
            Answer::Done(done) => done,
            other => return Err(unexpected(other)),
        };
        let after = usage(&mut self.client)?.cpu_us + usage(&mut self.server)?.cpu_us;
        Ok(Sample { done, cpu_us: after - before })
    }

    /// Has more sessions opened, and leaves them idle for a while.
    pub(super) fn hold(&mut self, sessions: u32, settle_ms: u64) -> Result<()> {
        self.ready(&Ask::Hold { sessions })?;
        std::thread::sleep(Duration::from_millis(settle_ms));
        Ok(())
    }

    /// What the server has used.
    pub(super) fn server_usage(&mut self) -> Result<Usage> {
        usage(&mut self.server)
    }

    fn ready(&mut self, ask: &Ask) -> Result<()> {
        match self.client.ask(ask)? {
            Answer::Ready { .. } => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}

fn usage(helper: &mut Helper) -> Result<Usage> {
    match helper.ask(&Ask::Usage)? {
        Answer::Usage(usage) => Ok(usage),
        other => Err(unexpected(other)),
    }
}

fn unexpected(answer: Answer) -> anyhow::Error {
    match answer {
        Answer::Failed { why } => anyhow!(why),
        other => anyhow!("a helper answers {other:?}"),
    }
}
