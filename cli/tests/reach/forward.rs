//! `port-forward`.

use std::io::{BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout};
use std::sync::Arc;

use bytes::Bytes;
use levers9_transport::Stream;
use levers9_transport::tunnel::Raw;
use levers9_wire::v1::{self, FailureCode, ResetCode, follow_event, stream_open::Kind};
use nix::sys::signal::Signal;
use tokio::sync::Notify;

use super::{CONTAINER, PATIENCE, wait_for};
use crate::fake::{Fake, Step, failure, with};
use crate::support::Home;
use crate::{first_line, home, start, tell};

/// A controlplane with one running container whose connections are played.
fn with_tunnel<F>(play: impl Fn(Stream, usize) -> F + Send + Sync + 'static) -> Fake
where
    F: Future<Output = Option<ResetCode>> + Send + 'static,
{
    let play = Arc::new(play);
    Fake::start(move |kind, before| match kind {
        Kind::Follow(_) => status("RUNNING"),
        Kind::Tunnel(_) => {
            let play = Arc::clone(&play);
            with(move |stream| play(stream, before))
        }
        _ => vec![],
    })
}

fn status(word: &str) -> Vec<Step> {
    let status = v1::FollowStatus { status: word.to_owned(), ..v1::FollowStatus::default() };
    vec![Step::Event(follow_event::Kind::Status(status))]
}

async fn answer(stream: &mut Stream, failure: Option<v1::Failure>) {
    stream.send.send(&v1::TunnelAnswer { failure }).await.unwrap();
}

/// Everything up to the peer's end; `None` when that was a reset.
async fn read_all(raw: &mut Raw) -> Option<Vec<u8>> {
    let mut all = raw.first.to_vec();
    while let Some(bytes) = raw.recv.read(65536).await.ok()? {
        all.extend_from_slice(&bytes);
    }
    Some(all)
}

async fn finish(raw: &mut Raw, bytes: &[u8]) {
    raw.send.write_all(Bytes::copy_from_slice(bytes)).await.unwrap();
    raw.send.finish();
    let _left = raw.send.delivered().await;
}

/// A target that answers with twice what it was told once it has all of it.
fn twice() -> Fake {
    with_tunnel(|mut stream, _| async move {
        answer(&mut stream, None).await;
        let mut raw = Raw::of(stream).await.unwrap();
        let all = read_all(&mut raw).await?;
        finish(&mut raw, &all.repeat(2)).await;
        None
    })
}

/// Starts forwarding; where it listens.
fn forward(home: &Home, args: &[&str]) -> (Child, BufReader<ChildStdout>, SocketAddr) {
    let mut child = start(home, &[&["port-forward", CONTAINER], args].concat());
    let (line, out) = first_line(child.stdout.take().unwrap());
    let place = line.split(' ').nth(1).unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
    (child, out, place)
}

fn connect(place: SocketAddr) -> TcpStream {
    let tcp = TcpStream::connect(place).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    tcp
}

fn ask(place: SocketAddr, what: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut tcp = connect(place);
    tcp.write_all(what)?;
    tcp.shutdown(Shutdown::Write)?;
    let mut all = Vec::new();
    tcp.read_to_end(&mut all)?;
    Ok(all)
}

/// Whether a connection is reset, rather than ended.
#[track_caller]
fn is_reset(mut tcp: TcpStream) {
    let error = tcp.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

#[track_caller]
fn ends(home: &Home, child: Child, code: i32, err: &str) {
    let did = home.did(&child.wait_with_output().unwrap());
    assert_eq!((did.code, did.err.as_str()), (code, err));
}

#[test]
fn bytes_make_the_round_trip_and_each_direction_ends_for_itself() {
    let fake = twice();
    let home = home(&fake);
    let (child, _out, place) = forward(&home, &[":8000"]);
    for length in [0, 1, 3_000_000] {
        let what = vec![b'x'; length];
        let writer = std::thread::spawn(move || ask(place, &what).unwrap());
        assert_eq!(writer.join().unwrap().len(), 2 * length);
    }
    tell(&child, Signal::SIGINT);
    ends(&home, child, 0, "");
}

#[test]
fn a_target_that_ends_first_still_hears_the_client() {
    let (say, mut heard) = tokio::sync::mpsc::channel(1);
    let fake = with_tunnel(move |mut stream, _| {
        let say = say.clone();
        async move {
            answer(&mut stream, None).await;
            let mut raw = Raw::of(stream).await.unwrap();
            finish(&mut raw, b"done").await;
            say.send(read_all(&mut raw).await).await.unwrap();
            None
        }
    });
    let home = home(&fake);
    let (child, _out, place) = forward(&home, &[":8000"]);
    let mut tcp = connect(place);
    let mut all = Vec::new();
    tcp.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"done");
    tcp.write_all(b"thank you").unwrap();
    drop(tcp);
    assert_eq!(heard.blocking_recv().unwrap().as_deref(), Some(&b"thank you"[..]));
    tell(&child, Signal::SIGTERM);
    ends(&home, child, 143, "");
}

#[test]
fn what_the_client_says_does_not_wait_for_the_answer() {
    let fake = with_tunnel(|stream, _| async move {
        let mut raw = Raw::of(stream).await.unwrap();
        let mut early = raw.first.to_vec();
        // More than is sent on at once.
        while early.len() < 100_000 {
            early.extend_from_slice(&raw.recv.read(65536).await.unwrap().unwrap());
        }
        raw.first = Bytes::from(early);
        // An answer without a failure: a frame without a byte.
        raw.send.write_all(Bytes::from_static(&[0])).await.unwrap();
        let all = read_all(&mut raw).await?;
        finish(&mut raw, &all).await;
        None
    });
    let home = home(&fake);
    let (child, _out, place) = forward(&home, &[":8000"]);
    let what: Vec<u8> = (0..150_000u32).flat_map(u32::to_le_bytes).collect();
    assert!(ask(place, &what).unwrap() == what);
    tell(&child, Signal::SIGINT);
    ends(&home, child, 0, "");
}

#[test]
fn a_refused_port_resets_the_connection_and_is_said_once() {
    let fake = with_tunnel(|mut stream, before| async move {
        let text = if before < 5 { "nothing listens on port 8000" } else { "it is not the container's" };
        answer(&mut stream, Some(failure(FailureCode::NotListening, text, ""))).await;
        let _left = stream.send.finish_and_deliver().await;
        None
    });
    let home = home(&fake);
    let (mut child, _out, place) = forward(&home, &[":8000"]);
    for _ in 0..6 {
        is_reset(connect(place));
    }
    let (first, err) = first_line(child.stderr.take().unwrap());
    let (second, mut err) = first_line(err);
    assert_eq!(first, "levers9: port 8000: nothing listens on port 8000\n");
    assert_eq!(second, "levers9: port 8000: it is not the container's\n");
    tell(&child, Signal::SIGINT);
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    assert_eq!((child.wait().unwrap().code(), rest.as_str()), (Some(0), ""));
}

#[test]
fn a_reset_of_the_target_is_one_of_the_client() {
    let fake = with_tunnel(|mut stream, _| async move {
        answer(&mut stream, None).await;
        let mut raw = Raw::of(stream).await.unwrap();
        if raw.first.is_empty() {
            let _some = raw.recv.read(1).await;
        }
        raw.abort(ResetCode::Aborted);
        None
    });
    let home = home(&fake);
    let (child, _out, place) = forward(&home, &[":8000"]);
    let mut tcp = connect(place);
    tcp.write_all(b"x").unwrap();
    is_reset(tcp);
    tell(&child, Signal::SIGINT);
    ends(&home, child, 0, "");
}

#[test]
fn a_container_that_ends_ends_it() {
    let fake = with_tunnel(|mut stream, _| async move {
        let over = failure(FailureCode::NotRunning, "the container has ended", "");
        answer(&mut stream, Some(over)).await;
        let _left = stream.send.finish_and_deliver().await;
        None
    });
    let home = home(&fake);
    let (child, _out, place) = forward(&home, &[":8000"]);
    is_reset(connect(place));
    ends(&home, child, 1, "error: the container has ended");
}

#[test]
fn what_does_not_run_is_not_forwarded() {
    let fake = Fake::start(|_, before| match before {
        0 => {
            let none = failure(FailureCode::NotFound, "no such container", "levers9 container list");
            vec![Step::Event(follow_event::Kind::Failure(none))]
        }
        1 => status("COMPLETE"),
        2 => status("PENDING"),
        _ => vec![Step::Close(ResetCode::Revoked)],
    });
    let home = home(&fake);
    let run = || {
        let did = home.run(&["port-forward", CONTAINER, ":8000"]);
        assert_eq!((did.code, did.out.as_str()), (1, ""));
        did.err
    };
    assert_eq!(run(), "error: no such container\nhint: levers9 container list");
    let said = format!("error: container {CONTAINER} does not run: its task is COMPLETE\n");
    assert_eq!(run(), said + "hint: those that run: levers9 container list");
    assert!(run().starts_with(&format!("error: container {CONTAINER} does not run yet\n")));
    assert!(run().contains("the token was revoked"));
}

#[test]
fn a_lost_session_resets_what_is_open_and_the_next_one_serves_again() {
    let lose = Arc::new(Notify::new());
    let told = Arc::clone(&lose);
    let fake = with_tunnel(move |mut stream, before| {
        let told = Arc::clone(&told);
        async move {
            answer(&mut stream, None).await;
            let mut raw = Raw::of(stream).await.unwrap();
            if before == 0 {
                raw.send.write_all(Bytes::from_static(b"hello")).await.unwrap();
                told.notified().await;
                return Some(ResetCode::CarrierLost);
            }
            let all = read_all(&mut raw).await?;
            finish(&mut raw, &all).await;
            None
        }
    });
    let home = home(&fake);
    let (mut child, _out, place) = forward(&home, &[":8000"]);
    let mut tcp = connect(place);
    tcp.read_exact(&mut [0; 5]).unwrap();
    lose.notify_one();
    is_reset(tcp);
    let (lost, mut more) = first_line(child.stderr.take().unwrap());
    assert!(lost.contains("is lost") && lost.contains("open connections are reset"), "{lost}");
    assert_eq!(ask(place, b"again").unwrap(), b"again");
    tell(&child, Signal::SIGINT);
    let mut rest = String::new();
    more.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, format!("levers9: connected to {} again\n", fake.place()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_port_here_that_cannot_be_had_is_named() {
    let fake = twice();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap();
    let did = home(&fake).run(&["port-forward", CONTAINER, ":9000", &format!("{}:8000", place.port())]);
    let said = format!(
        "error: cannot listen on {place}: Address already in use (os error 98)\n\
         hint: take another: LOCAL:8000, or :8000 for any free one"
    );
    assert_eq!((did.code, did.out.as_str(), did.err), (1, "", said));
    assert!(fake.follows().is_empty(), "nobody was asked");
}

#[test]
fn each_port_is_printed_for_scripts() {
    let fake = twice();
    let home = home(&fake);
    let args = ["port-forward", CONTAINER, "0:8000", ":9000", "--address", "::1", "--format", "json"];
    let mut child = start(&home, &args);
    let (first, out) = first_line(child.stdout.take().unwrap());
    let (second, _out) = first_line(out);
    for (line, remote) in [(first, 8000), (second, 9000)] {
        let view: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(view["remote"], remote);
        let local: SocketAddr = view["local"].as_str().unwrap().parse().unwrap();
        assert!(local.ip().is_loopback() && local.is_ipv6());
        assert_eq!(ask(local, b"a").unwrap(), b"aa");
    }
    tell(&child, Signal::SIGINT);
    ends(&home, child, 0, "");
}

#[test]
fn no_more_than_so_many_are_served_at_once() {
    let fake = with_tunnel(|mut stream, _| async move {
        answer(&mut stream, None).await;
        let mut raw = Raw::of(stream).await.unwrap();
        let all = read_all(&mut raw).await?;
        finish(&mut raw, &all).await;
        None
    });
    let home = home(&fake);
    let (child, _out, place) = forward(&home, &[":8000"]);
    // More than the controlplane permits streams and this side connections.
    let open: Vec<TcpStream> = (0..600).map(|_| connect(place)).collect();
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count();
    wait_for(descriptors, |count| *count >= 512);
    assert!(descriptors() < 560);
    // Each has its turn once others end.
    for mut tcp in open {
        tcp.write_all(b"x").unwrap();
        tcp.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        tcp.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"x");
    }
    wait_for(descriptors, |count| *count < 40);
    tell(&child, Signal::SIGINT);
    ends(&home, child, 0, "");
}

#[test]
fn a_client_that_breaks_off_breaks_its_tunnel() {
    let (say, mut heard) = tokio::sync::mpsc::channel(1);
    let fake = with_tunnel(move |mut stream, _| {
        let say = say.clone();
        async move {
            answer(&mut stream, None).await;
            let mut raw = Raw::of(stream).await.unwrap();
            raw.send.write_all(Bytes::from_static(b"hello")).await.unwrap();
            say.send(read_all(&mut raw).await).await.unwrap();
            None
        }
    });
    let home = home(&fake);
    let (child, _out, place) = forward(&home, &[":8000"]);
    let mut tcp = connect(place);
    tcp.read_exact(&mut [0; 1]).unwrap();
    // Closed with bytes unread, it is reset.
    drop(tcp);
    assert_eq!(heard.blocking_recv().unwrap(), None);
    tell(&child, Signal::SIGINT);
    ends(&home, child, 0, "");
}
