//! What a configuration file may say, and word for word what is said of those
//! that may not. The cases are texts; nothing here looks at how they are read.

use std::net::SocketAddr;
use std::time::Duration;

use levers9_transport::Trust;
use levers9_transport::quic::Congestion;
use proptest::prelude::*;

use super::{BOOTSTRAP_SECRET, Certificate, Config, ConfigError, HostPort, Sealing, TcpListen, Values};

fn nothing(_: &str) -> Option<String> {
    None
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse("config.yaml", text.as_bytes(), nothing)
}

fn refused(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn an_empty_file_is_the_defaults() {
    for text in ["", "# nothing\n", "---\n", "logs:\ntransport:\n  # mtu: 1300\n"] {
        let config = parse(text).unwrap();
        assert_eq!(config.data.to_str(), Some("/var/lib/levers9"));
        assert_eq!(config.database.expose(), "sqlite:///var/lib/levers9/levers9.db");
        assert_eq!(config.quic, "0.0.0.0:443".parse::<SocketAddr>().unwrap());
        assert_eq!(config.grpc, "127.0.0.1:1993".parse::<SocketAddr>().unwrap());
        assert_eq!(config.http, "127.0.0.1:1994".parse::<SocketAddr>().unwrap());
        assert_eq!(config.names, ["localhost", "127.0.0.1", "::1"]);
        assert_eq!(config.certificate, Certificate::Own("/var/lib/levers9/tls".into()));
        assert_eq!(config.sealing, Sealing::File("/var/lib/levers9/sealing.key".into()));
        assert_eq!((config.logs.max_bytes, config.logs.max_age.as_secs()), (10 << 30, 7 * 86_400));
        assert!(config.bootstrap_secret.is_none() && !config.insecure_listen);
        assert_eq!(config.drain, Duration::from_secs(60));
        assert_eq!(config.address(4433, Trust::System).authority(), "localhost:4433");
    }
}

#[test]
fn every_key_is_read() {
    let text = r#"
data: /srv/levers9
database: postgres://levers9:hunter2@db/levers9
databasePool: 32
quic: "[::]:4433"
grpc: 0.0.0.0:1993
http: 0.0.0.0:1994
insecureListen: true
drain: 90s
publicAddress: levers9.example.org:443
names: [localhost, LEVERS9.example.org]
certificate: {certFile: /tls/tls.crt, keyFile: /tls/tls.key}
controlplane:
  auth:
    bootstrapSecret: 0123456
encryptionKey: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
previousEncryptionKeys:
  - 0101010101010101010101010101010101010101010101010101010101010101
logs:
  maxBytes: 1.5Gi
  maxAge: 36h
transport:
  mtu: 1400
  congestion: bbr
  idleTimeout: 30
"#;
    let config = parse(text).unwrap();
    assert_eq!(config.database.expose(), "postgres://levers9:hunter2@db/levers9");
    assert_eq!(config.database_pool, 32);
    assert!(config.insecure_listen);
    assert_eq!(config.drain, Duration::from_secs(90));
    let public = HostPort { host: "levers9.example.org".to_owned(), port: 443 };
    assert_eq!(config.public_address, Some(public));
    let Certificate::Files { certificate, key } = &config.certificate else { panic!("own CA") };
    assert_eq!((certificate.to_str(), key.to_str()), (Some("/tls/tls.crt"), Some("/tls/tls.key")));
    assert_eq!(config.bootstrap_secret.as_ref().unwrap().expose(), "0123456", "a secret is no number");
    let Sealing::Keys { current, previous } = &config.sealing else { panic!("a file") };
    assert_eq!((current.expose(), previous[0].expose()), (&[0; 32], &[1; 32]));
    assert_eq!((config.logs.max_bytes, config.logs.max_age.as_secs()), (3 << 29, 36 * 3_600));
    assert_eq!(config.transport.mtu_max, 1400);
    assert_eq!(config.transport.congestion, Congestion::Bbr);
    assert_eq!(config.transport.idle_timeout, Duration::from_secs(30));
    assert_eq!(config.address(4433, Trust::System).authority(), "levers9.example.org:443");
    let shown = format!("{config:?}");
    for secret in ["hunter2", "0123456", "[0, 0", "[1, 1"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn the_other_spelling_counts_once() {
    assert!(parse("insecure_listen: true").unwrap().insecure_listen);
    assert_eq!(
        refused("insecure_listen: true\ninsecureListen: false"),
        "config.yaml:2: insecureListen: given a second time, first on line 1"
    );
}

/// Each text, and all that is said about it.
const BAD: &[(&str, &str)] = &[
    (
        "data: /d\n\nhtttp: 127.0.0.1:1\n",
        "config.yaml:3: unknown key \"htttp\"; did you mean \"http\"? known keys: certificate, containerUrl, controlplane, \
         data, database, databasePool, drain, encryptionKey, grpc, http, insecureListen, logs, names, \
         previousEncryptionKeys, publicAddress, quic, tcp, transport, worker",
    ),
    (
        "transport:\n  mtuu: 1300\n",
        "config.yaml:2: unknown key \"mtuu\" in transport; did you mean \"mtu\"? known keys: congestion, \
         idleTimeout, mtu",
    ),
    (
        "logs: {redis: \"\\e[2J\"}",
        "config.yaml:1: unknown key \"redis\" in logs; known keys: maxAge, maxBytes",
    ),
    (
        "- a\n",
        "config.yaml:1: the file: expected keys with values, not a single value or a list; known keys: \
      certificate, containerUrl, controlplane, data, database, databasePool, drain, encryptionKey, grpc, http, insecureListen, \
      logs, names, previousEncryptionKeys, publicAddress, quic, tcp, transport, worker",
    ),
    (
        "logs: 3",
        "config.yaml:1: logs: expected keys with values, not a single value or a list; known keys: \
      maxAge, maxBytes",
    ),
    ("names: localhost", "config.yaml:1: names: expected a list, such as [first, second]"),
    ("quic: [a]", "config.yaml:1: quic: expected one value"),
    ("quic:", "config.yaml:1: quic: has no value; leave the key out for its default"),
    (
        "quic: localhost:443",
        "config.yaml:1: quic: \"localhost:443\" is not an IP address with a port; write 0.0.0.0:443 or [::]:443",
    ),
    ("drain: 2h", "config.yaml:1: drain: a drain may last an hour at most"),
    ("insecureListen: yes", "config.yaml:1: insecureListen: \"yes\" is neither true nor false"),
    ("databasePool: 0", "config.yaml:1: databasePool: 0 is not from 1 to 1000"),
    ("databasePool: many", "config.yaml:1: databasePool: \"many\" is not a number in range"),
    (
        "database: mysql://root:hunter2@db",
        "config.yaml:1: database: the database URL is not usable: it starts with postgres:// or sqlite://",
    ),
    ("data: \"\"", "config.yaml:1: data: the folder's name is empty or not UTF-8"),
    (
        "grpc: 127.0.0.1:1994",
        "config.yaml: http: 127.0.0.1:1994 is the address of grpc already; each needs its own",
    ),
    ("names: []", "config.yaml:1: names: at least one name is needed; clients dial the first"),
    ("names: [localhost, a b]", "config.yaml:1: names: \"a b\" is neither a DNS name nor an IP address"),
    (
        "containerUrl: https://apps.example.org",
        "config.yaml:1: containerUrl: \"https://apps.example.org\" does not serve: it is not of the form \
         https://*.apps.example.org, with a port or without",
    ),
    (
        "publicAddress: https://x",
        "config.yaml:1: publicAddress: \"https://x\" is not a host with a port; write levers9.example.org:443",
    ),
    (
        "publicAddress: a.example:443",
        "config.yaml:1: publicAddress: \"a.example\" is not among names, so clients would refuse the \
         certificate; add it there",
    ),
    (
        "certificate:\n  certFile: /a",
        "config.yaml:2: certificate.certFile: needs certificate.keyFile as well",
    ),
    ("certificate:\n  keyFile: /a", "config.yaml:2: certificate.keyFile: needs certificate.certFile as well"),
    (
        "encryptionKey: hunter2",
        "config.yaml:1: encryptionKey: a key is 32 bytes, written as base64 or as 64 hexadecimal digits \
         (openssl rand -base64 32)",
    ),
    (
        "encryptionKey: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\npreviousEncryptionKeys:\n  - AAAA\n",
        "config.yaml:3: previousEncryptionKeys: a key is 32 bytes, written as base64 or as 64 hexadecimal \
         digits (openssl rand -base64 32)",
    ),
    ("previousEncryptionKeys: []", "config.yaml:1: previousEncryptionKeys: needs encryptionKey as well"),
    (
        "controlplane: {auth: {bootstrapSecret: \"hunter 2\"}}",
        "config.yaml:1: controlplane.auth.bootstrapSecret: the secret must be ASCII letters, digits and \
         signs, without spaces",
    ),
    (
        "logs: {maxBytes: 1X}",
        "config.yaml:1: logs.maxBytes: \"1X\" is not an amount of memory; write a number with a unit: 512Mi, \
         2Gi, 500M or 1G",
    ),
    (
        "logs: {maxBytes: 1Ki}",
        "config.yaml:1: logs.maxBytes: one piece of a log has up to 1Mi; less cannot be kept",
    ),
    (
        "logs: {maxAge: week}",
        "config.yaml:1: logs.maxAge: \"week\" is not a duration; write 90s, 10m, 2h, 1d, or seconds as a bare \
         number",
    ),
    ("logs: {maxAge: 0}", "config.yaml:1: logs.maxAge: logs must be kept for a second at least"),
    (
        "transport: {congestion: reno}",
        "config.yaml:1: transport.congestion: \"reno\" is none of auto, cubic, bbr",
    ),
    ("transport: {mtu: 70000}", "config.yaml:1: transport.mtu: \"70000\" is not a number in range"),
    (
        "transport: {mtu: 8900}",
        "config.yaml:1: transport.mtu: mtu 8900 is above 6550: with segmentation offload on, such packets \
         are never sent",
    ),
    (
        "transport: {mtu: 900}",
        "config.yaml:1: transport.mtu: mtu 900 is below 1200, the least that QUIC allows",
    ),
    (
        "transport: {idleTimeout: 1s}",
        "config.yaml:1: transport.idleTimeout: idle timeout 1s is too short: pings every third of it need at \
         least 3 s",
    ),
    (
        "controlplane: {auth: {bootstrapSecret: *hunter2}}",
        "config.yaml:1: while parsing node, found unknown anchor",
    ),
    (
        "a: &x 1\nb: *x",
        "config.yaml:1: anchors (&), aliases (*) and tags (!) are not read here; quote the value or write it \
         out",
    ),
    ("data: /a\n---\ndata: /b", "config.yaml:2: a second document starts here; the file holds one"),
    ("[a]: b", "config.yaml:1: a key is one word, followed by a colon and a space"),
    (
        "a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}",
        "config.yaml:1: nested deeper than any key of this file",
    ),
    ("data: \"/a", "config.yaml:1: unclosed quote"),
];

#[test]
fn each_mistake_has_its_message() {
    let wrong: Vec<String> = BAD
        .iter()
        .map(|(text, message)| (text, refused(text), message))
        .filter(|(_, said, message)| said != *message)
        .map(|(text, said, _)| format!("{text:?}\n  {said}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(BAD.len(), 42);
}

#[test]
fn all_mistakes_are_told_at_once_in_order() {
    let text = "http: x\nlogs:\n  maxAge: y\n  size: 3\nquic: z\ntransport: {mtu: 1}\n";
    let lines: Vec<String> = refused(text).lines().map(|l| l.chars().take(24).collect()).collect();
    assert_eq!(
        lines,
        [
            "config.yaml:1: http: \"x\"",
            "config.yaml:3: logs.maxA",
            "config.yaml:4: unknown k",
            "config.yaml:5: quic: \"z\"",
            "config.yaml:6: transport",
        ]
    );
}

#[test]
fn workers_on_clusters_are_set_and_their_limits_say_what_zero_is() {
    let config = parse("data: /d").unwrap();
    let worker = &config.worker;
    assert_eq!((worker.clusters_per_workspace, worker.guard_pending, worker.guard_per_minute), (5, 20, 30));
    assert!(worker.host_network && worker.image.is_none());
    let text = "data: /d\nworker:\n  image: r.io:5000/levers9/worker:1\n  attachedClusters: {quotaPerWorkspace: 0, hostNetwork: false}\n  provisioningGuard: {maxPending: -1, maxAddedPerMinute: 0}\n";
    let config = parse(text).unwrap();
    let worker = &config.worker;
    assert_eq!(worker.image.as_deref(), Some("r.io:5000/levers9/worker:1"));
    assert_eq!((worker.clusters_per_workspace, worker.host_network), (0, false));
    assert_eq!((worker.guard_pending, worker.guard_per_minute), (-1, 0));
    let bad =
        refused("data: /d\nworker: {image: two words, provisioningGuard: {maxPending: lots}, quota: 1}\n");
    for part in ["two words", "\"lots\" is not a number", "unknown key \"quota\" in worker"] {
        assert!(bad.contains(part), "{part}: {bad}");
    }
}

#[test]
fn sessions_over_tcp_are_beside_quic_unless_told_otherwise() {
    let tcp = |text: &str| parse(text).unwrap().tcp;
    assert_eq!(tcp("data: /d"), TcpListen::Same);
    assert_eq!(tcp("tcp: off"), TcpListen::Off);
    assert_eq!(tcp("tcp: 127.0.0.1:8443"), TcpListen::At("127.0.0.1:8443".parse().unwrap()));
    let bad = refused("tcp: 443");
    assert!(bad.contains("\"443\" is not an IP address with a port") && bad.ends_with(", or off"), "{bad}");
}

#[test]
fn the_environment_wins_over_the_file() {
    let text = b"controlplane: {auth: {bootstrapSecret: from-file}}";
    let with = |value: &'static str| {
        Config::parse("c", text, |name| (name == BOOTSTRAP_SECRET).then(|| value.to_owned()))
    };
    let secret = |config: Config| config.bootstrap_secret.as_ref().unwrap().expose().to_owned();
    assert_eq!(secret(with("from-env").unwrap()), "from-env");
    assert_eq!(secret(with("").unwrap()), "from-file");
    assert_eq!(
        with("two words").unwrap_err().to_string(),
        "LEVERS9_BOOTSTRAP_SECRET: the secret must be ASCII letters, digits and signs, without spaces"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.yaml");
    let error = Config::load(&path, nothing).unwrap_err().to_string();
    let start = format!("{}: the configuration file cannot be read: ", path.display());
    assert!(error.starts_with(&start), "{error}");
    std::fs::write(&path, b"data: /d\nquic: \xff\n").unwrap();
    let error = Config::load(&path, nothing).unwrap_err().to_string();
    assert_eq!(error, format!("{}:2: this is not UTF-8 text", path.display()));
    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(Config::load(&path, nothing).unwrap_err().to_string().contains("longer than 1 MiB"));
    std::fs::write(&path, "data: /d\r\nquic: 127.0.0.1:0\r\n").unwrap();
    assert_eq!(Config::load(&path, nothing).unwrap().quic.port(), 0);
}

#[test]
fn values_of_a_program_are_checked_too() {
    let values = Values::in_folder("/d");
    assert!(Config::new(values.clone()).is_ok());
    let error = Config::new(Values { database_pool: 0, ..values }).unwrap_err().to_string();
    assert_eq!(error, "configuration: databasePool: 0 is not from 1 to 1000");
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[a-z:{}\\[\\]&*!|>\\-\"'#%@, \n\t\\\\]{0,120}", bytes in any::<Vec<u8>>()) {
        let _result = parse(&text);
        let _result = Config::parse("c", &bytes, nothing);
    }
}
