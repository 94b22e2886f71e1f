//! The spool against a model, and what happens when the disk fails.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const TINY: Limits = Limits { chunk: 100, head: 300, tail: 300 };

fn data(records: &[v1::LogRecord]) -> Vec<Vec<u8>> {
    records.iter().map(|record| record.data.to_vec()).collect()
}

fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn new_spool(limits: Limits) -> (tempfile::TempDir, Spool, Writer) {
    let folder = tempfile::tempdir().expect("a folder");
    let (spool, writer) = Spool::create(&folder.path().join("log"), limits).expect("a spool");
    (folder, spool, writer)
}

fn files(spool: &Spool) -> usize {
    std::fs::read_dir(&spool.0.folder).expect("readable").count()
}

#[test]
fn reading_consumes_nothing_and_resumes_anywhere() {
    let (_folder, spool, mut writer) = new_spool(Limits::default());
    for number in 0..20_000 {
        writer.put(v1::LogStream::Stdout, number, format!("line {number}\n").as_bytes());
    }
    writer.flush();
    for start in [0, 1, 4_999, 12_345, 19_999] {
        let records = spool.read_from(start, 4_000).expect("readable");
        for (record, number) in records.iter().zip(start..) {
            assert_eq!((record.index, record.unix_ms, record.dropped_records), (number, number, 0));
            assert_eq!(record.data, format!("line {number}\n").into_bytes());
        }
        assert!(!records.is_empty() && records.len() <= 100);
    }
    assert!(spool.read_from(20_000, 4_000).expect("readable").is_empty());
    assert_eq!(spool.read_from(7, 1).expect("readable").len(), 1);
}

#[test]
fn progress_tells_of_records_acknowledgement_and_end() {
    let (_folder, spool, mut writer) = new_spool(TINY);
    let mut progress = spool.progress();
    writer.put(v1::LogStream::Stderr, 1, b"a\n");
    assert!(!progress.has_changed().expect("open"), "not visible before the flush");
    writer.flush();
    assert_eq!(progress.borrow_and_update().next_index, 1);
    assert_eq!(writer.end(), 1);
    assert_eq!(*progress.borrow_and_update(), Progress { next_index: 1, acknowledged: 0, ended: true });
    now(spool.acknowledge(99));
    assert!(progress.borrow_and_update().is_settled());
    assert_eq!(files(&spool), 0);
}

#[test]
fn what_is_dropped_in_the_middle_is_counted_exactly() {
    let (_folder, spool, mut writer) = new_spool(TINY);
    let total = 500u64;
    let mut bytes = 0;
    for number in 0..total {
        let line = format!("{number}\n");
        bytes += line.len() as u64;
        writer.put(v1::LogStream::Stdout, 0, line.as_bytes());
        writer.flush();
    }
    writer.end();
    let records = spool.read_from(0, usize::MAX).expect("readable");
    let kept: u64 = records.iter().map(|record| record.data.len() as u64).sum();
    assert_eq!(records.len() as u64 + records.iter().map(|r| r.dropped_records).sum::<u64>(), total);
    assert_eq!(kept + records.iter().map(|r| r.dropped_bytes).sum::<u64>(), bytes);
    assert_eq!(records.iter().filter(|record| record.dropped_records > 0).count(), 1, "one gap");
    assert_eq!((records[0].index, records.last().map(|r| r.index)), (0, Some(total - 1)));
    assert!(files(&spool) <= 9, "{} files", files(&spool));
}

#[test]
fn a_disk_that_fails_for_a_while_costs_records_and_not_the_count() {
    let (_folder, spool, mut writer) = new_spool(TINY);
    let put = |writer: &mut Writer, text: &str| {
        writer.put(v1::LogStream::Stdout, 0, text.as_bytes());
        writer.flush();
    };
    put(&mut writer, &"x".repeat(100));
    let away = spool.0.folder.with_extension("away");
    std::fs::rename(&spool.0.folder, &away).expect("moved");
    put(&mut writer, "lost\n");
    put(&mut writer, "lost too\n");
    std::fs::rename(&away, &spool.0.folder).expect("moved back");
    put(&mut writer, "kept\n");
    assert_eq!(writer.end(), 4);
    let records = spool.read_from(1, usize::MAX).expect("readable");
    assert_eq!(data(&records), [b"kept\n"]);
    assert_eq!((records[0].index, records[0].dropped_records, records[0].dropped_bytes), (3, 2, 14));
}

#[test]
fn a_disk_that_fails_to_the_end_leaves_last_words() {
    let (folder, spool, mut writer) = new_spool(TINY);
    std::fs::remove_dir(folder.path().join("log")).expect("removed");
    writer.put(v1::LogStream::Stdout, 0, b"lost\n");
    let total = writer.end();
    let records = spool.read_from(0, usize::MAX).expect("readable");
    assert_eq!(records.len(), 1);
    let last = &records[0];
    assert_eq!((last.index + 1, last.stream()), (total, v1::LogStream::System));
    assert_eq!(last.dropped_records, last.index);
    now(spool.acknowledge(total));
    assert!(spool.progress().borrow().is_settled());
}

/// Index, what was left out before it, and data of all records from an index on.
fn told(spool: &Spool, from: u64) -> Vec<(u64, u64, Vec<u8>)> {
    let records = spool.read_from(from, usize::MAX).expect("readable");
    records.into_iter().map(|r| (r.index, r.dropped_records, r.data.to_vec())).collect()
}

fn reopened(spool: &Spool) -> Spool {
    Spool::reopen(&spool.0.folder, TINY).expect("readable")
}

#[test]
fn a_log_whose_writer_is_gone_ends_with_its_last_whole_record() {
    let (_folder, spool, mut writer) = new_spool(TINY);
    for number in 0..18 {
        writer.put(v1::LogStream::Stderr, number, format!("this is line {number}\n").as_bytes());
        writer.flush();
    }
    let all = told(&spool, 0);
    assert_eq!(told(&reopened(&spool), 0), all);
    let path = spool.0.path(spool.0.lock().chunks.back().expect("several").first);
    assert!(files(&spool) == 5 && std::fs::metadata(&path).expect("there").len() > 50, "not its only record");
    let whole = std::fs::read(&path).expect("readable");
    let last = 13 + all[17].2.len();
    for cut in 1..=last {
        std::fs::write(&path, &whole[..whole.len() - cut]).expect("writable");
        let again = reopened(&spool);
        assert_eq!(*again.progress().borrow(), Progress { next_index: 17, acknowledged: 0, ended: true });
        assert_eq!(told(&again, 0), all[..17], "cut by {cut}");
        assert_eq!(told(&again, 7), all[7..17]);
    }
    // A disk that lost its power leaves zeros.
    for rest in [&[0; 40][..], &[0xff; 40]] {
        std::fs::write(&path, [&whole, rest].concat()).expect("writable");
        assert_eq!(told(&reopened(&spool), 0), all);
    }
    let again = reopened(&spool);
    assert_eq!(again.read_from(3, 1).expect("readable")[0].unix_ms, 3);
    now(again.acknowledge(18));
    assert!(again.progress().borrow().is_settled());
    assert_eq!(files(&spool), 0);
    assert!(reopened(&spool).progress().borrow().is_settled(), "nothing is left");
}

#[test]
fn a_log_that_is_found_tells_of_what_was_dropped_and_nothing_twice() {
    let (_folder, spool, mut writer) = new_spool(TINY);
    for number in 0..500 {
        writer.put(v1::LogStream::Stdout, 0, format!("{number}\n").as_bytes());
        writer.flush();
    }
    let all = told(&spool, 0);
    assert!(all.iter().any(|(_, dropped, _)| *dropped > 0));
    assert_eq!(told(&reopened(&spool), 0), all);
    // The rest of a failed write: records that have these numbers elsewhere.
    let first = spool.0.path(0);
    let (bytes, next) = (std::fs::read(&first).expect("readable"), spool.0.lock().chunks[1].first);
    std::fs::write(&first, [&bytes[..], &bytes].concat()).expect("writable");
    assert!(next > 1);
    assert_eq!(told(&reopened(&spool), 0), all);
    std::fs::write(spool.0.folder.join("notes.log"), b"x").expect("writable");
    std::fs::write(spool.0.path(500), b"").expect("writable");
    assert_eq!(told(&reopened(&spool), 0), all);
    assert!(Spool::reopen(&first, TINY).is_err());
}

#[derive(Debug, Clone)]
enum Step {
    Put(usize),
    Read { max: usize },
    Reconnect,
    Acknowledge { back: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0usize..120).prop_map(Step::Put),
        2 => (1usize..400).prop_map(|max| Step::Read { max }),
        1 => Just(Step::Reconnect),
        1 => (0usize..10).prop_map(|back| Step::Acknowledge { back }),
    ];
    proptest::collection::vec(step, 1..120)
}

/// A reader as the controlplane is one: it counts what it has and what it is
/// told was dropped.
#[derive(Default)]
struct Reader {
    next: u64,
    bytes: u64,
    /// Where it stood after each record, and the bytes up to there.
    stood: Vec<(u64, u64)>,
    acknowledged: (u64, u64),
    /// The next count of bytes may be too high.
    unsure: bool,
}

impl Reader {
    fn take(&mut self, records: &[v1::LogRecord], model: &BTreeMap<u64, Vec<u8>>) {
        for record in records {
            assert_eq!(record.index, self.next + record.dropped_records);
            assert_eq!(Some(record.data.to_vec()), model.get(&record.index).cloned());
            self.next = record.index + 1;
            self.bytes += record.dropped_bytes + record.data.len() as u64;
            let so_far: u64 = model.range(..self.next).map(|(_, data)| data.len() as u64).sum();
            if std::mem::take(&mut self.unsure) {
                assert!(self.bytes >= so_far, "at {}", record.index);
                self.bytes = so_far;
            }
            assert_eq!(self.bytes, so_far, "at {}", record.index);
            self.stood.push((self.next, self.bytes));
        }
    }
}

proptest! {
    #[test]
    fn a_reader_can_account_for_every_byte(steps in steps()) {
        let (_folder, spool, mut writer) = new_spool(TINY);
        let mut model = BTreeMap::new();
        let mut reader = Reader::default();
        for step in steps {
            match step {
                Step::Put(length) => {
                    let line = vec![u8::try_from(length).expect("small"); length + 1];
                    writer.put(v1::LogStream::Stdout, 0, &line);
                    writer.flush();
                    model.insert(model.len() as u64, line);
                }
                Step::Read { max } => {
                    reader.take(&spool.read_from(reader.next, max).expect("readable"), &model);
                }
                Step::Reconnect => {
                    (reader.next, reader.bytes) = reader.acknowledged;
                    reader.stood.clear();
                    reader.unsure = true;
                }
                Step::Acknowledge { back } => {
                    if let Some(at) = reader.stood.iter().rev().nth(back) {
                        reader.acknowledged = reader.acknowledged.max(*at);
                        now(spool.acknowledge(at.0));
                    }
                }
            }
            let kept: u64 = spool.0.lock().chunks.iter().map(|chunk| chunk.file_bytes).sum();
            // Beyond the limits: the open chunk, the half-read one, one that straddles the head.
            prop_assert!(kept <= TINY.head + TINY.tail + 3 * (TINY.chunk + 140), "{kept} bytes kept");
        }
        let found = reopened(&spool);
        prop_assert_eq!(told(&found, reader.acknowledged.0), told(&spool, reader.acknowledged.0));
        let total = writer.end();
        prop_assert!(found.progress().borrow().next_index <= total);
        while reader.next < total {
            let records = spool.read_from(reader.next, 500).expect("readable");
            prop_assert!(!records.is_empty());
            reader.take(&records, &model);
        }
        now(spool.acknowledge(total));
        prop_assert!(spool.progress().borrow().is_settled());
        prop_assert_eq!(files(&spool), 0);
    }
}
