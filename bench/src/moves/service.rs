//! The caller's end: asks every 10 ms, each time on a new stream, and reads a
//! log that it reads on after its last line wherever that breaks. What was
//! answered, when and by whom is kept.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use levers9_transport::link::{Introduce, Link, OpenError, Opened, Status, open_on};
use levers9_transport::tcp::Fallback;
use levers9_transport::{Address, Carrier, CarrierKind, Endpoint, Settings, dial};
use levers9_wire::clock::unix_millis;
use levers9_wire::v1::{self, call_answer::Answer, call_open::Request, follow_event, stream_open::Kind};
use levers9_wire::{InstanceId, RequestId};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};

use super::count::{Lines, line_at};

/// How often it asks.
pub(super) const EVERY: Duration = Duration::from_millis(10);
/// How long it waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Requests that may be under way.
const UNDER_WAY: usize = 256;
/// The pause before a log is read on.
const PAUSE: Duration = Duration::from_millis(20);
/// How long it may take until all lines have come.
const CATCH_UP: Duration = Duration::from_secs(90);

/// Who answered, and over what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) carrier: CarrierKind,
    /// The number of the server's process; 0 when it does not say.
    pub(super) server: u32,
}

/// What can be asked.
pub(super) trait Service: Clone + Send + Sync + 'static {
    /// One request and its answer.
    fn call(&self) -> impl Future<Output = Result<Way>> + Send;
}

/// A session with levers9.
#[derive(Clone)]
pub(super) struct Guest {
    pub(super) link: Link,
    _incoming: Arc<mpsc::Receiver<Box<Opened>>>,
}

struct Caller {
    instance: InstanceId,
}

impl Introduce for Caller {
    fn hello(&self) -> v1::Hello {
        v1::Hello { role: v1::Role::Cli.into(), instance: self.instance.to_wire(), ..v1::Hello::default() }
    }
}

impl Guest {
    /// Begins to dial.
    pub(super) fn dial(address: &Address) -> Self {
        let (link, incoming) = Link::start(
            dial::Dialer::new(address.clone()).with_fallback(Fallback::default()),
            Box::new(|| Endpoint::dialing(&Settings::default())),
            Arc::new(Caller { instance: InstanceId::generate() }),
            StdRng::from_os_rng(),
        );
        Self { link, _incoming: Arc::new(incoming) }
    }

    /// Waits until the session rides on a kind of carrier, without a word to
    /// the server.
    pub(super) async fn rides_on(&self, kind: CarrierKind, patience: Duration) -> Result<()> {
        let mut status = self.link.status();
        let rides =
            |status: &Status| matches!(status, Status::Online { carrier, .. } if carrier.kind() == kind);
        let waited = timeout(patience, status.wait_for(rides)).await;
        waited.with_context(|| format!("the session was not on {kind} within {patience:?}"))??;
        Ok(())
    }

    /// Says goodbye.
    pub(super) async fn leave(self) {
        self.link.shutdown(Duration::from_secs(1)).await;
    }
}

impl Service for Guest {
    async fn call(&self) -> Result<Way> {
        let (carrier, _) = self.link.online().await?;
        let server = call_on(&carrier).await?;
        Ok(Way { carrier: carrier.kind(), server })
    }
}

/// Asks for the number of the server's process.
async fn call_on(carrier: &Carrier) -> Result<u32> {
    let request = Request::WorkspaceCreate(v1::WorkspaceCreateRequest { name: "a".to_owned() });
    let open = v1::CallOpen { request_id: RequestId::generate().to_wire(), request: Some(request) };
    let mut stream = open_on(carrier, Kind::Call(open)).await?;
    stream.send.finish();
    let answer = stream.recv.expect::<v1::CallAnswer>().await?.answer.context("an empty answer")?;
    let Answer::WorkspaceCreate(created) = answer else { bail!("another answer: {answer:?}") };
    ensure!(stream.recv.next::<v1::CallAnswer>().await?.is_none(), "more than one frame");
    Ok(created.token.parse()?)
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    /// None when there was no answer, or not in time.
    pub(super) way: Option<Way>,
}

#[derive(Default)]
struct Log {
    asked: Mutex<Vec<Asked>>,
    more: Notify,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks until it is told to stop.
pub(super) struct Asker {
    log: Arc<Log>,
    stop: Arc<Notify>,
    task: JoinSet<()>,
}

impl Asker {
    /// Begins.
    pub(super) fn start(service: impl Service) -> Self {
        let (log, stop) = (Arc::<Log>::default(), Arc::new(Notify::new()));
        let mut task = JoinSet::new();
        task.spawn(ask(service, Arc::clone(&log), Arc::clone(&stop)));
        Self { log, stop, task }
    }

    /// Waits for the first answer there is to a request that began at some
    /// time or later, of those that are wanted.
    pub(super) async fn first(
        &self,
        since: Instant,
        patience: Duration,
        wanted: impl Fn(Way) -> bool,
    ) -> Result<Instant> {
        let until = Instant::now() + patience;
        loop {
            let more = self.log.more.notified();
            let is = |asked: &&Asked| asked.begun >= since && asked.way.is_some_and(&wanted);
            let ended = self.log.lock().iter().filter(is).map(|asked| asked.ended).min();
            if let Some(ended) = ended {
                return Ok(ended);
            }
            let came = timeout_at(until, more).await;
            came.with_context(|| format!("no such answer within {patience:?}"))?;
        }
    }

    /// Stops, and waits for what is under way; all that was asked.
    pub(super) async fn stop(mut self) -> Vec<Asked> {
        self.stop.notify_one();
        while self.task.join_next().await.is_some() {}
        std::mem::take(&mut *self.log.lock())
    }
}

async fn ask(service: impl Service, log: Arc<Log>, stop: Arc<Notify>) {
    let mut every = interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut under_way = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.notified() => break,
            _ = every.tick(), if under_way.len() < UNDER_WAY => {
                under_way.spawn(ask_once(service.clone(), Arc::clone(&log)));
            }
            Some(_) = under_way.join_next() => {}
        }
    }
    while under_way.join_next().await.is_some() {}
}

async fn ask_once(service: impl Service, log: Arc<Log>) {
    let begun = Instant::now();
    let answered = timeout(PATIENCE, service.call()).await;
    let way = answered.ok().and_then(Result::ok);
    log.lock().push(Asked { begun, ended: Instant::now(), way });
    log.more.notify_waiters();
}

/// Reads a log.
pub(super) struct Reader {
    epoch: u64,
    lines: Arc<Mutex<Lines>>,
    _task: JoinSet<()>,
}

impl Reader {
    /// Reads from now on, and waits for the first line.
    pub(super) async fn start(link: &Link, epoch: u64) -> Result<Self> {
        let begin = line_at(epoch, unix_millis());
        let lines = Arc::new(Mutex::new(Lines::after(begin, Instant::now())));
        let mut task = JoinSet::new();
        task.spawn(read_on(link.clone(), Arc::clone(&lines)));
        let reader = Self { epoch, lines, _task: task };
        reader.wait_for(begin + 1, CATCH_UP).await;
        ensure!(reader.lock().came > 0, "no line within {CATCH_UP:?}");
        Ok(reader)
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        lock(&self.lines)
    }

    /// Time without lines counts from now on.
    pub(super) fn mark(&self) {
        self.lock().mark(Instant::now());
    }

    /// Waits until what there is now has come; what has not then is lost.
    pub(super) async fn finish(self) -> Lines {
        let there_is = line_at(self.epoch, unix_millis());
        self.wait_for(there_is, CATCH_UP).await;
        let mut lines = *self.lock();
        lines.end(there_is);
        lines
    }

    /// Waits until a line has come, or too long.
    async fn wait_for(&self, line: u64, patience: Duration) {
        let until = Instant::now() + patience;
        while self.lock().last < line && Instant::now() < until {
            sleep(EVERY).await;
        }
    }
}

fn lock(lines: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As the CLI does: until the stream breaks or the session is another's.
async fn read_on(link: Link, lines: Arc<Mutex<Lines>>) {
    loop {
        let since_line = lock(&lines).last;
        let id = RequestId::generate().to_wire();
        let open = v1::FollowOpen { id, since_line, follow: true, ..v1::FollowOpen::default() };
        let (mut stream, mut moved) = match link.open_until_moved(Kind::Follow(open)).await {
            Ok(opened) => opened,
            Err(OpenError::Closed) => return,
            Err(OpenError::Stream(_)) => {
                sleep(PAUSE).await;
                continue;
            }
        };
        loop {
            tokio::select! {
                biased;
                event = stream.recv.next::<v1::FollowEvent>() => match event {
                    Ok(Some(v1::FollowEvent { kind: Some(follow_event::Kind::Lines(came)) })) => {
                        let (mut lines, now) = (lock(&lines), Instant::now());
                        came.lines.iter().for_each(|line| lines.take(line.line, now));
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => {
                        sleep(PAUSE).await;
                        break;
                    }
                },
                () = moved.wait() => break,
            }
        }
    }
}

/// An address as host:port.
pub(super) fn socket_of(address: &Address) -> Result<SocketAddr> {
    Ok(SocketAddr::new(address.host.parse()?, address.port))
}
