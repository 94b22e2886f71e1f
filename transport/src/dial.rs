//! One attempt to reach a controlplane: resolve, try every address by every
//! way there is, shake hands, and when nothing answers, find out why, in words
//! that name host, port and protocol. Waiting and trying again is
//! [`crate::link`]'s.

mod race;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use levers9_wire::RetryClass;
use levers9_wire::v1::RefuseCode;
use tokio::time::{Instant, timeout, timeout_at};

use crate::address::Address;
use crate::carrier::{Carrier, CarrierKind, Lost};
use crate::quic::{ConnectFailed, Endpoint, Probe, probe};
use crate::tcp::{self, End, Fallback, Io, Proxy};
use crate::trust::{Shown, TrustProblem, Verifier};

pub(crate) use race::Race;

/// How long the resolver may take.
const RESOLVER: Duration = Duration::from_secs(5);
/// How long a proxy may take to take a connection.
const PROXY_CONNECT: Duration = Duration::from_secs(3);
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;
/// How long UDP that did not get through is taken not to.
const BLOCKED_FOR: Duration = Duration::from_secs(600);
/// Names and addresses beside the name that are tried.
const MAX_ALTERNATIVES: usize = 4;

/// Why an attempt did not lead to a session.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DialError {
    /// The name has no address.
    #[error("cannot resolve {host:?}: {problem}")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver says.
        problem: String,
    },
    /// This machine cannot send.
    #[error("cannot open a UDP socket: {0}")]
    Socket(String),
    /// The host answers that no program has the port.
    #[error("nothing is listening on UDP {0}")]
    NothingListening(String),
    /// There is no route.
    #[error("UDP {0} is unreachable from here")]
    Unreachable(String),
    /// No answer at all.
    #[error("no answer from UDP {0}: it is down, or UDP is blocked on the way")]
    Silent(String),
    /// TCP does not get through either.
    #[error("TCP {0}: {1}")]
    Tcp(String, String),
    /// A proxy leads nowhere.
    #[error("{0}")]
    Proxy(tcp::ProxyProblem),
    /// Neither UDP nor any other way leads there.
    #[error("{udp}; {others}")]
    AllWays {
        /// What became of UDP.
        udp: Box<DialError>,
        /// What became of the others, each with its name.
        others: String,
    },
    /// The server is not believed.
    #[error("{0}")]
    Trust(TrustProblem),
    /// Something answers QUIC, but not levers9.
    #[error("{0} is not a levers9 controlplane: {1}")]
    NotLevers9(String, String),
    /// Too many at once there.
    #[error("{0} refuses connections now: it is too busy")]
    Busy(String),
    /// The controlplane says no.
    #[error("{text}")]
    Refused {
        /// What kind of no.
        code: RefuseCode,
        /// Its words.
        text: String,
        /// Where else it says to dial, as host and port.
        alternatives: Vec<String>,
    },
    /// It answered the handshake, then nothing.
    #[error("{0} answered the handshake but not the greeting")]
    NoWelcome(String),
    /// Lost on the way in.
    #[error("connection to {0} lost: {1}")]
    Lost(String, Lost),
}

impl DialError {
    /// Whether trying again can help.
    #[must_use]
    pub fn retry(&self) -> RetryClass {
        match self {
            Self::Refused { code: RefuseCode::Busy, .. } => RetryClass::BackOff,
            Self::Refused { .. } => RetryClass::Fatal,
            _ => RetryClass::BackOff,
        }
    }

    /// Whether it tells more than that nothing answers.
    fn is_telling(&self) -> bool {
        matches!(self, Self::Trust(_) | Self::NotLevers9(..) | Self::Busy(_) | Self::Refused { .. })
    }

    /// Whether the controlplane was not reached at all, as against having said no.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        !matches!(self, Self::Refused { .. })
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Resolve { .. } => "check the address of this context: levers9 config list",
            Self::NothingListening(_) => "is the controlplane running? on this machine: levers9 dev",
            Self::AllWays { udp, .. } if matches!(**udp, Self::Silent(_) | Self::Unreachable(_)) => {
                "levers9 needs outbound UDP or TCP to this port; check firewalls and that the controlplane runs"
            }
            Self::AllWays { udp, .. } => return udp.hint(),
            Self::Silent(_) | Self::Unreachable(_) => {
                "levers9 needs outbound UDP to this port; check firewalls and that the controlplane runs"
            }
            Self::Trust(TrustProblem::WrongPin { .. }) => {
                "the pin in your context is of another CA: get the current address from whoever runs the controlplane"
            }
            Self::Trust(TrustProblem::LeafPinned { .. }) => {
                "get the current address from whoever runs the controlplane"
            }
            Self::Trust(TrustProblem::Expired { .. }) => "the controlplane's certificate has to be renewed",
            Self::Refused { code, .. } => match code {
                RefuseCode::TokenMalformed | RefuseCode::TokenUnknown | RefuseCode::TokenRevoked => {
                    "log in again: levers9 login"
                }
                RefuseCode::Version => "upgrade levers9",
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// Turns names into addresses.
#[async_trait]
pub trait Resolve: Send + Sync + std::fmt::Debug {
    /// Every address of a name.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The system's resolver, asked anew each time.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}

/// Makes attempts with one controlplane.
#[derive(Debug, Clone)]
pub struct Dialer {
    address: Address,
    resolver: Arc<dyn Resolve>,
    probe: bool,
    /// What to do where UDP does not get through.
    fallback: Option<Fallback>,
    /// Addresses that did not answer last time; tried last.
    failed: Vec<SocketAddr>,
    /// Others than those of the name, as host and port; tried first.
    alternatives: Vec<(String, u16)>,
    /// Until when UDP gets no head start: it did not get through lately.
    udp_blocked_until: Option<Instant>,
}

impl Dialer {
    /// A dialer for an address, with the system's resolver.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            resolver: Arc::new(SystemResolver),
            probe: true,
            fallback: None,
            failed: Vec::new(),
            alternatives: Vec::new(),
            udp_blocked_until: None,
        }
    }

    /// With another resolver.
    #[must_use]
    pub fn with_resolver(mut self, resolver: Arc<dyn Resolve>) -> Self {
        self.resolver = resolver;
        self
    }

    /// Without looking for causes through real sockets, for simulated networks.
    #[must_use]
    pub fn without_probe(mut self) -> Self {
        self.probe = false;
        self
    }

    /// Goes by TCP, and through proxies, where UDP does not get through.
    #[must_use]
    pub fn with_fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = Some(fallback);
        self
    }

    /// The same without a fallback.
    pub(crate) fn over_quic_only(&self) -> Self {
        Self { fallback: None, ..self.clone() }
    }

    /// The same to anywhere but where a controlplane stops: to what that names
    /// first, then to the other addresses of the name. What stops comes last,
    /// since its address may be a balancer's.
    pub(crate) fn elsewhere(&self, alternatives: &[String], stops: Option<SocketAddr>) -> Self {
        let split = |text: &String| {
            let (host, port) = text.rsplit_once(':')?;
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Some((host.to_owned(), port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
        };
        let alternatives = alternatives.iter().filter_map(split).take(MAX_ALTERNATIVES).collect();
        Self {
            alternatives,
            failed: stops.map_or_else(|| self.failed.clone(), |stops| vec![stops]),
            ..self.clone()
        }
    }

    /// Whether there are other ways than QUIC.
    pub(crate) fn has_fallback(&self) -> bool {
        self.fallback.is_some()
    }

    /// Whether it dials by real sockets.
    pub(crate) fn is_real(&self) -> bool {
        self.probe
    }

    /// The host and port, for messages.
    #[must_use]
    pub fn target(&self) -> String {
        self.address.authority()
    }

    /// One attempt over all addresses, at most `patience` long. Cancel safe.
    ///
    /// # Errors
    /// With the most telling failure of all addresses.
    pub async fn dial(&mut self, endpoint: &Endpoint, patience: Duration) -> Result<Carrier, DialError> {
        let addresses = self.addresses().await?;
        let mut race = self.race(endpoint, addresses);
        let raced = timeout_at(Instant::now() + patience, race.next()).await;
        let (result, failed) = match raced {
            Ok(Some(carrier)) => (Ok(carrier), race.failed()),
            Ok(None) | Err(_) => (Err(race.verdict().await), race.failed()),
        };
        drop(race);
        self.tried(failed);
        result
    }

    /// Remembers by which way a session came about, or that the network is
    /// another, where nothing is known.
    pub(crate) fn went_by(&mut self, kind: Option<CarrierKind>, now: Instant) {
        let blocked = kind.is_some_and(CarrierKind::is_fallback);
        self.udp_blocked_until = blocked.then(|| now + BLOCKED_FOR);
    }

    /// Whether UDP is to have a head start over TCP.
    pub(crate) fn udp_goes_first(&self, now: Instant) -> bool {
        self.udp_blocked_until.is_none_or(|until| now >= until)
    }

    /// Every way to every address, one after the other as they succeed.
    pub(crate) fn race<'a>(&'a self, endpoint: &'a Endpoint, addresses: Vec<SocketAddr>) -> Race<'a> {
        Race::new(self, endpoint, addresses)
    }

    /// Remembers which addresses did not answer.
    pub(crate) fn tried(&mut self, failed: Vec<SocketAddr>) {
        self.failed = failed;
    }

    /// Every address of the controlplane's name.
    ///
    /// # Errors
    /// When it has none, or the resolver does not say.
    pub async fn addresses(&self) -> Result<Vec<SocketAddr>, DialError> {
        let mut found = Vec::new();
        for (host, port) in &self.alternatives {
            match self.resolve(host, *port).await {
                Ok(more) => found.extend(more),
                Err(error) => tracing::debug!(%error, "an alternative cannot be dialed"),
            }
        }
        match self.resolve(&self.address.host, self.address.port).await {
            Ok(more) => found.extend(more),
            Err(error) if found.is_empty() => return Err(error),
            Err(error) => tracing::debug!(%error, "only alternatives can be dialed"),
        }
        let mut seen = std::collections::HashSet::new();
        found.retain(|address| seen.insert(*address));
        // Stable: what failed last goes last, the rest keeps the resolver's order.
        found.sort_by_key(|address| self.failed.contains(address));
        found.truncate(MAX_ADDRESSES);
        Ok(found)
    }

    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let failed = |problem: String| DialError::Resolve { host: host.to_owned(), problem };
        match timeout(RESOLVER, self.resolver.resolve(host, port)).await {
            Ok(Ok(found)) if found.is_empty() => Err(failed("it has no address".to_owned())),
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed("the resolver does not answer".to_owned())),
        }
    }

    /// One handshake with one address, and what the server showed in it, when
    /// it came to that.
    pub async fn examine(
        &self,
        endpoint: &Endpoint,
        address: SocketAddr,
    ) -> (Option<Shown>, Result<Carrier, DialError>) {
        match Verifier::new(&self.address.trust) {
            Err(problem) => (None, Err(DialError::Trust(problem))),
            Ok(verifier) => {
                let connected = self.connect_with(endpoint, address, &verifier).await;
                (verifier.shown(), connected)
            }
        }
    }

    /// One handshake with one address over TCP, and what the server showed in
    /// it, when it came to that. Without a fallback of the dialer's own this is
    /// the system's TCP.
    pub async fn examine_tcp(
        &self,
        endpoint: &Endpoint,
        address: SocketAddr,
    ) -> (Option<Shown>, Result<Carrier, DialError>) {
        let fallback = self.fallback.clone().unwrap_or_default();
        match Verifier::new(&self.address.trust) {
            Err(problem) => (None, Err(DialError::Trust(problem))),
            Ok(verifier) => {
                let why = || "it was asked for".to_owned();
                let connected = self.connect_tcp(endpoint, &fallback, address, &verifier, why).await;
                (verifier.shown(), connected)
            }
        }
    }

    /// One handshake through the proxy there is for this controlplane: which
    /// one, what was shown beyond it, and what came of it.
    pub async fn examine_proxy(
        &self,
        endpoint: &Endpoint,
    ) -> Option<(Proxy, Option<Shown>, Result<Carrier, DialError>)> {
        let fallback = self.fallback.as_ref()?;
        let proxy = fallback.proxies.proxy_for(&self.address.host, self.address.port)?;
        Some(match Verifier::new(&self.address.trust) {
            Err(problem) => (proxy.clone(), None, Err(DialError::Trust(problem))),
            Ok(verifier) => {
                let why = || "it was asked for".to_owned();
                let connected = self.connect_proxy(endpoint, fallback, proxy, &verifier, why).await;
                (proxy.clone(), verifier.shown(), connected)
            }
        })
    }

    /// One handshake with one address over TCP.
    async fn connect_tcp(
        &self,
        endpoint: &Endpoint,
        fallback: &Fallback,
        address: SocketAddr,
        verifier: &Arc<Verifier>,
        why: impl FnOnce() -> String,
    ) -> Result<Carrier, DialError> {
        let io = fallback.via.connect(address).await;
        let io =
            io.map_err(|error| DialError::Tcp(self.target(), tcp::Unconnected::from(error).to_string()))?;
        self.encrypt(endpoint, fallback, io, address, verifier, CarrierKind::Tcp, why).await
    }

    /// One handshake through a proxy.
    async fn connect_proxy(
        &self,
        endpoint: &Endpoint,
        fallback: &Fallback,
        proxy: &Proxy,
        verifier: &Arc<Verifier>,
        why: impl FnOnce() -> String,
    ) -> Result<Carrier, DialError> {
        let unreachable =
            |words: String| DialError::Proxy(tcp::ProxyProblem::Unreachable(proxy.to_string(), words));
        let found = match proxy.host.parse::<IpAddr>() {
            Ok(ip) => Ok(vec![SocketAddr::new(ip, proxy.port)]),
            Err(_) => timeout(RESOLVER, self.resolver.resolve(&proxy.host, proxy.port))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        };
        let mut last = unreachable("it has no address".to_owned());
        for address in found.map_err(|error| unreachable(error.to_string()))?.into_iter().take(MAX_ADDRESSES)
        {
            let connected = timeout(PROXY_CONNECT, fallback.via.connect(address)).await;
            let mut io = match connected {
                Ok(Ok(io)) => io,
                Ok(Err(error)) => {
                    last = unreachable(error.to_string());
                    continue;
                }
                Err(_) => {
                    last = unreachable("no answer".to_owned());
                    continue;
                }
            };
            proxy.lead(&mut *io, &self.address.host, self.address.port).await.map_err(DialError::Proxy)?;
            return self.encrypt(endpoint, fallback, io, address, verifier, CarrierKind::Proxy, why).await;
        }
        Err(last)
    }

    #[expect(clippy::too_many_arguments, reason = "each is a part of one connection")]
    async fn encrypt(
        &self,
        endpoint: &Endpoint,
        fallback: &Fallback,
        io: Box<dyn Io>,
        peer: SocketAddr,
        verifier: &Arc<Verifier>,
        kind: CarrierKind,
        why: impl FnOnce() -> String,
    ) -> Result<Carrier, DialError> {
        let stream = tcp::encrypt(io, &self.address.host, Arc::clone(verifier)).await;
        let stream = stream.map_err(|error| self.tcp_failed(error, verifier))?;
        let end = End::Dialer(kind, why());
        Ok(tcp::start(stream, end, peer, endpoint.settings(), &fallback.tasks))
    }

    fn tcp_failed(&self, failed: tcp::ConnectFailed, verifier: &Verifier) -> DialError {
        if let Some(problem) = verifier.problem() {
            return DialError::Trust(problem);
        }
        match failed {
            tcp::ConnectFailed::Lost(Lost::Tls(words)) => {
                DialError::NotLevers9(format!("TCP {}", self.target()), words)
            }
            tcp::ConnectFailed::Lost(lost) => DialError::Tcp(self.target(), lost.to_string()),
            tcp::ConnectFailed::Setup(words) => DialError::Tcp(self.target(), words),
        }
    }

    async fn connect(&self, endpoint: &Endpoint, address: SocketAddr) -> Result<Carrier, DialError> {
        let verifier = Verifier::new(&self.address.trust).map_err(DialError::Trust)?;
        self.connect_with(endpoint, address, &verifier).await
    }

    async fn connect_with(
        &self,
        endpoint: &Endpoint,
        address: SocketAddr,
        verifier: &Arc<Verifier>,
    ) -> Result<Carrier, DialError> {
        let connected = endpoint.connect(address, &self.address.host, Arc::clone(verifier)).await;
        let lost = match connected {
            Ok(carrier) => return Ok(carrier),
            Err(ConnectFailed::Setup(problem)) => return Err(DialError::Socket(problem)),
            Err(ConnectFailed::Lost(lost)) => lost,
        };
        if let Some(problem) = verifier.problem() {
            return Err(DialError::Trust(problem));
        }
        Err(match lost {
            Lost::Busy => DialError::Busy(self.target()),
            Lost::TimedOut => self.explain_silence(&[address]).await,
            Lost::Version => DialError::NotLevers9(self.target(), "it speaks another QUIC".to_owned()),
            Lost::Tls(words) => DialError::NotLevers9(self.target(), words),
            lost => DialError::Lost(self.target(), lost),
        })
    }

    async fn explain_silence(&self, addresses: &[SocketAddr]) -> DialError {
        let found = match addresses.first() {
            Some(first) if self.probe => probe(*first).await,
            _ => Probe::Silent,
        };
        match found {
            Probe::NothingListening => DialError::NothingListening(self.target()),
            Probe::Unreachable => DialError::Unreachable(self.target()),
            Probe::Silent => DialError::Silent(self.target()),
        }
    }
}
