//! Serves one Exec stream: starts a command in a container, carries its input,
//! output and signals, and tells how it ended once all it said was sent. The
//! command ends with its caller: whenever this ends before it, whatever the
//! reason, the runtime ends the command and its session.

mod input;
mod output;
mod stdio;

use std::time::Duration;

use levers9_transport::quic::HalfError;
use levers9_transport::stream::{FrameRecv, Stream, StreamError};
use levers9_wire::v1::{self, FailureCode, Outcome, ResetCode, exec_output};
use levers9_wire::{Reset, limits, valid};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::Session;
use super::answers::{self, failure};
use crate::containers::Handle;
use crate::life::signal_words;
use crate::runtime::{Course, Exec, ExecEnd, Executing, NoExec, StartFailure};
use input::Input;
use output::Output;
use stdio::Ends;

/// What a frame of the caller needs beside its piece of input, in bytes.
const FRAME_ROOM: usize = 1024;
/// How long the caller of a command that was ended with its container may take
/// for what it had said.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// And how long for being told so.
const LAST_FRAME: Duration = Duration::from_secs(10);
/// What a shell says of a command that was killed.
const KILLED: i32 = 137;

/// A command that was started.
struct Begun {
    handle: Handle,
    executing: Executing,
    ends: Ends,
    _permit: OwnedSemaphorePermit,
}

pub(super) async fn serve(session: Session, open: v1::ExecOpen, stream: Stream) {
    let Ok(half) = stream.send.into_raw().await else { return };
    let stopped = half.stopped();
    let mut output = Output::new(half);
    let mut recv = stream.recv.with_limit(limits::EXEC_PIECE + FRAME_ROOM);
    let told = match begin(&session, open) {
        Ok(begun) => converse(begun, &mut output, &mut recv, stopped).await,
        Err(failure) => {
            tracing::debug!(reason = %failure.text, "a command was refused");
            output.put(exec_output::Kind::Failure(failure)).await
        }
    };
    let half = match told {
        Ok(()) => output.into_half().await,
        Err(error) => Err(error),
    };
    match half {
        Ok(half) => answers::part(half, recv.into_raw().1).await,
        // Both halves are reset by their drop.
        Err(error) => tracing::debug!(%error, "an exec lost its caller"),
    }
}

fn begin(session: &Session, open: v1::ExecOpen) -> Result<Begun, v1::Failure> {
    let exec = valid::Exec::try_from(open).map_err(|error| failure(FailureCode::Invalid, error))?;
    let handle = answers::find(session, exec.container, exec.generation)?;
    let inside = handle.inside()?;
    let Some(permit) = handle.exec_permit() else { return Err(refused(NoExec::Busy)) };
    let (ends, stdio) = stdio::make(exec.stdin, exec.terminal).map_err(|error| {
        let what = if exec.terminal.is_some() { "a terminal" } else { "pipes" };
        failure(FailureCode::Unavailable, format!("cannot make {what} for the command: {error}"))
    })?;
    let exec = Exec {
        argv: exec.command,
        env: exec.env,
        workdir: exec.workdir.map(Into::into),
        stdio,
        terminal: exec.terminal.is_some(),
    };
    let executing = inside.exec(exec).map_err(refused)?;
    Ok(Begun { handle, executing, ends, _permit: permit })
}

fn refused(why: NoExec) -> v1::Failure {
    let code = match why {
        NoExec::Ended => FailureCode::NotRunning,
        NoExec::Busy => FailureCode::Busy,
        NoExec::NoDescriptors => FailureCode::Unavailable,
    };
    failure(code, why)
}

/// Carries everything until the end is told, or the caller is gone.
async fn converse(
    begun: Begun,
    output: &mut Output,
    recv: &mut FrameRecv,
    stopped: impl Future<Output = HalfError>,
) -> Result<(), StreamError> {
    let Begun { handle, executing, mut ends, _permit } = begun;
    let Executing { mut course, signal } = executing;
    let mut input = Input::new(&mut ends);
    output.attach(ends);
    tokio::select! {
        told = tell(course.as_mut(), &handle, output) => told,
        broken = stopped => Err(broken.into()),
        broken = input.run(recv, &*signal) => Err(broken),
    }
}

/// Tells of the command from its start to its end.
async fn tell(course: &mut dyn Course, handle: &Handle, output: &mut Output) -> Result<(), StreamError> {
    let started = tokio::select! {
        started = course.started() => started,
        () = handle.over() => Err(ExecEnd::WithContainer),
    };
    let end = match started {
        Err(end) => end,
        Ok(()) => {
            output.put(exec_output::Kind::Started(v1::ExecStarted {})).await?;
            tokio::select! {
                end = course.ended() => end,
                () = handle.over() => ExecEnd::WithContainer,
                broken = output.pump() => return Err(broken),
            }
        }
    };
    let with_container = end == ExecEnd::WithContainer;
    let ended = exec_output::Kind::Ended(ended(end, handle));
    if !with_container {
        output.drain().await?;
        return output.put(ended).await;
    }
    if let Ok(broken @ Err(_)) = timeout(LAST_WORDS, output.drain()).await {
        return broken;
    }
    match timeout(LAST_FRAME, output.put(ended)).await {
        Ok(told) => told,
        Err(_) => Err(Reset::local(ResetCode::Timeout).into()),
    }
}

fn ended(end: ExecEnd, handle: &Handle) -> v1::ExecEnded {
    let (outcome, exit_code, signal, reason) = match end {
        ExecEnd::Exited(code) => (Outcome::Exited, code, 0, String::new()),
        // A caller that looks at nothing but the code must not see a success.
        ExecEnd::Signaled(signal) => (Outcome::Signaled, 128 + signal, signal, signal_words(signal)),
        ExecEnd::NotStarted(StartFailure { exit_code, words }) => (Outcome::StartFailed, exit_code, 0, words),
        ExecEnd::WithContainer => (Outcome::Stopped, KILLED, 0, handle.end_words().to_owned()),
    };
    v1::ExecEnded { outcome: outcome.into(), exit_code, signal, reason }
}
