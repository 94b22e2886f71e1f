//! What a carrier is tuned to, and why. The numbers come from measurements on
//! the machines levers9 is built on; each can be set by an operator within
//! bounds that keep a connection working.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt, congestion};

/// How fast a sender may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Congestion {
    /// By the peer's address: `Cubic` on loopback and private networks, `Bbr` elsewhere.
    #[default]
    Auto,
    /// Cheapest on a clean, short path; collapses at 1 % loss over 50 ms.
    Cubic,
    /// Holds its rate and latency under loss; costs about 10 % CPU on a clean path.
    Bbr,
}

/// The tuning of one side.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Streams the peer may have open at once. Each costs 68 bytes up front, so
    /// this is what most sessions need; [`super::Carrier::permit_streams`] raises it.
    pub max_streams: u32,
    /// What one stream may have in flight, in bytes.
    pub stream_window: u32,
    /// What the connection starts with, in bytes; it follows the path from there.
    pub window: u32,
    /// What the connection's window may grow to, in bytes.
    pub window_max: u32,
    /// What may wait to be sent or acknowledged, in bytes.
    pub send_window: u64,
    /// The first packet size, in bytes.
    pub initial_mtu: u16,
    /// The largest packet size looked for, in bytes.
    pub mtu_max: u16,
    /// Kernel buffers of the socket, in bytes.
    pub socket_buffer: usize,
    /// A silent connection is given up after this, as a backstop below the session's own timer.
    pub idle_timeout: Duration,
    /// The dialer sends something at least this often, to keep NAT mappings.
    pub keep_alive: Duration,
    /// The first guess of the round-trip time.
    pub initial_rtt: Duration,
    /// Which congestion controller.
    pub congestion: Congestion,
    /// Let the kernel split large sends.
    pub segmentation_offload: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_streams: 64,
            stream_window: 4 << 20,
            window: 1 << 20,
            window_max: 16 << 20,
            send_window: 8 << 20,
            initial_mtu: 1200,
            mtu_max: 1452,
            socket_buffer: 4 << 20,
            idle_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(15),
            initial_rtt: Duration::from_millis(100),
            congestion: Congestion::Auto,
            segmentation_offload: true,
        }
    }
}

/// Why settings are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSettings {
    /// Ten packets of this size exceed what the kernel takes in one send.
    #[error("mtu {0} is above 6550: with segmentation offload on, such packets are never sent")]
    Mtu(u16),
    /// QUIC requires 1200.
    #[error("mtu {0} is below 1200, the least that QUIC allows")]
    MtuSmall(u16),
    /// Pings could not keep the connection.
    #[error("idle timeout {0:?} is too short: pings every third of it need at least 3 s")]
    Idle(Duration),
}

impl Settings {
    /// Checks what would silently not work.
    ///
    /// # Errors
    /// With the setting and its bound.
    pub fn check(&self) -> Result<(), BadSettings> {
        let mtu = self.mtu_max.max(self.initial_mtu);
        if self.segmentation_offload && mtu > 6550 {
            return Err(BadSettings::Mtu(mtu));
        }
        if self.initial_mtu.min(self.mtu_max) < 1200 {
            return Err(BadSettings::MtuSmall(self.initial_mtu.min(self.mtu_max)));
        }
        if self.idle_timeout < Duration::from_secs(3) {
            return Err(BadSettings::Idle(self.idle_timeout));
        }
        Ok(())
    }

    /// How often to ping a peer: every 15 s, or a third of a shorter idle timeout.
    #[must_use]
    pub fn ping_interval(&self) -> Duration {
        crate::session::PING_EVERY.min(self.idle_timeout / 3)
    }

    fn congestion_for(&self, distance: Distance) -> Congestion {
        match (self.congestion, distance) {
            (Congestion::Auto, Distance::Near) => Congestion::Cubic,
            (Congestion::Auto, Distance::Far) => Congestion::Bbr,
            (chosen, _) => chosen,
        }
    }

    /// The QUIC library's form of it, for peers at a distance.
    pub(super) fn transport(&self, distance: Distance, dialer: bool) -> Arc<TransportConfig> {
        let mut config = TransportConfig::default();
        config
            .max_concurrent_bidi_streams(self.max_streams.into())
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .stream_receive_window(self.stream_window.into())
            .receive_window(self.window.into())
            .send_window(self.send_window)
            .initial_mtu(self.initial_mtu)
            .initial_rtt(self.initial_rtt)
            .enable_segmentation_offload(self.segmentation_offload)
            .datagram_receive_buffer_size(None)
            .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok())
            .keep_alive_interval(dialer.then(|| self.keep_alive.min(self.idle_timeout / 3)));
        let mut mtu = MtuDiscoveryConfig::default();
        mtu.upper_bound(self.mtu_max);
        config.mtu_discovery_config(Some(mtu));
        // The window must hold ten packets whatever their size.
        let initial_window = (10 * u64::from(self.mtu_max)).max(14_720);
        match self.congestion_for(distance) {
            Congestion::Bbr => {
                let mut bbr = congestion::BbrConfig::default();
                bbr.initial_window(initial_window.max(200 * 1200));
                config.congestion_controller_factory(Arc::new(bbr));
            }
            Congestion::Cubic | Congestion::Auto => {
                let mut cubic = congestion::CubicConfig::default();
                cubic.initial_window(initial_window);
                config.congestion_controller_factory(Arc::new(cubic));
            }
        }
        Arc::new(config)
    }
}

/// How far away a peer is, as far as its address tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Distance {
    /// On this machine or a private network.
    Near,
    /// Anywhere else.
    Far,
}

impl Distance {
    pub(super) fn of(peer: IpAddr) -> Self {
        let near = match peer.to_canonical() {
            IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
        };
        if near { Self::Near } else { Self::Far }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_would_silently_hang() {
        let with = |mtu_max| Settings { mtu_max, ..Settings::default() };
        assert_eq!(with(6550).check(), Ok(()));
        assert_eq!(with(6551).check(), Err(BadSettings::Mtu(6551)));
        assert!(Settings { segmentation_offload: false, ..with(8900) }.check().is_ok());
        let idle = Settings { idle_timeout: Duration::from_secs(1), ..Settings::default() };
        assert_eq!(idle.check(), Err(BadSettings::Idle(Duration::from_secs(1))));
    }

    #[test]
    fn pings_at_a_third_of_a_short_idle_timeout() {
        let short = Settings { idle_timeout: Duration::from_secs(9), ..Settings::default() };
        assert_eq!(short.ping_interval(), Duration::from_secs(3));
        assert_eq!(Settings::default().ping_interval(), Duration::from_secs(15));
    }

    #[test]
    fn near_and_far_peers_get_their_own_congestion_control() {
        let of = |peer: &str| Settings::default().congestion_for(Distance::of(peer.parse().unwrap()));
        assert_eq!(of("10.1.2.3"), Congestion::Cubic);
        assert_eq!(of("::ffff:127.0.0.1"), Congestion::Cubic);
        assert_eq!(of("203.0.113.9"), Congestion::Bbr);
    }
}
