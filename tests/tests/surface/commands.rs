//! What is stored and handed out: logging in, contexts, tokens, enrolments.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use levers9_tests::world::BOOTSTRAP_SECRET;
use levers9_tests::{Home, Live, Output, Person, wait};

use crate::support::{Operator, PATIENCE, config_file, fails, normal, says, shared, text, unknown_token};

const STORED: &str = "levers9: context \"default\" is stored in [HOME]/home/.levers9/config";

/// Runs a command with a text on its standard input.
fn with_input(mut command: Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let what = format!("{:?}", command.get_args().collect::<Vec<_>>());
    let mut child = command.spawn().expect("it starts");
    // It may end without reading.
    let _unread = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    let did = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&did.stderr).into_owned();
    Output { what, code: did.status.code().unwrap_or(-1), stdout: did.stdout, stderr }
}

fn login(home: &Home, address: &str, env: &[(&str, &str)]) -> Output {
    let mut command = home.command("levers9", &["login", address]);
    command.envs(env.iter().copied());
    Output::of(command)
}

#[test]
fn login_with_a_token() {
    let world = &shared().world;
    let (address, (_, key)) = (world.controlplane.address(), world.new_token("workspace"));
    let said = format!("levers9: logged in to \"default\" (workspace) at 127.0.0.1:[PORT]\n{STORED}");
    let by_env = Home::new();
    fails(&login(&by_env, &address, &[("LEVERS9_TOKEN", &key)]), 0, &said);
    let _works = by_env.cli(&["task", "list"]).ok();
    let by_stdin = Home::new();
    let command = by_stdin.command("levers9", &["login", &address, "--token-stdin"]);
    fails(&with_input(command, &format!("{key}\n")), 0, &said);
    let _works = by_stdin.cli(&["task", "list"]).ok();
    let stored = std::fs::read_to_string(config_file(&by_stdin)).expect("a file");
    assert!(stored.contains(&key) && stored.starts_with("[default]\n"), "{stored}");
    // Another name is made the default where there is none.
    let named = Home::new();
    let mut command = named.command("levers9", &["--context", "prod", "login", &address]);
    command.env("LEVERS9_TOKEN", &key);
    fails(
        &Output::of(command),
        0,
        "levers9: context \"prod\" is now the default\n\
         levers9: logged in to \"default\" (workspace) at 127.0.0.1:[PORT]\n\
         levers9: context \"prod\" is stored in [HOME]/home/.levers9/config",
    );
}

#[test]
fn a_login_that_fails_stores_nothing() {
    let address = shared().world.controlplane.address();
    let home = Home::new();
    fails(
        &login(&home, &address, &[("LEVERS9_TOKEN", &unknown_token())]),
        1,
        "error: the controlplane at 127.0.0.1:[PORT] refuses: the controlplane does not know this token\n\
         hint: log in again: levers9 login",
    );
    fails(
        &login(&home, &address, &[("LEVERS9_TOKEN", "hunter2")]),
        1,
        "error: the token is malformed: a levers9 token starts with l9_ and has at least 64 letters, digits, '-' or \
         '_'\n\
         hint: pass it by --token-stdin or LEVERS9_TOKEN, or type it at the prompt",
    );
    fails(
        &login(&home, &address, &[]),
        2,
        "error: there is neither a token nor a bootstrap secret\n\
         hint: pass a token by --token-stdin or LEVERS9_TOKEN, or the secret by LEVERS9_BOOTSTRAP_SECRET",
    );
    assert!(!std::fs::read_to_string(config_file(&home)).is_ok_and(|text| text.contains("l9_")));
}

#[test]
fn the_bootstrap_secret_works_once() {
    let home = Home::new();
    let secret = "a-bootstrap-secret-of-this-test";
    let auth = format!("controlplane:\n  auth:\n    bootstrapSecret: {secret}\n");
    let operator = Operator::start(home, &auth, &[]);
    let with = |secret: &str| {
        let home = Home::new();
        let did = login(&home, &operator.dial, &[("LEVERS9_BOOTSTRAP_SECRET", secret)]);
        assert!(!did.stderr.contains(secret), "the secret is shown: {}", did.stderr);
        (did, home)
    };
    // A wrong one first, also one that only begins right.
    for wrong in ["another-secret", &secret[..secret.len() - 1], &format!("{secret}x")] {
        fails(&with(wrong).0, 1, "error: the bootstrap secret is wrong");
    }
    let (did, admin) = with(secret);
    fails(&did, 0, &format!("levers9: logged in to \"default\" (admin) at 127.0.0.1:[PORT]\n{STORED}"));
    let _works = admin.cli(&["token", "list"]).ok();
    fails(
        &with(secret).0,
        1,
        "error: a workspace exists already, so the bootstrap secret has no effect; ask an admin for a token",
    );
    fails(&with("another-secret").0, 1, "error: the bootstrap secret is wrong");
}

#[test]
fn two_at_once_get_one_first_token() {
    let secret = "a-bootstrap-secret-of-this-test";
    let operator = Operator::start(Home::new(), "", &[("LEVERS9_BOOTSTRAP_SECRET", secret)]);
    let homes: Vec<Home> = (0..4).map(|_| Home::new()).collect();
    let start = |home: &Home| {
        let mut command = home.command("levers9", &["login", &operator.dial]);
        command.env("LEVERS9_BOOTSTRAP_SECRET", secret);
        Live::spawn(command)
    };
    let mut logins: Vec<Live> = homes.iter().map(start).collect();
    let codes: Vec<i32> = logins.iter_mut().map(|live| live.wait(PATIENCE)).collect();
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == 1).count(), 3, "{codes:?}");
}

#[test]
fn without_a_secret_there_is_no_first_token() {
    let operator = Operator::start(Home::new(), "", &[]);
    let did = login(&Home::new(), &operator.dial, &[("LEVERS9_BOOTSTRAP_SECRET", BOOTSTRAP_SECRET)]);
    fails(
        &did,
        1,
        "error: this controlplane was started without a bootstrap secret, so it hands out no first token; set \
         LEVERS9_BOOTSTRAP_SECRET or controlplane.auth.bootstrapSecret and restart it",
    );
}

#[test]
fn guessing_secrets_is_slowed_down() {
    let secret = "a-bootstrap-secret-of-this-test";
    let operator = Operator::start(Home::new(), "", &[("LEVERS9_BOOTSTRAP_SECRET", secret)]);
    let home = Home::new();
    let guess = || login(&home, &operator.dial, &[("LEVERS9_BOOTSTRAP_SECRET", "a-guess")]);
    let mut guesses = 0;
    // Each answer comes as fast as the machine permits: this ends long before the minute is over.
    let refused = wait::until("guesses are refused unheard", Duration::from_secs(50), || {
        let did = guess();
        guesses += 1;
        if did.stderr.contains("wait a minute") { Ok(did) } else { Err(did.stderr) }
    });
    assert!((20..=40).contains(&guesses), "it took {guesses} guesses");
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    // Neither does the right one work now: the answer tells a guesser nothing.
    let right = login(&home, &operator.dial, &[("LEVERS9_BOOTSTRAP_SECRET", secret)]);
    assert_eq!(right.code, 1, "{}", right.stderr);
}

#[test]
fn contexts_are_kept_selected_and_forgotten() {
    let home = Home::new();
    let create = |name: &str, host: &str, more: &[&str]| {
        let args = [&["config", "create", name, host, "--token-stdin"], more].concat();
        with_input(home.command("levers9", &args), &unknown_token())
    };
    let stored = "levers9: context \"one\" is stored in [HOME]/home/.levers9/config";
    fails(&create("one", "levers9://one.example", &[]), 0, stored);
    fails(
        &create("one", "levers9://other.example", &[]),
        1,
        "error: there is a context \"one\" in [HOME]/home/.levers9/config\n\
         hint: replace it with --overwrite, or take another name",
    );
    fails(&create("one", "levers9://other.example:4433", &["--overwrite"]), 0, stored);
    fails(
        &home.cli(&["task", "list"]),
        1,
        "error: no context is selected in [HOME]/home/.levers9/config; it holds one\n\
         hint: select one: levers9 config select one",
    );
    fails(&home.cli(&["config", "select", "one"]), 0, "levers9: context \"one\" is now the default");
    says(
        &home.cli(&["config", "list"]),
        0,
        "   CONTEXT  TOKEN      SDK                 ADDRESS\n\
         *  default  workspace  other.example:1993  levers9://other.example:4433\n\
         *  one      workspace  other.example:1993  levers9://other.example:4433",
        "",
    );
    fails(&home.cli(&["config", "delete", "one"]), 0, "levers9: context \"one\" is forgotten");
    let gone = "error: there is no context \"one\" in [HOME]/home/.levers9/config\nhint: there are default";
    fails(&home.cli(&["config", "delete", "one"]), 1, gone);
    fails(&home.cli(&["config", "select", "one"]), 1, gone);
    fails(&home.cli(&["config", "delete", "default"]), 0, "levers9: context \"default\" is forgotten");
    assert!(!std::fs::read_to_string(config_file(&home)).expect("a file").contains("l9_"));
}

#[test]
fn tokens_are_made_listed_and_revoked() {
    let world = &shared().world;
    let did = world.cli(&["token", "create"]);
    says(&did, 0, "[TOKEN]", "levers9: token [ID] above is shown only this once");
    let key = did.text().trim().to_owned();
    assert!(key.starts_with("l9_ws_") && key.len() >= 64, "{} characters", key.len());
    let kind = |kind: &str| world.new_token(kind).1;
    assert!(kind("admin").starts_with("l9_admin_") && kind("workspace_restricted").starts_with("l9_wsr_"));
    let did = world.cli(&["token", "create", "--kind", "worker"]);
    assert_eq!((did.code, did.text().as_str()), (2, ""), "{}", did.stderr);
    assert!(
        did.stderr.contains("[possible values: admin, workspace, workspace_restricted]"),
        "{}",
        did.stderr
    );
    let person = Person::of(world, &key);
    let _works = person.cli(&["task", "list"]).ok();
    let id = did_id(&world.cli(&["token", "list", "--format", "json"]).ok(), &key);
    let list = world.cli(&["token", "list"]).ok().text();
    assert!(!list.contains(&key) && list.contains(&id), "{list}");
    let used = world.cli(&["token", "list", "--format", "json"]).ok().json();
    let row = used.as_array().expect("a list").iter().find(|row| row["id"] == id.as_str());
    assert!(row.expect("its row")["last_used_unix_ms"].is_u64(), "{used:#}");
    fails(&world.cli(&["token", "delete", &id]), 0, "levers9: token [ID] is revoked");
    let left = world.cli(&["token", "list"]).ok().text();
    assert!(!left.contains(&id), "a revoked token is listed: {left}");
}

/// The id of the listed token whose hint fits this one.
fn did_id(list: &Output, key: &str) -> String {
    let list = list.json();
    let fits =
        |hint: &str| hint.split('…').all(|part| key.contains(part)) && hint.contains(&key[key.len() - 4..]);
    let row = list.as_array().expect("a list").iter().find(|row| fits(text(&row["hint"])));
    text(&row.unwrap_or_else(|| panic!("no hint fits in {list:#}"))["id"]).to_owned()
}

#[test]
fn an_enrolment_prints_a_line_that_starts_a_worker() {
    let world = &shared().world;
    // Of a workspace of its own, so that it takes no jobs of other tests.
    let owner = Person::in_workspace(world, "pastes");
    let did = owner.cli(&["worker", "enroll", "--pool", "pasted"]).ok();
    says(
        &did,
        0,
        "LEVERS9_WORKER_TOKEN=[TOKEN] levers9-worker --controlplane \
         'levers9://127.0.0.1:[PORT]#sha256:[PIN]'",
        &format!(
            "levers9: starts worker [ID] in pool \"pasted\", once, within {}\n\
             levers9: add --allow-unisolated where the machine has no container runtime: jobs then run as plain \
             processes",
            within(&did.stderr)
        ),
    );
    let shared = world.cli(&["worker", "enroll", "--shared", "--allow-unisolated"]).ok();
    assert!(shared.text().trim_end().ends_with("' --allow-unisolated"), "{}", normal(&shared.text()));
    let trusted = "levers9: it will run jobs of every workspace: its owner has to be trusted by all of them";
    assert!(shared.stderr.contains(trusted), "{}", shared.stderr);
    // Pasted into a shell it starts one, and the token is among no process's arguments.
    let home = Home::new();
    let binary = home.command("levers9-worker", &[]).get_program().to_string_lossy().into_owned();
    // `exec`, so that it ends with this test.
    let line = did.text().replacen("levers9-worker", &format!("exec {binary}"), 1);
    let mut shell = home.command("levers9", &[]);
    let env: Vec<_> = shell.get_envs().filter_map(|(k, v)| Some((k.to_owned(), v?.to_owned()))).collect();
    shell = Command::new("sh");
    shell.arg("-c").arg(format!("{} --allow-unisolated --data worker", line.trim()));
    shell.env_clear().envs(env).current_dir(home.path()).stdin(Stdio::null());
    let worker = Live::spawn(shell);
    worker.wait_errors("online", PATIENCE);
}

/// The time an enrolment says it is good for: half an hour, less what has passed.
fn within(said: &str) -> String {
    let time = said.split("within ").nth(1).and_then(|rest| rest.lines().next()).expect("a time");
    assert!(time == "30m" || time.starts_with("29m"), "{time}");
    time.to_owned()
}
