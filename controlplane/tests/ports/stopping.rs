//! How the ports stop: who is served to the end, and who is not waited for.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::desk::{ask, request, serve};

const AUTHORIZE: &str = "/api/v1/controlplane/auth/authorize";

async fn authorize(at: std::net::SocketAddr, token: &str) -> String {
    ask(at, &request("POST", AUTHORIZE, &[&format!("authorization: Bearer {token}")], "")).await
}

#[tokio::test]
async fn a_request_under_way_is_answered_and_idle_ones_are_not_waited_for() {
    let served = serve().await;
    let (http, grpc) = (served.http, served.grpc);
    let mut idle = TcpStream::connect(http).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 1024];
    assert!(idle.read(&mut answer).await.unwrap() > 0);
    let silent = TcpStream::connect(grpc).await.unwrap();
    let slow = tokio::spawn(async move { authorize(http, "slow").await });
    sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    assert_eq!(served.ports.shutdown(Instant::now() + Duration::from_secs(5)).await, 0);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(slow.await.unwrap().starts_with("HTTP/1.1 200"));
    assert_eq!(idle.read(&mut answer).await.unwrap(), 0);
    assert!(TcpStream::connect(http).await.is_err());
    drop(silent);
}

#[tokio::test]
async fn who_is_late_is_cut_off_and_counted() {
    let served = serve().await;
    let (http, grpc) = (served.http, served.grpc);
    let stuck = tokio::spawn(async move { authorize(http, "stuck").await });
    let called = tokio::spawn(async move {
        crate::calls::authorize(grpc, &[("authorization", "Bearer stuck")]).await.unwrap_err()
    });
    sleep(Duration::from_millis(200)).await;
    let started = Instant::now();
    assert_eq!(served.ports.shutdown(Instant::now() + Duration::from_millis(300)).await, 2);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(stuck.await.unwrap(), "");
    called.await.unwrap();
}

#[tokio::test]
async fn dropped_ports_are_gone() {
    let served = serve().await;
    let http = served.http;
    let mut held = TcpStream::connect(http).await.unwrap();
    drop(served);
    assert_eq!(held.read(&mut [0; 1]).await.unwrap_or(0), 0);
    let gone = async {
        while TcpStream::connect(http).await.is_ok() {
            sleep(Duration::from_millis(10)).await
        }
    };
    tokio::time::timeout(Duration::from_secs(2), gone).await.expect("the port is free");
}
