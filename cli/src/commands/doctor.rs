//! `levers9 doctor`: goes the way from here to a worker step by step, and says
//! of the first that fails whose side it is on and what to do.

use std::time::Duration;

use levers9_transport::dial::{DialError, Dialer};
use levers9_transport::quic::{Endpoint, Probe as Silence, Settings, speaks_quic};
use levers9_transport::tcp::Fallback;
use levers9_transport::trust::Shown;
use levers9_wire::name::printable;
use levers9_wire::quantity::show_duration;
use levers9_wire::v1::{self, call_open::Request};
use levers9_wire::{BUILD, ContainerId};
use serde::Serialize;
use tokio::time::{Instant, timeout};

use super::expect_answer;
use crate::args::Format;
use crate::client::{Client, Patience, block_on};
use crate::error::Error;
use crate::exit;
use crate::printer::Printer;
use crate::probe::{Probe, percentile};
use crate::settings::{DoctorSettings, Target};
use crate::view::with_carrier;

/// How long a step may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Streams opened to see what one takes.
const PINGS: usize = 20;

/// Whose side a failure is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    ThisMachine,
    Network,
    Controlplane,
    Token,
    Worker,
}

impl Side {
    fn words(self) -> &'static str {
        match self {
            Self::ThisMachine => "this machine",
            Self::Network => "the network in between",
            Self::Controlplane => "the controlplane",
            Self::Token => "your token or context",
            Self::Worker => "the worker",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    /// It fails, and there is another way.
    Warned,
    Failed,
    Skipped,
}

/// One step of the way.
#[derive(Debug, Serialize)]
struct Step {
    step: &'static str,
    state: State,
    /// What was found.
    detail: String,
    /// How long it took, in milliseconds.
    ms: Option<f64>,
    /// Whose side a failure is on.
    side: Option<Side>,
    hint: Option<String>,
}

/// Why a step failed.
struct Failed {
    detail: String,
    side: Side,
    hint: String,
}

impl Failed {
    fn new(side: Side, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { detail: detail.into(), side, hint: hint.into() }
    }

    fn of(side: Side, error: &Error) -> Self {
        Self::new(side, error.chain(), error.hint_text().unwrap_or_default())
    }
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    ok: bool,
    address: String,
    steps: &'a [Step],
}

/// Runs the command.
///
/// # Errors
/// When the result cannot be printed. What is wrong on the way is its result.
pub fn run(settings: &DoctorSettings, printer: &mut Printer) -> Result<u8, Error> {
    let steps = block_on(async { Ok(examine(&settings.target).await) })?;
    let ok = steps.iter().all(|step| step.state != State::Failed);
    let address = settings.target.address.authority();
    match settings.format {
        Format::Json => printer.json(&Report { ok, address, steps: &steps })?,
        Format::Text => print(&steps, &address, printer)?,
    }
    Ok(if ok { exit::DONE } else { exit::FAILED })
}

fn print(steps: &[Step], address: &str, printer: &mut Printer) -> Result<(), Error> {
    for step in steps {
        let word = match step.state {
            State::Ok => "ok",
            State::Warned => "warn",
            State::Failed => "FAILED",
            State::Skipped => "-",
        };
        let took = step.ms.map(|ms| format!(" ({ms:.1} ms)")).unwrap_or_default();
        printer.line(&format!("{word:6}  {:12}  {}{took}", step.step, step.detail))?;
    }
    let Some(failed) = steps.iter().find(|step| step.state == State::Failed) else {
        let Some(warned) = steps.iter().find(|step| step.state == State::Warned) else {
            return printer.line(&format!("All is well between here and {address}."));
        };
        printer.line("")?;
        printer.line(&format!("It works between here and {address}, without {}.", warned.step))?;
        return match &warned.hint {
            Some(hint) => printer.line(&format!("hint: {hint}")),
            None => Ok(()),
        };
    };
    let side = failed.side.map_or("unknown", Side::words);
    printer.line("")?;
    printer.line(&format!("The trouble is on the side of {side}."))?;
    match &failed.hint {
        Some(hint) => printer.line(&format!("hint: {hint}")),
        None => Ok(()),
    }
}

/// The steps in their order.
const STEPS: [&str; 8] = ["resolve", "udp", "tcp", "certificate", "session", "ping", "stream", "worker"];

/// Goes the way until a step fails; what comes after it is skipped.
async fn examine(target: &Target) -> Vec<Step> {
    let mut doctor = Doctor { target, steps: Vec::new() };
    let _first_failure = doctor.walk().await;
    for step in &STEPS[doctor.steps.len()..] {
        let detail = "not tried".to_owned();
        doctor.steps.push(Step { step, state: State::Skipped, detail, ms: None, side: None, hint: None });
    }
    doctor.steps
}

struct Doctor<'a> {
    target: &'a Target,
    steps: Vec<Step>,
}

/// A step that failed ends the walk; it is written down already.
struct Ended;

impl Doctor<'_> {
    /// Writes down what became of the next step.
    fn note<T>(&mut self, began: Instant, found: Result<(T, String), Failed>) -> Result<T, Ended> {
        let step = STEPS[self.steps.len().min(STEPS.len() - 1)];
        let ms = Some(began.elapsed().as_secs_f64() * 1_000.0);
        match found {
            Ok((value, detail)) => {
                self.steps.push(Step { step, state: State::Ok, detail, ms, side: None, hint: None });
                Ok(value)
            }
            Err(failed) => {
                self.push(step, State::Failed, failed, ms);
                Err(Ended)
            }
        }
    }

    /// The same of a step without which it goes on.
    fn note_either<T>(&mut self, began: Instant, found: Result<(T, String), Failed>) -> Option<T> {
        let step = STEPS[self.steps.len().min(STEPS.len() - 1)];
        let ms = Some(began.elapsed().as_secs_f64() * 1_000.0);
        match found {
            Ok(found) => self.note(began, Ok(found)).ok(),
            Err(failed) => {
                self.push(step, State::Warned, failed, ms);
                None
            }
        }
    }

    fn push(&mut self, step: &'static str, state: State, failed: Failed, ms: Option<f64>) {
        let Failed { detail, side, hint } = failed;
        let (side, hint) = (Some(side), Some(hint).filter(|hint| !hint.is_empty()));
        self.steps.push(Step { step, state, detail, ms, side, hint });
    }

    async fn walk(&mut self) -> Result<(), Ended> {
        let fallback = Fallback::default().with_proxies(self.target.proxies.clone());
        let dialer = Dialer::new(self.target.address.clone()).with_fallback(fallback);
        let began = Instant::now();
        let addresses = dialer.addresses().await;
        let shown = |addresses: &[std::net::SocketAddr]| {
            addresses.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ")
        };
        let found = match addresses {
            Ok(addresses) => {
                let detail = format!("{} is {}", self.target.address.host, shown(&addresses));
                Ok((addresses, detail))
            }
            Err(error) => Err(dial_failed(Side::ThisMachine, &error)),
        };
        let addresses = self.note(began, found)?;
        let began = Instant::now();
        let found = answering(&addresses).await;
        let udp = self.note_either(began, found);
        let at = self.steps.len() - 1;
        let began = Instant::now();
        let found = over_tcp(&dialer, &addresses).await;
        let tcp = match udp {
            Some(_) => self.note_either(began, found),
            None => {
                if found.is_err() {
                    // There is no other way after all.
                    self.steps[at].state = State::Failed;
                }
                Some(self.note(began, found)?)
            }
        };
        let began = Instant::now();
        let found = match udp {
            Some(address) => certificate(&dialer, address).await,
            None => Ok(((), tcp.unwrap_or_default())),
        };
        self.note(began, found)?;
        let began = Instant::now();
        let found = session(self.target).await;
        let client = self.note(began, found)?;
        let walked = self.inside(&client).await;
        client.close().await;
        walked
    }

    /// What a session can tell.
    async fn inside(&mut self, client: &Client) -> Result<(), Ended> {
        let began = Instant::now();
        let found = pings(client).await;
        self.note(began, found)?;
        let began = Instant::now();
        let found = streams(&Probe::new(client.clone(), None), Side::Controlplane).await;
        self.note(began, found)?;
        let began = Instant::now();
        let found = worker(client).await;
        self.note(began, found)
    }
}

fn dial_failed(side: Side, error: &DialError) -> Failed {
    Failed::new(side, error.to_string(), error.hint().unwrap_or_default())
}

/// The first address where something speaks QUIC.
async fn answering(addresses: &[std::net::SocketAddr]) -> Result<(std::net::SocketAddr, String), Failed> {
    let mut silence = Silence::Silent;
    for address in addresses {
        match speaks_quic(*address).await {
            Ok(_) => return Ok((*address, format!("UDP {address} speaks QUIC"))),
            Err(why) => silence = why,
        }
    }
    let at = addresses.first().map(ToString::to_string).unwrap_or_default();
    Err(match silence {
        Silence::NothingListening => Failed::new(
            Side::Controlplane,
            format!("nothing is listening on UDP {at}"),
            "is the controlplane running there, and is this its QUIC port?",
        ),
        Silence::Unreachable => Failed::new(
            Side::ThisMachine,
            format!("this machine has no way to {at}"),
            "check its network, VPN and routes",
        ),
        Silence::Silent => Failed::new(
            Side::Network,
            format!("no answer from UDP {at}"),
            "a firewall on the way drops UDP, or the host is down: allow outbound UDP to this port",
        ),
    })
}

/// Whether it can be reached by TCP, or else through a proxy, and what
/// certificate is shown there.
async fn over_tcp(dialer: &Dialer, addresses: &[std::net::SocketAddr]) -> Result<(String, String), Failed> {
    let endpoint = endpoint()?;
    let mut problem = None;
    for address in addresses {
        let examined = timeout(PATIENCE, dialer.examine_tcp(&endpoint, *address)).await;
        let Ok((shown, connected)) = examined else {
            let words = format!("the handshake with TCP {address} did not end in {} s", PATIENCE.as_secs());
            problem = Some(Failed::new(Side::Network, words, "something on the way holds TCP up"));
            continue;
        };
        match connected {
            Ok(carrier) => {
                carrier.close(v1::ResetCode::Done, "");
                let about = shown.as_ref().map_or_else(|| "believed".to_owned(), describe);
                return Ok((about, format!("TCP {address} speaks TLS")));
            }
            Err(error) => {
                let side = if matches!(error, DialError::Trust(_)) { Side::Token } else { Side::Network };
                problem = Some(dial_failed(side, &error));
            }
        }
    }
    if let Ok(Some((proxy, shown, connected))) = timeout(PATIENCE, dialer.examine_proxy(&endpoint)).await {
        match connected {
            Ok(carrier) => {
                carrier.close(v1::ResetCode::Done, "");
                let about = shown.as_ref().map_or_else(|| "believed".to_owned(), describe);
                return Ok((about, format!("the proxy {proxy} leads there")));
            }
            Err(error) => problem = Some(dial_failed(Side::Network, &error)),
        }
    }
    Err(problem.unwrap_or_else(|| Failed::new(Side::ThisMachine, "there is no address", "")))
}

fn endpoint() -> Result<Endpoint, Failed> {
    Endpoint::dialing(&Settings::default()).map_err(|error| {
        Failed::new(Side::ThisMachine, format!("cannot open a UDP socket: {error}"), "is UDP allowed here?")
    })
}

async fn certificate(dialer: &Dialer, address: std::net::SocketAddr) -> Result<((), String), Failed> {
    let endpoint = endpoint()?;
    let examined = timeout(PATIENCE, dialer.examine(&endpoint, address)).await;
    let Ok((shown, connected)) = examined else {
        let detail = format!("the handshake with {address} did not end in {} s", PATIENCE.as_secs());
        return Err(Failed::new(
            Side::Network,
            detail,
            "something on the way lets only small packets through?",
        ));
    };
    let about = shown.as_ref().map(describe);
    match connected {
        Ok(carrier) => {
            carrier.close(v1::ResetCode::Done, "");
            Ok(((), about.unwrap_or_else(|| "believed".to_owned())))
        }
        Err(error) => {
            let side = if matches!(error, DialError::Trust(_)) { Side::Token } else { Side::Controlplane };
            Err(dial_failed(side, &error))
        }
    }
}

fn describe(shown: &Shown) -> String {
    let now = i64::try_from(levers9_wire::clock::unix_millis() / 1_000).unwrap_or(i64::MAX);
    let left = u64::try_from(shown.expires_unix_s - now).unwrap_or_default();
    format!(
        "issued by {}, for {}, good for another {}",
        printable(&shown.issuer, 100),
        printable(&shown.names, 200),
        show_duration(Duration::from_secs(left / 60 * 60)),
    )
}

/// A session: both speak one protocol, and the token is good.
async fn session(target: &Target) -> Result<(Client, String), Failed> {
    let client = Client::connect(target).await.map_err(|error| Failed::of(Side::Token, &error))?;
    let welcome = client.session(Patience::Within(PATIENCE)).await;
    let welcome = welcome.map_err(|error| Failed::of(Side::Controlplane, &error))?;
    let detail = format!(
        "levers9 {BUILD} here, {} there; a token of kind {} of workspace {}",
        printable(&welcome.build, 64),
        printable(&welcome.token_kind, 32),
        printable(&welcome.workspace_name, 64),
    );
    let detail = match client.carrier() {
        Some(carrier) => with_carrier(&detail, carrier.kind().word(), &printable(&carrier.why(), 200)),
        None => detail,
    };
    Ok((client, detail))
}

/// What the connection itself measures.
async fn pings(client: &Client) -> Result<((), String), Failed> {
    let probe = Probe::new(client.clone(), None);
    for _ in 0..PINGS / 4 {
        probe.ping().await.map_err(|error| Failed::of(Side::Controlplane, &error))?;
    }
    let lost = || Failed::new(Side::Network, "the session was lost at once", "try again");
    let carrier = client.carrier().ok_or_else(lost)?;
    let ((sent, lost), rtt, mtu) = (carrier.packets(), carrier.rtt(), carrier.mtu());
    let ms = rtt.as_secs_f64() * 1_000.0;
    if carrier.kind().is_fallback() {
        // The system keeps TCP's packets to itself.
        return Ok(((), format!("round trip {ms:.2} ms")));
    }
    Ok(((), format!("round trip {ms:.2} ms, {lost} of {sent} packets lost, packets of {mtu} bytes")))
}

/// Streams that are opened and answered.
async fn streams(probe: &Probe, side: Side) -> Result<((), String), Failed> {
    let mut took = Vec::new();
    for _ in 0..PINGS {
        took.push(probe.ping().await.map_err(|error| Failed::of(side, &error))?.0);
    }
    took.sort_unstable();
    let ms = |percent| percentile(&took, percent).as_secs_f64() * 1_000.0;
    Ok(((), format!("opened and answered in {:.2} ms (median), {:.2} ms (worst)", ms(50), ms(100))))
}

/// A stream on to a worker, where there is something to open it to.
async fn worker(client: &Client) -> Result<((), String), Failed> {
    let failed = |error: Error| Failed::of(Side::Controlplane, &error);
    let ask = |request| client.call(request, Patience::Within(PATIENCE));
    let workers =
        expect_answer!(ask(Request::WorkerList(v1::WorkerListRequest {})).await.map_err(failed)?, WorkerList)
            .map_err(failed)?
            .workers;
    let ready: Vec<_> = workers.iter().filter(|worker| worker.state == "ready").collect();
    if ready.is_empty() {
        let detail = format!("none of {} workers is connected", workers.len());
        return Err(Failed::new(
            Side::Worker,
            detail,
            "levers9 worker list shows them; enroll one: levers9 worker enroll",
        ));
    }
    let listed = ask(Request::ContainerList(v1::ContainerListRequest { all: false })).await;
    let containers = expect_answer!(listed.map_err(failed)?, ContainerList).map_err(failed)?.containers;
    let running = containers.iter().find(|container| container.state == "running");
    let id = running.and_then(|container| ContainerId::try_from(container.id.as_slice()).ok());
    let Some(id) = id else {
        let rtt = ready.iter().map(|worker| worker.rtt_us).filter(|us| *us > 0).min().unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a ping")]
        let ms = rtt as f64 / 1_000.0;
        let count = ready.len();
        return Ok((
            (),
            format!("{count} connected, ping {ms:.2} ms; no container runs to open a stream to"),
        ));
    };
    let ((), detail) = streams(&Probe::new(client.clone(), Some(id)), Side::Worker).await?;
    Ok(((), format!("{} connected; a stream to the one of container {id}: {detail}", ready.len())))
}
