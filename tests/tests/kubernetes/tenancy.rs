//! Whom a cluster serves: its own workspace, every workspace once an admin
//! shares it, and what each of them gets to see of it. And how many clusters a
//! workspace may have.

use std::path::PathBuf;

use levers9_tests::live::tail;
use levers9_tests::world::{Backend, Setup, World};
use levers9_tests::{Live, Output, Person, wait};
use serde_json::{Value, json};

use crate::support::{IMAGE, SOON, Site, name};

/// A namespace that is no word of levers9's own.
const LENT: &str = "vault-of-cards";
/// What nobody else may read of a shared cluster: its nodes, namespace, image,
/// selector and version.
const SECRETS: [&str; 6] = ["gpu-1", "gpu-2", LENT, "registry.example", "tier-zero", "v1.37"];
/// Counts, until somebody makes the file `enough`.
const COUNT: &str = "i=0; while [ ! -e enough ]; do i=$((i+1)); echo $i; sleep 0.05; done; echo over";

/// A cluster of two nodes with a card each, attached by the first workspace.
fn site() -> Site {
    let site = Site::new(&[]);
    for node in ["gpu-1", "gpu-2"] {
        let made = site.cluster.node(node).label("pool", "tier-zero").label("nvidia.com/gpu.product", "L40S");
        made.allocatable("cpu", "8").allocatable("memory", "32Gi").allocatable("nvidia.com/gpu", 1).create();
        site.kubelet.add_node(node);
    }
    let more = ["--namespace", LENT, "--selector", "pool=tier-zero"];
    let _nodes = site.join("lab", "L40S", &more).ok();
    site.wait_cluster("lab", "is ready", |row| row["state"] == "ready" && row["nodes_ready"] == 2);
    site
}

/// Asserts that nothing of the secrets is in what a command said.
#[track_caller]
fn tells_nothing(output: &Output) {
    let said = format!("{}\n{}", output.text(), output.stderr);
    for secret in SECRETS {
        assert!(!said.contains(secret), "{} tells {secret:?}:\n{said}", output.what);
    }
}

/// Runs all that looks at clusters and tasks, and asserts that it tells nothing.
fn looks_around(who: &Person, cluster: &str, tasks: &[&str]) {
    let mut looks: Vec<Vec<&str>> = vec![
        vec!["cluster", "list"],
        vec!["cluster", "nodes", cluster],
        vec!["cluster", "nodes", cluster, "--why"],
        vec!["worker", "list"],
        vec!["container", "list"],
        vec!["task", "list"],
    ];
    for task in tasks {
        looks.extend([vec!["why", task], vec!["task", "show", task]]);
    }
    for look in looks {
        tells_nothing(&who.cli(&look));
        tells_nothing(&who.cli(&[&look[..], &["--format", "json"]].concat()));
    }
}

/// Whatever one can do with a cluster by its name.
fn all_about(cluster: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["cluster", "nodes", cluster],
        vec!["cluster", "nodes", cluster, "--why"],
        vec!["cluster", "nodes", cluster, "--format", "json"],
        vec!["cluster", "manifest", cluster],
        vec!["cluster", "share", cluster],
        vec!["cluster", "share", cluster, "--off"],
        vec!["cluster", "rotate-token", cluster],
        vec!["cluster", "leave", cluster, "--yes"],
        vec!["cluster", "leave", cluster, "--yes", "--keep-agent"],
    ]
}

/// The pods of workers that are not ending, with the node each is on.
fn workers(site: &Site) -> Vec<Value> {
    let pods = site.cluster.api().list_where("pods", LENT, "levers9/worker").expect("pods are listed");
    pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect()
}

/// Submits a job for a card, which is not waited for. Gives the task.
fn submit(who: &Person, script: &str) -> String {
    who.submit_with(&["--gpu", "L40S"], script)
}

/// What a task is now.
fn status(who: &Person, task: &str) -> Value {
    who.json(&["task", "show", task])["status"].clone()
}

/// The only container that runs, as somebody sees it.
fn running(who: &Person) -> Value {
    wait::until("one container runs", SOON, || {
        let all = who.json(&["container", "list"]);
        let found = all.as_array().into_iter().flatten().find(|it| it["state"] == "running").cloned();
        found.ok_or_else(|| format!("{all:#}"))
    })
}

/// What another workspace sees of a cluster that is not shared. Gives a job of its own, which waits.
fn is_hidden(site: &Site, id: &str, owner: &Person, other: &Person) -> String {
    // Of another workspace's cluster there is nothing to see, not even that it is there.
    assert_eq!(other.json(&["cluster", "list"]), json!([]));
    for name in ["lab", id] {
        let nowhere = if name == "lab" { "nowhere" } else { "019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a" };
        for (about, nothing) in all_about(name).iter().zip(all_about(nowhere)) {
            let (refused, nothing) = (other.cli(about).with_code(1), other.cli(&nothing).with_code(1));
            assert_eq!(refused.stderr, nothing.stderr.replace(nowhere, name), "{}", refused.what);
            let words = format!("there is no cluster {name:?}");
            assert!(refused.stderr.contains(&words), "{}: {}", refused.what, refused.stderr);
            tells_nothing(&refused);
        }
    }
    let to = |pool: &str| {
        let made = other.cli(&["run", "--detach", "--gpu", "L40S", "--pool", pool, "--", "true"]);
        let task = made.text().trim().to_owned();
        let why = if made.code == 0 { other.cli(&["why", &task]).ok().text() } else { String::new() };
        (made.code, made.stderr.replace(&task, "").replace(pool, "POOL"), why.replace(pool, "POOL"))
    };
    assert_eq!(to("lab"), to("nowhere"));
    // Its jobs wait, while those of its own workspace run.
    let task = submit(other, "echo mine");
    looks_around(other, "lab", &[&task]);
    assert_eq!(owner.cli(&["run", "--gpu", "L40S", "--", "echo", "own"]).ok().text(), "own\n");
    assert_eq!((status(other, &task), workers(site).len()), (json!("PENDING"), 1));
    task
}

/// What it sees of one that is. Gives the worker that its job got.
fn is_shared(site: &Site, owner: &Person, other: &Person, task: &str) -> String {
    // Now the job that waits gets a worker of its own.
    other.wait_status(task, "COMPLETE", SOON);
    let pods = workers(site);
    assert_eq!(pods.len(), 2, "{pods:#?}");
    assert_ne!(pods[0]["spec"]["nodeName"], pods[1]["spec"]["nodeName"]);
    let seen = |who: &Person| {
        let all = who.json(&["worker", "list"]);
        let ids = all.as_array().into_iter().flatten().map(|worker| worker["id"].to_string());
        ids.collect::<Vec<_>>()
    };
    let (theirs, own) = (seen(other), seen(owner));
    assert!(theirs.len() == 1 && own.len() == 1 && theirs != own, "{theirs:?} {own:?}");
    // And it is seen, as far as it is to be.
    let seen = other.json(&["cluster", "list"])[0].clone();
    assert_eq!(
        (&seen["name"], &seen["state"], &seen["gpu_type"]),
        (&json!("lab"), &json!("ready"), &json!("L40S"))
    );
    assert_eq!((&seen["serves"], &seen["own"]), (&json!("every workspace"), &json!(false)));
    let nodes = other.json(&["cluster", "nodes", "lab"])["nodes"].clone();
    let cards = nodes.as_array().into_iter().flatten().map(|node| node["allocatable"]["cards"].clone());
    assert_eq!(cards.collect::<Vec<_>>(), [1, 1], "{nodes:#}");
    let waits = submit(other, "echo again; sleep 600");
    other.wait_status(&waits, "RUNNING", SOON);
    let full = submit(other, "true");
    looks_around(other, "lab", &[task, &waits, &full]);
    for about in all_about("lab").iter().filter(|about| about[1] != "nodes") {
        let refused = other.cli(about).with_code(1);
        tells_nothing(&refused);
        assert!(refused.stderr.starts_with("error: "), "{}", refused.stderr);
    }
    for task in [&waits, &full] {
        let _stopped = other.cli(&["task", "stop", task]).ok();
    }
    // Its name is taken in every workspace.
    let taken = other.cli(&["cluster", "join", "lab", "--gpu", "L40S", "--manifest-only"]).with_code(1);
    let words = "the name \"lab\" is taken by a cluster that serves every workspace";
    assert!(taken.stderr.contains(words) && taken.stdout.is_empty(), "{}", taken.stderr);
    // Its own workspace can no longer take it away.
    for about in [&["cluster", "leave", "lab", "--yes"][..], &["cluster", "rotate-token", "lab"]] {
        let refused = owner.cli(about).with_code(1);
        assert!(refused.stderr.contains("only an admin may change it"), "{}", refused.stderr);
    }
    theirs[0].trim_matches('"').to_owned()
}

/// What becomes of its jobs when it is no longer.
fn is_taken_back(site: &Site, owner: &Person, other: &Person, theirs: &str) {
    // Taken back: what runs goes on, what comes does not get there.
    let mut live = other.cli_spawn(&["run", "--gpu", "L40S", "--", "sh", "-c", COUNT]);
    live.wait_text("it counts", SOON, |text| text.contains("\n3\n"));
    let container = running(other);
    let taken_back = site.world.cli(&["cluster", "share", "lab", "--off"]).ok();
    assert!(taken_back.stderr.contains("from the next job on"), "{}", taken_back.stderr);
    assert_eq!(other.json(&["cluster", "list"]), json!([]));
    let late = submit(other, "echo too late");
    assert_eq!(owner.cli(&["run", "--gpu", "L40S", "--", "echo", "still own"]).ok().text(), "still own\n");
    assert_eq!(status(other, &late), "PENDING");
    looks_around(other, "lab", &[&late]);
    let before = live.text().lines().count();
    live.wait_text("it goes on", SOON, |text| text.lines().count() > before + 3);
    let id = container["id"].as_str().expect("an id");
    let told = other.cli(&["exec", id, "--", "touch", "enough"]);
    assert!(matches!(told.code, 0 | 137), "{}", told.stderr);
    assert_eq!(live.wait(SOON), 0, "{}", live.shown());
    assert!(live.text().ends_with("over\n"), "{}", live.shown());
    for secret in SECRETS {
        assert!(!live.errors().contains(secret), "{}", live.shown());
    }
    // Its worker is free now, and still not for the other workspace.
    assert_eq!(owner.cli(&["run", "--gpu", "L40S", "--", "echo", "at last"]).ok().text(), "at last\n");
    assert_eq!(status(other, &late), "PENDING");
    assert_eq!(site.json(&["cluster", "list"])[0]["serves"], "own");
    // Who cannot wait until it winds down deletes its Job.
    let jobs = site.cluster.api().list_where("jobs", LENT, &format!("levers9/worker={theirs}"));
    let jobs = jobs.expect("jobs are listed");
    assert_eq!(jobs.len(), 1, "{jobs:#?}");
    site.cluster.api().delete("jobs", LENT, name(&jobs[0])).expect("deleted");
    let both = [submit(owner, "sleep 600"), submit(owner, "sleep 600")];
    both.iter().for_each(|task| owner.wait_status(task, "RUNNING", SOON));
    assert_eq!(status(other, &late), "PENDING");
}

#[test]
fn a_cluster_serves_its_workspace_alone_until_it_is_shared_and_after_it_was() {
    let site = site();
    let owner = Person::of_kind(&site.world, "workspace").with_kubeconfig(site.cluster.kubeconfig());
    let other = Person::in_workspace(&site.world, "other").with_kubeconfig(site.cluster.kubeconfig());
    let row = site.json(&["cluster", "list"])[0].clone();
    let id = row["id"].as_str().expect("an id").to_owned();

    let task = is_hidden(&site, &id, &owner, &other);

    // Sharing is an admin's to do, and says whom one trusts then.
    let refused = owner.cli(&["cluster", "share", "lab"]).with_code(1);
    assert!(refused.stderr.contains("only an admin"), "{}", refused.stderr);
    let shared = site.world.cli(&["cluster", "share", "lab"]).ok();
    assert!(shared.text().contains("every workspace"), "{}", shared.text());
    assert!(shared.stderr.contains("can see and change every workspace's jobs"), "{}", shared.stderr);

    let theirs = is_shared(&site, &owner, &other, &task);
    let token = site.cluster.api().get("secrets", LENT, "levers9-agent").expect("the agent's Secret");
    is_taken_back(&site, &owner, &other, &theirs);
    let after = site.cluster.api().get("secrets", LENT, "levers9-agent").expect("the agent's Secret");
    assert_eq!(token["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
}

#[test]
fn what_a_container_has_is_no_key_to_clusters() {
    let site = site();
    let script = format!("echo $LEVERS9_TOKEN; {COUNT}");
    let mut job = site.world.cli_spawn(&["run", "--gpu", "L40S", "--", "sh", "-c", &script]);
    job.wait_text("it counts", SOON, |text| text.contains("\n3\n"));
    let token = job.text().lines().next().expect("a line").to_owned();
    assert!(token.len() >= 64, "it has a token: {}", job.shown());
    let container = Person::of(&site.world, token).with_kubeconfig(site.cluster.kubeconfig());
    let mut all = all_about("lab");
    all.extend([
        vec!["cluster", "list"],
        vec!["cluster", "join", "more", "--gpu", "L40S", "--namespace", "more"],
        vec!["cluster", "join", "more", "--gpu", "L40S", "--manifest-only"],
        vec!["worker", "list"],
        vec!["token", "list"],
    ]);
    for about in all {
        let refused = container.cli(&about).with_code(1);
        assert!(refused.stdout.is_empty(), "{}: {}", refused.what, refused.text());
        let last = refused.stderr.lines().filter(|line| line.starts_with("error: ")).count();
        assert_eq!(last, 1, "{}: {}", refused.what, refused.stderr);
        if !about.contains(&"more") {
            tells_nothing(&refused);
        }
    }
    let rows = site.json(&["cluster", "list"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows:#}");
    assert_eq!((&rows[0]["state"], &rows[0]["serves"]), (&json!("ready"), &json!("own")), "{rows:#}");
    assert_eq!(site.cluster.api().get("namespaces", "", "more").expect_err("not made").code, 404);
    let containers = site.json(&["container", "list"]);
    let id = containers[0]["id"].as_str().expect("its container runs");
    let told = site.world.cli(&["exec", id, "--", "touch", "enough"]);
    assert!(matches!(told.code, 0 | 137), "{}", told.stderr);
    assert_eq!(job.wait(SOON), 0, "{}", job.shown());
}

#[test]
fn what_goes_wrong_in_a_shared_cluster_is_told_to_its_owner() {
    let site = site();
    let other = Person::in_workspace(&site.world, "other");
    let _shared = site.world.cli(&["cluster", "share", "lab"]).ok();
    // A worker whose image is not to be had.
    site.kubelet.set_pullable(IMAGE, false);
    let task = submit(&other, "echo late; sleep 600");
    wait::until("its owner is told of the image", SOON, || {
        let nodes = site.json(&["cluster", "nodes", "lab"]);
        let told = nodes.to_string();
        if told.contains("ImagePull") { Ok(()) } else { Err(told) }
    });
    looks_around(&other, "lab", &[&task]);
    let why = other.cli(&["why", &task]).ok().text();
    assert!(why.contains("a worker is coming there and will take it"), "{why}");
    site.kubelet.set_pullable(IMAGE, true);
    other.wait_status(&task, "RUNNING", SOON);
    // One that holds the other node: what is taken by whom is nobody else's to know.
    let own = site.world.submit_with(&["--gpu", "L40S"], "sleep 600");
    site.world.wait_status(&own, "RUNNING", SOON);
    let waits = submit(&other, "true");
    looks_around(&other, "lab", &[&task, &waits]);
    let why = other.json(&["why", &waits]);
    let reasons = why["places"].as_array().into_iter().flatten().map(|place| place["reason"].clone());
    assert_eq!(reasons.collect::<Vec<_>>(), ["busy", "taken-by-levers9"], "{why:#}");
    assert!(!why.to_string().contains(&own), "{why:#}");
    // No agent.
    let none = json!({ "spec": { "replicas": 0 } });
    site.cluster.api().merge("deployments", LENT, "levers9-agent", &none).expect("scaled");
    site.wait_cluster("lab", "is away", |row| row["state"] == "away" && row["note"] != "");
    let seen = other.json(&["cluster", "list"])[0].clone();
    assert_eq!((&seen["state"], &seen["note"]), (&json!("away"), &json!("")), "{seen:#}");
    let why = other.cli(&["why", &waits]).ok().text();
    assert!(why.contains("its agent is not connected; it goes on when its agent is back"), "{why}");
    looks_around(&other, "lab", &[&task, &waits]);
    // What runs there goes on without it.
    assert_eq!((status(&other, &task), status(&other, &waits)), (json!("RUNNING"), json!("PENDING")));
}

/// A controlplane that is stopped and started with another quota.
struct Limited {
    world: World,
    file: PathBuf,
    quota: String,
    may: i64,
    live: Option<Live>,
}

impl Limited {
    fn new() -> Self {
        let config = format!("worker:\n  image: {IMAGE}\n");
        let world = World::start_with(Backend::Sqlite, Setup { config, ..Setup::default() });
        let file = world.home.path().join("controlplane.yaml");
        Self { world, file, quota: String::new(), may: 5, live: None }
    }

    /// Starts it again with a quota, on the same data and ports.
    fn with(&mut self, quota: i64) {
        self.may = quota;
        let quota = format!("  attachedClusters: {{quotaPerWorkspace: {quota}}}\n");
        let at = &self.world.controlplane;
        match &mut self.live {
            None => {
                at.terminate();
            }
            Some(live) => {
                live.signal(levers9_tests::live::Signal::SIGTERM);
                live.wait(SOON);
            }
        }
        let text = std::fs::read_to_string(&self.file).expect("its configuration");
        let ports = [("quic", at.quic()), ("grpc", at.grpc()), ("http", at.http())];
        let text = ports.iter().fold(text, |text, (port, address)| {
            text.replace(&format!("{port}: 127.0.0.1:0\n"), &format!("{port}: {address}\n"))
        });
        let text = if self.quota.is_empty() { text + &quota } else { text.replace(&self.quota, &quota) };
        std::fs::write(&self.file, text).expect("its configuration is written");
        self.quota = quota;
        let mut command = self.world.home.command("levers9-controlplane", &["--config"]);
        command.arg(&self.file);
        self.live = Some(Live::spawn(command));
    }

    fn ready(&self) {
        self.live.as_ref().expect("it was started").wait_errors(": ready dial=", SOON);
    }

    fn join(&self, name: &str) -> Output {
        self.world.cli(&["cluster", "join", name, "--gpu", "L40S", "--manifest-only"])
    }

    fn names(&self) -> Vec<String> {
        let rows = self.world.cli(&["cluster", "list", "--format", "json"]).ok().json();
        let mut names: Vec<String> = rows
            .as_array()
            .into_iter()
            .flatten()
            .map(|row| row["name"].as_str().unwrap_or("").into())
            .collect();
        names.sort();
        names
    }

    #[track_caller]
    fn full(&self, have: usize) {
        let refused = self.join("more").with_code(1);
        let words = format!("error: this workspace has {have} clusters, and may have {}\n", self.may);
        assert!(refused.stderr.contains(&words.replace("1 clusters", "1 cluster")), "{}", refused.stderr);
        assert!(refused.stderr.contains("worker.attachedClusters.quotaPerWorkspace"), "{}", refused.stderr);
        assert!(refused.stdout.is_empty());
        assert!(!self.names().contains(&"more".to_owned()));
    }

    fn leave(&self, name: &str) {
        let _left = self.world.cli(&["cluster", "leave", name, "--yes", "--keep-agent"]).ok();
    }
}

#[test]
fn a_workspace_has_as_many_clusters_as_it_may() {
    let mut limited = Limited::new();
    // Where nothing is said, five, for each workspace.
    for n in 1..=5 {
        let joined = limited.join(&format!("c{n}")).ok();
        assert!(joined.text().contains("kind: Deployment"), "{}", joined.text());
    }
    limited.full(5);
    let other = Person::in_workspace(&limited.world, "other");
    let _joined = other.cli(&["cluster", "join", "c1", "--gpu", "L40S", "--manifest-only"]).ok();

    // Less than there are: those stay, and no more come.
    limited.with(2);
    limited.ready();
    assert_eq!(limited.names(), ["c1", "c1", "c2", "c3", "c4", "c5"], "an admin sees all");
    limited.full(5);
    for name in ["c5", "c4", "c3"] {
        limited.leave(name);
    }
    limited.full(2);
    limited.leave("c2");
    // Of two that come at once for the last place, one gets it.
    let args = |name: &'static str| ["cluster", "join", name, "--gpu", "L40S", "--manifest-only"];
    let mut both = [limited.world.cli_spawn(&args("left")), limited.world.cli_spawn(&args("right"))];
    let mut codes = both.each_mut().map(|live| live.wait(SOON));
    codes.sort_unstable();
    assert_eq!(codes, [0, 1], "{}\n{}", both[0].shown(), both[1].shown());
    limited.full(2);

    limited.with(1);
    limited.ready();
    limited.full(2);
    for name in limited.names().iter().filter(|name| *name != "c1") {
        limited.leave(name);
    }
    limited.full(1);

    // None at all is no limit.
    limited.with(0);
    limited.ready();
    for n in 2..=8 {
        let _joined = limited.join(&format!("c{n}")).ok();
    }
    assert_eq!(limited.names().len(), 9);

    // One that leaves and comes back under its name is another, which is not shared.
    let _shared = limited.world.cli(&["cluster", "share", "c8"]).ok();
    let serves = |limited: &Limited| {
        let rows = limited.world.cli(&["cluster", "list", "--format", "json"]).ok().json();
        let row = rows.as_array().into_iter().flatten().find(|row| row["name"] == "c8").cloned();
        let row = row.expect("it is there");
        (row["serves"].clone(), row["shared"].clone(), row["id"].clone())
    };
    let before = serves(&limited);
    assert_eq!((&before.0, &before.1), (&json!("every workspace"), &json!(true)));
    limited.leave("c8");
    let _joined = limited.join("c8").ok();
    let after = serves(&limited);
    assert_eq!((&after.0, &after.1), (&json!("own"), &json!(false)));
    assert_ne!(before.2, after.2);
    let rows = other.json(&["cluster", "list"]);
    assert!(rows.as_array().into_iter().flatten().all(|row| row["name"] != "c8"), "{rows:#}");

    // Less than none is no number of clusters.
    limited.with(-1);
    let mut live = limited.live.take().expect("it was started");
    assert_ne!(live.wait(SOON), 0);
    let said = live.errors();
    assert!(said.contains("quotaPerWorkspace") && said.contains("-1"), "{}", tail(&said, 1000));
}
