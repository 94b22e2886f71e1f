//! HTTP/2 on the same port: a service that looks like gRPC to a proxy.
//!
//! Methods of `/test.Echo/`: `Unary` says back what came, with status 0;
//! `NotFound` has trailers only, status 5; `Stream` sends 1,000 messages, then
//! status 13; `Bidi` says back each piece as it comes; `Headers` tells the
//! request's own; `Hang` tells when the client gives up; `Flood` never ends.

use std::future::poll_fn;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};

use crate::state::State;

type Outcome = Result<(), h2::Error>;

/// Speaks HTTP/2 until the connection ends.
pub(crate) fn serve(state: Arc<State>, stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let mut connection = h2::server::handshake(stream).await.map_err(io::Error::other)?;
        state.saw("http2 connection".to_owned());
        while let Some(request) = connection.accept().await {
            let (request, respond) = request.map_err(io::Error::other)?;
            let state = Arc::clone(&state);
            tokio::spawn(async move {
                // How a stream ends is what tests look at from the other side.
                let _ended = answer(&state, request, respond).await;
            });
        }
        Ok(())
    })
}

async fn answer(state: &State, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Outcome {
    let (parts, mut body) = request.into_parts();
    state.saw(format!("grpc {}", parts.uri.path()));
    let id = parts.uri.query().unwrap_or_default().to_owned();
    match parts.uri.path() {
        "/test.Echo/NotFound" => {
            let head = head().header("grpc-status", "5").header("grpc-message", "no such thing");
            respond.send_response(head.body(()).expect("a head"), true)?;
        }
        "/test.Echo/Hang" => {
            state.saw(format!("hanging {id}"));
            let why = poll_fn(|context| respond.poll_reset(context)).await;
            state.saw(format!("cancelled {id} {why:?}"));
        }
        "/test.Echo/Stream" => {
            let mut send = respond.send_response(head().body(()).expect("a head"), false)?;
            for number in 0..1000 {
                write(&mut send, message(format!("message {number}").as_bytes())).await?;
            }
            send.send_trailers(status("13", "broken on purpose"))?;
        }
        "/test.Echo/Flood" => {
            let mut send = respond.send_response(head().body(()).expect("a head"), false)?;
            state.saw(format!("flooding {id}"));
            while write(&mut send, message(&[7; 16_000])).await.is_ok() {}
            state.saw(format!("cancelled {id}"));
        }
        "/test.Echo/StreamHang" => {
            let mut send = respond.send_response(head().body(()).expect("a head"), false)?;
            write(&mut send, message(b"first")).await?;
            state.saw(format!("hanging {id}"));
            let why = poll_fn(|context| send.poll_reset(context)).await;
            state.saw(format!("cancelled {id} {why:?}"));
        }
        "/test.Echo/Headers" => {
            let mut send = respond.send_response(head().body(()).expect("a head"), false)?;
            let line = |(name, value): (&http::HeaderName, &HeaderValue)| {
                format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()))
            };
            let mut text: String = parts.headers.iter().map(line).collect();
            text.push_str(&format!("uri: {}\n", parts.uri));
            write(&mut send, Bytes::from(text)).await?;
            send.send_trailers(status("0", ""))?;
        }
        _ => {
            let mut send = respond.send_response(head().body(()).expect("a head"), false)?;
            while let Some(piece) = body.data().await.transpose()? {
                body.flow_control().release_capacity(piece.len())?;
                write(&mut send, piece).await?;
            }
            let sent = body.trailers().await?.unwrap_or_default();
            let mut trailers = status("0", "fine");
            if let Some(value) = sent.get("x-client-sum") {
                trailers.insert("x-client-sum", value.clone());
            }
            send.send_trailers(trailers)?;
        }
    }
    Ok(())
}

fn head() -> http::response::Builder {
    Response::builder().header("content-type", "application/grpc")
}

fn status(code: &'static str, message: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(code));
    trailers.insert("grpc-message", HeaderValue::from_static(message));
    trailers.insert("x-detail-bin", HeaderValue::from_static("AAEC"));
    trailers
}

/// A message with gRPC's five bytes before it.
fn message(bytes: &[u8]) -> Bytes {
    let length = u32::try_from(bytes.len()).expect("a short message").to_be_bytes();
    Bytes::from([&[0], length.as_slice(), bytes].concat())
}

/// Sends as much as the peer takes, and waits for it to take more.
async fn write(send: &mut SendStream<Bytes>, mut bytes: Bytes) -> Outcome {
    while !bytes.is_empty() {
        send.reserve_capacity(bytes.len());
        let capacity = poll_fn(|context| send.poll_capacity(context)).await;
        let now = match capacity {
            Some(capacity) => capacity?.min(bytes.len()),
            None => return Err(h2::Reason::CANCEL.into()),
        };
        send.send_data(bytes.split_to(now), false)?;
    }
    Ok(())
}
