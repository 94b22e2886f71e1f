//! The `levers9-worker` binary.

use std::process::ExitCode;

use std::io::Write;

fn main() -> ExitCode {
    levers9_worker::run_if_supervisor();
    // Nothing to be done about a closed stderr.
    let _closed = writeln!(std::io::stderr(), "usage: levers9-worker (sessions are not part of this build)");
    ExitCode::from(2)
}
