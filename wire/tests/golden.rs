//! Golden vectors: what a few messages are on the wire, byte by byte. Both
//! directions are checked, since a round trip alone passes when both sides are
//! wrong in the same way. They may still change until the first release; from
//! then on old ones stay as they are and new ones are added.

#![cfg(test)]

use levers9_wire::v1::{
    self, JobPhase, WithheldReason, control_frame, exec_input, exec_output, order_open, run_event,
    stream_open,
};
use levers9_wire::{frame, limits};
use prost::Message;

/// Bytes from lines of hexadecimal with comments after `#`.
fn bytes(text: &str) -> Vec<u8> {
    text.lines()
        .flat_map(|line| line.split('#').next().unwrap_or_default().split_whitespace())
        .map(|byte| u8::from_str_radix(byte, 16).unwrap_or_else(|_| panic!("{byte:?} is no byte")))
        .collect()
}

fn check<M: Message + Default + PartialEq + std::fmt::Debug>(name: &str, message: &M, golden: &str) {
    let golden = bytes(golden);
    let encoded = frame::to_bytes(message, limits::FRAME).unwrap();
    assert_eq!(encoded.as_ref(), golden.as_slice(), "{name} is written otherwise");
    let mut decoder = frame::Decoder::new();
    decoder.feed(&golden);
    assert_eq!(decoder.next::<M>(limits::FRAME).unwrap().as_ref(), Some(message), "{name} is read otherwise");
    decoder.finish().unwrap();
    // Cut anywhere it is incomplete, never another message.
    for end in 0..golden.len() {
        let mut decoder = frame::Decoder::new();
        decoder.feed(&golden[..end]);
        assert_eq!(decoder.next::<M>(limits::FRAME).unwrap(), None, "{name} cut at {end}");
    }
}

#[test]
fn stream_opens() {
    let open = |kind| v1::StreamOpen { kind: Some(kind) };
    check(
        "control",
        &open(stream_open::Kind::Control(v1::ControlOpen {})),
        "02        # the frame has 2 bytes
         0a 00     # field 1, control: nothing",
    );
    let log = v1::LogOpen { container: (0..16).collect(), generation: 3 };
    check(
        "log",
        &open(stream_open::Kind::Log(log)),
        "16        # the frame has 22 bytes
         1a 14     # field 3, log: 20 bytes
         0a 10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  # 1 container: 16 bytes
         10 03     # 2 generation",
    );
    let call = v1::CallOpen {
        request_id: vec![7; 16],
        request: Some(v1::call_open::Request::TaskStop(v1::TaskStopRequest { task: vec![9; 16] })),
    };
    check(
        "call",
        &open(stream_open::Kind::Call(call)),
        "28        # the frame has 40 bytes
         22 26     # field 4, call: 38 bytes
         0a 10 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07  # 1 request id
         32 12     # 6 task_stop: 18 bytes
         0a 10 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09  # 1 task",
    );
    let follow = v1::FollowOpen {
        id: vec![9; 16],
        since_line: 300,
        tail: Some(0),
        follow: true,
        caller: true,
        ..v1::FollowOpen::default()
    };
    check(
        "follow",
        &open(stream_open::Kind::Follow(follow)),
        "1d        # the frame has 29 bytes
         4a 1b     # field 9, follow: 27 bytes
         0a 10 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09  # 1 id
         10 ac 02  # 2 since_line: 300
         18 00     # 3 tail: 0, present
         20 01     # 4 follow
         28 01     # 5 caller",
    );
}

#[test]
fn control_frames() {
    let control = |kind| v1::ControlFrame { kind: Some(kind) };
    let hello = v1::Hello {
        version_min: 1,
        version_max: 1,
        role: v1::Role::Worker.into(),
        token: "t".to_owned(),
        instance: vec![5; 16],
        build: "0.1.0".to_owned(),
        inventory: vec![v1::RunningContainer { container: vec![6; 16], generation: 1, last_event: 2 }],
        ..v1::Hello::default()
    };
    check(
        "hello",
        &control(control_frame::Kind::Hello(hello)),
        "3c        # the frame has 60 bytes
         0a 3a     # field 1, hello: 58 bytes
         08 01     # 1 version_min
         10 01     # 2 version_max
         18 02     # 3 role: worker
         22 01 74  # 4 token
         2a 10 05 05 05 05 05 05 05 05 05 05 05 05 05 05 05 05  # 5 instance
         3a 05 30 2e 31 2e 30  # 7 build
         4a 16     # 9 inventory: 22 bytes
         0a 10 06 06 06 06 06 06 06 06 06 06 06 06 06 06 06 06  # 1 container
         10 01     # 2 generation
         18 02     # 3 last_event",
    );
    let moving = v1::Hello { session: vec![9; 1], moving: true, ..v1::Hello::default() };
    check(
        "a hello that moves",
        &control(control_frame::Kind::Hello(moving)),
        "07        # the frame has 7 bytes
         0a 05     # field 1, hello: 5 bytes
         32 01 09  # 6 session
         78 01     # 15 moving",
    );
    let refused = v1::Refused {
        code: v1::RefuseCode::Version.into(),
        text: "old".to_owned(),
        alternatives: vec!["h:1".to_owned()],
    };
    check(
        "refused",
        &control(control_frame::Kind::Refused(refused)),
        "0e        # the frame has 14 bytes
         1a 0c     # field 3, refused: 12 bytes
         08 05     # 1 code: version
         12 03 6f 6c 64  # 2 text
         1a 03 68 3a 31  # 3 alternatives",
    );
    check(
        "a welcome to a session there is",
        &control(control_frame::Kind::Welcome(v1::Welcome { joined: true, ..v1::Welcome::default() })),
        "04        # the frame has 4 bytes
         12 02     # field 2, welcome: 2 bytes
         58 01     # 11 joined",
    );
    check(
        "drain",
        &control(control_frame::Kind::Drain(v1::Drain {
            deadline_ms: 1,
            alternatives: vec!["h:1".to_owned()],
        })),
        "09        # the frame has 9 bytes
         32 07     # field 6, drain: 7 bytes
         08 01     # 1 deadline_ms
         12 03 68 3a 31  # 2 alternatives",
    );
    check(
        "bye",
        &control(control_frame::Kind::Bye(v1::Bye { reason: "r".to_owned(), back_in_ms: 1 })),
        "07        # the frame has 7 bytes
         3a 05     # field 7, bye: 5 bytes
         0a 01 72  # 1 reason
         10 01     # 2 back_in_ms",
    );
    check(
        "fled",
        &control(control_frame::Kind::Fled(v1::Fled {})),
        "02        # the frame has 2 bytes
         42 00     # field 8, fled: empty",
    );
    check(
        "ping",
        &control(control_frame::Kind::Ping(v1::Ping { nonce: 300 })),
        "05        # the frame has 5 bytes
         22 03     # field 4, ping: 3 bytes
         08 ac 02  # 1 nonce: 300",
    );
}

#[test]
fn runs_and_logs() {
    let ended = v1::RunEnded {
        outcome: v1::Outcome::Exited.into(),
        exit_code: -1,
        duration_ms: 5,
        log_records: 2,
        ..v1::RunEnded::default()
    };
    let event = v1::RunEvent {
        sequence: 2,
        task: vec![9; 16],
        attempt: 1,
        kind: Some(run_event::Kind::Ended(ended)),
    };
    check(
        "ended",
        &event,
        "29        # the frame has 41 bytes
         08 02     # 1 sequence
         12 10 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09  # 2 task
         18 01     # 3 attempt
         2a 11     # 5 ended: 17 bytes
         08 01     # 1 outcome: exited
         10 ff ff ff ff ff ff ff ff ff 01  # 2 exit_code: -1, ten bytes
         28 05     # 5 duration_ms
         30 02     # 6 log_records",
    );
    let record = v1::LogRecord {
        index: 0,
        unix_ms: 1,
        stream: v1::LogStream::Stderr.into(),
        data: vec![0xff, 0x0a].into(),
        ..v1::LogRecord::default()
    };
    check(
        "log batch",
        &v1::LogBatch { task: vec![9; 16], attempt: 1, records: vec![record], end: true },
        "20        # the frame has 32 bytes
         0a 10 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09  # 1 task
         10 01     # 2 attempt
         1a 08     # 3 records: 8 bytes
         10 01     # 2 unix_ms; 1 index is 0 and left out
         18 02     # 3 stream: stderr
         22 02 ff 0a  # 4 data, any bytes
         20 01     # 4 end",
    );
}

#[test]
fn streams_into_containers() {
    let open = |kind| v1::StreamOpen { kind: Some(kind) };
    let container: Vec<u8> = (0..16).collect();
    let tunnel = v1::TunnelOpen { container: container.clone(), generation: 3, port: 8000 };
    check(
        "tunnel",
        &open(stream_open::Kind::Tunnel(tunnel)),
        "19        # the frame has 25 bytes
         3a 17     # field 7, tunnel: 23 bytes
         0a 10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  # 1 container: 16 bytes
         10 03     # 2 generation
         18 c0 3e  # 3 port: 8000",
    );
    check("a connection that is made", &v1::TunnelAnswer { failure: None }, "00  # nothing");
    let exec = v1::ExecOpen {
        container: container.clone(),
        generation: 0,
        command: vec!["ls".into()],
        env: vec![v1::EnvVar { name: "A".into(), value: vec![0xff] }],
        workdir: "w".into(),
        stdin: true,
        terminal: Some(v1::TerminalSize { rows: 40, columns: 120 }),
    };
    check(
        "exec",
        &open(stream_open::Kind::Exec(exec)),
        "2b        # the frame has 43 bytes
         42 29     # field 8, exec: 41 bytes
         0a 10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  # 1 container: 16 bytes
         1a 02 6c 73           # 3 command: \"ls\"
         22 06 0a 01 41 12 01 ff  # 4 env: name \"A\", one byte
         2a 01 77              # 5 workdir: \"w\"
         30 01                 # 6 stdin
         3a 04 08 28 10 78     # 7 terminal: 40 rows, 120 columns",
    );
    let door = v1::DoorOpen { container, generation: 1, service: v1::DoorService::Http.into() };
    check(
        "door",
        &open(stream_open::Kind::Door(door)),
        "18        # the frame has 24 bytes
         32 16     # field 6, door: 22 bytes
         0a 10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  # 1 container: 16 bytes
         10 01     # 2 generation
         18 02     # 3 service: HTTP",
    );
}

#[test]
fn exec_frames() {
    let input = |kind| v1::ExecInput { kind: Some(kind) };
    check("stdin", &input(exec_input::Kind::Stdin("hi".into())), "04 0a 02 68 69  # 1 stdin: \"hi\"");
    check("its end", &input(exec_input::Kind::StdinEnd(v1::StdinEnd {})), "02 12 00  # 2 stdin_end: nothing");
    check("a signal", &input(exec_input::Kind::Signal(15)), "02 20 0f  # 4 signal: 15");
    let ended =
        v1::ExecEnded { outcome: v1::Outcome::Exited.into(), exit_code: 7, signal: 0, reason: String::new() };
    check(
        "the end",
        &v1::ExecOutput { kind: Some(exec_output::Kind::Ended(ended)) },
        "06        # the frame has 6 bytes
         22 04     # 4 ended: 4 bytes
         08 01     # 1 outcome: exited
         10 07     # 2 exit code",
    );
}

#[test]
fn reports_of_nodes() {
    let node = v1::NodeState {
        name: "n1".into(),
        withheld: WithheldReason::NoFreeCard.into(),
        allocatable: Some(v1::NodeAmounts { cpu_millis: 4000, memory_bytes: 1 << 30, cards: 4, pods: 110 }),
        free: Some(v1::NodeAmounts { pods: 1, ..v1::NodeAmounts::default() }),
        gpu_label: "L40S".into(),
        ..v1::NodeState::default()
    };
    let job = v1::WorkerJob {
        worker: vec![9; 16],
        node: "n1".into(),
        phase: JobPhase::Pending.into(),
        age_ms: 300,
        ..v1::WorkerJob::default()
    };
    check(
        "a report",
        &v1::NodeReport {
            age_ms: 1500,
            nodes: vec![node],
            jobs: vec![job],
            problem: String::new(),
            nodes_in_cluster: 3,
            jobs_age_ms: 200,
        },
        "46        # the frame has 70 bytes
         08 dc 0b  # 1 age: 1500 ms
         12 1f     # 2 a node: 31 bytes
         0a 02 6e 31                # 1 name: \"n1\"
         10 07                      # 2 withheld: no free card
         1a 0d                      # 3 allocatable: 13 bytes
         08 a0 1f 10 80 80 80 80 04 18 04 20 6e  # 4000 milli, 1 GiB, 4 cards, 110 pods
         22 02 20 01                # 4 free: 4 one pod
         42 04 4c 34 30 53          # 8 label: \"L40S\"
         1a 1b     # 3 a job: 27 bytes
         0a 10 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09  # 1 worker
         12 02 6e 31                # 2 node: \"n1\"
         18 01                      # 3 phase: pending
         28 ac 02                   # 5 age: 300 ms
         28 03     # 5 nodes in the cluster: 3
         30 c8 01  # 6 age of the jobs: 200 ms",
    );
}

#[test]
fn orders() {
    let open =
        |order| v1::StreamOpen { kind: Some(stream_open::Kind::Order(v1::OrderOpen { order: Some(order) })) };
    let create = v1::CreateWorker {
        worker: vec![9; 16],
        namespace: "levers9".into(),
        node: "n1".into(),
        image: "r/w:1".into(),
        amounts: Some(v1::NodeAmounts { cpu_millis: 1000, cards: 1, ..v1::NodeAmounts::default() }),
        gpu_type: "L4".into(),
        enrolment_token: "t".into(),
        runtime: "process".into(),
        ..v1::CreateWorker::default()
    };
    check(
        "create",
        &open(order_open::Order::Create(create)),
        "41        # the frame has 65 bytes
         52 3f     # field 10, order: 63 bytes
         0a 3d     # 1 create: 61 bytes
         0a 10 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09  # 1 worker
         12 07 6c 65 76 65 72 73 39     # 2 namespace: \"levers9\"
         1a 02 6e 31                    # 3 node: \"n1\"
         22 05 72 2f 77 3a 31           # 4 image: \"r/w:1\"
         2a 05 08 e8 07 18 01           # 5 amounts: 1000 milli, one card
         32 02 4c 34                    # 6 gpu type: \"L4\"
         42 01 74                       # 8 enrolment token: \"t\"
         4a 07 70 72 6f 63 65 73 73     # 9 runtime: \"process\"",
    );
    check(
        "delete",
        &open(order_open::Order::Delete(v1::DeleteWorker { worker: vec![9; 16] })),
        "16        # the frame has 22 bytes
         52 14     # field 10, order: 20 bytes
         12 12     # 2 delete: 18 bytes
         0a 10 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09 09  # 1 worker",
    );
}
