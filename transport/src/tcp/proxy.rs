//! HTTP proxies: which one a host needs, by the usual rules of `HTTPS_PROXY`
//! and `NO_PROXY` given as text, and the CONNECT that leads through one. A
//! proxy only sees where to; what is said is encrypted for the other end.
//! Nothing here reads the environment, and no password is ever shown.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::Io;

/// How long a proxy may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is read, in bytes.
const ANSWER: usize = 16 * 1024;
/// Exceptions that are kept.
const EXCEPTIONS: usize = 256;

/// Why text names no proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadProxy {
    /// Another scheme.
    #[error("{0:?} is not a usable proxy; levers9 goes through http://host:port, and only that")]
    Scheme(String),
    /// No host or port.
    #[error("the proxy {0:?} has no usable host and port; they look like http://host:3128")]
    Host(String),
}

/// Why a proxy leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProxyProblem {
    /// 407.
    #[error("the proxy {0} wants a name and a password (407); put them into the proxy's URL")]
    Authentication(String),
    /// Any other no.
    #[error("the proxy {0} refuses: {1}")]
    Refused(String, String),
    /// Nothing for too long.
    #[error("the proxy {0} does not answer")]
    Silent(String),
    /// It ended the connection.
    #[error("the proxy {0} closed the connection")]
    Closed(String),
    /// Something else answers there.
    #[error("{0} does not answer as an HTTP proxy does")]
    NotProxy(String),
    /// It cannot be reached.
    #[error("cannot reach the proxy {0}: {1}")]
    Unreachable(String, String),
}

/// One proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Its name or address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// `name:password`, as given.
    credentials: Option<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&authority(&self.host, self.port))
    }
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl Proxy {
    /// Reads `http://[name:password@]host[:port]`; the scheme may be missing.
    ///
    /// # Errors
    /// When it is no HTTP proxy. The error does not show what may be a password.
    pub fn parse(text: &str) -> Result<Self, BadProxy> {
        let text = text.trim();
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) => return Err(BadProxy::Scheme(shown(&format!("{scheme}://…")))),
            None => text,
        };
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (credentials, host) = match rest.rsplit_once('@') {
            Some((credentials, host)) => (Some(unescape(credentials)), host),
            None => (None, rest),
        };
        let bad = || BadProxy::Host(shown(host));
        let (name, port) = match host.strip_prefix('[') {
            Some(v6) => v6.split_once(']').ok_or_else(bad)?,
            None => match host.split_once(':') {
                Some((name, _)) => (name, &host[name.len()..]),
                None => (host, ""),
            },
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(bad)?,
            None if port.is_empty() => 80,
            None => return Err(bad()),
        };
        let usable = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
        if name.is_empty() || name.len() > 253 || !name.chars().all(usable) {
            return Err(bad());
        }
        Ok(Self { host: name.to_owned(), port, credentials })
    }

    /// Asks it to lead to a host. Cancel safe: dropping it abandons the attempt.
    ///
    /// # Errors
    /// When it does not, in words for the person whose proxy it is.
    pub(crate) async fn lead(&self, io: &mut dyn Io, host: &str, port: u16) -> Result<(), ProxyProblem> {
        let asked = timeout(PATIENCE, self.ask(io, &authority(host, port))).await;
        asked.unwrap_or_else(|_| Err(ProxyProblem::Silent(self.to_string())))
    }

    async fn ask(&self, io: &mut dyn Io, target: &str) -> Result<(), ProxyProblem> {
        let closed = |_| ProxyProblem::Closed(self.to_string());
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(credentials) = &self.credentials {
            let basic = base64::engine::general_purpose::STANDARD.encode(credentials);
            request += &format!("Proxy-Authorization: Basic {basic}\r\n");
        }
        request += "\r\n";
        io.write_all(request.as_bytes()).await.map_err(closed)?;
        io.flush().await.map_err(closed)?;
        let mut answer = Vec::new();
        // Byte by byte: what follows the answer is not ours to take.
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() >= ANSWER {
                return Err(ProxyProblem::NotProxy(self.to_string()));
            }
            match io.read_u8().await {
                Ok(byte) => answer.push(byte),
                Err(_) if answer.is_empty() || answer.starts_with(b"HTTP/1.") => {
                    return Err(ProxyProblem::Closed(self.to_string()));
                }
                Err(_) => return Err(ProxyProblem::NotProxy(self.to_string())),
            }
        }
        self.judge(&String::from_utf8_lossy(&answer))
    }

    fn judge(&self, answer: &str) -> Result<(), ProxyProblem> {
        let line = answer.lines().next().unwrap_or_default();
        let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..)).unwrap_or_default().trim();
        match status.get(..3).and_then(|code| code.parse::<u16>().ok()) {
            Some(200..=299) => Ok(()),
            Some(407) => Err(ProxyProblem::Authentication(self.to_string())),
            Some(_) => Err(ProxyProblem::Refused(self.to_string(), shown(status))),
            None => Err(ProxyProblem::NotProxy(self.to_string())),
        }
    }
}

fn shown(text: &str) -> String {
    levers9_wire::name::printable(text, 80)
}

/// `%40` and its like.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut plain, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let escaped = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match escaped.filter(|_| bytes[at] == b'%') {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// Which hosts are reached through a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    proxy: Option<Proxy>,
    except: Vec<String>,
}

impl Proxies {
    /// By the values of `HTTPS_PROXY` and `NO_PROXY`; either may be empty.
    ///
    /// # Errors
    /// When the first is no proxy.
    pub fn new(https_proxy: &str, no_proxy: &str) -> Result<Self, BadProxy> {
        let proxy = if https_proxy.trim().is_empty() { None } else { Some(Proxy::parse(https_proxy)?) };
        let except = no_proxy.split([',', ' ']).map(str::trim).filter(|one| !one.is_empty());
        Ok(Self { proxy, except: except.map(str::to_ascii_lowercase).take(EXCEPTIONS).collect() })
    }

    /// By an environment, however its names are written. What is no proxy is
    /// logged and leads nowhere: it is the last way that is tried, and no
    /// reason to end before the first.
    #[must_use]
    pub fn of(env: impl Fn(&str) -> Option<String>) -> Self {
        let either = |name: &str| env(name).or_else(|| env(&name.to_ascii_lowercase())).unwrap_or_default();
        Self::new(&either("HTTPS_PROXY"), &either("NO_PROXY")).unwrap_or_else(|error| {
            tracing::warn!(%error, "the proxy in the environment cannot be used");
            Self::default()
        })
    }

    /// The proxy that leads to a host, if any does.
    #[must_use]
    pub fn proxy_for(&self, host: &str, port: u16) -> Option<&Proxy> {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        self.proxy.as_ref().filter(|_| !self.except.iter().any(|one| covers(one, &host, port)))
    }
}

/// Whether an exception is for a host: a name and what is below it, an
/// address, a network, each with or without a port, or `*`.
fn covers(exception: &str, host: &str, port: u16) -> bool {
    if exception == "*" {
        return true;
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        let bare = exception.trim_start_matches('[');
        let bare = bare.strip_suffix(&format!("]:{port}")).unwrap_or(bare).trim_end_matches(']');
        let bare =
            if address.is_ipv4() { bare.strip_suffix(&format!(":{port}")).unwrap_or(bare) } else { bare };
        return in_network(bare, address);
    }
    let exception = match exception.rsplit_once(':') {
        Some((name, only)) if only.parse() == Ok(port) => name,
        Some(_) => return false,
        None => exception,
    };
    let name = exception.trim_start_matches("*.").trim_start_matches('.');
    !name.is_empty() && (host == name || host.strip_suffix(name).is_some_and(|above| above.ends_with('.')))
}

fn in_network(network: &str, address: IpAddr) -> bool {
    let (base, length) = match network.split_once('/') {
        Some((base, length)) => (base, length.parse::<u32>().ok()),
        None => (network, Some(128)),
    };
    let (Ok(base), Some(length)) = (base.parse::<IpAddr>(), length) else { return false };
    let same = |one: u128, other: u128, bits: u32| {
        let rest = bits.saturating_sub(length);
        one.checked_shr(rest) == other.checked_shr(rest)
    };
    match (base, address) {
        (IpAddr::V4(base), IpAddr::V4(one)) => same(u32::from(base).into(), u32::from(one).into(), 32),
        (IpAddr::V6(base), IpAddr::V6(one)) => same(base.into(), one.into(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_proxies_and_never_shows_a_password() {
        let proxy = Proxy::parse("http://me:p%40ss@proxy.corp:3128/").unwrap();
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.corp", 3128));
        assert_eq!(proxy.credentials.as_deref(), Some("me:p@ss"));
        assert_eq!(format!("{proxy} {proxy:?}"), "proxy.corp:3128 Proxy(proxy.corp:3128)");
        assert_eq!(Proxy::parse("proxy").unwrap().port, 80);
        assert_eq!(Proxy::parse("http://[::1]:8080").unwrap().to_string(), "[::1]:8080");
        let error = Proxy::parse("socks5://u:secret@h:1").unwrap_err().to_string();
        assert!(error.contains("socks5") && !error.contains("secret"), "{error}");
        for bad in ["http://u:secret@:1", "http://u:secret@h:0", "http://u:secret@h:x", "http://u:secret@h h"]
        {
            let error = Proxy::parse(bad).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn exceptions_are_names_addresses_and_networks() {
        let through =
            |no: &str, host: &str| Proxies::new("http://p:1", no).unwrap().proxy_for(host, 443).is_some();
        assert!(through("", "cp.example.org"));
        assert!(Proxies::new("", "").unwrap().proxy_for("h", 1).is_none());
        for (no, host) in [
            ("*", "anything"),
            ("example.org", "cp.EXAMPLE.org."),
            (".example.org", "cp.example.org"),
            ("*.example.org,other", "cp.example.org"),
            ("a, example.org:443", "example.org"),
            ("10.0.0.0/8", "10.1.2.3"),
            ("10.1.2.3", "10.1.2.3"),
            ("10.1.2.3:443", "10.1.2.3"),
            ("fd00::/8", "fd12::1"),
            ("[fd12::1]:443", "fd12::1"),
        ] {
            assert!(!through(no, host), "{host} is excepted by {no}");
        }
        for (no, host) in [
            ("example.org", "notexample.org"),
            ("example.org:80", "example.org"),
            ("10.0.0.0/8", "11.1.2.3"),
            ("10.0.0.0/8", "fd12::1"),
            ("0.0.0.0/99", "fd12::1"),
            ("/8,:443,.", "cp"),
        ] {
            assert!(through(no, host), "{host} is not excepted by {no}");
        }
    }

    #[test]
    fn judges_answers() {
        let proxy = Proxy::parse("p:1").unwrap();
        assert_eq!(proxy.judge("HTTP/1.0 200 Connection established\r\n\r\n"), Ok(()));
        let says = |answer: &str| proxy.judge(answer).unwrap_err().to_string();
        assert!(says("HTTP/1.1 407 Who?\r\n\r\n").contains("wants a name and a password (407)"));
        assert_eq!(
            says("HTTP/1.1 403 For\u{1b}bidden\r\n\r\n"),
            "the proxy p:1 refuses: 403 For\\u{1b}bidden"
        );
        assert!(says("SSH-2.0\r\n\r\n").contains("does not answer as an HTTP proxy does"));
    }

    proptest! {
        #[test]
        fn never_panics(proxy in ".{0,60}", no in ".{0,60}", host in ".{0,40}", answer in ".{0,60}") {
            if let Ok(proxies) = Proxies::new(&proxy, &no) {
                let _found = proxies.proxy_for(&host, 443);
            }
            let _judged = Proxy::parse("p:1").unwrap().judge(&answer);
        }
    }
}
