//! How a cluster is attached: what is put into it, which of its nodes are lent,
//! and what is said when that does not work. Whatever fails before the agent
//! is there leaves nothing behind, here or there.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;

use levers9_tests::kube::{Api, Cluster, Kubelet, Setup};
use levers9_tests::world::{self, BOOTSTRAP_SECRET};
use levers9_tests::{Home, Live, Output, wait};
use serde_json::{Value, json};

use crate::support::{IMAGE, NAMESPACE, PRODUCT, SOON, Site, add_node, name};

const LABEL: &str = "levers9/cluster";
/// By which nodes of a cloud are in pools.
const POOL: &str = "cloud.google.com/gke-nodepool";
/// The kinds of which the agent has one object each in its namespace.
const INSIDE: [&str; 5] = ["serviceaccounts", "secrets", "deployments", "roles", "rolebindings"];
/// Those of which it has one beside its namespace.
const BESIDE: [&str; 3] = ["namespaces", "clusterroles", "clusterrolebindings"];
/// Kinds that could be in a namespace and are not.
const NEVER: [&str; 9] = [
    "services",
    "daemonsets",
    "statefulsets",
    "cronjobs",
    "jobs",
    "networkpolicies",
    "poddisruptionbudgets",
    "resourcequotas",
    "leases",
];

/// What a rule of a role allows, in a line.
fn rules(role: &Value) -> Vec<String> {
    let words = |list: &Value| {
        let mut words: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        words.sort_unstable();
        words.join(",")
    };
    let rules = role["rules"].as_array().into_iter().flatten();
    let line = |rule: &Value| {
        format!("{}/{}: {}", words(&rule["apiGroups"]), words(&rule["resources"]), words(&rule["verbs"]))
    };
    rules.map(line).collect()
}

/// All that is in a cluster of an agent, once each.
fn check_objects(api: &Api, id: &str) {
    let labelled = format!("{LABEL}={id}");
    let all = |plural: &str, namespace: &str, labels: &str| {
        api.list_where(plural, namespace, labels).unwrap_or_else(|refused| panic!("{plural}: {refused}"))
    };
    let one = |plural: &str, namespace: &str| {
        let mut found = all(plural, namespace, &labelled);
        assert_eq!(found.len(), 1, "{plural}: {found:#?}");
        found.remove(0)
    };
    for plural in INSIDE {
        let found = one(plural, "");
        assert_eq!(found["metadata"]["namespace"], NAMESPACE, "{found:#}");
        // Of these nothing comes with a namespace but the account `default`.
        let there = all(plural, NAMESPACE, "");
        let there: Vec<&str> = there.iter().map(name).filter(|name| *name != "default").collect();
        assert_eq!(there, [name(&found)], "{plural}");
    }
    BESIDE.iter().for_each(|plural| drop(one(plural, "")));
    for plural in NEVER {
        assert_eq!(all(plural, NAMESPACE, "").len(), 0, "{plural}");
    }
    for plural in ["customresourcedefinitions", "priorityclasses", "runtimeclasses"] {
        assert_eq!(all(plural, "", &labelled).len(), 0, "{plural}");
    }
    let maps = all("configmaps", NAMESPACE, "");
    assert_eq!(maps.iter().map(name).collect::<Vec<_>>(), ["kube-root-ca.crt"]);

    let account = one("serviceaccounts", "");
    assert_eq!((name(&account), &account["automountServiceAccountToken"]), ("levers9-agent", &json!(false)));
    let observes = one("clusterroles", "");
    assert_eq!(name(&observes), "levers9-agent-observe");
    assert_eq!(rules(&observes), ["/nodes,pods: get,list,watch"]);
    let launches = one("roles", "");
    assert_eq!(name(&launches), "levers9-agent-launch");
    assert_eq!(rules(&launches), ["batch/jobs: create,delete,get,list,watch", "/pods: get,list,watch"]);
    for (plural, role) in [("clusterrolebindings", &observes), ("rolebindings", &launches)] {
        let binding = one(plural, "");
        assert_eq!(
            (&binding["roleRef"]["name"], &binding["roleRef"]["kind"]),
            (&role["metadata"]["name"], &role["kind"])
        );
        let subjects = json!([{ "kind": "ServiceAccount", "name": "levers9-agent", "namespace": NAMESPACE }]);
        assert_eq!(binding["subjects"], subjects);
    }
    let secret = one("secrets", "");
    let keys: Vec<&str> =
        secret["data"].as_object().into_iter().flat_map(|data| data.keys()).map(String::as_str).collect();
    assert_eq!((name(&secret), keys), ("levers9-agent", vec!["token"]));
    let deployment = one("deployments", "");
    let spec = &deployment["spec"];
    assert_eq!((name(&deployment), &spec["replicas"]), ("levers9-agent", &json!(1)));
    assert_eq!(spec["strategy"], json!({ "type": "Recreate" }));
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["containers"].as_array().map(Vec::len), Some(1), "{pod:#}");
    let agent = &pod["containers"][0];
    for never in ["ports", "env", "envFrom", "startupProbe"] {
        assert!(agent[never].is_null(), "{never}: {agent:#}");
    }
    // It never listens: what is asked of it is asked inside.
    for probe in ["livenessProbe", "readinessProbe"] {
        assert!(agent[probe]["exec"].is_object() && agent[probe]["httpGet"].is_null(), "{probe}: {agent:#}");
    }
    assert!(pod["hostNetwork"].is_null() && pod["initContainers"].is_null(), "{pod:#}");
}

#[test]
fn what_is_printed_can_be_applied_by_hand_and_applied_again() {
    let site = Site::new(&[("cpu-1", 0, ""), ("gpu-1", 2, "NVIDIA-L40S")]);
    let api = site.cluster.api();
    // No kubeconfig: whoever applies it may be elsewhere.
    let printed = site
        .world
        .cli(&["cluster", "join", "lab", "--gpu", "L40S", "--manifest-only", "--flavor", "eks"])
        .ok();
    assert!(printed.stderr.contains("kubectl apply -f -"), "{}", printed.stderr);
    let row = site.json(&["cluster", "list"])[0].clone();
    assert_eq!((&row["state"], &row["flavor"]), (&json!("waiting"), &json!("eks")), "{row:#}");
    let applied = api.apply_yaml(&printed.text()).expect("it is applied");
    assert_eq!(applied.len(), 8);
    site.wait_cluster("lab", "is ready", |row| row["state"] == "ready" && row["nodes_ready"] == 2);
    let nodes = site.world.cli(&["cluster", "nodes", "lab"]).ok().text();
    for said in ["cpu-1", "gpu-1", "2/2 L40S"] {
        assert!(nodes.contains(said), "{said}: {nodes}");
    }
    check_objects(api, row["id"].as_str().expect("an id"));

    // The Deployment is lost, the Secret is not.
    let secret = api.get("secrets", NAMESPACE, "levers9-agent").expect("the Secret");
    let pod = site.agent_pod();
    api.delete("deployments", NAMESPACE, "levers9-agent").expect("deleted");
    api.wait_gone("pods", NAMESPACE, &pod, SOON);
    site.wait_cluster("lab", "is away", |row| row["state"] == "away");
    let manifest = site.world.cli(&["cluster", "manifest", "lab"]).ok();
    assert!(!manifest.text().contains("kind: Secret"), "{}", manifest.text());
    assert_eq!(api.apply_yaml(&manifest.text()).expect("it is applied").len(), 7);
    site.wait_cluster("lab", "is back", |row| row["state"] == "ready" && row["nodes_ready"] == 2);
    assert_ne!(site.agent_pod(), pod);
    let after = api.get("secrets", NAMESPACE, "levers9-agent").expect("the Secret");
    assert_eq!(after["data"], secret["data"]);
    check_objects(api, row["id"].as_str().expect("an id"));
    let ran = site.world.cli(&["run", "--gpu", "L40S", "--", "echo", "as before"]);
    assert_eq!(ran.ok().text(), "as before\n");
}

/// The names of the nodes a cluster lends.
fn lent(site: &Site, cluster: &str) -> Vec<String> {
    let shown = site.json(&["cluster", "nodes", cluster]);
    let nodes = shown["nodes"].as_array().into_iter().flatten();
    let mut names: Vec<String> = nodes.map(|node| node["name"].as_str().unwrap_or_default().into()).collect();
    names.sort();
    names
}

/// Two pools of nodes; cards that they do not have; a cloud that they are not of.
fn lends_two_pools(site: &Site, strict: &str) {
    let api = site.cluster.api();
    let two = format!("{POOL}=in (a,b)");
    let joined =
        site.join("two-pools", "H100", &["--selector", &two, "--namespace", "two", "--flavor", "aks"]).ok();
    for said in
        ["lends 3 of the cluster's 5 nodes\n", "warning: no node says that it has H100: ", "they have L40S"]
    {
        assert!(joined.stderr.contains(said), "{said}: {}", joined.stderr);
    }
    assert!(!joined.stderr.contains("are those of"), "{}", joined.stderr);
    assert_eq!(lent(site, "two-pools"), ["a-1", "a-2", "b-1"]);
    let node = site.wait_node("two-pools", "b-1", "says whose cards they are", |node| node["why"] != "");
    assert!(node["why"].as_str().is_some_and(|why| why.contains("L40S")), "{node:#}");
    let rows = site.json(&["cluster", "list"]);
    let flavors: Vec<&Value> = rows.as_array().into_iter().flatten().map(|row| &row["flavor"]).collect();
    assert_eq!(flavors, ["gke", "aks"], "{rows:#}");
    for (namespace, flavor) in [(strict, "gke"), ("two", "aks")] {
        let deployment = api.get("deployments", namespace, "levers9-agent").expect("the Deployment");
        let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].clone();
        let args: Vec<&str> = args.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert!(args.windows(2).any(|pair| pair == ["--flavor", flavor]), "{args:?}");
    }
    let refused = site.world.cli(&["run", "--gpu", "H100", "--", "true"]).with_code(125);
    assert!(refused.stderr.contains("H100"), "{}", refused.stderr);
}

/// The role of all agents goes with the last of them.
fn leaves_one_by_one(site: &Site, strict: &str) {
    let api = site.cluster.api();
    let bindings = || {
        let all = api.list_where("clusterrolebindings", "", LABEL).expect("bindings are listed");
        all.iter().map(|binding| name(binding).replacen("levers9-agent-observe-", "", 1)).collect::<Vec<_>>()
    };
    let role = || api.get("clusterroles", "", "levers9-agent-observe").map_err(|refused| refused.code);
    let leave = |cluster: &str| site.kube(&["cluster", "leave", cluster, "--yes"]).ok().stderr;
    assert_eq!(bindings(), ["none", strict, "two"]);
    let left = leave("two-pools");
    assert!(!left.contains("removed ClusterRole levers9-agent-observe\n"), "{left}");
    assert_eq!((bindings(), role().is_ok()), (vec!["none".to_owned(), strict.to_owned()], true));
    // The others are as well as before: what joined last applied the role anew.
    site.wait_cluster("all-hold", "is ready", |row| row["state"] == "ready");
    site.cluster.node("z-2").label(POOL, "z").allocatable("cpu", "8").create();
    site.wait_node("none-yet", "z-2", "is lent", |_| true);
    leave("all-hold");
    assert_eq!(bindings(), ["none"]);
    let left = leave("none-yet");
    assert!(left.contains("removed ClusterRole levers9-agent-observe\n"), "{left}");
    assert_eq!((bindings(), role().err()), (vec![], Some(404)));
}

#[test]
fn a_selector_lends_the_nodes_it_names_and_no_others() {
    let site = Site::new(&[("plain", 0, "")]);
    let pool = POOL;
    for (node, labels) in [
        ("a-1", &[(pool, "a"), ("zone", "x")][..]),
        ("a-2", &[(pool, "a")]),
        ("b-1", &[(pool, "b")]),
        ("c-1", &[(pool, "c"), ("zone", "y")]),
    ] {
        let maker = site.cluster.node(node).label(PRODUCT, "NVIDIA-L40S").allocatable("nvidia.com/gpu", 1);
        let maker = maker.allocatable("cpu", "8").allocatable("memory", "32Gi");
        labels.iter().fold(maker, |maker, (key, value)| maker.label(key, value)).create();
        site.kubelet.add_node(node);
    }
    let strict = site.cluster.namespace_with(&json!({ "pod-security.kubernetes.io/enforce": "restricted" }));
    let api = site.cluster.api();
    let of = |key: &str, rest: &str| format!("{pool}{key}{rest}");

    // All of several; in a namespace that lets in harmless pods alone.
    let both = of("=", "a");
    let joined =
        site.join("all-hold", "L40S", &["--selector", &both, "--selector", "zone", "--namespace", &strict]);
    let joined = joined.ok();
    for said in [
        "lends 1 of the cluster's 5 nodes\n",
        "its nodes are those of gke\n",
        &format!("namespace {strict:?} enforces the Pod Security level \"restricted\"\n"),
        "which in the cluster is the agent's own pod; set publicAddress in the controlplane's configuration\n",
    ] {
        assert!(joined.stderr.contains(said), "{said}: {}", joined.stderr);
    }
    assert_eq!(lent(&site, "all-hold"), ["a-1"]);
    let kept = api.get("namespaces", "", &strict).expect("the namespace");
    assert_eq!(kept["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    let ran = site.world.cli(&["run", "--gpu", "L40S", "--pool", "all-hold", "--", "echo", "let in"]);
    assert_eq!(ran.ok().text(), "let in\n");

    // Its namespace is taken, by whatever name one comes.
    let refused = site.join("another", "L40S", &["--namespace", &strict]).with_code(1);
    let id = site.json(&["cluster", "list"])[0]["id"].as_str().expect("an id").to_owned();
    let words =
        format!("error: namespace {strict:?} holds another agent, that of cluster {id}: its Deployment");
    assert!(refused.stderr.contains(&words) && refused.stderr.contains("\nhint: "), "{}", refused.stderr);
    assert!(!refused.stderr.contains("is registered"), "{}", refused.stderr);
    assert_eq!(site.json(&["cluster", "list"]).as_array().map(Vec::len), Some(1));

    lends_two_pools(&site, &strict);

    // One that names nothing now lends what comes.
    let joined = site.join("none-yet", "L40S", &["--selector", &of("=", "z"), "--namespace", "none"]).ok();
    for said in [
        "lends 0 of the cluster's 5 nodes\n",
        "names none of the cluster's 5 nodes, so nothing is lent now",
        &format!("{pool} is a or b or c"),
        "; the nodes have labels of these keys: ",
        &format!(", {pool}, kubernetes.io/"),
    ] {
        assert!(joined.stderr.contains(said), "{said}: {}", joined.stderr);
    }
    assert_eq!(lent(&site, "none-yet"), [""; 0]);
    site.cluster.node("z-1").label(pool, "z").allocatable("cpu", "8").create();
    site.wait_node("none-yet", "z-1", "is lent", |_| true);
    assert_eq!((lent(&site, "two-pools").len(), lent(&site, "all-hold").len()), (3, 1));
    leaves_one_by_one(&site, &strict);
}

/// Somebody with these rules in the whole cluster; their kubeconfig.
fn user(cluster: &Cluster, name: &str, rules: &Value) -> PathBuf {
    let api = cluster.api();
    let rbac = "rbac.authorization.k8s.io";
    let version = format!("{rbac}/v1");
    let meta = json!({ "name": name });
    let role = json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": meta, "rules": rules });
    api.create(&role).expect("a role is made");
    let binding = json!({
        "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": meta,
        "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": name },
        "subjects": [{ "apiGroup": rbac, "kind": "User", "name": name }],
    });
    api.create(&binding).expect("a binding is made");
    if rules.as_array().is_some_and(|rules| !rules.is_empty()) {
        // Who decides hears of roles a moment later. Whoever may anything may see nodes.
        let theirs = cluster.api_as(name, &[]);
        wait::until("the role counts", SOON, || {
            theirs.list("nodes", "").map(drop).map_err(|refused| refused.to_string())
        });
    }
    cluster.kubeconfig_of(name, &[])
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": groups, "resources": resources, "verbs": verbs })
}

#[test]
fn what_may_not_be_done_is_said_before_or_undone_after() {
    let nodes = [("gpu-1", 1, "NVIDIA-L40S")];
    let site = Site::with(&nodes, Setup::api_only(), world::Setup::default());
    let api = site.cluster.api();
    let all = ["*"];
    let rbac = "rbac.authorization.k8s.io";
    let reads = rule(&["", "apps", "batch", rbac], &all, &["get", "list", "watch"]);
    let writes = |groups: &[&str], resources: &[&str]| rule(groups, resources, &["create", "patch"]);
    let core = writes(&[""], &["namespaces", "serviceaccounts", "secrets"]);
    let jobs = rule(&["batch"], &["jobs"], &["create", "delete"]);
    let users = [
        ("nobody", json!([]), "may not list nodes in the whole cluster"),
        ("reader", json!([reads]), "may not create namespaces in the whole cluster"),
        (
            "no-roles",
            json!([reads, core, jobs, writes(&["apps"], &all)]),
            "may not create clusterroles.rbac.authorization.k8s.io in the whole cluster",
        ),
        (
            "no-deployments",
            json!([reads, core, jobs, writes(&[rbac], &all)]),
            "may not create deployments.apps in namespace \"levers9\"",
        ),
        (
            "no-jobs",
            json!([reads, core, writes(&[rbac], &all), writes(&["apps"], &all)]),
            "may not create jobs.batch in namespace \"levers9\", so it cannot let the agent do it",
        ),
    ];
    let join = |kubeconfig: PathBuf, more: &[&str]| {
        let args = [&["cluster", "join", "lab", "--gpu", "L40S", "--timeout", "1"], more].concat();
        let mut command = site.world.home.command("levers9", &args);
        command.env("KUBECONFIG", kubeconfig);
        Output::of(command).with_code(1)
    };
    for (who, rules, words) in &users {
        let refused = join(user(&site.cluster, who, rules), &[]);
        assert!(
            refused.stderr.contains(&format!("error: context \"test\" {words}\nhint: ")),
            "{who}: {}",
            refused.stderr
        );
        assert!(!refused.stderr.contains("is registered"), "{who}: {}", refused.stderr);
    }
    assert_eq!(site.json(&["cluster", "list"]), json!([]));
    assert_eq!(api.get("namespaces", "", NAMESPACE).expect_err("nothing was made").code, 404);
    let tokens = |site: &Site| {
        let all = site.json(&["token", "list"]);
        all.as_array().into_iter().flatten().filter(|token| token["kind"] == "cluster").count()
    };
    assert_eq!(tokens(&site), 0);

    // With all that it takes, but a quota of the namespace that has no room.
    let meta = json!({ "name": "full" });
    api.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": meta })).expect("a namespace");
    let hard = json!({ "count/deployments.apps": "0" });
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": { "name": "none", "namespace": "full" }, "spec": { "hard": hard },
    });
    api.create(&quota).expect("a quota");
    let used = json!({ "status": { "hard": hard, "used": hard } });
    api.merge("resourcequotas", "full", "none/status", &used).expect("its status");
    let able = json!([
        reads,
        core,
        jobs,
        writes(&["apps"], &all),
        writes(&[rbac], &all),
        rule(&["", "apps", rbac], &all, &["delete"])
    ]);
    let able = user(&site.cluster, "able", &able);
    let refused = join(able, &["--namespace", "full"]);
    for said in [
        "is registered as",
        "applied Secret full/levers9-agent\n",
        "rolled back: the cluster is detached again, its token is revoked\n",
        "error: context \"test\" may not apply Deployment full/levers9-agent: ",
        "exceeded quota: none",
    ] {
        assert!(refused.stderr.contains(said), "{said}: {}", refused.stderr);
    }
    assert!(!refused.stderr.contains("not removed again"), "{}", refused.stderr);
    assert_eq!((site.json(&["cluster", "list"]), tokens(&site)), (json!([]), 0));
    for plural in INSIDE {
        let left = api.list_where(plural, "full", LABEL).expect("objects are listed");
        assert!(left.is_empty(), "{plural}: {left:#?}");
    }
    for plural in ["clusterroles", "clusterrolebindings"] {
        let left = api.list_where(plural, "", LABEL).expect("objects are listed");
        assert!(left.is_empty(), "{plural}: {left:#?}");
    }
    let _kept = api.get("namespaces", "", "full").expect("the namespace is kept");
}

/// A cluster, and a controlplane that tells agents an address where nobody answers.
struct Silent {
    kubelet: Kubelet,
    home: Home,
    _controlplane: Live,
    _nobody: UdpSocket,
    dead: u16,
    cluster: Cluster,
}

impl Silent {
    fn start() -> Self {
        let cluster = Cluster::start();
        add_node(&cluster, "cpu-1", 0, "");
        let kubelet = Kubelet::start(&cluster, &["cpu-1"]);
        let home = Home::new();
        // It takes what comes and says nothing, as a firewall does.
        let nobody = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let dead = nobody.local_addr().expect("its address").port();
        let config = format!(
            "data: {}\nquic: 127.0.0.1:0\ngrpc: 127.0.0.1:0\nhttp: 127.0.0.1:0\nnames: [127.0.0.1]\n\
             publicAddress: 127.0.0.1:{dead}\nworker:\n  image: {IMAGE}\n",
            home.path().join("data").display()
        );
        let file = home.path().join("controlplane.yaml");
        std::fs::write(&file, config).expect("the configuration is written");
        let mut command = home.command("levers9-controlplane", &["--config"]);
        command.arg(&file).env("LEVERS9_BOOTSTRAP_SECRET", BOOTSTRAP_SECRET);
        let controlplane = Live::spawn(command);
        controlplane.wait_errors(": ready dial=", SOON);
        let said = controlplane.errors();
        let field = |name: &str| {
            let word = said.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            word.unwrap_or_else(|| panic!("no {name} in {said}")).to_owned()
        };
        let address = field("dial").replace(&format!("127.0.0.1:{dead}"), &field("quic"));
        let mut login = home.command("levers9", &["login", &address]);
        login.env("LEVERS9_BOOTSTRAP_SECRET", BOOTSTRAP_SECRET);
        let _logged_in = Output::of(login).ok();
        Self { kubelet, home, _controlplane: controlplane, _nobody: nobody, dead, cluster }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command("levers9", args);
        command.env("KUBECONFIG", self.cluster.kubeconfig());
        command
    }

    /// `levers9 cluster join NAME …` in a namespace of that name.
    fn join(&self, name: &str, more: &[&str]) -> Live {
        let args = ["cluster", "join", name, "--namespace", name, "--gpu", "L40S", "--timeout", "20"];
        Live::spawn(self.command(&[&args[..], more].concat()))
    }
}

/// Waits for its end and asserts that it has failed with these words.
fn fails(mut join: Live, cluster: &str, words: &[&str]) {
    assert_eq!(join.wait(SOON), 1, "{}", join.shown());
    let (said, printed) = (join.errors(), join.text());
    assert_eq!(printed, "");
    let first = format!("error: the agent of cluster {cluster:?} did not come within 20s: ");
    let stays = format!("cluster {cluster:?} stays attached");
    for words in [&[&*first, &*stays, "\nhint: "], words].concat() {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(said.matches("error: the agent").count(), 1, "{said}");
}

#[test]
fn an_agent_that_does_not_come_is_told_with_what_keeps_it() {
    let lab = Silent::start();
    let api = lab.cluster.api();
    let gone = "registry.example/gone/levers9-worker:1";
    lab.kubelet.set_pullable(gone, false);
    let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "spec": { "hard": { "pods": "0" } },
        "metadata": { "name": "no-pods", "namespace": "kept-out" } });
    let meta = json!({ "name": "kept-out" });
    api.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": meta })).expect("a namespace");
    api.create(&quota).expect("a quota");
    api.wait("resourcequotas", "kept-out", "no-pods", SOON, |quota| quota["status"]["hard"]["pods"] == "0");

    let unpulled = lab.join("unpulled", &["--worker-image", gone]);
    let blocked = lab.join("blocked", &[]);
    let kept_out = lab.join("kept-out", &[]);
    blocked.wait_errors("the agent: running, not connected yet", SOON);
    unpulled.wait_errors("the agent: its image cannot be pulled", SOON);
    // What is changed before it runs is not stopped first.
    lab.cluster.cordon("cpu-1", true);
    let crashing = lab.join("crashing", &[]);
    crashing.wait_errors("the agent: pending", SOON);
    let wrong = json!([{ "name": "agent", "args": ["--nonsense"] }]);
    let wrong = json!({ "spec": { "template": { "spec": { "containers": wrong } } } });
    api.strategic("deployments", "crashing", "levers9-agent", &wrong).expect("changed");
    lab.cluster.cordon("cpu-1", false);

    fails(
        unpulled,
        "unpulled",
        &[
            "the agent: its image cannot be pulled",
            &format!("its image {gone:?} cannot be pulled: "),
            "--worker-image",
        ],
    );
    let dials = format!("127.0.0.1:{}", lab.dead);
    fails(
        blocked,
        "blocked",
        &[
            &format!("warning: the agent will dial {dials}"),
            "the agent: running, not connected yet",
            &format!("its pod runs but has not reached the controlplane at {dials}: "),
            "UDP",
        ],
    );
    fails(
        crashing,
        "crashing",
        &[
            "the agent: crashing",
            "exit code 2: ",
            "unexpected argument '--nonsense'",
            "logs deploy/levers9-agent",
        ],
    );
    fails(
        kept_out,
        "kept-out",
        &["the agent: its pod is refused", "exceeded quota: no-pods", "quota, Pod Security"],
    );
    let rows = Output::of(lab.command(&["cluster", "list", "--format", "json"])).ok().json();
    let rows = rows.as_array().cloned().unwrap_or_default();
    assert!(rows.len() == 4 && rows.iter().all(|row| row["state"] == "waiting"), "{rows:#?}");
    // And it can be taken back from there.
    let left = Output::of(lab.command(&["cluster", "leave", "crashing", "--yes"])).ok();
    assert!(left.stderr.contains("removed Deployment crashing/levers9-agent"), "{}", left.stderr);
    wait::until("its pods are gone", SOON, || match api.list("pods", "crashing") {
        Ok(pods) if pods.is_empty() => Ok(()),
        other => Err(format!("{other:?}")),
    });
}
