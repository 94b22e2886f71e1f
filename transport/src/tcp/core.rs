//! The state of one TCP carrier: its streams, what each may send, what waits
//! to be written and in which order, what came and was not read. Pure but for
//! the wakers it keeps: bytes, frames and the time are arguments.
//!
//! A stream's window starts at 64 KiB and grows, while its reader is what
//! keeps up and the path is what holds it back, out of a budget of the
//! connection; so what a peer can make this side hold is the streams it may
//! open times 64 KiB, and the budget. Streams share no window, so one that
//! nobody reads stalls itself only. Everything that is due to the peer is
//! kept as a mark on its stream, never in a queue, so a peer that does not
//! read makes nothing grow.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use levers9_wire::Reset;
use levers9_wire::v1::ResetCode;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::code::{Frame, put_data_head, put_frame};
use super::entry::{Entry, Sending};
use crate::carrier::{CarrierKind, HalfError, Lost};
use crate::session::PROBE;

/// Streams each side may open before the other has said how many.
pub(super) const FIRST_STREAMS: u64 = 16;
/// Payload of one data frame, so that others get their turn, in bytes.
const FRAME: usize = 16 * 1024;
/// What is handed to TLS at once, in bytes.
const BATCH: usize = 64 * 1024;
/// Payload that is copied beside its head instead of standing for itself, in bytes.
const COPIED: usize = 1024;
/// What a stream may have waiting to be sent, in bytes.
pub(super) const SEND_QUEUE: usize = 128 * 1024;
/// Pieces of it.
pub(super) const SEND_PIECES: usize = 256;
/// How often this side asks for a sign of life and the round-trip time.
pub(super) const PING_EVERY: Duration = Duration::from_secs(15);

/// A timer this late means that the process did not run.
const ASLEEP: Duration = Duration::from_secs(3);

/// The bounds of one carrier.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Streams the peer may have open at once.
    pub(super) streams: u32,
    /// The largest window of one stream, in bytes.
    pub(super) stream_window: u64,
    /// What the windows of all streams may grow by, in bytes.
    pub(super) budget: u64,
    /// A silent peer is given up after this.
    pub(super) idle: Duration,
}

/// What is to be done after the lock is released.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) wakes: Vec<Waker>,
    pub(super) may_open: bool,
    pub(super) may_accept: bool,
    pub(super) gone: bool,
    pub(super) driver: bool,
}

/// A peer that does not keep the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Violation(pub(super) &'static str);

/// Payload of a stream to be written, with its head.
pub(super) type Outgoing = VecDeque<Bytes>;

#[derive(Debug)]
pub(super) struct Core {
    dialer: bool,
    bounds: Bounds,
    streams: HashMap<u64, Entry>,
    /// Streams with something other than payload to send, each once.
    marked: VecDeque<u64>,
    /// Streams with payload or an end to send, each once, by priority.
    lines: BTreeMap<Reverse<i32>, VecDeque<u64>>,
    /// Streams the peer opened and nobody has taken.
    untaken: VecDeque<u64>,
    opened: u64,
    may_open: u64,
    taken_in: u64,
    granted: u64,
    told_granted: u64,
    /// Streams the peer opened that are not over.
    theirs: u64,
    budget: u64,
    ping_due: Option<u64>,
    pong_due: Option<u64>,
    asked: Option<(u64, Instant)>,
    nonce: u64,
    rtt: Option<Duration>,
    heard: Instant,
    next_ping: Instant,
    pub(super) kind: CarrierKind,
    pub(super) why: String,
    note_due: bool,
    lost: Option<Lost>,
    close_due: Option<(u64, String)>,
    pub(super) halves: usize,
    pub(super) effects: Effects,
}

impl Core {
    pub(super) fn new(dialer: bool, bounds: Bounds, kind: CarrierKind, why: String, now: Instant) -> Self {
        let granted = u64::from(bounds.streams).max(FIRST_STREAMS);
        Self {
            dialer,
            bounds,
            streams: HashMap::new(),
            marked: VecDeque::new(),
            lines: BTreeMap::new(),
            untaken: VecDeque::new(),
            opened: 0,
            may_open: FIRST_STREAMS,
            taken_in: 0,
            granted,
            told_granted: FIRST_STREAMS,
            theirs: 0,
            budget: bounds.budget,
            ping_due: None,
            pong_due: None,
            asked: None,
            nonce: 0,
            rtt: None,
            heard: now,
            next_ping: now,
            kind,
            why,
            note_due: dialer,
            lost: None,
            close_due: None,
            halves: 0,
            effects: Effects::default(),
        }
    }

    pub(super) fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// Opens a stream, or `None` while the peer permits no more.
    pub(super) fn open(&mut self, now: Instant) -> Result<Option<(u64, Arc<Notify>)>, Lost> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        if self.opened >= self.may_open {
            return Ok(None);
        }
        self.opened += 1;
        let id = self.own_id(self.opened);
        let mut entry = Entry::new(now);
        entry.open_due = true;
        let stop = Arc::clone(&entry.stop);
        self.streams.insert(id, entry);
        self.halves += 2;
        self.mark(id);
        Ok(Some((id, stop)))
    }

    /// A stream the peer opened, if there is one.
    pub(super) fn accept(&mut self) -> Result<Option<(u64, Arc<Notify>)>, Lost> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let Some(id) = self.untaken.pop_front() else { return Ok(None) };
        let Some(entry) = self.streams.get_mut(&id) else { return Ok(None) };
        entry.sender_held = true;
        entry.receiver_held = true;
        self.halves += 2;
        Ok(Some((id, Arc::clone(&entry.stop))))
    }

    pub(super) fn permit(&mut self, count: u32) {
        if count > self.bounds.streams {
            self.granted += u64::from(count - self.bounds.streams);
            self.bounds.streams = count;
            self.effects.driver = true;
        }
    }

    pub(super) fn permitted(&self) -> u32 {
        self.bounds.streams
    }

    fn own_id(&self, number: u64) -> u64 {
        2 * number - u64::from(self.dialer)
    }

    fn peer_id(&self, number: u64) -> u64 {
        2 * number - u64::from(!self.dialer)
    }

    /// Whether a stream of this id ever was.
    fn was(&self, id: u64) -> bool {
        let own = id % 2 == u64::from(self.dialer);
        id > 0 && id.div_ceil(2) <= if own { self.opened } else { self.taken_in }
    }

    fn mark(&mut self, id: u64) {
        if let Some(entry) = self.streams.get_mut(&id)
            && !entry.is_marked
        {
            entry.is_marked = true;
            self.marked.push_back(id);
            self.effects.driver = true;
        }
    }

    fn put_in_line(&mut self, id: u64) {
        if let Some(entry) = self.streams.get_mut(&id)
            && !entry.is_in_line
        {
            entry.is_in_line = true;
            self.lines.entry(Reverse(entry.priority)).or_default().push_back(id);
            self.effects.driver = true;
        }
    }

    /// Takes what fits now off the fronts of the chunks.
    pub(super) fn poll_write(
        &mut self,
        id: u64,
        chunks: &mut [Bytes],
        context: &Context<'_>,
    ) -> Poll<Result<usize, HalfError>> {
        if let Some(lost) = &self.lost {
            return Poll::Ready(Err(HalfError::Lost(lost.clone())));
        }
        let Some(entry) = self.streams.get_mut(&id) else { return Poll::Ready(Err(HalfError::Closed)) };
        if let Some(reset) = entry.stopped {
            return Poll::Ready(Err(HalfError::Reset(reset)));
        }
        if entry.sending != Sending::Open {
            return Poll::Ready(Err(HalfError::Closed));
        }
        let (mut taken, mut wanted) = (0, false);
        for chunk in chunks.iter_mut().filter(|chunk| !chunk.is_empty()) {
            wanted = true;
            let room = entry.room();
            if room == 0 {
                break;
            }
            let piece = chunk.split_to(room.min(chunk.len()));
            taken += piece.len();
            entry.take(piece);
        }
        if taken > 0 {
            self.put_in_line(id);
        } else if wanted {
            entry.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(taken))
    }

    pub(super) fn finish(&mut self, id: u64) {
        if let Some(entry) = self.streams.get_mut(&id)
            && entry.sending == Sending::Open
        {
            entry.sending = Sending::Ending;
            self.put_in_line(id);
        }
    }

    pub(super) fn reset(&mut self, id: u64, code: ResetCode) {
        if let Some(entry) = self.streams.get_mut(&id)
            && matches!(entry.sending, Sending::Open | Sending::Ending)
        {
            entry.give_up(number_of(code));
            self.mark(id);
        }
    }

    pub(super) fn set_priority(&mut self, id: u64, priority: i32) {
        let Some(entry) = self.streams.get_mut(&id) else { return };
        let before = std::mem::replace(&mut entry.priority, priority);
        if before != priority && std::mem::take(&mut entry.is_in_line) {
            if let Some(line) = self.lines.get_mut(&Reverse(before)) {
                line.retain(|waiting| *waiting != id);
            }
            self.put_in_line(id);
        }
    }

    /// Why the peer reads no more, `None` when it never will stop.
    pub(super) fn poll_stopped(&self, id: u64) -> Poll<Option<HalfError>> {
        let Some(entry) = self.streams.get(&id) else { return Poll::Ready(None) };
        match (entry.stopped, &self.lost) {
            (Some(reset), _) => Poll::Ready(Some(HalfError::Reset(reset))),
            (None, _) if entry.got => Poll::Ready(None),
            (None, Some(lost)) => Poll::Ready(Some(HalfError::Lost(lost.clone()))),
            (None, None) => Poll::Pending,
        }
    }

    /// The sender is not held any more.
    pub(super) fn drop_sender(&mut self, id: u64, ended: bool) {
        self.halves = self.halves.saturating_sub(1);
        if !ended {
            self.reset(id, ResetCode::Cancelled);
        }
        if let Some(entry) = self.streams.get_mut(&id) {
            entry.sender_held = false;
            entry.writer = None;
        }
        self.settle(id);
    }

    /// The next piece, at most `max` bytes of it.
    pub(super) fn poll_read(
        &mut self,
        id: u64,
        max: usize,
        now: Instant,
        context: &Context<'_>,
    ) -> Poll<Result<Option<Bytes>, HalfError>> {
        let Some(entry) = self.streams.get_mut(&id) else { return Poll::Ready(Err(HalfError::Closed)) };
        if entry.ignored {
            return Poll::Ready(Err(HalfError::Closed));
        }
        if let Some(piece) = entry.pop(max) {
            self.consumed(id, piece.len(), now);
            return Poll::Ready(Ok(Some(piece)));
        }
        match (&entry.over, &self.lost) {
            (Some(None), _) => Poll::Ready(Ok(None)),
            (Some(Some(reset)), _) => Poll::Ready(Err(HalfError::Reset(*reset))),
            (None, Some(lost)) => Poll::Ready(Err(HalfError::Lost(lost.clone()))),
            (None, None) => {
                entry.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Gives back what was read, once it is worth a frame, and more where the
    /// window is what holds the stream back.
    fn consumed(&mut self, id: u64, bytes: usize, now: Instant) {
        let rtt = self.rtt.unwrap_or_default();
        let Some(entry) = self.streams.get_mut(&id) else { return };
        if entry.over.is_some() {
            return self.settle(id);
        }
        entry.consumed += bytes as u64;
        if entry.consumed < entry.window / 2 {
            return;
        }
        let more = entry.growth(now, rtt, self.bounds.stream_window, self.budget);
        self.budget -= more;
        entry.give_credit(more, now);
        self.mark(id);
    }

    /// Whether the peer has reset it, `None` when it never will.
    pub(super) fn poll_broken(&mut self, id: u64, context: &Context<'_>) -> Poll<Option<HalfError>> {
        let Some(entry) = self.streams.get_mut(&id) else { return Poll::Ready(None) };
        match (&entry.over, &self.lost) {
            (Some(Some(reset)), _) => Poll::Ready(Some(HalfError::Reset(*reset))),
            (Some(None), _) => Poll::Ready(None),
            (None, _) if entry.ignored => Poll::Ready(None),
            (None, Some(lost)) => Poll::Ready(Some(HalfError::Lost(lost.clone()))),
            (None, None) => {
                entry.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Nothing of it is read any more.
    pub(super) fn stop(&mut self, id: u64, code: ResetCode) {
        let Some(entry) = self.streams.get_mut(&id) else { return };
        entry.discard();
        if !std::mem::replace(&mut entry.ignored, true) && entry.over.is_none() {
            entry.stop_due = Some(number_of(code));
            self.mark(id);
        }
        self.settle(id);
    }

    /// The receiver is not held any more.
    pub(super) fn drop_receiver(&mut self, id: u64) {
        self.halves = self.halves.saturating_sub(1);
        self.stop(id, ResetCode::Unspecified);
        if let Some(entry) = self.streams.get_mut(&id) {
            entry.receiver_held = false;
            entry.reader = None;
        }
        self.settle(id);
    }

    /// Gives back what a stream holds once it is over: its part of the budget
    /// and its place at once, its entry when nobody looks at it any more.
    fn settle(&mut self, id: u64) {
        let Some(entry) = self.streams.get_mut(&id) else { return };
        self.budget += entry.surplus();
        if !entry.is_over() {
            return;
        }
        if id % 2 != u64::from(self.dialer) && !std::mem::replace(&mut entry.place_returned, true) {
            self.theirs -= 1;
            let free = u64::from(self.bounds.streams).saturating_sub(self.theirs);
            self.granted = self.granted.max(self.taken_in + free);
            self.effects.driver = true;
        }
        let entry = &self.streams[&id];
        if !entry.sender_held && !entry.receiver_held && !entry.is_marked && !entry.is_in_line {
            self.streams.remove(&id);
        }
    }

    /// A frame has come.
    pub(super) fn receive(&mut self, frame: Frame, now: Instant) -> Result<(), Violation> {
        if self.lost.is_some() {
            return Ok(());
        }
        self.heard = now;
        match frame {
            Frame::Data(id, bytes) => self.data(id, bytes),
            Frame::Open(id) => self.opened_by_peer(id, now),
            Frame::End(id) => self.over(id, None),
            Frame::Reset(id, code) => self.over(id, Some(Reset::remote(code))),
            Frame::Stop(id, code) => self.stopped(id, code),
            Frame::Got(id) => self.got(id),
            Frame::Credit(id, more) => self.credit(id, more),
            Frame::Streams(count) => {
                self.effects.may_open |= count > self.may_open;
                self.may_open = self.may_open.max(count);
                Ok(())
            }
            Frame::Ping(nonce) => {
                self.pong_due = Some(nonce);
                Ok(())
            }
            Frame::Pong(nonce) => {
                if let Some((_, at)) = self.asked.take_if(|(asked, _)| *asked == nonce) {
                    self.rtt = Some(now - at);
                }
                Ok(())
            }
            Frame::Close(code, words) => {
                let words = levers9_wire::name::printable(&words, super::code::WORDS);
                self.fail(Lost::Closed(Reset::remote(code), words));
                Ok(())
            }
            Frame::Note(kind, words) => {
                if self.dialer {
                    return Err(Violation("a note from the accepting side"));
                }
                self.kind = if kind == NOTE_PROXY { CarrierKind::Proxy } else { CarrierKind::Tcp };
                self.why = levers9_wire::name::printable(&words, super::code::WORDS);
                Ok(())
            }
        }
    }

    fn opened_by_peer(&mut self, id: u64, now: Instant) -> Result<(), Violation> {
        if id != self.peer_id(self.taken_in + 1) {
            return Err(Violation("a stream out of turn"));
        }
        if self.taken_in >= self.granted {
            return Err(Violation("more streams than permitted"));
        }
        self.taken_in += 1;
        self.theirs += 1;
        let mut entry = Entry::new(now);
        // Until somebody takes it, nobody lets it go either.
        (entry.sender_held, entry.receiver_held) = (true, true);
        self.streams.insert(id, entry);
        self.untaken.push_back(id);
        self.effects.may_accept = true;
        Ok(())
    }

    fn data(&mut self, id: u64, bytes: Bytes) -> Result<(), Violation> {
        let Some(entry) = self.streams.get_mut(&id).filter(|entry| entry.over.is_none()) else {
            return Err(Violation("payload of a stream that is over"));
        };
        let Some(left) = entry.allowed.checked_sub(bytes.len() as u64) else {
            return Err(Violation("more payload than permitted"));
        };
        entry.allowed = left;
        if entry.ignored {
            return Ok(());
        }
        entry.push(bytes);
        self.effects.wakes.extend(entry.reader.take());
        Ok(())
    }

    fn over(&mut self, id: u64, reset: Option<Reset>) -> Result<(), Violation> {
        let Some(entry) = self.streams.get_mut(&id).filter(|entry| entry.over.is_none()) else {
            return Err(Violation("the second end of a stream"));
        };
        entry.over = Some(reset);
        entry.stop_due = None;
        entry.credit_due = 0;
        self.effects.wakes.extend(entry.reader.take());
        if reset.is_some() {
            entry.discard();
        } else {
            entry.got_due = true;
            self.mark(id);
        }
        self.settle(id);
        Ok(())
    }

    fn stopped(&mut self, id: u64, code: u64) -> Result<(), Violation> {
        let Some(entry) = self.streams.get_mut(&id) else { return self.late(id) };
        if entry.stopped.is_none() && !entry.got {
            entry.stopped = Some(Reset::remote(code));
            self.effects.wakes.extend(entry.writer.take());
            entry.stop.notify_waiters();
            if matches!(entry.sending, Sending::Open | Sending::Ending) {
                entry.give_up(code);
                self.mark(id);
            }
        }
        Ok(())
    }

    fn got(&mut self, id: u64) -> Result<(), Violation> {
        let Some(entry) = self.streams.get_mut(&id) else { return self.late(id) };
        if entry.sending != Sending::Ended {
            return Err(Violation("an end confirmed that was not sent"));
        }
        entry.got = true;
        self.effects.wakes.extend(entry.writer.take());
        entry.stop.notify_waiters();
        self.settle(id);
        Ok(())
    }

    fn credit(&mut self, id: u64, more: u64) -> Result<(), Violation> {
        let Some(entry) = self.streams.get_mut(&id) else { return self.late(id) };
        entry.credit = entry.credit.saturating_add(more);
        self.effects.wakes.extend(entry.writer.take());
        Ok(())
    }

    /// What crossed the end of its stream on the way.
    fn late(&self, id: u64) -> Result<(), Violation> {
        if self.was(id) { Ok(()) } else { Err(Violation("a stream that never was")) }
    }

    /// Whether the peer has everything up to the end.
    pub(super) fn poll_delivered(&mut self, id: u64, context: &Context<'_>) -> Poll<Result<(), HalfError>> {
        let Some(entry) = self.streams.get_mut(&id) else { return Poll::Ready(Err(HalfError::Closed)) };
        match (entry.got, entry.stopped, &self.lost) {
            (true, ..) => Poll::Ready(Ok(())),
            (false, Some(reset), _) => Poll::Ready(Err(HalfError::Reset(reset))),
            (false, None, Some(lost)) => Poll::Ready(Err(HalfError::Lost(lost.clone()))),
            (false, None, None) if matches!(entry.sending, Sending::Reset | Sending::GivenUp(_)) => {
                Poll::Ready(Err(HalfError::Closed))
            }
            (false, None, None) => {
                entry.writer = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// This side closes the connection.
    pub(super) fn close(&mut self, code: ResetCode, words: &str) {
        if self.lost.is_none() {
            self.close_due = Some((number_of(code), words.to_owned()));
            self.fail(Lost::Closed(Reset::local(code), String::new()));
        }
    }

    /// The peer broke the protocol: tell it, and give it up.
    pub(super) fn violated(&mut self, words: String) {
        if self.lost.is_none() {
            self.close_due = Some((number_of(ResetCode::Protocol), words.clone()));
            self.fail(Lost::Protocol(words));
        }
    }

    /// The connection is gone.
    pub(super) fn fail(&mut self, lost: Lost) {
        if self.lost.is_some() {
            return;
        }
        self.lost = Some(lost);
        self.marked.clear();
        self.lines.clear();
        // Nobody will take these, and the carrier may be held for long.
        for id in std::mem::take(&mut self.untaken) {
            self.streams.remove(&id);
        }
        for entry in self.streams.values_mut() {
            entry.unsend();
            self.effects.wakes.extend(entry.reader.take());
            self.effects.wakes.extend(entry.writer.take());
            entry.stop.notify_waiters();
        }
        let Effects { may_open, may_accept, gone, driver, .. } = &mut self.effects;
        (*may_open, *may_accept, *gone, *driver) = (true, true, true, true);
    }

    /// Asks and gives up when it is time; says when it is next.
    pub(super) fn tick(&mut self, now: Instant) -> Instant {
        // A process that was asleep asks first: what the peer sent may still be on its way in.
        if now > self.next_ping.min(self.heard + self.bounds.idle) + ASLEEP
            && let Some(spared) = (now + PROBE).checked_sub(self.bounds.idle)
        {
            self.heard = self.heard.max(spared);
        }
        if self.lost.is_none() && now >= self.heard + self.bounds.idle {
            self.close_due = Some((number_of(ResetCode::Timeout), "no answer".to_owned()));
            self.fail(Lost::TimedOut);
        }
        if now >= self.next_ping {
            self.nonce += 1;
            self.ping_due = Some(self.nonce);
            self.next_ping = now + PING_EVERY.min(self.bounds.idle / 3);
        }
        self.next_ping.min(self.heard + self.bounds.idle)
    }

    /// Puts what is due into `out`, about a batch of it; whether it put anything.
    pub(super) fn fill(&mut self, out: &mut Outgoing, now: Instant) -> bool {
        let mut heads = BytesMut::new();
        if let Some((code, words)) = self.close_due.take() {
            put_frame(&Frame::Close(code, words), &mut heads);
        }
        if self.lost.is_some() {
            return flush(&mut heads, out) > 0;
        }
        self.fill_control(&mut heads, now);
        let mut filled = 0;
        while filled + heads.len() < BATCH {
            let Some(id) = self.marked.pop_front() else { break };
            self.put_marks(id, &mut heads);
        }
        while filled + heads.len() < BATCH {
            let Some(id) = self.next_in_line() else { break };
            filled += self.put_payload(id, &mut heads, out);
        }
        filled + flush(&mut heads, out) > 0
    }

    fn fill_control(&mut self, heads: &mut BytesMut, now: Instant) {
        if std::mem::take(&mut self.note_due) {
            let kind = if self.kind == CarrierKind::Proxy { NOTE_PROXY } else { 0 };
            put_frame(&Frame::Note(kind, self.why.clone()), heads);
        }
        if let Some(nonce) = self.pong_due.take() {
            put_frame(&Frame::Pong(nonce), heads);
        }
        if let Some(nonce) = self.ping_due.take() {
            self.asked = Some((nonce, now));
            put_frame(&Frame::Ping(nonce), heads);
        }
        if self.granted > self.told_granted {
            self.told_granted = self.granted;
            put_frame(&Frame::Streams(self.granted), heads);
        }
    }

    fn put_marks(&mut self, id: u64, heads: &mut BytesMut) {
        let Some(entry) = self.streams.get_mut(&id) else { return };
        entry.is_marked = false;
        if std::mem::take(&mut entry.open_due) {
            put_frame(&Frame::Open(id), heads);
        }
        if let Sending::GivenUp(code) = entry.sending {
            entry.sending = Sending::Reset;
            put_frame(&Frame::Reset(id, code), heads);
        }
        if let Some(code) = entry.stop_due.take() {
            put_frame(&Frame::Stop(id, code), heads);
        }
        match std::mem::take(&mut entry.credit_due) {
            0 => {}
            more => put_frame(&Frame::Credit(id, more), heads),
        }
        if std::mem::take(&mut entry.got_due) {
            put_frame(&Frame::Got(id), heads);
        }
        self.settle(id);
    }

    fn next_in_line(&mut self) -> Option<u64> {
        loop {
            let mut first = self.lines.first_entry()?;
            let id = first.get_mut().pop_front();
            if first.get().is_empty() {
                first.remove();
            }
            if id.is_some() {
                return id;
            }
        }
    }

    /// One frame of a stream's payload, and its end when that is all.
    fn put_payload(&mut self, id: u64, heads: &mut BytesMut, out: &mut Outgoing) -> usize {
        let Some(entry) = self.streams.get_mut(&id) else { return 0 };
        entry.is_in_line = false;
        let length = entry.queued.min(FRAME);
        let mut put = 0;
        if length > 0 {
            put_data_head(id, length, heads);
            entry.queued -= length;
            if length > COPIED {
                put += flush(heads, out);
            }
            let mut left = length;
            while let Some(front) = entry.queue.front_mut().filter(|_| left > 0) {
                let piece = front.split_to(front.len().min(left));
                if front.is_empty() {
                    entry.queue.pop_front();
                }
                left -= piece.len();
                if length > COPIED {
                    put += piece.len();
                    out.push_back(piece);
                } else {
                    heads.extend_from_slice(piece.chunk());
                }
            }
            self.effects.wakes.extend(entry.writer.take());
        }
        if entry.queued > 0 {
            self.put_in_line(id);
        } else if entry.sending == Sending::Ending {
            entry.sending = Sending::Ended;
            put_frame(&Frame::End(id), heads);
        }
        self.settle(id);
        put
    }

    /// Streams there are, for tests.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.streams.len()
    }

    /// What windows may still grow by, in bytes, for tests.
    #[cfg(test)]
    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes that came and were not read, and those that wait to be sent, for tests.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        let both = self.streams.values().map(|entry| (entry.unread(), entry.queued));
        both.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

/// The number by which a note says that there is a proxy.
const NOTE_PROXY: u64 = 1;

fn number_of(code: ResetCode) -> u64 {
    u64::try_from(i32::from(code)).unwrap_or(0)
}

/// Moves what was encoded into the line, and says how many bytes.
fn flush(heads: &mut BytesMut, out: &mut Outgoing) -> usize {
    let bytes = heads.split().freeze();
    let length = bytes.len();
    if length > 0 {
        out.push_back(bytes);
    }
    length
}
