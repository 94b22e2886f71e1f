//! Strangers talk nonsense to every port, or begin and do not go on.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use levers9_tests::{Backend, World, wait};
use tokio::time::Instant;

use crate::support::{LONG, SOON, assert_counts, counting, last_number};

/// Bytes without a pattern, the same ones each time.
fn noise(seed: u64) -> impl FnMut() -> u8 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    }
}

fn garbage(seed: u64, len: usize) -> Vec<u8> {
    let mut next = noise(seed);
    (0..len).map(|_| next()).collect()
}

/// The first datagram of the real command.
fn first_datagram(world: &World) -> Vec<u8> {
    let ear = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    ear.set_read_timeout(Some(SOON)).expect("a timeout");
    let address = world.controlplane.address();
    let (_, pins) = address.split_once('#').expect("an address with pins");
    let token = world.cli(&["token", "create", "--format", "json"]).ok().json();
    let at = ear.local_addr().expect("an address");
    let mut command = world.home.command("levers9", &["task", "list"]);
    command.env("LEVERS9_ADDRESS", format!("levers9://{at}#{pins}"));
    command.env("LEVERS9_TOKEN", token["key"].as_str().expect("a key"));
    let talking = levers9_tests::Live::spawn(command);
    let mut datagram = vec![0; 65_536];
    let (n, _) = ear.recv_from(&mut datagram).unwrap_or_else(|error| panic!("{error}: {}", talking.shown()));
    datagram.truncate(n);
    datagram
}

fn udp_garbage(to: SocketAddr, hello: &[u8]) -> Vec<UdpSocket> {
    let mut open = Vec::new();
    for seed in 0..300u16 {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(to).expect("a UDP socket connects");
        let mut junk = garbage(u64::from(seed) + 1, usize::from(seed) * 5);
        // Half of it looks like the long header of a QUIC Initial at first.
        if seed % 2 == 0 && junk.len() > 8 {
            junk[..5].copy_from_slice(&[0xc3, 0, 0, 0, 1]);
        }
        let _lost = socket.send(&junk);
        // A handshake that is begun and left; a real one that is damaged; one that is cut.
        let mut damaged = hello.to_vec();
        if let Some(byte) = damaged.get_mut(usize::from(seed) * 3) {
            *byte ^= 0x5a;
        }
        for datagram in [hello, &damaged, &hello[..hello.len() / 2]] {
            let _lost = socket.send(datagram);
        }
        open.push(socket);
    }
    open
}

fn tcp_garbage(to: SocketAddr) -> Vec<TcpStream> {
    let beginnings: [&[u8]; 6] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x04\x00\x00\x00\x00\x00",
        b"POST /api HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
    ];
    let mut open = Vec::new();
    for seed in 0..60u64 {
        let Ok(mut stream) = TcpStream::connect(to) else { continue };
        let beginning = beginnings[usize::try_from(seed).unwrap_or(0) % beginnings.len()];
        // It may be closed on us at any time: that is its right.
        let _closed = stream.write_all(beginning);
        if seed % 3 == 0 {
            let _closed = stream.write_all(&garbage(seed + 7, 20_000));
        }
        open.push(stream);
    }
    open
}

#[test]
fn garbage_and_half_open_connections_harm_nobody() {
    const COUNT: u32 = 300;
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let pid = world.controlplane.pid();
    let mut run = world.cli_spawn(&["run", "--", "sh", "-c", &counting(COUNT, 20)]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let hello = first_datagram(&world);
    let udp = udp_garbage(world.controlplane.quic(), &hello);
    let ports = [world.controlplane.http(), world.controlplane.grpc(), world.controlplane.quic()];
    let tcp: Vec<_> = ports.into_iter().flat_map(tcp_garbage).collect();
    // All of it stands open now.
    let begun = Instant::now();
    assert_eq!(world.cli(&["run", "--", "echo", "hi"]).ok().text(), "hi\n");
    assert!(begun.elapsed() < Duration::from_secs(5), "a job took {:?} beside the garbage", begun.elapsed());
    assert_eq!(world.get("/healthz").0, 200);
    drop((udp, tcp));
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "the job beside it");
    assert_eq!(world.controlplane.pid(), pid);
    assert_eq!(
        worker.log().matches("online").count(),
        1,
        "the worker's session goes through: {}",
        worker.log()
    );
    let log = world.controlplane.log();
    assert!(log.len() < 64 * 1024, "strangers do not fill the log: {} bytes", log.len());
    assert!(!log.contains("panicked"), "{log}");
}

/// B126: at the limit of open files nobody new gets in; who is in stays, and
/// afterwards all is as before.
#[test]
fn the_limit_of_open_files_passes() {
    const COUNT: u32 = 250;
    let world = World::start(Backend::Sqlite);
    let worker = world.worker("one");
    let mut run = world.cli_spawn(&["run", "--", "sh", "-c", &counting(COUNT, 20)]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let pid = world.controlplane.pid().to_string();
    let mut limit = std::process::Command::new("prlimit");
    limit.args(["--nofile=128:128", "--pid", &pid]);
    assert!(limit.status().expect("prlimit starts").success(), "a limit can be set");
    let ports = [world.controlplane.http(), world.controlplane.grpc()];
    let open: Vec<_> = (0..300).filter_map(|i: usize| TcpStream::connect(ports[i % 2]).ok()).collect();
    let seen = last_number(&run.text());
    run.wait_text("the job's output goes on", Duration::from_secs(5), |text| last_number(text) > seen + 20);
    let log = world.controlplane.log();
    assert!(log.len() < 64 * 1024, "the log is not filled with it: {} bytes", log.len());
    // A segment is sealed every five seconds: one was, by now.
    wait::stays("what runs can be stored", Duration::from_secs(6), || {
        let log = world.controlplane.log();
        if log.contains("storage trouble") { Err(log) } else { Ok(()) }
    });
    drop(open);
    let freed = Instant::now();
    assert_eq!(world.get("/healthz").0, 200);
    assert!(freed.elapsed() < Duration::from_secs(2), "a new connection works after {:?}", freed.elapsed());
    assert_eq!(world.cli(&["run", "--", "echo", "hi"]).ok().text(), "hi\n");
    assert_eq!(run.wait(LONG), 0, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "the job beside it");
    assert_eq!(worker.log().matches("online").count(), 1, "{}", worker.log());
}
