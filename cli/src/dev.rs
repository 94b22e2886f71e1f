//! `levers9 dev`: a controlplane and a worker in one process on this machine,
//! over the same QUIC sockets a real installation uses. It keeps everything in
//! its data folder, its own contexts included.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use levers9_controlplane::config::{Config, Values};
use levers9_controlplane::server::{Addresses, Controlplane, Sockets, StartError};
use levers9_controlplane::store::StoreError;
use levers9_transport::link::Status;
use levers9_transport::runtime::TransportThread;
use levers9_transport::tcp::Proxies;
use levers9_wire::token::{Secret, TokenKind};
use levers9_wire::v1;
use levers9_worker::facts::{self, Gpus};
use levers9_worker::session::{Settings as WorkerSettings, StartError as WorkerError, Worker};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::args::Format;
use crate::commands;
use crate::config::{DEFAULT, Section};
use crate::contexts::{Context, Store};
use crate::error::Error;
use crate::printer::Printer;
use crate::settings::{DevSettings, RunSettings, Target};
use crate::signals::Signals;

/// The context's name in the data folder's own files.
const CONTEXT: &str = DEFAULT;
/// How long the worker may take to come online.
const WORKER_ONLINE: Duration = Duration::from_secs(10);
/// How long jobs may take to end when it stops.
const GRACE: Duration = Duration::from_secs(10);

/// Runs the command.
///
/// # Errors
/// When a port or folder cannot be used, or what runs cannot be started.
pub fn run(settings: DevSettings, printer: &mut Printer) -> Result<u8, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::failed("cannot start the runtime").because(e))?;
    let dev = runtime.block_on(Dev::start(&settings))?;
    if settings.command.is_empty() {
        let served = runtime.block_on(dev.serve(&settings, printer));
        return served;
    }
    let code = commands::run::run(dev.job(settings.command.clone()), printer);
    stop(&runtime, dev, printer);
    code
}

/// What runs.
struct Dev {
    controlplane: Controlplane,
    worker: Worker,
    /// The worker's own, as where it is a process.
    thread: TransportThread,
    token: Secret,
    own: Store,
}

impl Dev {
    async fn start(settings: &DevSettings) -> Result<Self, Error> {
        let config = config(settings)?;
        let sockets = Sockets::bind(&config, ["--quic", "--grpc", "--http"]).map_err(start_error)?;
        make_private(&settings.data)?;
        let controlplane = Controlplane::start(&config, sockets).await.map_err(start_error)?;
        let own = Store::at(settings.data.join("cli").join("config"));
        let token = token(&controlplane, &own).await?;
        let thread = TransportThread::start()
            .map_err(|e| Error::failed("cannot start the local worker's thread").because(e))?;
        let worker = start_worker(&controlplane, settings, &thread).await?;
        let dev = Self { controlplane, worker, thread, token, own };
        dev.own.change(|contexts| {
            contexts.put(CONTEXT, &dev.context());
            contexts.select(CONTEXT);
            Ok(())
        })?;
        dev.wait_for_worker().await?;
        Ok(dev)
    }

    fn addresses(&self) -> &Addresses {
        self.controlplane.addresses()
    }

    fn context(&self) -> Context {
        let Addresses { dial, grpc, http, .. } = self.addresses();
        Context {
            section: Section {
                token: self.token.clone(),
                controlplane_host: grpc.ip().to_string(),
                controlplane_port: grpc.port().to_string(),
                controlplane_http_url: format!("http://{http}"),
                tls: "false".to_owned(),
            },
            address: Some(dial.clone()),
        }
    }

    async fn wait_for_worker(&self) -> Result<(), Error> {
        let mut status = self.worker.status();
        let online = status.wait_for(|status| matches!(status, Status::Online { .. }));
        match timeout(WORKER_ONLINE, online).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::failed("the local worker does not come online")
                .hint("LEVERS9_LOG=info levers9 dev says why")),
        }
    }

    /// A command as one job here.
    fn job(&self, command: Vec<String>) -> RunSettings {
        RunSettings {
            target: Target {
                address: self.addresses().dial.clone(),
                token: self.token.clone(),
                proxies: Proxies::default(),
            },
            job: v1::SubmitRequest { command, ..v1::SubmitRequest::default() },
            format: Format::Text,
        }
    }

    /// Serves until it is interrupted.
    async fn serve(self, settings: &DevSettings, printer: &mut Printer) -> Result<u8, Error> {
        let mut signals = Signals::listen()?;
        let default = self.become_default(settings)?;
        self.greet(default, printer)?;
        let signal = signals.next().await;
        let again = async { signals.next().await.exit_code() };
        printer.note("stopping: running jobs have 10 s; interrupt again to leave at once");
        tokio::select! {
            () = self.stop(printer) => Ok(if signal == crate::signals::Signal::Interrupt { 0 } else { signal.exit_code() }),
            code = again => Ok(code),
        }
    }

    /// Makes this the user's default context when there is none, or when the
    /// one there is was made by an earlier run of this.
    fn become_default(&self, settings: &DevSettings) -> Result<bool, Error> {
        let Some(store) = &settings.store else { return Ok(false) };
        store.change(|contexts| {
            let mine = contexts.get(DEFAULT).is_some_and(|context| context.section.token == self.token);
            if contexts.has_default() && !mine {
                return Ok(false);
            }
            contexts.put(DEFAULT, &self.context());
            contexts.select(DEFAULT);
            Ok(true)
        })
    }

    fn greet(&self, default: bool, printer: &mut Printer) -> Result<(), Error> {
        let Addresses { dial, quic, grpc, http } = self.addresses();
        let plain = |address: &SocketAddr| address.to_string();
        printer.line("levers9 dev is ready: a controlplane and one local worker on this machine.")?;
        printer.line("")?;
        printer.pairs(&[
            ("QUIC", format!("{} (UDP)", plain(quic))),
            ("gRPC", plain(grpc)),
            ("HTTP", format!("http://{http}/healthz")),
            ("address", dial.to_string()),
        ])?;
        printer.line("")?;
        if !default {
            printer.line("Your default context is another one. To use this one in a shell:")?;
            printer.line(&format!("  {}", self.own.export_line()))?;
            printer.line("")?;
        }
        printer.line("In another terminal, try:")?;
        printer.line("  levers9 run -- echo hello")?;
        printer.line("  levers9 task list")?;
        printer.line("  levers9 run --timeout 1m -- sh -c 'for i in 1 2 3; do echo $i; sleep 1; done'")?;
        printer.line("")?;
        printer.line("Ctrl-C stops it. Jobs run as plain processes of this machine, without isolation.")
    }

    /// Ends the jobs, then the worker, then the controlplane.
    async fn stop(self, printer: &mut Printer) {
        let ended = async {
            self.controlplane.cancel_all("levers9 dev is stopping").await?;
            while self.controlplane.live_tasks().await? > 0 {
                sleep(Duration::from_millis(20)).await;
            }
            Ok::<_, StoreError>(())
        };
        match timeout(GRACE + Duration::from_secs(2), ended).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => printer.note(&format!("jobs could not be ended: {error}")),
            Err(_) => printer.note("some jobs did not end in time"),
        }
        let worker = self.worker;
        let shutdown = self.thread.handle().spawn(async { worker.shutdown(Duration::from_secs(1)).await });
        for container in shutdown.await.unwrap_or_default() {
            printer.note(&format!("container {container} did not end in time"));
        }
        for late in self.controlplane.shutdown(CancellationToken::new()).await {
            printer.note(&format!("{late} did not end in time"));
        }
    }
}

fn stop(runtime: &Runtime, dev: Dev, printer: &mut Printer) {
    runtime.block_on(dev.stop(printer));
}

fn config(settings: &DevSettings) -> Result<Config, Error> {
    let values = Values {
        quic: settings.quic,
        grpc: settings.grpc,
        http: settings.http,
        names: names(settings.quic),
        ..Values::in_folder(&settings.data)
    };
    Config::new(values).map_err(|e| Error::failed("levers9 dev cannot be set up").because(e))
}

/// The names of the certificate; the first is what is dialed.
fn names(quic: SocketAddr) -> Vec<String> {
    let mut names = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "::1".to_owned()];
    let own = quic.ip().to_string();
    if !quic.ip().is_unspecified() && !names.contains(&own) {
        names.insert(0, own);
    } else if quic.ip().is_ipv6() && quic.ip().is_loopback() {
        names.rotate_right(1);
    }
    names
}

fn start_error(error: StartError) -> Error {
    let hint = error.hint();
    let error = Error::failed(error.to_string());
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

fn make_private(folder: &Path) -> Result<(), Error> {
    crate::files::private_folder(folder, false)
        .map_err(|e| Error::failed(format!("cannot make the folder {}", folder.display())).because(e))
}

/// The admin token: made with the first workspace, then kept in the folder.
async fn token(controlplane: &Controlplane, own: &Store) -> Result<Secret, Error> {
    let failed = |e: StoreError| Error::failed("cannot make a token").because(e);
    if let Some(first) = controlplane.first_token().await.map_err(failed)? {
        return Ok(first);
    }
    if let Some(context) = own.load()?.get(CONTEXT)
        && controlplane.knows(&context.section.token).await.map_err(failed)?
    {
        return Ok(context.section.token);
    }
    controlplane.mint(TokenKind::Admin).await.map_err(failed)
}

async fn start_worker(
    controlplane: &Controlplane,
    settings: &DevSettings,
    thread: &TransportThread,
) -> Result<Worker, Error> {
    let data = settings.data.join("worker");
    let state = settings.data.join("worker-state");
    // A worker that was enrolled before keeps its identity.
    let enrolment = if Worker::has_token(&state) {
        None
    } else {
        let minted = controlplane.mint(TokenKind::Enrolment).await;
        Some(minted.map_err(|e| Error::failed("cannot enroll the local worker").because(e))?)
    };
    let mut containers = levers9_worker::Config::new(data, facts::measure("process", "", Gpus::default()));
    if !settings.command.is_empty() {
        containers.workdir = Some(here()?);
    }
    let worker = Worker::start(WorkerSettings {
        address: controlplane.addresses().dial.clone(),
        token: enrolment,
        state: Some(state),
        containers,
        process: levers9_worker::runtime::Settings::default(),
        tuning: levers9_worker::session::tuning(),
        proxies: Proxies::default(),
    });
    let failed = |e: Box<dyn std::error::Error + Send + Sync>| {
        Error::failed("the local worker cannot be started").because(e)
    };
    match thread.handle().spawn(worker).await {
        Ok(started) => started.map_err(|e: WorkerError| failed(e.into())),
        Err(panicked) => Err(failed(panicked.into())),
    }
}

fn here() -> Result<PathBuf, Error> {
    std::env::current_dir().map_err(|e| Error::failed("the current folder cannot be used").because(e))
}
