//! The ways to a controlplane against each other: QUIC to every address at
//! once, TCP after a head start or as soon as QUIC has failed, a proxy last.
//! Gives out carriers as they come about; whoever has a session on one drops
//! the race, and with it what is still under way.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, sleep_until};

use super::{DialError, Dialer};
use crate::carrier::{Carrier, CarrierKind};
use crate::quic::Endpoint;
use crate::trust::Verifier;

/// Head start of each address over the next, and of QUIC over TCP.
const STAGGER: Duration = Duration::from_millis(250);
/// Head start of TCP over a proxy.
const PROXY_AFTER: Duration = Duration::from_secs(1);

/// What came of one way to one address.
struct Tried {
    kind: CarrierKind,
    address: Option<SocketAddr>,
    result: Result<Carrier, DialError>,
}

/// All attempts of one dial.
pub(crate) struct Race<'a> {
    dialer: &'a Dialer,
    endpoint: &'a Endpoint,
    addresses: Vec<SocketAddr>,
    attempts: FuturesUnordered<BoxFuture<'a, Tried>>,
    /// When each other way starts, until it has.
    tcp_at: Option<Instant>,
    proxy_at: Option<Instant>,
    /// Attempts under way: QUIC, TCP and proxy.
    running: [usize; 3],
    /// What became of QUIC, for those who come after it.
    quic: Arc<Mutex<Option<String>>>,
    telling: Option<DialError>,
    others: Vec<String>,
    failed: Vec<SocketAddr>,
    /// Whether the first address answered, or any in vain.
    answered: bool,
}

impl<'a> Race<'a> {
    pub(super) fn new(dialer: &'a Dialer, endpoint: &'a Endpoint, addresses: Vec<SocketAddr>) -> Self {
        let now = Instant::now();
        let target = &dialer.address;
        let fallback = dialer.fallback.as_ref();
        let proxy = fallback.and_then(|fallback| fallback.proxies.proxy_for(&target.host, target.port));
        let mut race = Self {
            dialer,
            endpoint,
            addresses,
            attempts: FuturesUnordered::new(),
            tcp_at: fallback.map(|_| if dialer.udp_goes_first(now) { now + STAGGER } else { now }),
            proxy_at: proxy.map(|_| now + STAGGER + PROXY_AFTER),
            running: [0; 3],
            quic: Arc::default(),
            telling: None,
            others: Vec::new(),
            failed: Vec::new(),
            answered: false,
        };
        race.start_quic();
        race
    }

    /// The next carrier, or `None` when no way is left. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Carrier> {
        loop {
            self.hurry();
            if self.attempts.is_empty() && self.tcp_at.is_none() && self.proxy_at.is_none() {
                return None;
            }
            let never = Instant::now() + Duration::from_secs(3600);
            let (tcp_at, proxy_at) = (self.tcp_at.unwrap_or(never), self.proxy_at.unwrap_or(never));
            tokio::select! {
                biased;
                Some(tried) = self.attempts.next() => {
                    if let Some(carrier) = self.tried(tried) {
                        return Some(carrier);
                    }
                }
                () = sleep_until(tcp_at), if self.tcp_at.is_some() => self.start_tcp(),
                () = sleep_until(proxy_at), if self.proxy_at.is_some() => self.start_proxy(),
            }
        }
    }

    /// Whether another way is left beside the carrier that was given out.
    pub(crate) fn has_more(&self) -> bool {
        !self.attempts.is_empty() || self.tcp_at.is_some() || self.proxy_at.is_some()
    }

    /// A carrier that was given out led to no session.
    pub(crate) fn in_vain(&mut self, kind: CarrierKind, error: DialError) {
        self.answered = true;
        self.note(kind, error);
    }

    /// Addresses that did not answer.
    pub(crate) fn failed(&self) -> Vec<SocketAddr> {
        let mut failed = self.failed.clone();
        if failed.is_empty() && !self.answered {
            failed.extend(self.addresses.first());
        }
        failed
    }

    /// Why there is no session: the most telling of all failures.
    pub(crate) async fn verdict(&mut self) -> DialError {
        let udp = match self.telling.take() {
            Some(error) => error,
            None => self.dialer.explain_silence(&self.addresses).await,
        };
        if udp.is_telling() || self.dialer.fallback.is_none() {
            return udp;
        }
        if self.running[1] > 0 {
            self.others.push(format!("no answer from TCP {}", self.dialer.target()));
        }
        if self.others.is_empty() {
            return udp;
        }
        DialError::AllWays { udp: Box::new(udp), others: self.others.join("; ") }
    }

    /// What waits for a way that has failed waits no longer.
    fn hurry(&mut self) {
        let now = Instant::now();
        if self.running[0] == 0 {
            self.tcp_at = self.tcp_at.map(|at| at.min(now));
        }
        if self.running[1] == 0 && self.tcp_at.is_none() {
            self.proxy_at = self.proxy_at.map(|at| at.min(now));
        }
    }

    fn tried(&mut self, Tried { kind, address, result }: Tried) -> Option<Carrier> {
        self.running[kind as usize] -= 1;
        match result {
            Ok(carrier) => {
                self.answered |= address == self.addresses.first().copied();
                Some(carrier)
            }
            Err(error) => {
                if kind == CarrierKind::Quic {
                    self.failed.extend(address);
                }
                self.note(kind, error);
                None
            }
        }
    }

    fn note(&mut self, kind: CarrierKind, error: DialError) {
        if kind == CarrierKind::Quic {
            let mut quic = self.quic.lock().unwrap_or_else(PoisonError::into_inner);
            quic.get_or_insert_with(|| error.to_string());
            drop(quic);
        } else {
            let words = error.to_string();
            if !self.others.contains(&words) {
                self.others.push(words);
            }
        }
        // What else has the TCP port says nothing about UDP.
        let elsewhere = kind != CarrierKind::Quic && matches!(error, DialError::NotLevers9(..));
        if (error.is_telling() && !elsewhere) || (kind == CarrierKind::Quic && self.telling.is_none()) {
            self.telling = Some(error);
        }
    }

    fn start_quic(&mut self) {
        for (address, place) in self.addresses.iter().copied().zip(0u32..) {
            let (dialer, endpoint) = (self.dialer, self.endpoint);
            self.running[0] += 1;
            self.attempts.push(Box::pin(async move {
                sleep(STAGGER * place).await;
                let result = dialer.connect(endpoint, address).await;
                Tried { kind: CarrierKind::Quic, address: Some(address), result }
            }));
        }
    }

    fn start_tcp(&mut self) {
        self.tcp_at = None;
        let Some(fallback) = &self.dialer.fallback else { return };
        for (address, place) in self.addresses.iter().copied().zip(0u32..) {
            let (dialer, endpoint, quic) = (self.dialer, self.endpoint, Arc::clone(&self.quic));
            self.running[1] += 1;
            self.attempts.push(Box::pin(async move {
                sleep(STAGGER * place).await;
                let result = match Verifier::new(&dialer.address.trust) {
                    Err(problem) => Err(DialError::Trust(problem)),
                    Ok(verifier) => {
                        let why = || why(&quic);
                        dialer.connect_tcp(endpoint, fallback, address, &verifier, why).await
                    }
                };
                Tried { kind: CarrierKind::Tcp, address: Some(address), result }
            }));
        }
    }

    fn start_proxy(&mut self) {
        self.proxy_at = None;
        let target = &self.dialer.address;
        let Some(fallback) = &self.dialer.fallback else { return };
        let Some(proxy) = fallback.proxies.proxy_for(&target.host, target.port) else { return };
        let (dialer, endpoint, quic) = (self.dialer, self.endpoint, Arc::clone(&self.quic));
        self.running[2] += 1;
        self.attempts.push(Box::pin(async move {
            let result = match Verifier::new(&dialer.address.trust) {
                Err(problem) => Err(DialError::Trust(problem)),
                Ok(verifier) => {
                    let why = || format!("{}; TCP did not get through", why(&quic));
                    dialer.connect_proxy(endpoint, fallback, proxy, &verifier, why).await
                }
            };
            Tried { kind: CarrierKind::Proxy, address: None, result }
        }));
    }
}

/// Why a session does not ride on QUIC.
fn why(quic: &Mutex<Option<String>>) -> String {
    let quic = quic.lock().unwrap_or_else(PoisonError::into_inner);
    quic.clone().unwrap_or_else(|| "UDP was not answered".to_owned())
}
