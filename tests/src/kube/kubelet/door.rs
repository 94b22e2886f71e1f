//! What a kubelet answers the API server: the logs of containers, for `kubectl
//! logs` and whatever else reads them through the API. Its port is in the
//! status of its nodes. It knows no other path, follows nothing, and does not
//! ask who is there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::state::Shared;
use crate::kube::pki::Identity;

/// The longest a request and its answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest head of a request.
const HEAD: usize = 8 * 1024;
/// How many requests are answered at once.
const MOST: usize = 64;

/// A door on a port of loopback that is not answered yet.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    pub(super) port: u16,
}

impl Door {
    pub(super) async fn open() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port for a kubelet");
        let port = listener.local_addr().expect("a listener has an address").port();
        Self { listener, port }
    }

    /// Answers, for ever.
    pub(super) async fn answer(self, shared: Arc<Shared>, identity: Identity) {
        let acceptor = acceptor(&identity);
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                Ok((stream, _)) = self.listener.accept(), if open.len() < MOST => {
                    let (shared, acceptor) = (Arc::clone(&shared), acceptor.clone());
                    // Who goes in the middle of an answer knows it.
                    open.spawn(async move {
                        let _gone = tokio::time::timeout(ANSWER, one(&shared, &acceptor, stream)).await;
                    });
                }
                Some(_) = open.join_next() => {}
                // A listener that cannot take what comes is asked again later.
                else => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

fn acceptor(identity: &Identity) -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions of TLS").with_no_client_auth();
    let config = config.with_single_cert(vec![certificate], key).expect("a key for its certificate");
    TlsAcceptor::from(Arc::new(config))
}

/// One request on a connection of its own.
async fn one(shared: &Shared, acceptor: &TlsAcceptor, stream: TcpStream) -> std::io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    if shared.state().paused {
        return Ok(());
    }
    let head = String::from_utf8_lossy(&head);
    let target = head.split(' ').nth(1).unwrap_or_default();
    let (status, body) = answer(shared, target);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await
}

/// `/containerLogs/NAMESPACE/POD/CONTAINER?previous=true&tailLines=20&limitBytes=1000`
fn answer(shared: &Shared, target: &str) -> (&'static str, Vec<u8>) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let &["containerLogs", namespace, pod, container] = parts.as_slice() else {
        return ("404 Not Found", b"404 page not found\n".to_vec());
    };
    let asked = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let previous = asked("previous").is_some_and(|said| said == "true");
    let Some(log) = log_of(shared, namespace, pod, container, previous) else {
        let which = if previous { "previous terminated container" } else { "container" };
        let why = format!("{which} \"{container}\" in pod \"{pod}\" is waiting to start or not found");
        return ("400 Bad Request", why.into_bytes());
    };
    let log = std::fs::read(log).unwrap_or_default();
    let lines = asked("tailLines").and_then(|lines| lines.parse().ok());
    let bytes = asked("limitBytes").and_then(|bytes| bytes.parse().ok());
    ("200 OK", part(&log, lines, bytes).to_vec())
}

/// The log of a container's last start, or of the one that ended last.
fn log_of(shared: &Shared, namespace: &str, pod: &str, container: &str, previous: bool) -> Option<PathBuf> {
    let uid = shared.uid_of(namespace, pod)?;
    let prefix = format!("{container}-");
    let of_container = |path: &PathBuf| {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix(&prefix);
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
            && path.parent().is_some_and(|folder| folder.ends_with(&uid))
    };
    let mut logs: Vec<PathBuf> = shared.logs(pod).into_iter().filter(of_container).collect();
    let runs = shared.state().processes.contains_key(&(uid.clone(), container.to_owned()));
    if previous && runs {
        logs.pop();
    }
    logs.pop()
}

/// The first bytes of the last lines.
fn part(log: &[u8], lines: Option<usize>, bytes: Option<usize>) -> &[u8] {
    let mut from = 0;
    if let Some(lines) = lines {
        let body = log.strip_suffix(b"\n").unwrap_or(log);
        let mut ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        from = match lines {
            0 => log.len(),
            lines => ends.nth(lines - 1).map_or(0, |(at, _)| at + 1),
        };
    }
    let rest = &log[from..];
    &rest[..bytes.unwrap_or(rest.len()).min(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn the_last_lines_are_given_and_of_them_the_first_bytes() {
        let log = b"one\ntwo\nthree\n";
        assert_eq!(part(log, None, None), log);
        assert_eq!(part(log, Some(1), None), b"three\n");
        assert_eq!(part(b"one\ntwo", Some(1), None), b"two");
        assert_eq!(part(log, Some(3), None), log);
        assert_eq!(part(log, Some(9), Some(5)), b"one\nt");
        assert_eq!(part(log, Some(0), None), b"");
        assert_eq!(part(b"", Some(2), Some(2)), b"");
    }
}
