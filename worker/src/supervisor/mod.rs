//! The supervisor of the `process` runtime: this binary, executed again.
//!
//! Two processes stand between the worker and a command. The *outer* one has
//! a process group of its own, makes namespaces where it may, starts the inner one, waits
//! for it and sees that an outcome is written whatever happens. The *inner*
//! one runs the command and ends with it: as process 1 of a PID namespace
//! where that can be had, else as the reaper of all its descendants. Both
//! inherit the log pipes as stdout and stderr and never write to them; stdin
//! is a socket to the worker, and its end means that the worker is gone and
//! everything is killed at once. The inner one also starts the execs, each
//! through a short-lived *stage*.

pub(crate) mod channel;
mod execs;
mod inner;
mod launch;
mod outer;
pub(crate) mod protocol;
mod stage;

use std::path::Path;

use inner::Mode;

/// The hidden first argument that makes a binary a supervisor.
pub(crate) const WORD: &str = "__levers9-supervise";
/// The second argument of the outer process: with namespaces where possible.
pub(crate) const OUTER: &str = "outer";
/// The second argument of the outer process: without namespaces.
pub(crate) const OUTER_PLAIN: &str = "outer-plain";
/// The second argument of a stage; it needs no folder.
const STAGE: &str = "stage";

/// Becomes a supervisor and exits when the process was started as one, else
/// returns at once. To be called before anything else in `main`, in
/// particular before a thread is started.
#[expect(clippy::exit, reason = "a supervisor has nothing above it to return to")]
pub fn run_if_supervisor() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|word| word != WORD) {
        return;
    }
    // stderr is the container's log: a panic must not end up there.
    std::panic::set_hook(Box::new(|_| {}));
    let (part, folder) = (args.next(), args.next());
    let code = match (part.as_ref().and_then(|part| part.to_str()), folder.as_ref().map(Path::new)) {
        (Some(STAGE), None) => stage::run(),
        (Some(OUTER), Some(folder)) => outer::run(folder, true),
        (Some(OUTER_PLAIN), Some(folder)) => outer::run(folder, false),
        (Some(word), Some(folder)) => Mode::from_word(word).map_or(2, |mode| inner::run(folder, mode)),
        _ => 2,
    };
    std::process::exit(code)
}
