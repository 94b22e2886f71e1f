//! Certificates and the CA behind them are replaced while everybody runs.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use levers9_tests::world::Setup;
use levers9_tests::{Backend, Person, World, wait};
use levers9_transport::cert::Files;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::support::{LONG, SOON, assert_counts, counting, last_number};

/// Files are looked at every 30 s.
const NOTICED: Duration = Duration::from_secs(45);
/// How long the first leaf is good for.
const FIRST: Duration = Duration::from_secs(75);

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(levers9_wire::clock::unix_millis())
}

/// A CA, as an operator keeps one.
struct Ca {
    params: CertificateParams,
    key: KeyPair,
    pem: String,
}

impl Ca {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { params, key, pem }
    }

    /// Writes a leaf that is good for so long, with these CAs behind it, and its key.
    fn issue(&self, folder: &Path, good_for: Duration, chain: &[&Self]) {
        let key = KeyPair::generate().expect("a key");
        let mut leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
        leaf.not_before = (now() - Duration::from_secs(3600)).into();
        leaf.not_after = (now() + good_for).into();
        let leaf =
            leaf.signed_by(&key, &Issuer::from_params(&self.params, &self.key)).expect("a certificate");
        let chain: String =
            std::iter::once(leaf.pem()).chain(chain.iter().map(|ca| ca.pem.clone())).collect();
        // One after the other, as operators do: for a moment they do not fit.
        for (name, content) in [("chain.pem", chain), ("leaf.key", key.serialize_pem())] {
            std::fs::write(folder.join(name), content).expect("a file");
        }
    }
}

/// B113, B19: the leaf is renewed, then its CA is another; who has both pins
/// notices nothing, and new ones are told the new pin.
pub(crate) fn a_ca_is_replaced_under_what_runs() {
    const COUNT: u32 = 2_400;
    let (old, new) = (Ca::new("the old CA"), Ca::new("the new CA"));
    let folder = tempfile::tempdir().expect("a folder");
    // Both go along, so that whoever comes now has both pins.
    old.issue(folder.path(), FIRST, &[&old, &new]);
    let ends = now() + FIRST;
    let file = |name: &str| folder.path().join(name);
    let [chain, key] = ["chain.pem", "leaf.key"].map(file);
    let pins = Files::open(&chain, &key).expect("a pair").resolver().pins();
    let config = format!("certificate:\n  certFile: {}\n  keyFile: {}\n", chain.display(), key.display());
    let world = World::start_with(Backend::Sqlite, Setup { config, ..Setup::default() });
    let both = format!("#{},{}", pins[0], pins[1]);
    assert!(world.controlplane.address().ends_with(&both), "{}", world.controlplane.address());
    let worker = world.worker("one");
    let token = world.new_token("workspace").1;
    let place = world.controlplane.address().replace(&both, "");
    let [with_old, with_new] =
        [0, 1].map(|which: usize| Person::new(format!("{place}#{}", pins[which]), token.clone()));
    let mut run = world.cli_spawn(&["run", "--", "sh", "-c", &counting(COUNT, 20)]);
    run.wait_text("numbers", SOON, |text| last_number(text) >= 5);
    let _in = with_old.cli(&["task", "list"]).ok();
    assert_eq!(with_new.cli(&["task", "list"]).code, 3, "what is to come signs nothing yet");

    new.issue(folder.path(), Duration::from_secs(86_400), &[&old, &new]);
    wait::until("the new one is shown", NOTICED, || {
        let did = with_new.cli(&["task", "list"]);
        if did.code == 0 { Ok(()) } else { Err(did.stderr) }
    });
    let refused = with_old.cli(&["task", "list"]).with_code(3);
    assert!(refused.stderr.contains("the new CA"), "{}", refused.stderr);
    // Only the new one goes along in the end, and is what enrolments say.
    new.issue(folder.path(), Duration::from_secs(86_400), &[&new]);
    let only = format!("#{}", pins[1]);
    wait::until("new ones are told of the new one", NOTICED, || {
        let told = world.cli(&["worker", "enroll", "--format", "json"]).ok().json();
        let address = told["address"].as_str().unwrap_or_default().to_owned();
        if address.ends_with(&only) { Ok(()) } else { Err(address) }
    });
    wait::until("the first leaf is over", FIRST, || {
        if now() > ends + Duration::from_secs(2) { Ok(()) } else { Err("it is good".to_owned()) }
    });
    // Sessions that began under it go on; and begin again under the other.
    let before = last_number(&run.text());
    run.wait_text("numbers", SOON, |text| last_number(text) > before + 20);
    assert_eq!(worker.log().matches("no session with the controlplane").count(), 0, "{}", worker.log());
    world.controlplane.kill9();
    world.controlplane.start();
    world.wait_worker(&worker, "ready", SOON);
    assert_eq!(run.wait(LONG + LONG), 0, "{}", run.shown());
    assert_counts(&run.text(), COUNT, "run");
    let now = levers9_wire::clock::unix_millis() / 1_000;
    let (_, metrics) = world.get("/metrics");
    let line = metrics.lines().find(|line| line.starts_with("levers9_certificate_expiry_seconds "));
    let at: u64 = line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("a time");
    assert!(at > now + 80_000, "{line:?}");
}
