//! HTTP/1.1 byte by byte: what is sent is exactly what was said, what came is
//! shown as it came. Both the client of the tests and their origin stand on
//! it, so that no library under test judges itself.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// How long a read may take that no test has given another limit.
const PATIENCE: Duration = Duration::from_secs(30);
/// No head of these tests is longer.
const LONGEST_HEAD: usize = 4 << 20;

/// Names and values, in their order.
pub type Fields = Vec<(String, Vec<u8>)>;

/// One end of a connection.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    held: Vec<u8>,
}

impl Wire {
    /// Over a connection.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, held: Vec::new() }
    }

    /// A new connection.
    ///
    /// # Panics
    /// When nobody takes it.
    #[must_use]
    pub fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap_or_else(|error| panic!("{to} takes nobody: {error}"));
        stream.set_nodelay(true).expect("the connection is there");
        let wire = Self::new(stream);
        wire.limit(Some(PATIENCE));
        wire
    }

    /// How long a read or a write may take.
    ///
    /// # Panics
    /// When it is no time.
    pub fn limit(&self, within: Option<Duration>) {
        self.stream.set_read_timeout(within).expect("a time");
        self.stream.set_write_timeout(within).expect("a time");
    }

    /// The connection itself.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// What has been read and not asked for, and the connection.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, TcpStream) {
        (self.held, self.stream)
    }

    /// Sends exactly these bytes.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends a chunk of a body; an empty one ends it.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn send_chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.send(&chunk)
    }

    /// Sends nothing more.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Ends the connection with a reset.
    ///
    /// # Panics
    /// When the system cannot.
    pub fn reset(self) {
        let now = Some(Duration::ZERO);
        socket2::SockRef::from(&self.stream).set_linger(now).expect("a connection can be reset");
    }

    /// Whatever comes next; nothing at the end.
    ///
    /// # Errors
    /// When the connection breaks, or nothing comes in time.
    pub fn some(&mut self) -> io::Result<Vec<u8>> {
        if self.held.is_empty() {
            self.fill()?;
        }
        Ok(std::mem::take(&mut self.held))
    }

    /// This many bytes.
    ///
    /// # Errors
    /// When fewer come.
    pub fn exactly(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        while self.held.len() < bytes {
            self.fill_more()?;
        }
        Ok(self.held.drain(..bytes).collect())
    }

    /// Everything until the end.
    ///
    /// # Errors
    /// When the connection breaks, or the end does not come in time.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        while self.fill()? > 0 {}
        Ok(std::mem::take(&mut self.held))
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut buffer = vec![0; 64 * 1024];
        let read = self.stream.read(&mut buffer)?;
        self.held.extend_from_slice(&buffer[..read]);
        Ok(read)
    }

    fn fill_more(&mut self) -> io::Result<()> {
        if self.fill()? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = find(&self.held, b"\r\n") {
                let mut line: Vec<u8> = self.held.drain(..end + 2).collect();
                line.truncate(end);
                return Ok(line);
            }
            self.fill_more()?;
        }
    }

    /// The next head; none at an end before its first byte.
    ///
    /// # Errors
    /// When it breaks off, or is none.
    pub fn head(&mut self) -> io::Result<Option<Head>> {
        let mut looked_at = 0_usize;
        loop {
            if let Some(end) = find(&self.held[looked_at.saturating_sub(3)..], b"\r\n\r\n") {
                let end = looked_at.saturating_sub(3) + end + 4;
                return Head::parse(self.held.drain(..end).collect()).map(Some);
            }
            looked_at = self.held.len();
            if looked_at > LONGEST_HEAD {
                return Err(io::Error::other("a head without an end"));
            }
            if self.fill()? == 0 {
                return if looked_at == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// The answer to a request, to its end or to where it breaks off.
    ///
    /// # Errors
    /// When not even its head comes.
    pub fn answer(&mut self, method: &str) -> io::Result<Answer> {
        let mut interim = Vec::new();
        let head = loop {
            let head = self.head()?.ok_or(io::ErrorKind::UnexpectedEof)?;
            match head.status() {
                100..=199 if head.status() != 101 => interim.push(head),
                _ => break head,
            }
        };
        let mut left = Body::of_answer(&head, method);
        let (mut body, mut cut) = (Vec::new(), None);
        loop {
            match left.next(self) {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break,
                Err(error) => {
                    cut = Some(error.to_string());
                    break;
                }
            }
        }
        Ok(Answer { interim, head, body, trailers: left.trailers, cut })
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The head of a request or an answer.
#[derive(Debug, Clone)]
pub struct Head {
    /// As it came, the empty line included.
    pub raw: Vec<u8>,
    /// Its first line.
    pub first: String,
    /// Its headers, names in lower case.
    pub fields: Fields,
}

impl Head {
    fn parse(raw: Vec<u8>) -> io::Result<Self> {
        let mut lines = raw.strip_suffix(b"\r\n\r\n").unwrap_or(&raw).split(|b| *b == b'\n');
        let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).trim_end().to_owned();
        let fields = lines.map(field).collect::<io::Result<_>>()?;
        Ok(Self { raw, first, fields })
    }

    fn word(&self, index: usize) -> &str {
        self.first.split(' ').nth(index).unwrap_or_default()
    }

    /// The code of an answer; 0 when it has none.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.word(1).parse().unwrap_or(0)
    }

    /// The method of a request.
    #[must_use]
    pub fn method(&self) -> &str {
        self.word(0)
    }

    /// The target of a request.
    #[must_use]
    pub fn target(&self) -> &str {
        self.word(1)
    }

    /// The path of a request.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target().split('?').next().unwrap_or_default()
    }

    /// A part of a request's query; empty when it is not there.
    #[must_use]
    pub fn query(&self, key: &str) -> &str {
        let query = self.target().split_once('?').map_or("", |(_, query)| query);
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(name, _)| *name == key).map(|(_, value)| value).next().unwrap_or_default()
    }

    /// A number in a request's query; 0 when it is not there.
    #[must_use]
    pub fn number(&self, key: &str) -> usize {
        self.query(key).parse().unwrap_or(0)
    }

    /// All values of a header, in order.
    #[must_use]
    pub fn all(&self, name: &str) -> Vec<&[u8]> {
        all(&self.fields, name)
    }

    /// The first value of a header.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.all(name).first().copied()
    }

    /// The first value of a header as text; empty when it is not there.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(self.get(name).unwrap_or_default()).into_owned()
    }

    /// Whether a header's first value has this word, whatever its case.
    #[must_use]
    pub fn says(&self, name: &str, word: &str) -> bool {
        self.text(name).to_ascii_lowercase().contains(word)
    }

    fn length(&self) -> Option<usize> {
        self.text("content-length").parse().ok()
    }
}

/// All values of a name, in order.
#[must_use]
pub fn all<'f>(fields: &'f Fields, name: &str) -> Vec<&'f [u8]> {
    fields.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_slice()).collect()
}

fn field(line: &[u8]) -> io::Result<(String, Vec<u8>)> {
    let colon = line.iter().position(|b| *b == b':');
    let colon = colon.ok_or_else(|| io::Error::other(format!("no header: {:?}", lossy(line))))?;
    Ok((lossy(&line[..colon]).to_ascii_lowercase(), line[colon + 1..].trim_ascii().to_vec()))
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// How a body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    None,
    /// By its length.
    Length(usize),
    /// In chunks.
    Chunked,
    /// By the end of the connection.
    ToEnd,
}

/// A body that is being read.
#[derive(Debug)]
pub struct Body {
    /// How it is delimited; what is left of a length.
    pub framing: Framing,
    /// What came after its chunks.
    pub trailers: Fields,
    done: bool,
}

impl Body {
    fn new(framing: Framing) -> Self {
        Self { framing, trailers: Vec::new(), done: false }
    }

    /// That of a request.
    #[must_use]
    pub fn of_request(head: &Head) -> Self {
        Self::new(match head.length() {
            _ if head.says("transfer-encoding", "chunked") => Framing::Chunked,
            Some(length) => Framing::Length(length),
            None => Framing::None,
        })
    }

    /// That of an answer to a request with this method.
    #[must_use]
    pub fn of_answer(head: &Head, method: &str) -> Self {
        Self::new(match (head.status(), head.length()) {
            (100..=199 | 204 | 304, _) => Framing::None,
            _ if method == "HEAD" => Framing::None,
            _ if head.says("transfer-encoding", "chunked") => Framing::Chunked,
            (_, Some(length)) => Framing::Length(length),
            _ => Framing::ToEnd,
        })
    }

    /// Its next piece as it comes: a chunk, or some bytes; none at its end.
    ///
    /// # Errors
    /// When it breaks off.
    pub fn next(&mut self, wire: &mut Wire) -> io::Result<Option<Vec<u8>>> {
        if self.done {
            return Ok(None);
        }
        let piece = match self.framing {
            Framing::None | Framing::Length(0) => Vec::new(),
            Framing::ToEnd => wire.some()?,
            Framing::Length(left) => {
                let mut piece = wire.some()?;
                if piece.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                // What comes after it is the next message's.
                wire.held = piece.split_off(left.min(piece.len()));
                self.framing = Framing::Length(left - piece.len());
                piece
            }
            Framing::Chunked => self.chunk(wire)?,
        };
        self.done = piece.is_empty();
        Ok((!self.done).then_some(piece))
    }

    fn chunk(&mut self, wire: &mut Wire) -> io::Result<Vec<u8>> {
        let size = lossy(&wire.line()?);
        let size = size.split(';').next().unwrap_or_default().trim();
        let bad = |_| io::Error::other(format!("no size of a chunk: {size:?}"));
        let size = usize::from_str_radix(size, 16).map_err(bad)?;
        if size == 0 {
            loop {
                match wire.line()? {
                    line if line.is_empty() => return Ok(line),
                    line => self.trailers.push(field(&line)?),
                }
            }
        }
        let chunk = wire.exactly(size)?;
        match wire.line()?.is_empty() {
            true => Ok(chunk),
            false => Err(io::Error::other("a chunk is longer than it says")),
        }
    }
}

/// An answer that has been read.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What came before it, such as 100 and 103.
    pub interim: Vec<Head>,
    /// Its head.
    pub head: Head,
    /// As much of its body as came.
    pub body: Vec<u8>,
    /// What came after the body.
    pub trailers: Fields,
    /// What broke it off; none when it ended as its framing says.
    pub cut: Option<String>,
}

impl Answer {
    /// Its code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    /// Its body as text.
    #[must_use]
    pub fn text(&self) -> String {
        lossy(&self.body)
    }

    /// Itself, when it is whole and has this code.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    #[track_caller]
    pub fn with(self, status: u16) -> Self {
        let (first, text) = (&self.head.first, crate::live::tail(&lossy(&self.body), 500).to_owned());
        assert!(self.cut.is_none(), "{first}: cut after {} bytes: {:?}", self.body.len(), self.cut);
        assert!(self.status() == status, "{first}, not {status}: {text}");
        self
    }
}

/// The SHA-256 of some bytes, in hex.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
