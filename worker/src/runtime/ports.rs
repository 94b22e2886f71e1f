//! Who listens where, as `/proc/net/tcp` and `tcp6` say it, and which address
//! leads to a container and to nothing else. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a listening socket.
const LISTEN: &str = "0A";

/// A socket that takes connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listener {
    pub(super) address: IpAddr,
    pub(super) inode: u64,
}

/// The sockets that listen on a port, from the text of one of the files.
pub(super) fn listeners(text: &str, port: u16) -> Vec<Listener> {
    let listener = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (address, listens_on) = fields.next()?.split_once(':')?;
        // State, queues, timer, retransmits, owner and timeout lie between.
        let (state, inode) = (fields.nth(1)?, fields.nth(5)?);
        if state != LISTEN || u16::from_str_radix(listens_on, 16) != Ok(port) {
            return None;
        }
        Some(Listener { address: address_of(address)?, inode: inode.parse().ok()? })
    };
    text.lines().skip(1).filter_map(listener).collect()
}

/// An address as the kernel prints it: words of 32 bits, each in hex and in
/// the machine's own order.
fn address_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(8 * at..8 * at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut bytes = [0; 16];
            bytes.iter_mut().zip(words.into_iter().flatten()).for_each(|(byte, from)| *byte = from);
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

/// What leads to a container's port.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// These addresses, the best first, through this socket.
    Dial {
        /// Where to.
        addresses: Vec<SocketAddr>,
        /// The container's socket.
        inode: u64,
    },
    /// Nobody listens.
    NotListening,
    /// Somebody else listens, or would get the connection.
    NotOwn,
}

/// Chooses an address that nobody but a socket of `own` serves.
pub(super) fn choose(listeners: &[Listener], port: u16, own: impl Fn(u64) -> bool) -> Choice {
    if listeners.is_empty() {
        return Choice::NotListening;
    }
    for listener in listeners.iter().filter(|listener| own(listener.inode)) {
        let safe = targets(listener.address).into_iter().filter(|target| {
            let mut serving = serving(listeners, *target).peekable();
            serving.peek().is_some() && serving.all(|one| own(one.inode))
        });
        let addresses: Vec<_> = safe.map(|target| SocketAddr::new(target, port)).collect();
        if !addresses.is_empty() {
            return Choice::Dial { addresses, inode: listener.inode };
        }
    }
    Choice::NotOwn
}

/// Where a socket that is bound to an address can be reached from here.
fn targets(bound: IpAddr) -> Vec<IpAddr> {
    match bound {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => vec![Ipv4Addr::LOCALHOST.into()],
        // It may take both families, or its own only: nobody tells.
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        one => vec![one],
    }
}

/// The sockets one of which a connection to `target` reaches: those bound to
/// it, else those bound to all addresses.
fn serving(listeners: &[Listener], target: IpAddr) -> impl Iterator<Item = &Listener> {
    let exact = listeners.iter().any(|one| one.address == target);
    listeners.iter().filter(move |one| {
        if exact {
            return one.address == target;
        }
        one.address == Ipv6Addr::UNSPECIFIED || (target.is_ipv4() && one.address == Ipv4Addr::UNSPECIFIED)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernel_s_tables() {
        let four = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 100 0 0 10 0
   2: 00000000:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0
   3: 0100007F:1F40 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 4714 1 0 20 4 30 10 -1
";
        let at = |address: &str, inode| Listener { address: address.parse().unwrap(), inode };
        assert_eq!(listeners(four, 8000), [at("127.0.0.1", 4711), at("0.0.0.0", 4712)]);
        let six = "  sl  local_address remote_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode
   0: 00000000000000000000000001000000:1F40 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1 0
   1: 00000000000000000000000000000000:1F40 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 2 1 0
   2: 0000000000000000FFFF00000100007F:1F40 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 3 1 0
";
        assert_eq!(listeners(six, 8000), [at("::1", 1), at("::", 2), at("127.0.0.1", 3)]);
        assert_eq!(listeners("", 8000), []);
        assert_eq!(listeners("sl\nnonsense\n 1: zz:1F40 x 0A\n", 8000), []);
    }

    fn chosen(listening: &[(&str, u64)], own: &[u64]) -> Result<Vec<String>, Choice> {
        let listeners: Vec<_> = listening
            .iter()
            .map(|(address, inode)| Listener { address: address.parse().unwrap(), inode: *inode })
            .collect();
        match choose(&listeners, 80, |inode| own.contains(&inode)) {
            Choice::Dial { addresses, .. } => Ok(addresses.iter().map(ToString::to_string).collect()),
            other => Err(other),
        }
    }

    #[test]
    fn each_kind_of_listener_is_reached_at_its_place() {
        assert_eq!(chosen(&[], &[]), Err(Choice::NotListening));
        let one = |address: &str| chosen(&[(address, 1)], &[1]).unwrap();
        assert_eq!(one("0.0.0.0"), ["127.0.0.1:80"]);
        assert_eq!(one("::"), ["127.0.0.1:80", "[::1]:80"]);
        assert_eq!(one("127.0.0.3"), ["127.0.0.3:80"]);
        assert_eq!(one("::1"), ["[::1]:80"]);
        assert_eq!(one("10.1.2.3"), ["10.1.2.3:80"]);
    }

    #[test]
    fn nobody_else_gets_the_connection() {
        assert_eq!(chosen(&[("0.0.0.0", 1)], &[]), Err(Choice::NotOwn));
        // Another one is bound more closely, or as closely.
        assert_eq!(chosen(&[("0.0.0.0", 1), ("127.0.0.1", 2)], &[1]), Err(Choice::NotOwn));
        assert_eq!(chosen(&[("0.0.0.0", 1), ("0.0.0.0", 2)], &[1]), Err(Choice::NotOwn));
        assert_eq!(chosen(&[("0.0.0.0", 1), ("::", 2)], &[1]), Err(Choice::NotOwn));
        // The own one is.
        assert_eq!(chosen(&[("0.0.0.0", 1), ("127.0.0.1", 2)], &[2]), Ok(vec!["127.0.0.1:80".into()]));
        assert_eq!(chosen(&[("::", 1), ("127.0.0.1", 2)], &[1]), Ok(vec!["[::1]:80".into()]));
        assert_eq!(chosen(&[("127.0.0.1", 2), ("::1", 1)], &[1]), Ok(vec!["[::1]:80".into()]));
        // Several of its own.
        assert_eq!(chosen(&[("0.0.0.0", 1), ("0.0.0.0", 2)], &[1, 2]), Ok(vec!["127.0.0.1:80".into()]));
    }
}
