//! A controlplane as small as one can be, its ports, and a plain client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use levers9_controlplane::ports::Ports;
use levers9_controlplane::ports::front::{Asked, AuthorizeError, Authorized, Front, Health};
use levers9_transport::cert::CertResolver;
use levers9_wire::token::Secret;
use levers9_wire::{ContainerId, WorkspaceId};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::log;

pub(crate) const WORKSPACE: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";

/// Knows a token for every answer there is.
#[derive(Default)]
pub(crate) struct Desk {
    pub(crate) broken: AtomicBool,
}

impl Front for Desk {
    async fn authorize(&self, asked: Asked) -> Result<Authorized, AuthorizeError> {
        let workspace: WorkspaceId = WORKSPACE.parse().unwrap();
        let known = |new_token| Ok(Authorized { workspace, workspace_name: "first".to_owned(), new_token });
        if asked.bootstrap_secret.is_some_and(|secret| secret.expose() == "hunter2") {
            return known(Some(Secret::new("l9_admin_new")));
        }
        match asked.token.as_ref().map_or("", Secret::expose) {
            "good" => known(None),
            "slow" => {
                tokio::time::sleep(Duration::from_millis(300)).await;
                known(None)
            }
            "stuck" => std::future::pending().await,
            "denied" => Err(AuthorizeError::Denied("a workspace exists already".to_owned())),
            "many" => Err(AuthorizeError::TooMany("wait a minute".to_owned())),
            "down" => Err(AuthorizeError::Unavailable("the database is unavailable".to_owned())),
            _ => Err(AuthorizeError::Unauthenticated("the token is not valid".to_owned())),
        }
    }

    async fn health(&self) -> Health {
        let broken = self.broken.load(Ordering::Relaxed);
        let database = if broken { Err("unreachable".to_owned()) } else { Ok(()) };
        Health { ready: !broken, parts: vec![("database".to_owned(), database), ("quic".to_owned(), Ok(()))] }
    }

    async fn metrics(&self) -> String {
        "levers9_sessions 3\n".to_owned()
    }

    async fn is_token_of(&self, _: Secret, _: ContainerId) -> bool {
        false
    }

    async fn is_admin(&self, token: Secret) -> bool {
        token.expose() == "admin"
    }
}

/// Ports that are being served.
pub(crate) struct Served {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) desk: Arc<Desk>,
    pub(crate) ports: Ports,
}

/// On loopback, in plain text.
pub(crate) async fn serve() -> Served {
    serve_on("127.0.0.1:0", None, false).await
}

/// On `address`; what it answers is reached at 127.0.0.1.
pub(crate) async fn serve_on(address: &str, tls: Option<Arc<CertResolver>>, insecure: bool) -> Served {
    log::record();
    let (http, grpc) = (TcpListener::bind(address).await.unwrap(), TcpListener::bind(address).await.unwrap());
    let at =
        |listener: &TcpListener| SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
    let (http_at, grpc_at) = (at(&http), at(&grpc));
    let desk = Arc::new(Desk::default());
    let ports = Ports::start(http, grpc, tls, insecure, Arc::clone(&desk), None).unwrap();
    Served { http: http_at, grpc: grpc_at, desk, ports }
}

/// One request on a connection of its own; everything that comes back.
pub(crate) async fn ask(at: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
    read.expect("an answer within 5 s").unwrap();
    String::from_utf8(answer).unwrap()
}

/// A request's text. `headers` are lines without their ends.
pub(crate) fn request(method: &str, path: &str, headers: &[&str], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    for header in headers {
        text.push_str(&format!("{header}\r\n"));
    }
    format!("{text}content-length: {}\r\n\r\n{body}", body.len())
}

/// A GET and its answer.
pub(crate) async fn get(at: SocketAddr, path: &str, headers: &[&str]) -> String {
    ask(at, &request("GET", path, headers, "")).await
}

/// Status and body of an answer.
pub(crate) fn parts(answer: &str) -> (u16, &str) {
    let status =
        answer.get(9..12).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("no answer: {answer:?}"));
    (status, answer.split_once("\r\n\r\n").map_or("", |(_, body)| body))
}

/// Whether both ports still do what they are for.
pub(crate) async fn assert_well(served: &Served) {
    assert_eq!(parts(&get(served.http, "/healthz", &[]).await).0, 200);
    let answer = super::calls::authorize(served.grpc, &[("authorization", "Bearer good")]).await.unwrap();
    assert!(answer.ok);
}
