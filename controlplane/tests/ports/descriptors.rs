//! B126: a process that runs out of descriptors takes connections again once
//! there are some, and keeps those it has.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::desk::{get, parts, serve};

/// Set for the child process alone.
const IN_CHILD: &str = "LEVERS9_TEST_FEW_DESCRIPTORS";
const LIMIT: u64 = 128;

/// The server's side of the test below; nothing when run by itself.
#[tokio::test]
async fn serves_with_few_descriptors() {
    if std::env::var_os(IN_CHILD).is_none() {
        return;
    }
    setrlimit(Resource::RLIMIT_NOFILE, LIMIT, LIMIT).unwrap();
    let served = serve().await;
    println!("\nport {}", served.http);
    // Longer than the test takes, in case nobody is left to end it.
    tokio::time::sleep(Duration::from_secs(60)).await;
}

struct Server {
    child: Child,
    at: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["descriptors::serves_with_few_descriptors", "--exact", "--nocapture"])
            .env(IN_CHILD, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let at = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("port ")?.parse().ok());
        Self { child, at: at.expect("the server says its port") }
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

async fn again(stream: &mut TcpStream) {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 1024];
    let length = stream.read(&mut answer).await.unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn the_descriptor_limit_stops_nothing_for_good() {
    let server = Server::start();
    let mut established = TcpStream::connect(server.at).await.unwrap();
    again(&mut established).await;
    // Those that find the kernel's queue full as well keep trying.
    let mut storm = JoinSet::new();
    for _ in 0..300 {
        let at = server.at;
        storm.spawn(async move {
            let _held = TcpStream::connect(at).await;
            std::future::pending::<()>().await;
        });
    }
    let full = async {
        // A quarter is left for the rest of the process.
        while server.descriptors() < 96 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), full).await.expect("the limit is reached");
    assert!(server.descriptors() < 112, "connections leave some: {}", server.descriptors());
    again(&mut established).await;
    storm.shutdown().await;
    let answer = tokio::time::timeout(Duration::from_secs(2), get(server.at, "/healthz", &[])).await;
    assert_eq!(parts(&answer.expect("an answer within 2 s")).0, 200);
    again(&mut established).await;
}
