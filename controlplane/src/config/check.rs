//! What no single value of a configuration can tell: whether the values fit
//! together and keep a connection working. It looks nothing up: whether a
//! file exists or a port is free, those find out who use them.

use std::net::IpAddr;
use std::time::Duration;

use levers9_transport::quic::BadSettings;
use rustls::pki_types::ServerName;

use super::report::Report;
use super::{Certificate, MAX_DRAIN, Values, keys};
use crate::store::Dialect;

/// PostgreSQL itself permits 100 unless told otherwise.
const MAX_POOL: u32 = 1_000;

/// Adds what is wrong with `values` to the report.
pub(super) fn check(values: &Values, report: &mut Report) {
    if let Err(error) = Dialect::of_url(values.database.expose()) {
        report.key("database", error);
    }
    if !(1..=MAX_POOL).contains(&values.database_pool) {
        report.key("databasePool", format!("{} is not from 1 to {MAX_POOL}", values.database_pool));
    }
    if values.data.to_str().is_none_or(str::is_empty) {
        report.key("data", "the folder's name is empty or not UTF-8");
    }
    if values.grpc == values.http && values.grpc.port() != 0 {
        report.key("http", format!("{} is the address of grpc already; each needs its own", values.http));
    }
    if values.drain > MAX_DRAIN {
        report.key("drain", "a drain may last an hour at most");
    }
    if values.logs.max_age < Duration::from_secs(1) {
        report.key("logs.maxAge", "logs must be kept for a second at least");
    }
    if values.logs.max_bytes < 1 << 20 {
        report.key("logs.maxBytes", "one piece of a log has up to 1Mi; less cannot be kept");
    }
    check_names(values, report);
    check_secret(values, report);
    if let Err(error) = values.transport.check() {
        let key = match error {
            BadSettings::Mtu(_) | BadSettings::MtuSmall(_) => "transport.mtu",
            BadSettings::Idle(_) => "transport.idleTimeout",
        };
        report.key(key, error);
    }
}

fn check_names(values: &Values, report: &mut Report) {
    if values.names.is_empty() {
        report.key("names", "at least one name is needed; clients dial the first");
    }
    for name in &values.names {
        if ServerName::try_from(name.as_str()).is_err() {
            report.key("names", format!("{name:?} is neither a DNS name nor an IP address"));
        }
    }
    // The files' own names are not known here.
    let (Some(public), Certificate::Own(_)) = (&values.public_address, &values.certificate) else { return };
    if !report.has("names") && !values.names.iter().any(|name| same_host(name, &public.host)) {
        report.key(
            "publicAddress",
            format!(
                "{:?} is not among names, so clients would refuse the certificate; add it there",
                public.host
            ),
        );
    }
}

fn same_host(one: &str, other: &str) -> bool {
    match (one.parse::<IpAddr>(), other.parse::<IpAddr>()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one.eq_ignore_ascii_case(other),
    }
}

/// The secret comes back in a header, where spaces at its ends would be lost
/// and other characters are not permitted.
fn check_secret(values: &Values, report: &mut Report) {
    let Some(secret) = &values.bootstrap_secret else { return };
    if secret.is_empty() || !secret.expose().bytes().all(|b| b.is_ascii_graphic()) {
        report.key(
            keys::BOOTSTRAP_SECRET,
            "the secret must be ASCII letters, digits and signs, without spaces",
        );
    }
}
