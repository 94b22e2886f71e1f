//! From a file's text to [`Values`]: which key goes where, and how each value
//! is written. A value that cannot be read is reported and its default stands
//! in, so that the rest is read as well.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use levers9_transport::Address;
use levers9_transport::quic::Congestion;
use levers9_wire::name::printable;
use levers9_wire::quantity;
use levers9_wire::token::Secret;
use levers9_wire::valid;

use super::report::Report;
use super::section::Section;
use super::{
    BOOTSTRAP_SECRET, Certificate, DEFAULT_DATA, HostPort, Sealing, SealingKey, TcpListen, Values, keys, yaml,
};
use crate::ingress::route::Suffix;

/// Everything the text and the environment say.
pub(super) fn values(bytes: &[u8], env: &dyn Fn(&str) -> Option<String>, report: &mut Report) -> Values {
    let root = match std::str::from_utf8(bytes).map(yaml::parse) {
        Ok(Ok(node)) => Some(node),
        Ok(Err(broken)) => {
            report.line(broken.line, broken.problem);
            None
        }
        Err(error) => {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|b| **b == b'\n').count();
            report.line(line, "this is not UTF-8 text");
            None
        }
    };
    let mut root = Section::open("", root, report);
    let data: Option<PathBuf> = root.value("data", report, as_is);
    let mut values = Values::in_folder(data.unwrap_or_else(|| DEFAULT_DATA.into()));
    read_root(&mut values, &mut root, report);
    read_certificate(&mut values, &mut root, report);
    read_sealing(&mut values, &mut root, report);
    read_sections(&mut values, &mut root, report);
    if let Some(secret) = env(BOOTSTRAP_SECRET).filter(|secret| !secret.is_empty()) {
        report.comes_from(keys::BOOTSTRAP_SECRET, BOOTSTRAP_SECRET);
        values.bootstrap_secret = Some(Secret::new(secret));
    }
    values
}

fn read_root(values: &mut Values, root: &mut Section, report: &mut Report) {
    set(&mut values.database, root.value("database", report, secret));
    set(&mut values.database_pool, root.value("databasePool", report, number));
    set(&mut values.quic, root.value("quic", report, socket));
    set(&mut values.tcp, root.value("tcp", report, tcp_listen));
    set(&mut values.grpc, root.value("grpc", report, socket));
    set(&mut values.http, root.value("http", report, socket));
    set(&mut values.insecure_listen, root.value("insecureListen", report, yes_or_no));
    set(&mut values.names, root.list("names", report, as_is));
    set(&mut values.drain, root.value("drain", report, quantity::duration));
    values.container_url = root.value("containerUrl", report, suffix);
    values.public_address = root.value("publicAddress", report, host_port);
}

fn read_certificate(values: &mut Values, root: &mut Section, report: &mut Report) {
    let mut section = root.inner("certificate", "certificate", report);
    let certificate = section.value("certFile", report, as_is::<PathBuf>);
    let key = section.value("keyFile", report, as_is::<PathBuf>);
    match (certificate, key) {
        (None, None) => {}
        (Some(certificate), Some(key)) => values.certificate = Certificate::Files { certificate, key },
        (Some(_), None) => missing(report, "certificate.keyFile", "certificate.certFile"),
        (None, Some(_)) => missing(report, "certificate.certFile", "certificate.keyFile"),
    }
}

fn read_sealing(values: &mut Values, root: &mut Section, report: &mut Report) {
    let current = root.value("encryptionKey", report, sealing_key);
    let previous = root.list("previousEncryptionKeys", report, sealing_key);
    match (current, previous) {
        (Some(current), previous) => {
            values.sealing = Sealing::Keys { current, previous: previous.unwrap_or_default() };
        }
        (None, Some(_)) => missing(report, "encryptionKey", "previousEncryptionKeys"),
        (None, None) => {}
    }
}

fn read_sections(values: &mut Values, root: &mut Section, report: &mut Report) {
    let mut auth =
        root.inner("controlplane", "controlplane", report).inner("auth", "controlplane.auth", report);
    values.bootstrap_secret = auth.value("bootstrapSecret", report, secret);
    let mut logs = root.inner("logs", "logs", report);
    set(&mut values.logs.max_bytes, logs.value("maxBytes", report, quantity::memory_bytes));
    set(&mut values.logs.max_age, logs.value("maxAge", report, quantity::duration));
    read_worker(values, root, report);
    let mut transport = root.inner("transport", "transport", report);
    set(&mut values.transport.mtu_max, transport.value("mtu", report, number));
    set(&mut values.transport.congestion, transport.value("congestion", report, congestion));
    set(&mut values.transport.idle_timeout, transport.value("idleTimeout", report, quantity::duration));
}

fn read_worker(values: &mut Values, root: &mut Section, report: &mut Report) {
    let (worker, mut section) = (&mut values.worker, root.inner("worker", "worker", report));
    worker.image = section.value("image", report, image);
    let mut clusters = section.inner("attachedClusters", "worker.attachedClusters", report);
    set(&mut worker.clusters_per_workspace, clusters.value("quotaPerWorkspace", report, number));
    set(&mut worker.host_network, clusters.value("hostNetwork", report, yes_or_no));
    let mut guard = section.inner("provisioningGuard", "worker.provisioningGuard", report);
    set(&mut worker.guard_pending, guard.value("maxPending", report, number));
    set(&mut worker.guard_per_minute, guard.value("maxAddedPerMinute", report, number));
}

fn set<T>(place: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *place = given;
    }
}

/// Says that a key needs another one, unless that one is there and unreadable.
fn missing(report: &mut Report, key: &'static str, given: &'static str) {
    if !report.has(key) {
        report.key(given, format!("needs {key} as well"));
    }
}

fn as_is<T: From<String>>(text: &str) -> Result<T, Infallible> {
    Ok(T::from(text.to_owned()))
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{} is not a number in range", quoted(text)))
}

fn socket(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{} is not an IP address with a port; write 0.0.0.0:443 or [::]:443", quoted(text))
    })
}

fn tcp_listen(text: &str) -> Result<TcpListen, String> {
    match text {
        "off" => Ok(TcpListen::Off),
        address => socket(address).map(TcpListen::At).map_err(|problem| format!("{problem}, or off")),
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{} is neither true nor false", quoted(text)))
}

fn congestion(text: &str) -> Result<Congestion, String> {
    match text {
        "auto" => Ok(Congestion::Auto),
        "cubic" => Ok(Congestion::Cubic),
        "bbr" => Ok(Congestion::Bbr),
        _ => Err(format!("{} is none of auto, cubic, bbr", quoted(text))),
    }
}

fn image(text: &str) -> Result<String, String> {
    valid::image(text.to_owned()).map_err(|bad| bad.to_string())
}

fn suffix(text: &str) -> Result<Suffix, String> {
    text.parse().map_err(|bad| format!("{} does not serve: {bad}", quoted(text)))
}

fn host_port(text: &str) -> Result<HostPort, String> {
    let bad = || format!("{} is not a host with a port; write levers9.example.org:443", quoted(text));
    if text.contains(['#', '/']) {
        return Err(bad());
    }
    let address: Address = format!("levers9://{text}").parse().map_err(|_| bad())?;
    Ok(HostPort { host: address.host, port: address.port })
}

/// 64 hexadecimal digits or 44 characters of base64. Never quoted.
fn sealing_key(text: &str) -> Result<SealingKey, &'static str> {
    let bad = "a key is 32 bytes, written as base64 or as 64 hexadecimal digits (openssl rand -base64 32)";
    let mut key = [0u8; 32];
    if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        for (index, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| bad)?;
        }
        return Ok(SealingKey(key));
    }
    let decoded = STANDARD.decode(text).map_err(|_| bad)?;
    decoded.try_into().map(SealingKey).map_err(|_| bad)
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text, 80))
}
