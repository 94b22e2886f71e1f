//! Where a controlplane is and whom to trust there, as one line:
//! `levers9://host:443#sha256:…`. Contexts, manifests and a worker's command
//! carry it. A pin is the SHA-256 of a CA's public key; without pins the
//! platform's roots decide.

use std::fmt;
use std::str::FromStr;

/// The port when none is written.
pub const DEFAULT_PORT: u16 = 443;
const SCHEME: &str = "levers9://";
const PIN: &str = "sha256:";
/// Two during a rotation, with room to spare.
const MAX_PINS: usize = 8;

/// The SHA-256 of a CA's public key (its DER SubjectPublicKeyInfo).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pin(pub [u8; 32]);

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PIN)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Who may vouch for a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// The platform's roots.
    System,
    /// A CA with one of these keys, and nothing else.
    Pins(Vec<Pin>),
}

/// Where to dial and whom to trust there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// A DNS name or an IP address, without brackets.
    pub host: String,
    /// The port, of UDP and of TCP.
    pub port: u16,
    /// Who may vouch for it.
    pub trust: Trust,
}

/// Why text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Another scheme or none.
    #[error("{0:?} is not a levers9 address; they look like levers9://host:443#sha256:…")]
    Scheme(String),
    /// No host, or one with characters that no host has.
    #[error("{0:?} has no usable host")]
    Host(String),
    /// The port is no number from 1 to 65535.
    #[error("port {0:?} is not a number from 1 to 65535")]
    Port(String),
    /// A pin is not `sha256:` and 64 hexadecimal digits.
    #[error("pin {0:?} is not sha256: followed by 64 hexadecimal digits")]
    Pin(String),
}

impl Address {
    /// The host and port as people write them.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.authority())?;
        if let Trust::Pins(pins) = &self.trust {
            for (index, pin) in pins.iter().enumerate() {
                write!(f, "{}{pin}", if index == 0 { '#' } else { ',' })?;
            }
        }
        Ok(())
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let text = text.trim();
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| BadAddress::Scheme(short(text)))?;
        let (authority, fragment) = match rest.split_once('#') {
            Some((authority, fragment)) => (authority, Some(fragment)),
            None => (rest, None),
        };
        let (host, port) = split_authority(authority.strip_suffix('/').unwrap_or(authority))?;
        let trust = match fragment {
            None => Trust::System,
            Some(pins) => Trust::Pins(parse_pins(pins)?),
        };
        Ok(Self { host, port, trust })
    }
}

fn split_authority(authority: &str) -> Result<(String, u16), BadAddress> {
    let bad = || BadAddress::Host(short(authority));
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or_else(bad)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
            match (after, after.strip_prefix(':')) {
                ("", _) => (host, None),
                (_, Some(port)) => (host, Some(port)),
                _ => return Err(bad()),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let usable = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
    if host.is_empty() || host.len() > 253 || !host.chars().all(usable) {
        return Err(bad());
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(text) => text.parse().ok().filter(|p| *p != 0).ok_or_else(|| BadAddress::Port(short(text)))?,
    };
    Ok((host.to_owned(), port))
}

fn parse_pins(text: &str) -> Result<Vec<Pin>, BadAddress> {
    let pins: Vec<Pin> = text.split(',').map(parse_pin).collect::<Result<_, _>>()?;
    if pins.len() > MAX_PINS { Err(BadAddress::Pin(format!("{} pins", pins.len()))) } else { Ok(pins) }
}

fn parse_pin(text: &str) -> Result<Pin, BadAddress> {
    let bad = || BadAddress::Pin(short(text));
    let digits = text.strip_prefix(PIN).filter(|d| d.len() == 64 && d.is_ascii()).ok_or_else(bad)?;
    let mut pin = [0u8; 32];
    for (index, byte) in pin.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).map_err(|_| bad())?;
    }
    Ok(Pin(pin))
}

fn short(text: &str) -> String {
    levers9_wire::name::printable(text, 80)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_it_writes() {
        let pin = "a1".repeat(32);
        for text in [
            "levers9://example.org:443".to_owned(),
            format!("levers9://127.0.0.1:4433#sha256:{pin}"),
            format!("levers9://[::1]:4433#sha256:{pin},sha256:{pin}"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("levers9://host".parse::<Address>().unwrap().port, 443);
    }

    #[test]
    fn says_which_part_is_wrong() {
        let of = |text: &str| text.parse::<Address>().unwrap_err().to_string();
        assert!(of("https://host").contains("levers9://host:443"));
        assert!(of("levers9://:443").contains("no usable host"));
        assert!(of("levers9://host:0").contains("\"0\" is not a number from 1 to 65535"));
        assert!(of("levers9://host:65536").contains("65536"));
        assert!(of("levers9://host#sha256:12").contains("64 hexadecimal digits"));
        assert!(of("levers9://ho st").contains("no usable host"));
    }

    proptest! {
        #[test]
        fn never_panics(text in ".{0,200}", fragment in ".{0,80}") {
            let _result = text.parse::<Address>();
            let _result = format!("levers9://h:1#sha256:{fragment}").parse::<Address>();
        }
    }
}
