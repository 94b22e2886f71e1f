//! HTTP/2 as a client speaks it, in blocking calls with a limit in time.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// What `h2` says of data for a stream that has ended.
const ENDED: &str = "user error: inactive stream";
/// What a stream may have in flight: more than any test sends.
const WINDOW: u32 = 16 << 20;

/// Where its connections are moved.
///
/// # Panics
/// When the system gives no threads.
#[must_use]
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().expect("a runtime")
    })
}

fn wait<T>(what: &str, step: impl Future<Output = T>) -> T {
    let limited = async { timeout(PATIENCE, step).await };
    runtime().block_on(limited).unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// A connection. Its end comes with the last exchange and this.
#[derive(Debug)]
pub struct Http2 {
    sender: SendRequest<Bytes>,
}

impl Http2 {
    /// A new one, without asking whether the other end speaks it.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn connect(to: SocketAddr) -> Self {
        wait("an HTTP/2 connection", async move {
            let tcp = tokio::net::TcpStream::connect(to).await.expect("the port takes connections");
            tcp.set_nodelay(true).expect("the connection is there");
            let mut builder = h2::client::Builder::new();
            builder.max_header_list_size(4 << 20).initial_window_size(WINDOW);
            builder.initial_connection_window_size(WINDOW);
            let (sender, connection) = builder.handshake(tcp).await.expect("an HTTP/2 handshake");
            tokio::spawn(async move {
                // Each exchange says for itself how it ended.
                let _ended = connection.await;
            });
            Self { sender }
        })
    }

    /// Begins a request; without a body when `ends`.
    ///
    /// # Panics
    /// When the connection takes none.
    #[must_use]
    pub fn begin(&self, request: Request<()>, ends: bool) -> Exchange {
        wait("a new stream", async {
            let mut ready = self.sender.clone().ready().await.expect("the connection is open");
            let (answer, send) = ready.send_request(request, ends).expect("the request is sent");
            Exchange { answer: Some(answer), send, recv: None }
        })
    }
}

/// A request and its answer.
#[derive(Debug)]
pub struct Exchange {
    answer: Option<ResponseFuture>,
    send: SendStream<Bytes>,
    recv: Option<RecvStream>,
}

impl Exchange {
    /// Sends a piece of the body, the last one when `ends`. An answer that came
    /// before it may have ended the stream: then the answer says what became of it.
    ///
    /// # Panics
    /// When a stream that goes on takes none.
    pub fn send(&mut self, bytes: impl Into<Bytes>, ends: bool) {
        if let Err(error) = runtime().block_on(async { self.send.send_data(bytes.into(), ends) }) {
            assert_eq!(error.to_string(), ENDED, "data is sent");
        }
    }

    /// Ends the body with trailers.
    ///
    /// # Panics
    /// When the stream takes none.
    pub fn send_trailers(&mut self, trailers: HeaderMap) {
        runtime().block_on(async { self.send.send_trailers(trailers) }).expect("trailers are sent");
    }

    /// Gives up: the other end sees CANCEL.
    pub fn cancel(mut self) {
        let _in_runtime = runtime().enter();
        self.send.send_reset(h2::Reason::CANCEL);
    }

    /// The head of the answer.
    ///
    /// # Errors
    /// When the stream breaks before.
    pub fn head(&mut self) -> Result<http::response::Parts, h2::Error> {
        let answer = self.answer.take();
        let answer =
            wait("the head of an answer", async { answer.expect("the head is asked for once").await })?;
        let (parts, recv) = answer.into_parts();
        self.recv = Some(recv);
        Ok(parts)
    }

    /// The next piece of the answer's body.
    ///
    /// # Errors
    /// When the stream breaks.
    pub fn data(&mut self) -> Result<Option<Bytes>, h2::Error> {
        let recv = self.recv.as_mut().expect("the head was asked for");
        wait("a piece of an answer", async {
            loop {
                let data = recv.data().await.transpose()?;
                let length = data.as_ref().map_or(0, Bytes::len);
                recv.flow_control().release_capacity(length)?;
                // The end may come as a piece without bytes.
                if data.is_none() || length > 0 {
                    return Ok(data);
                }
            }
        })
    }

    /// What came after the body.
    ///
    /// # Errors
    /// When the stream breaks.
    pub fn trailers(&mut self) -> Result<Option<HeaderMap>, h2::Error> {
        let recv = self.recv.as_mut().expect("the head was asked for");
        wait("the trailers of an answer", recv.trailers())
    }

    /// The whole answer, or as much as comes before it breaks.
    ///
    /// # Panics
    /// When not even its head comes.
    #[must_use]
    pub fn answer(self) -> Answer2 {
        self.answer_if_any().unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// The same. A reset may overtake what was said before it, the head included.
    ///
    /// # Errors
    /// When not even its head comes.
    pub fn answer_if_any(mut self) -> Result<Answer2, h2::Error> {
        let head = self.head()?;
        let mut body = Vec::new();
        let read = loop {
            match self.data() {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break self.trailers(),
                Err(error) => break Err(error),
            }
        };
        let (trailers, cut) = match read {
            Ok(trailers) => (trailers.unwrap_or_default(), None),
            Err(error) => (HeaderMap::new(), Some(error)),
        };
        Ok(Answer2 { status: head.status.as_u16(), headers: head.headers, body, trailers, cut })
    }
}

/// An answer that has been read.
#[derive(Debug)]
pub struct Answer2 {
    /// Its code.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// As much of its body as came.
    pub body: Vec<u8>,
    /// What came after the body.
    pub trailers: HeaderMap,
    /// What broke it off; none when it ended well.
    pub cut: Option<h2::Error>,
}

impl Answer2 {
    /// Its body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header or trailer as text; empty when it is not there.
    #[must_use]
    pub fn field(&self, name: &str) -> String {
        let value = self.trailers.get(name).or_else(|| self.headers.get(name));
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default()
    }
}
