//! The `levers9-agent` binary: runs an agent until it is told to stop, or asks
//! how one is.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use levers9_agent::agent::Agent;
use levers9_agent::args::Args;
use levers9_agent::probe::{self, ProbeArgs};
use levers9_transport::link::Status;
use levers9_transport::tcp::Proxies;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == probe::WORD) {
        return ended(ProbeArgs::parse_from(std::env::args_os().skip(1)).answer());
    }
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("LEVERS9_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
    ended(run(args))
}

fn ended<E: std::fmt::Display>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            // Nothing to be done about a closed stderr.
            let _closed = writeln!(std::io::stderr(), "error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), Box<dyn std::error::Error>> {
    let mut settings = args.settings()?;
    settings.proxies = Proxies::of(|name| std::env::var(name).ok());
    let runtime = levers9_transport::runtime::current_thread()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let running = async {
            let agent = Agent::start(settings).await;
            let mut status = agent.status();
            (agent, async move {
                // The link ends by itself only when its task has failed.
                let _closed = status.wait_for(|status| matches!(status, Status::Closed)).await;
            })
        };
        let (agent, closed) = tokio::select! {
            running = running => running,
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = closed => {}
        }
        tracing::info!("stopping: workers and their jobs go on");
        agent.shutdown().await;
        Ok(())
    })
}
