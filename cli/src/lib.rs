//! The `levers9` command: what people and scripts type.
//!
//! A command line becomes clap types ([`args`], no logic), those with the
//! environment and the configuration files become plain settings
//! ([`settings`]), and each command is a function of its settings and a
//! [`printer::Printer`] ([`commands`]). Everything a command does goes over
//! one QUIC session ([`client`]); it opens no database and runs no job. Only
//! the commands that attach and detach clusters talk to anything else, the
//! Kubernetes API of the user's own context (`kube`).
//!
//! Exit codes: 0 done, 1 refused or failed, 2 usage, 3 the controlplane
//! cannot be reached. `run`, `attach`, `container attach`, `exec`, `shell` and
//! `dev -- CMD` end with the job's or command's own code instead, see [`exit`].

pub mod args;
pub mod client;
pub mod commands;
pub mod config;
pub mod contexts;
pub mod dev;
pub mod env;
pub mod error;
mod exec;
pub mod exit;
mod files;
mod follow;
mod forward;
mod kube;
mod output;
pub mod printer;
mod probe;
pub mod settings;
mod signals;
mod terminal;
pub mod view;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::args::Cli;
use crate::env::Env;
use crate::error::Error;
use crate::printer::Printer;
use crate::settings::Action;

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let env = Env::of_process();
    env.start_logging();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(problem) => return misread(&problem),
    };
    let mut printer = Printer::of_process(&env);
    let runs_job = cli.command.runs_job();
    let result = settings::resolve(cli, &env).and_then(|action| dispatch(action, &mut printer));
    ExitCode::from(match result {
        Ok(code) => code,
        Err(error) => {
            printer.error(&error);
            if runs_job { error.job_exit_code() } else { error.exit_code() }
        }
    })
}

fn dispatch(action: Action, printer: &mut Printer) -> Result<u8, Error> {
    match action {
        Action::Run(settings) => commands::run::run(settings, printer),
        Action::Attach(settings) => commands::attach::run(&settings, printer),
        Action::Logs(settings) => commands::logs::run(&settings, printer),
        Action::Exec(settings) => commands::exec::run(settings, printer),
        Action::PortForward(settings) => commands::port_forward::run(&settings, printer),
        Action::Completions(shell) => commands::completions::run(shell, printer),
        Action::Task(settings) => commands::task::run(settings, printer),
        Action::Container(settings) => commands::container::run(settings, printer),
        Action::Worker(settings) => commands::worker::run(settings, printer),
        Action::Cluster(settings) => commands::cluster::run(settings, printer),
        Action::Why(settings) => commands::why::run(&settings, printer),
        Action::Workspace(settings) => commands::workspace::run(settings, printer),
        Action::Token(settings) => commands::token::run(settings, printer),
        Action::Login(settings) => commands::login::run(&settings, printer),
        Action::Config(settings) => commands::config::run(settings, printer),
        Action::Doctor(settings) => commands::doctor::run(&settings, printer),
        Action::Session(settings) => commands::session::run(&settings, printer),
        Action::Bench(settings) => commands::bench::run(&settings, printer),
        Action::Version(settings) => commands::version::run(&settings, printer),
        Action::Dev(settings) => dev::run(settings, printer),
    }
}

/// Shows help, the version or what is wrong with the command line.
fn misread(problem: &clap::Error) -> ExitCode {
    // A reader that is gone needs no help.
    let _closed = problem.print();
    if !problem.use_stderr() {
        return ExitCode::from(exit::DONE);
    }
    // Which command it was decides the code, so that no script takes a typing
    // mistake for the exit of its job.
    let partial = Cli::command().ignore_errors(true).try_get_matches().ok();
    ExitCode::from(if partial.as_ref().is_some_and(args::runs_job) {
        exit::LEVERS9_FAILED
    } else {
        exit::USAGE
    })
}
