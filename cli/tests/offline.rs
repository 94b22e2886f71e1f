#![cfg(test)]
//! The real binary where it needs no controlplane: what it says, on which
//! stream, and with which exit code.

mod support;

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::time::Instant;

use support::{Did, Home, token};

const ID: &str = "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a";

fn config(home: &Home) -> PathBuf {
    home.path().join(".levers9/config")
}

#[track_caller]
fn fails(did: &Did, code: i32, err: &str) {
    assert_eq!((did.code, did.out.as_str(), did.err.as_str()), (code, "", err));
}

#[test]
fn without_a_configuration_it_says_how_to_get_one() {
    let said = "error: no controlplane is configured: [HOME]/.levers9/config holds no context\n\
                hint: start one on this machine: levers9 dev; or log in to one: \
                levers9 login levers9://HOST:443#sha256:…";
    fails(&Home::new().run(&["task", "list"]), 1, said);
    fails(&Home::new().run(&["run", "--", "true"]), 125, said);
    fails(&Home::new().run(&["attach", ID]), 125, said);
}

#[test]
fn an_unknown_context_is_named_with_those_there_are() {
    let home = Home::new().with_context("prod", "levers9://prod.example");
    let said = "error: there is no context \"prd\" in [HOME]/.levers9/config\nhint: there are prod";
    fails(&home.run(&["-c", "prd", "task", "list"]), 1, said);
    fails(&home.run_with(&["task", "list"], &[("LEVERS9_CONTEXT", "prd")], ""), 1, said);
    fails(
        &home.run(&["task", "list"]),
        1,
        "error: no context is selected in [HOME]/.levers9/config; it holds prod\n\
         hint: select one: levers9 config select prod",
    );
}

#[test]
fn nothing_listening_is_said_within_ten_seconds() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let place = socket.local_addr().unwrap().to_string();
    drop(socket);
    let home = Home::new().with_context("here", &format!("levers9://{place}"));
    let started = Instant::now();
    let did = home.run(&["-c", "here", "worker", "list"]);
    let took = started.elapsed();
    fails(
        &did,
        3,
        &format!(
            "error: cannot reach the controlplane: nothing is listening on UDP {place}; \
             TCP {place}: nothing is listening there\n\
             hint: is the controlplane running? on this machine: levers9 dev"
        ),
    );
    assert!(took < Duration::from_secs(13), "it took {took:?}");
}

#[test]
fn amounts_that_are_none_are_named_with_their_flag() {
    let home = Home::new();
    let run = |flag: &str, value: &str| home.run(&["run", flag, value, "--", "true"]);
    fails(
        &run("--memory", "1X"),
        125,
        "error: --memory: \"1X\" is not an amount of memory; write a number with a unit: 512Mi, 2Gi, 500M or 1G",
    );
    fails(
        &run("--timeout", "soon"),
        125,
        "error: --timeout: \"soon\" is not a duration; write 90s, 10m, 2h, 1d, or seconds as a bare number",
    );
    fails(
        &run("--cpu", "lots"),
        125,
        "error: --cpu: \"lots\" is not an amount of CPU; write cores (2, 0.5) or thousandths of one (500m)",
    );
    fails(
        &run("--env", "LEVERS9_NOT_SET"),
        125,
        "error: --env LEVERS9_NOT_SET: this variable is not set here\n\
         hint: set it, or write --env LEVERS9_NOT_SET=VALUE",
    );
    fails(
        &run("--gpu", "T 4"),
        125,
        "error: the job is refused: gpu type is \"T 4\", which is not allowed: letters, digits and '-', as in T4 or A100-80",
    );
}

#[test]
fn mistakes_on_the_command_line_have_a_code_no_job_is_blamed_for() {
    let home = Home::new();
    for args in
        [&["frobnicate"][..], &["task", "list", "--bogus"], &["task", "list", "--format", "yaml"], &[]]
    {
        let did = home.run(args);
        assert_eq!((did.code, did.out.as_str()), (2, ""), "{args:?}");
        assert!(did.err.contains("Usage: levers9") || did.err.contains("--help"), "{}", did.err);
    }
    for args in [
        &["run"][..],
        &["-c", "x", "run", "--bogus", "--", "true"],
        &["run", "--port", "x", "--", "true"],
        &["run", "--public", "--", "true"],
        &["attach"],
        &["exec"],
        &["exec", ID, "ls"],
        &["exec", ID, "--"],
        &["-c", "x", "exec", ID, "--bogus", "--", "true"],
        &["exec", "abc", "--", "true"],
        &["exec", ID, "-e", "=x", "--", "true"],
        &["shell"],
        &["shell", "abc"],
        &["container", "attach"],
        &["container", "attach", "abc"],
        &["container", "attach", ID, "--bogus"],
    ] {
        let did = home.run(args);
        assert_eq!((did.code, did.out.as_str()), (125, ""), "{args:?}: {}", did.err);
    }
    for args in [&["container", "bogus"][..], &["container", "stop"], &["port-forward", ID]] {
        assert_eq!(home.run(args).code, 2, "{args:?}");
    }
    for bad in ["0", "65536", "1:0", "65536:1", "a:b:c", "abc", ":"] {
        let said = format!(
            "error: {bad:?} names no port to forward\n\
             hint: write [LOCAL:]REMOTE, as in 8080:8000; ports are 1 to 65535, a LOCAL of 0 is any free one"
        );
        fails(&home.run(&["port-forward", ID, bad]), 2, &said);
    }
    fails(
        &home.run(&["port-forward", ID, "8000:80", "8000:81"]),
        2,
        "error: \"8000:81\": the local port 8000 is taken twice\nhint: give each its own: LOCAL:REMOTE",
    );
    for (port, shown) in [("0", "0"), ("65536", "65536")] {
        fails(
            &home.run(&["run", "--port", port, "--", "true"]),
            125,
            &format!("error: the job is refused: port is {shown:?}, which is not allowed: 1 to 65535"),
        );
    }
    fails(
        &home.run(&["task", "show", "abc"]),
        2,
        "error: TASK: \"abc\" is not an id; ids look like 019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a",
    );
    fails(
        &home.run(&["task", "list", "--status", "done"]),
        2,
        "error: --status: \"done\" is no status\n\
         hint: there are pending, running, complete, error, cancelled, timeout, retry, expired",
    );
    assert_eq!(home.run(&["workspace", "create", "Café"]).code, 2);
}

#[test]
fn a_cluster_that_makes_no_sense_is_refused_before_anything_is_asked() {
    let home = Home::new().with_context("prod", "levers9://prod.example");
    let join = |more: &[&str]| home.run(&[&["-c", "prod", "cluster", "join"], more].concat());
    for bad in ["bad name", "Ünicode", "UPPER", "x-", ""] {
        let did = join(&[bad, "--gpu", "L40S"]);
        assert_eq!((did.code, did.out.as_str()), (2, ""), "{bad:?}: {}", did.err);
        assert!(did.err.starts_with("error: cluster name "), "{}", did.err);
    }
    fails(
        &join(&["bad name", "--gpu", "L40S"]),
        2,
        "error: cluster name \"bad name\" is refused: use 1 to 63 of the characters a-z, 0-9 and '-', \
         starting with a letter and not ending in '-'",
    );
    assert_eq!(join(&[&"x".repeat(300), "--gpu", "L40S"]).code, 2);
    let did = join(&["gpus"]);
    assert!(did.code == 2 && did.err.contains("--gpu <TYPE>"), "{}", did.err);
    fails(
        &join(&["gpus", "--gpu", "L 40"]),
        2,
        "error: the cluster is refused: gpu type is \"L 40\", which is not allowed: letters, digits and '-', as in T4 or A100-80",
    );
    for more in [
        &["--namespace", "Kube"][..],
        &["--namespace", "a.b"],
        &["--flavor", "ibm"],
        &["--worker-image", "not an image"],
        &["--pull-secret", "a_b"],
        &["--timeout", "soon"],
        &["--manifest-only", "--kube-context", "x"],
    ] {
        let did = join(&[&["gpus", "--gpu", "L40S"], more].concat());
        assert_eq!((did.code, did.out.as_str()), (2, ""), "{more:?}: {}", did.err);
    }
}

#[test]
fn a_bad_selector_is_shown_with_the_character_that_is_wrong() {
    let home = Home::new().with_context("prod", "levers9://prod.example");
    let join = |selector: &[&str]| {
        let mut args = vec!["-c", "prod", "cluster", "join", "gpus", "--gpu", "L40S"];
        args.extend(selector.iter().flat_map(|item| ["--selector", item]));
        home.run(&args)
    };
    fails(
        &join(&["zone=a", "pool=in (a,b"]),
        2,
        "error: --selector: \"pool=in (a,b\" has a parenthesis that is not closed; write key=in (a,b)\n  \
           pool=in (a,b\n          ^",
    );
    fails(
        &join(&["pool=a", "pool=b"]),
        2,
        "error: --selector: no node fulfils both \"pool=a\" and \"pool=b\": all items must hold\n\
         hint: to lend nodes with either: --selector 'pool=in (a,b)'",
    );
    for bad in ["", " ", "!gpu", "pool notin (x)", "pool=notin (x)", "pool in (a, b)", "a=b,c=d", "=x"] {
        let did = join(&[bad]);
        assert_eq!((did.code, did.out.as_str()), (2, ""), "{bad:?}");
        let caret = did.err.lines().last().unwrap_or_default().trim();
        assert!(did.err.starts_with("error: --selector: ") && caret == "^", "{bad:?}: {}", did.err);
    }
    let long = format!("pool={}", "x".repeat(10_000));
    let did = join(&[&long]);
    assert!(did.code == 2 && did.err.len() < 5_000, "{}", did.err.len());
    let shown = did.err.lines().rev().nth(1).unwrap();
    assert!(shown.chars().count() < 130 && shown.starts_with("  …x"), "{shown}");
}

#[test]
fn commands_about_clusters_and_tasks_name_what_they_cannot_read() {
    let home = Home::new().with_context("prod", "levers9://prod.example");
    for args in [
        &["cluster"][..],
        &["cluster", "bogus"],
        &["cluster", "nodes"],
        &["cluster", "nodes", "no such"],
        &["cluster", "leave", "x", "--keep-agent", "--kube-context", "y"],
        &["cluster", "share", "Café"],
        &["why"],
        &["why", "abc"],
    ] {
        let did = home.run(&[&["-c", "prod"], args].concat());
        assert_eq!((did.code, did.out.as_str()), (2, ""), "{args:?}: {}", did.err);
    }
}

#[test]
fn a_malformed_token_is_refused_here_and_never_shown() {
    let home = Home::new().with_context("prod", "levers9://prod.example");
    let text = fs::read_to_string(config(&home)).unwrap().replace(&token('a'), "hunter2hunter2");
    fs::write(config(&home), text).unwrap();
    fails(
        &home.run(&["-c", "prod", "task", "list"]),
        1,
        "error: the token of context \"prod\" cannot be used: the token is malformed: a levers9 token starts \
         with l9_ and has at least 64 letters, digits, '-' or '_'\n\
         hint: log in again: levers9 login levers9://prod.example:443",
    );
    let did = home.run_with(&["login", "levers9://prod.example", "--token-stdin"], &[], "hunter2hunter2");
    assert_eq!(did.code, 1);
    assert!(did.err.contains("the token is malformed") && !did.err.contains("hunter2"), "{}", did.err);
}

#[test]
fn login_without_any_secret_says_where_one_can_come_from() {
    fails(
        &Home::new().run(&["login", "levers9://prod.example"]),
        2,
        "error: there is neither a token nor a bootstrap secret\n\
         hint: pass a token by --token-stdin or LEVERS9_TOKEN, or the secret by LEVERS9_BOOTSTRAP_SECRET",
    );
    fails(
        &Home::new().run(&["login"]),
        2,
        "error: the address of context \"default\" is not known\n\
         hint: give it: levers9 login levers9://HOST:443#sha256:…",
    );
    fails(
        &Home::new().run(&["login", "https://prod.example"]),
        2,
        "error: ADDRESS: \"https://prod.example\" is not a levers9 address; \
         they look like levers9://host:443#sha256:…",
    );
}

#[test]
fn contexts_make_the_round_trip() {
    let home = Home::new()
        .with_context("prod", "levers9://prod.example")
        .with_context("dev", "levers9://[::1]:4433");
    let create = ["config", "create", "prod", "levers9://other.example", "--token-stdin"];
    fails(
        &home.run_with(&create, &[], &token('b')),
        1,
        "error: there is a context \"prod\" in [HOME]/.levers9/config\n\
         hint: replace it with --overwrite, or take another name",
    );
    let select = home.run(&["config", "select", "dev"]);
    assert_eq!((select.code, select.err.as_str()), (0, "levers9: context \"dev\" is now the default"));
    let list = home.run(&["config", "list"]);
    assert_eq!(
        list.out,
        "   CONTEXT  TOKEN      SDK                ADDRESS\n\
         *  default  workspace  ::1:1993           levers9://[::1]:4433\n   \
            prod     workspace  prod.example:1993  levers9://prod.example:443\n\
         *  dev      workspace  ::1:1993           levers9://[::1]:4433"
    );
    assert_eq!(home.run(&["config", "delete", "prod"]).code, 0);
    fails(
        &home.run(&["config", "delete", "prod"]),
        1,
        "error: there is no context \"prod\" in [HOME]/.levers9/config\nhint: there are default, dev",
    );
    assert_eq!(home.run(&["config", "select", "prod"]).code, 1);
}

#[test]
fn listings_as_json_have_their_fields_and_no_token() {
    let home = Home::new().with_context("prod", "levers9://prod.example");
    let did = home.run(&["config", "list", "--format", "json"]);
    let expected = r#"[
  {
    "name": "prod",
    "default": false,
    "address": "levers9://prod.example:443",
    "token_kind": "workspace",
    "controlplane_host": "prod.example",
    "controlplane_port": "1993",
    "controlplane_http_url": "",
    "tls": ""
  }
]"#;
    assert_eq!(did, Did { code: 0, out: expected.to_owned(), err: String::new() });
    assert_eq!(Home::new().run(&["config", "list", "--format", "json"]).out, "[]");
    let version = Home::new().run(&["version", "--format", "json"]);
    let version: serde_json::Value = serde_json::from_str(&version.out).unwrap();
    assert_eq!(version["client"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["controlplane"], serde_json::Value::Null);
}

#[test]
fn config_path_is_honoured_and_the_sdks_sections_are_kept() {
    let home = Home::new();
    let path = home.path().join("elsewhere/my.ini");
    fs::create_dir(path.parent().unwrap()).unwrap();
    fs::write(&path, "[default]\ntoken = x\ngateway_host = h\ntls = true\n\n[other]\ntoken = y\n").unwrap();
    let env = [("CONFIG_PATH", "~/elsewhere/my.ini")];
    let did = home.run_with(
        &["config", "create", "new", "levers9://n.example", "--token-stdin"],
        &env,
        &token('n'),
    );
    assert_eq!(
        (did.code, did.err.as_str()),
        (0, "levers9: context \"new\" is stored in [HOME]/elsewhere/my.ini")
    );
    let text = fs::read_to_string(&path).unwrap();
    let rest = "controlplane_host = h\ncontrolplane_port =\ncontrolplane_http_url =\ntls = true\n\n";
    let new = format!(
        "[new]\ntoken = {}\ncontrolplane_host = n.example\ncontrolplane_port = 1993\n\
         controlplane_http_url =\ntls =\n\n",
        token('n')
    );
    assert_eq!(text, format!("[default]\ntoken = x\n{rest}[other]\ntoken = y\n{rest}{new}"));
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&path.with_file_name("contexts.toml")), 0o600);
    assert!(!config(&home).exists());
}

#[test]
fn the_folder_of_the_configuration_is_private() {
    let home = Home::new();
    fs::create_dir(home.path().join(".levers9")).unwrap();
    let home = home.with_context("prod", "levers9://prod.example");
    let mode = fs::metadata(home.path().join(".levers9")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_broken_configuration_is_named_by_line_and_left_alone() {
    let home = Home::new();
    fs::create_dir(home.path().join(".levers9")).unwrap();
    fs::write(config(&home), "[default]\nl9_admin_secret\n").unwrap();
    let said = "error: cannot understand [HOME]/.levers9/config: line 2: this is no \"key = value\"\n\
                hint: correct the line, or move the file away and log in again: levers9 login";
    fails(&home.run(&["task", "list"]), 1, said);
    fails(&home.run(&["config", "delete", "default"]), 1, said);
    assert_eq!(fs::read_to_string(config(&home)).unwrap(), "[default]\nl9_admin_secret\n");
}

#[test]
fn a_stored_token_goes_only_where_it_belongs() {
    let home = Home::new().with_context("prod", "levers9://prod.example");
    assert_eq!(home.run(&["config", "select", "prod"]).code, 0);
    let did = home.run_with(&["task", "list"], &[("LEVERS9_ADDRESS", "levers9://evil.example")], "");
    fails(
        &did,
        2,
        "error: LEVERS9_ADDRESS is set without LEVERS9_TOKEN\n\
         hint: set both: a stored token is sent only to the controlplane it was stored for",
    );
    // What the SDK's own `config select` does: another section over the default one.
    let text = fs::read_to_string(config(&home)).unwrap().replacen("prod.example", "sdk.example", 1);
    fs::write(config(&home), text).unwrap();
    fails(
        &home.run(&["task", "list"]),
        1,
        "error: the address of context \"default\" is not known: only the Python SDK's part of it is stored\n\
         hint: log in once with the address: levers9 login levers9://HOST:443#sha256:… --context default",
    );
}

#[test]
fn a_reader_that_closes_its_end_is_no_failure_and_a_full_disk_is_one() {
    let home = Home::new().with_context("prod", "levers9://prod.example");
    for args in [&["config", "list"][..], &["config", "list", "--format", "json"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = home.command(args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let did = home.did(&output);
        assert_eq!((did.code, did.err.as_str()), (0, ""), "{args:?}");
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = home.command(&["config", "list"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    fails(
        &home.did(&output),
        1,
        "error: cannot write to standard output: No space left on device (os error 28)",
    );
}

#[test]
fn help_and_version_are_there_at_once() {
    let home = Home::new();
    assert_eq!(home.run(&["--version"]).out, format!("levers9 {}", env!("CARGO_PKG_VERSION")));
    let help = home.run(&["--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    for name in [
        "run",
        "logs",
        "attach",
        "exec",
        "shell",
        "port-forward",
        "completions",
        "task",
        "container",
        "worker",
        "cluster",
        "why",
        "workspace",
        "login",
        "token",
        "config",
        "dev",
    ] {
        assert!(help.out.contains(&format!("\n  {name} ")), "{name} is not in the help");
    }
}

#[test]
fn every_shell_has_its_completions() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let did = home.run(&["completions", shell]);
        assert_eq!((did.code, did.err.as_str()), (0, ""), "{shell}");
        assert!(did.out.contains("port-forward") && did.out.contains("since-line"), "{shell}: {}", did.out);
    }
    assert_eq!(home.run(&["completions", "csh"]).code, 2);
    let script = home.run(&["completions", "bash"]).out;
    let file = home.path().join("levers9.bash");
    fs::write(&file, script).unwrap();
    let checked = std::process::Command::new("bash").arg("-n").arg(&file).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
