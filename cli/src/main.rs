//! The `levers9` binary. What it does is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The worker in `levers9 dev` starts this binary again as a supervisor.
    levers9_worker::run_if_supervisor();
    levers9::main()
}
