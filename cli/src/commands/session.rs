//! `levers9 session show`: how this machine is connected to the controlplane.

use levers9_wire::limits;
use levers9_wire::name::printable;
use serde::Serialize;

use crate::client::{CONNECT, Client, Patience, block_on};
use crate::error::Error;
use crate::exit;
use crate::printer::{Listing, Printer};
use crate::settings::SessionSettings;
use crate::view::{id_text, rtt};

/// A session of this command's own.
#[derive(Debug, Serialize)]
struct SessionView {
    /// Its id.
    id: String,
    /// What it rides on: quic, tcp or proxy.
    carrier: &'static str,
    /// Why it is no better one; empty for quic.
    carrier_why: String,
    /// The address at the other end.
    peer: String,
    /// The round trip in microseconds, as the connection measured it.
    rtt_us: u64,
    /// The controlplane's version.
    build: String,
    /// The workspace of the token; empty for an admin's without one.
    workspace: String,
}

impl Listing for SessionView {
    const HEADS: &'static [&'static str] =
        &["SESSION", "CARRIER", "PEER", "RTT", "BUILD", "WORKSPACE", "WHY"];
    const OPTIONAL: &'static [&'static str] = &["WHY"];

    fn cells(&self, _now: u64) -> Vec<String> {
        vec![
            self.id.clone(),
            self.carrier.to_owned(),
            self.peer.clone(),
            rtt(self.rtt_us),
            self.build.clone(),
            self.workspace.clone(),
            self.carrier_why.clone(),
        ]
    }
}

/// Runs the command.
///
/// # Errors
/// When there is no session to be had.
pub fn run(settings: &SessionSettings, printer: &mut Printer) -> Result<u8, Error> {
    let view = block_on(async {
        let client = Client::connect(&settings.target).await?;
        let welcome = client.session(Patience::Within(CONNECT)).await?;
        let carrier = client.carrier().ok_or_else(|| Error::failed("the session was lost at once"))?;
        let view = SessionView {
            id: id_text(&welcome.session),
            carrier: carrier.kind().word(),
            carrier_why: printable(&carrier.why(), limits::TEXT),
            peer: carrier.peer().to_string(),
            rtt_us: u64::try_from(carrier.rtt().as_micros()).unwrap_or(u64::MAX),
            build: printable(&welcome.build, 64),
            workspace: printable(&welcome.workspace_name, limits::NAME),
        };
        client.close().await;
        Ok(view)
    })?;
    printer.list(settings.format, &[view])?;
    Ok(exit::DONE)
}
