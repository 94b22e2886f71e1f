//! What operators read when a controlplane, a worker or `levers9 dev` cannot
//! start: every one says what is wrong, where, and what to do, and ends.

use std::net::{TcpListener, UdpSocket};

use levers9_tests::{Home, Output};

use crate::support::{config_in, ends, fails, normal, says, shared, start_controlplane};

const CONTROLPLANE: &str = "levers9://127.0.0.1:1";

#[test]
fn a_missing_configuration_file() {
    let home = Home::new();
    let did = Output::of(home.command("levers9-controlplane", &["--config", "nowhere.yaml"]));
    fails(
        &did,
        1,
        "error: nowhere.yaml: the configuration file cannot be read: No such file or directory (os error 2)",
    );
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let home = Home::new();
    let config =
        format!("{}htttp: 127.0.0.1:0\nlogs:\n  maxAge: 1d\n  forever: true\n", config_in(home.path()));
    let mut live = start_controlplane(&home, &config, &[]);
    ends(
        &mut live,
        1,
        "",
        "error: config.yaml:6: unknown key \"htttp\"; did you mean \"http\"? known keys: certificate, \
         containerUrl, controlplane, data, database, databasePool, drain, encryptionKey, grpc, http, insecureListen, logs, names, \
         previousEncryptionKeys, publicAddress, quic, tcp, transport, worker\n\
         config.yaml:9: unknown key \"forever\" in logs; known keys: maxAge, maxBytes",
    );
}

#[test]
fn a_bad_value_is_named_and_a_secret_never_quoted() {
    let home = Home::new();
    let config = format!(
        "{}encryptionKey: not-a-key-but-a-secret\ncontrolplane:\n  auth:\n    bootstrapSecret: \"two words\"\n",
        config_in(home.path())
    );
    let mut live = start_controlplane(&home, &config, &[]);
    ends(
        &mut live,
        1,
        "",
        "error: config.yaml:6: encryptionKey: a key is 32 bytes, written as base64 or as 64 hexadecimal digits \
         (openssl rand -base64 32)\n\
         config.yaml:9: controlplane.auth.bootstrapSecret: the secret must be ASCII letters, digits and signs, \
         without spaces",
    );
}

#[test]
fn ports_that_are_taken() {
    let (udp, tcp) = (
        UdpSocket::bind("127.0.0.1:0").expect("a socket"),
        TcpListener::bind("127.0.0.1:0").expect("a socket"),
    );
    let (quic, http) = (udp.local_addr().expect("an address"), tcp.local_addr().expect("an address"));
    for (key, protocol, address) in [("quic", "UDP", quic), ("http", "TCP", http), ("grpc", "TCP", http)] {
        let home = Home::new();
        let config = config_in(&home.path().join("data"));
        let config = config.replace(&format!("{key}: 127.0.0.1:0"), &format!("{key}: {address}"));
        let mut live = start_controlplane(&home, &config, &[]);
        let said = format!(
            "error: cannot listen on {protocol} 127.0.0.1:[PORT] (`{key}` in the configuration): Address already in \
             use (os error 98)\n\
             hint: something else has the port; free it, or choose another with `{key}` in the configuration (0 \
             takes a free one)"
        );
        ends(&mut live, 1, "", &said);
        assert!(!home.path().join("data").exists(), "it made its folder before it had its ports");
    }
}

#[test]
fn dev_on_a_taken_port() {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = tcp.local_addr().expect("an address").to_string();
    let args = ["dev", "--quic", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--http", &address];
    let said = "error: cannot listen on TCP 127.0.0.1:[PORT] (--http): Address already in use (os error 98)\n\
                hint: something else has the port; free it, or choose another with --http (0 takes a free one)";
    fails(&Home::new().cli(&args), 1, said);
    // What runs one job keeps the codes below 125 for the job.
    fails(&Home::new().cli(&[&args[..], &["--", "true"]].concat()), 125, said);
}

#[test]
fn a_data_folder_that_is_in_use() {
    let world = &shared().world;
    let home = Home::new();
    let mut live = start_controlplane(&home, &config_in(world.controlplane.data()), &[]);
    ends(
        &mut live,
        1,
        "",
        "error: the data folder [HOME]/controlplane is in use by another controlplane\n\
         hint: stop that one, or give this one a data folder of its own",
    );
}

fn worker(args: &[&str], token: Option<&str>) -> Output {
    let home = Home::new();
    let mut command = home.command("levers9-worker", args);
    command.envs(token.map(|token| ("LEVERS9_WORKER_TOKEN", token)));
    Output::of(command)
}

#[test]
fn a_worker_without_isolation_or_token() {
    fails(
        &worker(&["--controlplane", CONTROLPLANE], Some("t")),
        1,
        "error: the only runtime of this build is `process`, which does not isolate jobs from this machine or from \
         each other; say --allow-unisolated if that is what you want",
    );
    let no_token = "error: there is no token: set LEVERS9_WORKER_TOKEN, or --token-file, to what `levers9 worker \
                    enroll` printed";
    for token in [None, Some(""), Some("  ")] {
        let did = worker(&["--allow-unisolated", "--controlplane", CONTROLPLANE, "--data", "worker"], token);
        fails(&did, 1, no_token);
    }
    fails(
        &worker(&["--allow-unisolated", "--controlplane", CONTROLPLANE, "--token-file", "nowhere"], None),
        1,
        "error: --token-file \"nowhere\": No such file or directory (os error 2)",
    );
}

#[test]
fn a_worker_with_arguments_that_make_no_sense() {
    for (args, said) in [
        (
            &["--controlplane", "https://x"][..],
            "\"https://x\" is not a levers9 address; they look like levers9://",
        ),
        (&["--controlplane", CONTROLPLANE, "--memory", "1X"], "\"1X\" is not an amount of memory"),
        (&["--controlplane", CONTROLPLANE, "--cpu", "lots"], "\"lots\" is not an amount of CPU"),
        (&["--controlplane", CONTROLPLANE, "--gpus", "2"], "--gpu-type <TYPE>"),
        (&[], "--controlplane <ADDRESS>"),
    ] {
        let did = worker(args, Some("t"));
        assert_eq!((did.code, did.text().as_str()), (2, ""), "{args:?}: {}", did.stderr);
        assert!(did.stderr.contains(said), "{args:?}: {}", did.stderr);
    }
    fails(
        &worker(
            &["--allow-unisolated", "--controlplane", CONTROLPLANE, "--gpu-type", "T 4", "--gpus", "1"],
            Some("t"),
        ),
        1,
        "error: --gpu-type: gpu type is \"T 4\", which is not allowed: letters, digits and '-', as in T4 or A100-80",
    );
}

#[test]
fn a_worker_that_cannot_use_its_folder() {
    let home = Home::new();
    std::fs::write(home.path().join("file"), "").expect("a file");
    let args = ["--allow-unisolated", "--controlplane", CONTROLPLANE, "--data", "file/worker"];
    let mut command = home.command("levers9-worker", &args);
    command.env("LEVERS9_WORKER_TOKEN", crate::support::unknown_token());
    let did = Output::of(command);
    let said = normal(&did.stderr);
    assert_eq!(did.code, 1, "{said}");
    assert!(said.starts_with("error: ") && said.contains("file/worker"), "{said}");
}

#[test]
fn dev_runs_one_job_in_the_callers_folder() {
    let home = Home::new();
    let ports = ["dev", "--quic", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let job = |script: &str| home.cli(&[&ports[..], &["--", "sh", "-c", script]].concat());
    let did = job("pwd; echo err >&2; exit 7");
    says(&did, 7, "[HOME]", "err");
    // Again on the same data.
    says(&job("true"), 0, "", "");
    assert!(home.path().join("home/.local/share/levers9/dev").is_dir(), "its data is elsewhere");
    assert!(!crate::support::config_file(&home).exists(), "one job has changed the contexts");
}
