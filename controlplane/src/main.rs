//! The `levers9-controlplane` binary: reads its configuration, runs a
//! controlplane, and stops it in order.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use levers9_controlplane::config::Config;
use levers9_controlplane::server::{Controlplane, Sockets, StartError};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Serves workers, the levers9 CLI and the Python SDK.
#[derive(Debug, Parser)]
#[command(name = "levers9-controlplane", version)]
struct Args {
    /// The configuration, a YAML file
    #[arg(long, env = "LEVERS9_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

/// Ports and the keys of the configuration that set them.
const KEYS: [&str; 3] =
    ["`quic` in the configuration", "`grpc` in the configuration", "`http` in the configuration"];

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("LEVERS9_LOG").unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            let mut text = format!("error: {problem}\n");
            if let Some(hint) = problem.downcast_ref::<StartError>().and_then(StartError::hint) {
                text.push_str(&format!("hint: {hint}\n"));
            }
            // Nothing to be done about a closed stderr.
            let _closed = std::io::stderr().write_all(text.as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let config = Config::load(&args.config, |name| std::env::var(name).ok())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let sockets = Sockets::bind(&config, KEYS)?;
        let controlplane = Controlplane::start(&config, sockets).await?;
        let addresses = controlplane.addresses();
        tracing::info!(dial = %addresses.dial, quic = %addresses.quic, grpc = %addresses.grpc, http = %addresses.http, "ready");
        let mut asked = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        asked().await;
        tracing::info!("stopping");
        let hurry = CancellationToken::new();
        let mut stopping = std::pin::pin!(controlplane.shutdown(hurry.clone()));
        let late = tokio::select! {
            late = &mut stopping => late,
            () = asked() => {
                tracing::info!("asked a second time; what still runs here is cut off");
                hurry.cancel();
                stopping.await
            }
        };
        for late in late {
            tracing::error!("{late} did not end in time");
        }
        Ok(())
    })
}
