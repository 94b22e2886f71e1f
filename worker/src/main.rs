//! The `levers9-worker` binary: runs a worker until it is told to stop.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use levers9_transport::link::Status;
use levers9_transport::tcp::Proxies;
use levers9_wire::RetryClass;
use levers9_worker::args::Args;
use levers9_worker::session::Worker;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

/// How long containers may take to end when the worker stops.
const GRACE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    levers9_worker::run_if_supervisor();
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("LEVERS9_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            // Nothing to be done about a closed stderr.
            let _closed = writeln!(std::io::stderr(), "error: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Waits until the controlplane has said no for good, and gives its words.
async fn refusal(mut status: watch::Receiver<Status>) -> String {
    let said_no =
        |status: &Status| matches!(status, Status::Waiting { why, .. } if why.retry() == RetryClass::Fatal);
    match status.wait_for(said_no).await.as_deref() {
        Ok(Status::Waiting { why, .. }) => why.to_string(),
        _ => "the link has ended".to_owned(),
    }
}

fn run(args: Args) -> Result<(), Box<dyn std::error::Error>> {
    let exits = args.exits_when_refused();
    let mut settings = args.settings(std::env::var("LEVERS9_WORKER_TOKEN").ok())?;
    settings.proxies = Proxies::of(|name| std::env::var(name).ok());
    let runtime = levers9_transport::runtime::current_thread()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let worker = Worker::start(settings).await?;
        let mut status = worker.status();
        let mut refused = None;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            // The link ends by itself only when its task has failed.
            _ = status.wait_for(|status| matches!(status, Status::Closed)) => {}
            why = refusal(worker.status()), if exits => refused = Some(why),
        }
        tracing::info!("stopping: running containers have {} s", GRACE.as_secs());
        let late = worker.shutdown(GRACE).await;
        for container in late {
            tracing::error!(%container, "did not end in time");
        }
        match refused {
            Some(why) => Err(format!("the controlplane refuses this worker: {why}").into()),
            None => Ok(()),
        }
    })
}
