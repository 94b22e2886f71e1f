//! What a person reads when there is no controlplane to talk to: none is
//! configured, none answers, or the one that answers is not believed.

use std::net::UdpSocket;
use std::time::Duration;

use levers9_tests::{Home, Output, Person, wait};
use levers9_transport::dial::Dialer;
use levers9_transport::link::open_on;
use levers9_transport::quic::{Endpoint, Settings};
use levers9_wire::v1::{self, RefuseCode, control_frame, stream_open};
use levers9_wire::{InstanceId, limits};

use crate::support::{Operator, fails, normal, request, shared, unknown_token};

/// How long a command may try.
const TRIES: Duration = Duration::from_secs(15);

#[test]
fn no_configuration() {
    let said = "error: no controlplane is configured: [HOME]/home/.levers9/config holds no context\n\
                hint: start one on this machine: levers9 dev; or log in to one: \
                levers9 login levers9://HOST:443#sha256:…";
    let home = Home::new();
    fails(&home.cli(&["worker", "list"]), 1, said);
    fails(&home.cli(&["run", "--", "true"]), 125, said);
}

#[test]
fn an_unknown_context() {
    let said = "error: there is no context \"prd\" in [HOME]/home/.levers9/config\nhint: there are default";
    fails(&shared().world.cli(&["--context", "prd", "worker", "list"]), 1, said);
    fails(&shared().world.cli(&["--context", "prd", "run", "--", "true"]), 125, said);
}

#[test]
fn nothing_listens_there() {
    let place = crate::support::closed_port();
    let person = Person::new(format!("levers9://{place}"), unknown_token());
    let said = "error: cannot reach the controlplane: nothing is listening on UDP 127.0.0.1:[PORT]; \
                TCP 127.0.0.1:[PORT]: nothing is listening there\n\
                hint: is the controlplane running? on this machine: levers9 dev";
    fails(&person.cli(&["task", "list"]), 3, said);
    fails(&person.cli(&["run", "--", "true"]), 125, said);
}

#[test]
fn no_answer_over_udp() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = format!("levers9://{}", silent.local_addr().expect("an address"));
    let person = Person::new(address, unknown_token());
    let mut command = person.cli_spawn(&["task", "list"]);
    let mut run = person.cli_spawn(&["run", "--", "true"]);
    let said = "error: cannot reach the controlplane: no answer from UDP 127.0.0.1:[PORT]: it is down, or UDP \
                is blocked on the way; TCP 127.0.0.1:[PORT]: nothing is listening there\n\
                hint: levers9 needs outbound UDP or TCP to this port; check firewalls and that the controlplane runs";
    for (live, code) in [(&mut command, 3), (&mut run, 125)] {
        assert_eq!((live.wait(TRIES), normal(&live.errors()).trim_end()), (code, said));
        assert_eq!(live.text(), "");
    }
}

#[test]
fn a_name_without_an_address() {
    let person = Person::new("levers9://no-such-host.invalid:443", unknown_token());
    let did = person.cli(&["task", "list"]);
    // What the resolver says after this is the machine's own.
    let start = "error: cannot reach the controlplane: cannot resolve \"no-such-host.invalid\": ";
    let hint = "\nhint: check the address of this context: levers9 config list\n";
    let good = did.code == 3 && did.stderr.starts_with(start) && did.stderr.ends_with(hint);
    assert!(good, "{}: {}", did.code, did.stderr);
}

#[test]
fn a_wrong_pin() {
    let address = shared().world.controlplane.address();
    let (place, _) = address.split_once("#sha256:").expect("an address with a pin");
    let person = Person::new(format!("{place}#sha256:{}", "0".repeat(64)), unknown_token());
    let did = person.cli(&["task", "list"]);
    fails(
        &did,
        3,
        "error: cannot reach the controlplane: the server's CA is not the pinned one: it shows a certificate of \
         \"CN=levers9 CA\" with sha256:[PIN]\n\
         hint: the pin in your context is of another CA: get the current address from whoever runs the controlplane",
    );
    assert!(!did.stderr.contains(&unknown_token()), "the error shows the token");
}

#[test]
fn a_right_ca_for_another_name() {
    let operator = Operator::start(Home::new(), "", &[]);
    let elsewhere = operator.dial.replacen("//127.0.0.1:", "//localhost:", 1);
    fails(
        &Person::new(elsewhere, unknown_token()).cli(&["task", "list"]),
        3,
        "error: cannot reach the controlplane: the server's certificate is not for \"localhost\", it names 127.0.0.1",
    );
}

#[test]
fn an_expired_certificate() {
    let home = Home::new();
    let (chain, key) = expired();
    for (name, content) in [("chain.pem", &chain), ("leaf.key", &key)] {
        std::fs::write(home.path().join(name), content).expect("a file");
    }
    let operator = Operator::start(home, "certificate:\n  certFile: chain.pem\n  keyFile: leaf.key\n", &[]);
    let did = operator.person(unknown_token()).cli(&["task", "list"]);
    let (code, said) = (did.code, without_age(&normal(&did.stderr)));
    assert_eq!(
        (code, said.trim_end()),
        (
            3,
            "error: cannot reach the controlplane: the server's certificate, issued by \"CN=an old CA\", expired \
             [AGE] ago\n\
             hint: the controlplane's certificate has to be renewed"
        )
    );
    let (status, body) = request(operator.http, "GET /healthz", &[]);
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("the certificate has expired"), "{body}");
}

/// A chain of a good CA and a leaf whose time is over, and the leaf's key.
fn expired() -> (String, String) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
    let ca_key = KeyPair::generate().expect("a key");
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    ca.distinguished_name.push(DnType::CommonName, "an old CA");
    ca.not_before = rcgen::date_time_ymd(2020, 1, 1);
    ca.not_after = rcgen::date_time_ymd(2090, 1, 1);
    let ca_certificate = ca.self_signed(&ca_key).expect("a certificate");
    let key = KeyPair::generate().expect("a key");
    let mut leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    leaf.not_before = rcgen::date_time_ymd(2020, 1, 1);
    leaf.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let leaf = leaf.signed_by(&key, &Issuer::new(ca, ca_key)).expect("a certificate");
    (format!("{}{}", leaf.pem(), ca_certificate.pem()), key.serialize_pem())
}

/// The words with the time since the end taken out: it grows.
fn without_age(text: &str) -> String {
    let (before, after) = text.split_once("expired ").unwrap_or((text, ""));
    let rest = after.split_once(" ago").map_or(after, |(_, rest)| rest);
    format!("{before}expired [AGE] ago{rest}")
}

#[test]
fn a_version_that_is_too_old() {
    let address = shared().world.controlplane.address();
    let refused = runtime().block_on(greet(&address, (0, 0)));
    assert_eq!(refused.code(), RefuseCode::Version);
    let version = levers9_wire::BUILD;
    assert_eq!(
        refused.text,
        format!("levers9 0.0.1 speaks protocol 0 to 0, this controlplane ({version}) speaks 1 to 1")
    );
    // One that is too new is told so the same way.
    assert_eq!(runtime().block_on(greet(&address, (2, 9))).code(), RefuseCode::Version);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Says hello with these versions and returns the refusal.
async fn greet(address: &str, versions: (u32, u32)) -> v1::Refused {
    let mut dialer = Dialer::new(address.parse().expect("an address"));
    let endpoint = Endpoint::dialing(&Settings::default()).expect("a socket");
    let carrier = dialer.dial(&endpoint, TRIES).await.expect("a connection");
    let control = stream_open::Kind::Control(v1::ControlOpen {});
    let stream = open_on(&carrier, control).await.expect("a stream");
    let hello = v1::Hello {
        version_min: versions.0,
        version_max: versions.1,
        role: v1::Role::Cli.into(),
        token: unknown_token(),
        instance: InstanceId::generate().to_wire(),
        build: "0.0.1".to_owned(),
        ..v1::Hello::default()
    };
    let mut send = stream.send.with_limit(limits::CONTROL);
    let mut recv = stream.recv.with_limit(limits::CONTROL);
    let frame = v1::ControlFrame { kind: Some(control_frame::Kind::Hello(hello)) };
    send.send(&frame).await.expect("it is sent");
    match recv.expect::<v1::ControlFrame>().await.expect("an answer").kind {
        Some(control_frame::Kind::Refused(refused)) => refused,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_worker_that_reaches_nobody_says_so_and_stays() {
    let place = crate::support::closed_port();
    let home = Home::new();
    let token = format!("l9_enrol_{}", "e".repeat(64));
    let mut worker =
        crate::support::start_worker(&home, &format!("levers9://{place}"), &token, "worker", &[]);
    worker.wait_errors(&format!("nothing is listening on UDP {place}"), TRIES);
    wait::stays("the worker runs", Duration::from_secs(1), || match worker.poll() {
        None => Ok(()),
        Some(code) => Err(format!("it ended with {code}: {}", worker.errors())),
    });
    assert!(!worker.errors().contains(&token), "the log shows the token");
    assert_eq!(crate::support::terminate(&mut worker), 0, "{}", worker.errors());
}

#[test]
fn version_works_without_a_controlplane() {
    let version = levers9_wire::BUILD;
    let printed = format!("levers9       {version} (protocol 1)");
    let alone = Output::of(Home::new().command("levers9", &["version"]));
    crate::support::says(&alone, 0, &printed, "");
    let person = Person::new(format!("levers9://{}", crate::support::closed_port()), unknown_token());
    let did = person.cli(&["version"]);
    crate::support::says(
        &did,
        0,
        &printed,
        // Nobody asked for it in particular: it is not waited for until the cause is known.
        "levers9: the controlplane's version is not known: cannot reach the controlplane: no answer from UDP \
         127.0.0.1:[PORT] in time",
    );
    let both = shared().world.cli(&["version"]);
    crate::support::says(&both, 0, &format!("{printed}\ncontrolplane  {version}"), "");
}
