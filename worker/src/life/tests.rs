//! Lives that were thought of, and random ones.

use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(10);

fn exited(code: i32) -> Input {
    Input::Exited(End { how: How::Exited(code), note: String::new() })
}

fn signaled(signal: i32) -> Input {
    Input::Exited(End { how: How::Signaled(signal), note: String::new() })
}

fn order(reason: StopReason, deadline: Instant) -> Input {
    Input::Stop(Stop { why: Why::Ordered { reason, text: String::new() }, deadline })
}

fn started(timeout: Option<Duration>) -> (Life, Instant) {
    let (mut life, now) = (Life::new(timeout, GRACE), Instant::now());
    assert_eq!(life.on(Input::Started { pid: 7 }, now), [Action::TellStarted { pid: 7 }]);
    (life, now)
}

fn end(life: &mut Life, now: Instant) -> RunEnded {
    let mut actions = life.on(Input::Drained { records: 3 }, now);
    assert!(life.has_ended());
    match actions.pop() {
        Some(Action::TellEnded(ended)) if actions.is_empty() => ended,
        other => panic!("not the end: {other:?}"),
    }
}

#[test]
fn a_plain_exit_has_no_reason_and_waits_for_the_log() {
    let (mut life, now) = started(None);
    let later = now + Duration::from_millis(1_500);
    assert_eq!(life.on(exited(3), later), []);
    assert!(!life.has_ended());
    let told = end(&mut life, later);
    assert_eq!((told.outcome(), told.exit_code, told.signal), (Outcome::Exited, 3, 0));
    assert_eq!((told.reason.as_str(), told.duration_ms, told.log_records), ("", 1_500, 3));
}

#[test]
fn a_signal_is_named() {
    let (mut life, now) = started(None);
    life.on(signaled(11), now);
    let told = end(&mut life, now);
    assert_eq!((told.outcome(), told.signal), (Outcome::Signaled, 11));
    assert_eq!(told.reason, "killed by signal 11 (SIGSEGV)");
}

#[test]
fn the_timeout_counts_from_the_start_and_kills_in_the_end() {
    let (mut life, now) = started(Some(Duration::from_secs(5)));
    let at = now + Duration::from_secs(5);
    assert_eq!(life.deadline(), Some(at));
    assert_eq!(life.on(Input::Tick, at - Duration::from_millis(1)), []);
    assert_eq!(life.on(Input::Tick, at), [Action::Terminate]);
    assert_eq!(life.deadline(), Some(at + GRACE));
    assert_eq!(life.on(Input::Tick, at + GRACE), [Action::Kill]);
    assert_eq!(life.deadline(), None);
    life.on(signaled(9), at + GRACE);
    let told = end(&mut life, at + GRACE);
    assert_eq!((told.outcome(), told.signal), (Outcome::TimedOut, 9));
    assert_eq!(told.reason, "timed out after 5s; it did not end within 10s of SIGTERM and was killed");
}

#[test]
fn the_first_reason_stays_and_the_earliest_deadline_counts() {
    let (mut life, now) = started(Some(Duration::from_secs(1)));
    assert_eq!(life.on(order(StopReason::Cancelled, now + GRACE), now), [Action::Terminate]);
    assert_eq!(life.on(order(StopReason::Shutdown, now + GRACE * 2), now), []);
    assert_eq!(life.deadline(), Some(now + GRACE));
    assert_eq!(life.on(order(StopReason::Shutdown, now), now), [Action::Kill]);
    life.on(signaled(15), now);
    let told = end(&mut life, now);
    assert_eq!((told.outcome(), told.reason.as_str()), (Outcome::Stopped, "cancelled"));
}

#[test]
fn a_stop_before_the_start_takes_effect_at_the_start() {
    let now = Instant::now();
    let mut life = Life::new(None, GRACE);
    assert_eq!(life.on(order(StopReason::NotWanted, now), now), []);
    let actions = life.on(Input::Started { pid: 1 }, now);
    assert_eq!(actions, [Action::TellStarted { pid: 1 }, Action::Terminate, Action::Kill]);
    let mut life = Life::new(None, GRACE);
    life.on(order(StopReason::NotWanted, now), now);
    life.on(Input::StartFailed(StartFailure { exit_code: 127, words: "no".into() }), now);
    assert_eq!(end(&mut life, now).reason, "no longer wanted by the controlplane");
}

#[test]
fn out_of_memory_is_told_as_such_unless_we_killed_it() {
    let oom = || {
        Input::Exited(End { how: How::OutOfMemory("out of memory: limit 256Mi".into()), note: String::new() })
    };
    let (mut life, now) = started(None);
    life.on(order(StopReason::Cancelled, now + GRACE), now);
    life.on(oom(), now);
    let told = end(&mut life, now);
    assert_eq!((told.outcome(), told.exit_code), (Outcome::OutOfMemory, 137));
    assert_eq!(told.reason, "out of memory: limit 256Mi");
    let (mut life, now) = started(None);
    life.on(order(StopReason::Cancelled, now), now);
    life.on(oom(), now);
    assert_eq!(end(&mut life, now).outcome(), Outcome::Stopped);
}

#[test]
fn a_log_that_does_not_end_is_cut() {
    let (mut life, now) = started(None);
    life.on(Input::Exited(End { how: How::Exited(0), note: "a remark".into() }), now);
    assert_eq!(life.deadline(), Some(now + DRAIN));
    assert_eq!(life.on(Input::Tick, now + DRAIN), [Action::CutLog]);
    assert_eq!(life.on(Input::Tick, now + DRAIN * 2), []);
    assert_eq!(end(&mut life, now).reason, "a remark");
}

#[derive(Debug, Clone)]
enum Event {
    Start(bool),
    Stop(u64),
    Exit(i32),
    Drain,
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        any::<bool>().prop_map(Event::Start),
        (0u64..20_000).prop_map(Event::Stop),
        (0i32..3).prop_map(Event::Exit),
        Just(Event::Drain),
        (0u64..20_000).prop_map(Event::Pass),
    ];
    proptest::collection::vec(event, 1..30)
}

proptest! {
    #[test]
    fn whatever_happens_the_order_of_things_holds(
        events in events(),
        timeout in proptest::option::of(0u64..30_000),
    ) {
        let timeout = timeout.map(Duration::from_millis);
        let mut life = Life::new(timeout, GRACE);
        let mut now = Instant::now();
        let mut done: Vec<Action> = Vec::new();
        let (mut left, mut started_at) = (false, None);
        for event in events {
            let input = match event {
                Event::Start(true) => Input::Started { pid: 1 },
                Event::Start(false) => Input::StartFailed(StartFailure { exit_code: 127, words: "no".into() }),
                Event::Stop(grace) => order(StopReason::Cancelled, now + Duration::from_millis(grace)),
                Event::Exit(code) => exited(code),
                Event::Drain => Input::Drained { records: 0 },
                Event::Pass(ms) => {
                    now += Duration::from_millis(ms);
                    Input::Tick
                }
            };
            left |= matches!(input, Input::Exited(_) | Input::StartFailed(_));
            let over = life.has_ended();
            let new = life.on(input, now);
            prop_assert!(!over || new.is_empty(), "{new:?} after the end");
            if new.iter().any(|action| matches!(action, Action::TellStarted { .. })) {
                started_at = Some(now);
            }
            done.extend(new);
            // One more look at the clock never finds anything left to do.
            prop_assert_eq!(life.on(Input::Tick, now), []);
            prop_assert!(life.deadline().is_none_or(|at| at > now));
            if let (Some(since), Some(limit), false) = (started_at, timeout, left) {
                prop_assert!(now < since + limit || done.contains(&Action::Terminate));
            }
        }
        let count = |wanted: fn(&Action) -> bool| done.iter().filter(|action| wanted(action)).count();
        let at = |wanted: fn(&Action) -> bool| done.iter().position(wanted);
        prop_assert!(count(|a| matches!(a, Action::TellStarted { .. })) <= 1, "started twice");
        prop_assert!(count(|a| *a == Action::Terminate) <= 1);
        prop_assert!(count(|a| *a == Action::Kill) <= 1);
        let ended = count(|a| matches!(a, Action::TellEnded(_)));
        prop_assert!(ended <= 1);
        prop_assert_eq!(ended == 1, life.has_ended());
        prop_assert!(left || ended == 0);
        if let Some(kill) = at(|a| *a == Action::Kill) {
            prop_assert!(at(|a| *a == Action::Terminate).is_some_and(|terminate| terminate < kill));
        }
    }
}
