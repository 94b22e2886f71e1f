//! What counts before what, and what is checked before anything is sent.

use std::time::Duration;

use clap::Parser as _;

use super::*;
use crate::contexts::Context;
use crate::settings::local::NewContext;

const A: char = 'a';
const B: char = 'b';

fn token(letter: char) -> Secret {
    Secret::new(format!("l9_ws_{}", letter.to_string().repeat(64)))
}

fn context(host: &str, letter: char) -> Context {
    let endpoint = SdkEndpoint {
        host: host.to_owned(),
        port: "1993".to_owned(),
        http_url: String::new(),
        tls: String::new(),
    };
    let address = format!("levers9://{host}:443").parse().unwrap();
    NewContext { name: String::new(), address, endpoint }.with_token(token(letter))
}

/// A folder with two contexts, the first of them the default one.
struct Setup {
    folder: tempfile::TempDir,
}

impl Setup {
    fn new() -> Self {
        let setup = Self { folder: tempfile::tempdir().unwrap() };
        let store = Store::at(setup.folder.path().join("config"));
        store.add("first", &context("first.example", A)).unwrap();
        store.add("second", &context("second.example", B)).unwrap();
        setup
    }

    fn resolve(&self, args: &[&str], env: &[(&str, &str)]) -> Result<Action, Error> {
        let path = self.folder.path().join("config");
        let mut all = vec![(env::CONFIG_PATH, path.to_str().unwrap())];
        all.extend_from_slice(env);
        let cli = Cli::try_parse_from([&["levers9"], args].concat()).unwrap();
        resolve(cli, &Env::of(&all))
    }

    fn target(&self, args: &[&str], env: &[(&str, &str)]) -> Result<(String, Secret), Error> {
        match self.resolve(&[args, &["worker", "list"]].concat(), env)? {
            Action::Worker(settings) => Ok((settings.target.address.host, settings.target.token)),
            other => panic!("not a worker command: {other:?}"),
        }
    }

    fn job(&self, args: &[&str], env: &[(&str, &str)]) -> Result<levers9_wire::v1::SubmitRequest, Error> {
        match self.resolve(&[&["run"], args, &["--", "echo", "-n"]].concat(), env)? {
            Action::Run(settings) => Ok(settings.job),
            other => panic!("not a run: {other:?}"),
        }
    }
}

#[test]
fn a_flag_counts_before_a_variable_before_the_file() {
    let setup = Setup::new();
    let given = token('c');
    let second = [(env::CONTEXT, "second")];
    let with_token = [(env::CONTEXT, "second"), (env::TOKEN, given.expose())];
    assert_eq!(setup.target(&[], &[]).unwrap(), ("first.example".to_owned(), token(A)));
    assert_eq!(setup.target(&[], &second).unwrap(), ("second.example".to_owned(), token(B)));
    assert_eq!(setup.target(&[], &with_token).unwrap(), ("second.example".to_owned(), given.clone()));
    // Who names a context means its token, too.
    assert_eq!(setup.target(&["-c", "first"], &with_token).unwrap(), ("first.example".to_owned(), token(A)));
}

#[test]
fn address_and_token_from_the_environment_need_no_file() {
    let given = token('c');
    let env = [(env::ADDRESS, "levers9://ci.example:7"), (env::TOKEN, given.expose())];
    let cli = Cli::try_parse_from(["levers9", "task", "list"]).unwrap();
    let Action::Task(settings) = resolve(cli, &Env::of(&env)).unwrap() else { panic!("not a task command") };
    assert_eq!((settings.target.address.port, settings.target.token), (7, given));
}

#[test]
fn a_job_says_what_was_given_and_what_was_not() {
    let setup = Setup::new();
    let job = setup.job(&[], &[]).unwrap();
    let resources = job.resources.clone().unwrap();
    assert_eq!(job.command, ["echo", "-n"]);
    assert!(!resources.cpu_given && !resources.memory_given && !job.detached);
    assert_eq!((job.timeout_ms, job.max_retries), (0, None));

    let args =
        ["--cpu", "500m", "--memory", "1Gi", "--gpu", "T4", "--timeout", "10m", "--retries", "0", "--detach"];
    let job = setup.job(&args, &[]).unwrap();
    let resources = job.resources.clone().unwrap();
    assert_eq!((resources.cpu_millis, resources.memory_bytes), (500, 1 << 30));
    assert!(resources.cpu_given && resources.memory_given && job.detached);
    assert_eq!(Duration::from_millis(job.timeout_ms), Duration::from_secs(600));
    assert_eq!(job.max_retries, Some(0));
}

#[test]
fn environment_variables_come_with_their_value_or_from_here() {
    let setup = Setup::new();
    let job = setup.job(&["-e", "A=1=2", "-e", "B=", "-e", "HERE"], &[("HERE", "x")]).unwrap();
    let pairs: Vec<(&str, &[u8])> = job.env.iter().map(|v| (v.name.as_str(), v.value.as_slice())).collect();
    assert_eq!(pairs, [("A", &b"1=2"[..]), ("B", b""), ("HERE", b"x")]);
    assert!(setup.job(&["-e", "=x"], &[]).is_err());
}

#[test]
fn a_mistake_in_an_argument_comes_before_one_in_the_files() {
    let cli = Cli::try_parse_from(["levers9", "run", "--memory", "1X", "--", "true"]).unwrap();
    let error = resolve(cli, &Env::default()).unwrap_err();
    assert!(error.chain().starts_with("--memory: \"1X\""), "{}", error.chain());
}

#[test]
fn logging_in_again_keeps_what_the_sdk_was_told() {
    let setup = Setup::new();
    let store = Store::at(setup.folder.path().join("config"));
    let mut told = context("first.example", A);
    told.section.controlplane_http_url = "https://rest.example".to_owned();
    told.section.tls = "true".to_owned();
    store.add("first", &told).unwrap();
    let endpoint = |args: &[&str]| match setup.resolve(&[args, &["-c", "first"]].concat(), &[]).unwrap() {
        Action::Login(settings) => settings.context.endpoint,
        other => panic!("not a login: {other:?}"),
    };
    assert_eq!(endpoint(&["login"]).http_url, "https://rest.example");
    assert_eq!(endpoint(&["login", "--tls", "false"]).tls, "false");
    let moved = endpoint(&["login", "levers9://moved.example"]);
    assert_eq!((moved.host.as_str(), moved.http_url.as_str()), ("moved.example", ""));
}

#[test]
fn a_dev_that_only_runs_a_command_takes_free_ports_unless_told() {
    let setup = Setup::new();
    let ports = |args: &[&str]| {
        let args = [&["dev", "--data", "/tmp/x"], args].concat();
        match setup.resolve(&args, &[]).unwrap() {
            Action::Dev(settings) => [settings.quic, settings.http, settings.grpc].map(|at| at.port()),
            other => panic!("not dev: {other:?}"),
        }
    };
    assert_eq!(ports(&[]), [4433, 1994, 1993]);
    assert_eq!(ports(&["--", "true"]), [0, 0, 0]);
    assert_eq!(ports(&["--grpc", "127.0.0.1:7", "--", "true"]), [0, 0, 7]);
}
