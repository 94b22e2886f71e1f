//! Exit codes, and which one the end of a task or of a command in a container
//! means.
//!
//! | code | of `run`, `attach`, `container attach`, `exec`, `shell`, `dev -- CMD` | of every other command |
//! |---|---|---|
//! | 0 | the job's own, or the reader closed the pipe | done, or the reader closed the pipe |
//! | 1 | the job's own | refused or failed |
//! | 2 | the job's own | the command line makes no sense |
//! | 3 | the job's own | the controlplane was not reached within 10 s |
//! | 124 | the task ran into its `--timeout` | |
//! | 125 | levers9 failed or ended the task, or the connection of an `exec` was lost; the reason is on standard error | |
//! | 126, 127 | the job's command is not executable, or not found | |
//! | 137 | also: the container of an `exec` ended; the reason is on standard error | |
//! | 128+n | the job ended by signal n; or `levers9` itself did (129, 130, 131, 143) | 130 interrupted |

use levers9_wire::v1;

/// Done.
pub const DONE: u8 = 0;
/// Refused or failed.
pub const FAILED: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// The controlplane was not reached.
pub const UNREACHABLE: u8 = 3;
/// The task ran into its time limit.
pub const TIMED_OUT: u8 = 124;
/// levers9, and not the job, failed.
pub const LEVERS9_FAILED: u8 = 125;
/// Killed with its container.
pub const KILLED: u8 = 137;
/// Interrupted at this terminal.
pub const INTERRUPTED: u8 = 130;

/// Which code the end of a task means, and the line to say about it, when
/// there is something to say. `interrupted`: this command cancelled it.
#[must_use]
pub fn of_task(end: &v1::FollowEnded, interrupted: bool) -> (u8, Option<String>) {
    let reason =
        |otherwise: &str| Some(if end.reason.is_empty() { otherwise } else { &end.reason }.to_owned());
    let said = (!end.reason.is_empty()).then(|| end.reason.clone());
    if interrupted {
        return (INTERRUPTED, if end.status == "CANCELLED" { None } else { said });
    }
    match (end.status.as_str(), end.exit_code) {
        ("COMPLETE", code) => (code.map_or(DONE, own), said),
        ("ERROR", Some(code)) if code != 0 => (own(code), said),
        ("ERROR", _) => (LEVERS9_FAILED, reason("the task failed without an exit code")),
        ("TIMEOUT", _) => (TIMED_OUT, reason("the task ran into its time limit and was stopped")),
        ("CANCELLED", _) => (LEVERS9_FAILED, reason("the task was cancelled")),
        ("EXPIRED", _) => (LEVERS9_FAILED, reason("the task expired before it was started")),
        (other, _) => (LEVERS9_FAILED, reason(&format!("the task ended as {other:?}"))),
    }
}

/// Which code the end of a command in a container means, and the line to say
/// about it, when there is something to say.
#[must_use]
pub fn of_exec(end: &v1::ExecEnded) -> (u8, Option<String>) {
    let reason =
        |otherwise: &str| Some(if end.reason.is_empty() { otherwise } else { &end.reason }.to_owned());
    let said = (!end.reason.is_empty()).then(|| end.reason.clone());
    match end.outcome() {
        v1::Outcome::Exited => match u8::try_from(end.exit_code) {
            Ok(code) => (code, said),
            Err(_) => (LEVERS9_FAILED, reason(&format!("the command ended with {}", end.exit_code))),
        },
        v1::Outcome::Signaled => match u8::try_from(end.signal) {
            Ok(signal @ 1..=127) => (128 + signal, said),
            _ => (LEVERS9_FAILED, reason(&format!("the command ended by signal {}", end.signal))),
        },
        v1::Outcome::StartFailed => match end.exit_code {
            126 => (126, reason("the command cannot be executed")),
            127 => (127, reason("the command was not found")),
            _ => (LEVERS9_FAILED, reason("the command was not started")),
        },
        v1::Outcome::Stopped => (KILLED, reason("the container ended, and the command with it")),
        other => (LEVERS9_FAILED, reason(&format!("the command ended as {}", other.as_str_name()))),
    }
}

/// A job's code as this process can give it on. What does not fit in a byte is
/// a failure that must not come out as 0.
fn own(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(LEVERS9_FAILED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(status: &str, exit_code: Option<i32>, reason: &str) -> v1::FollowEnded {
        v1::FollowEnded { status: status.to_owned(), exit_code, reason: reason.to_owned(), complete: true }
    }

    #[test]
    fn the_jobs_own_code_comes_through() {
        for code in [1u8, 2, 3, 126, 127, 137, 255] {
            assert_eq!(of_task(&end("ERROR", Some(code.into()), ""), false), (code, None));
        }
        assert_eq!(of_task(&end("COMPLETE", Some(0), ""), false), (0, None));
        assert_eq!(of_task(&end("COMPLETE", None, ""), false), (0, None));
    }

    #[test]
    fn an_error_never_comes_out_as_success() {
        assert_eq!(of_task(&end("ERROR", Some(256), ""), false).0, 125);
        assert_eq!(of_task(&end("ERROR", Some(-1), ""), false).0, 125);
        assert_eq!(of_task(&end("ERROR", Some(0), ""), false).0, 125);
        assert_eq!(of_task(&end("ERROR", None, "lost"), false), (125, Some("lost".to_owned())));
        assert_eq!(of_task(&end("NOVEL", None, ""), false).0, 125);
    }

    #[test]
    fn what_levers9_ended_has_a_code_and_a_reason() {
        assert_eq!(of_task(&end("TIMEOUT", None, ""), false).0, 124);
        let (code, reason) = of_task(&end("CANCELLED", None, "no caller for 120 s"), false);
        assert_eq!((code, reason.as_deref()), (125, Some("no caller for 120 s")));
        assert!(of_task(&end("EXPIRED", None, ""), false).1.is_some());
    }

    #[test]
    fn a_command_in_a_container_has_its_own_code_and_no_other_end_is_0() {
        let end = |outcome: v1::Outcome, exit_code, signal| v1::ExecEnded {
            outcome: outcome.into(),
            exit_code,
            signal,
            reason: String::new(),
        };
        assert_eq!(of_exec(&end(v1::Outcome::Exited, 0, 0)), (0, None));
        assert_eq!(of_exec(&end(v1::Outcome::Exited, 255, 0)), (255, None));
        assert_eq!(of_exec(&end(v1::Outcome::Exited, 256, 0)).0, 125);
        assert_eq!(of_exec(&end(v1::Outcome::Signaled, 0, 9)), (137, None));
        assert_eq!(of_exec(&end(v1::Outcome::Signaled, 0, 0)).0, 125);
        for outcome in 0..=20 {
            let code = of_exec(&v1::ExecEnded { outcome, ..v1::ExecEnded::default() }).0;
            assert_eq!(code == 0, outcome == i32::from(v1::Outcome::Exited), "{outcome}");
        }
        let (code, reason) = of_exec(&end(v1::Outcome::Stopped, 0, 0));
        assert!(code == 137 && reason.is_some());
    }

    #[test]
    fn an_interrupt_is_130_whatever_the_job_made_of_it() {
        assert_eq!(of_task(&end("CANCELLED", None, "stopped by its caller"), true), (130, None));
        assert_eq!(of_task(&end("COMPLETE", Some(0), ""), true).0, 130);
    }
}
