//! The harness itself: what later tests rely on without saying so.

use std::time::Duration;

use levers9_tests::kube::{Api, Cluster, Kubelet, Setup, shared};
use levers9_tests::wait;
use serde_json::{Value, json};

use crate::support::name;

const SOON: Duration = Duration::from_secs(30);

/// A pod's spec of one container that runs a shell script.
fn shell(script: &str) -> Value {
    let container =
        json!({ "name": "main", "image": "example.com/shell:1", "command": ["sh", "-c", script] });
    json!({ "containers": [container] })
}

fn object(version: &str, kind: &str, namespace: &str, name: &str, spec: &Value) -> Value {
    let metadata = json!({ "name": name, "namespace": namespace });
    json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec })
}

/// A spec for pods that only a node of this label takes.
fn only_on(label: &str, mut spec: Value) -> Value {
    spec["nodeSelector"] = json!({ "lab": label });
    spec
}

fn job(namespace: &str, name: &str, mut pod: Value) -> Value {
    pod["restartPolicy"] = Value::from("Never");
    object("batch/v1", "Job", namespace, name, &json!({ "backoffLimit": 0, "template": { "spec": pod } }))
}

fn deployment(namespace: &str, name: &str, pod: &Value) -> Value {
    let labels = json!({ "app": name });
    let template = json!({ "metadata": { "labels": labels }, "spec": pod });
    let spec = json!({ "replicas": 1, "selector": { "matchLabels": labels }, "template": template });
    object("apps/v1", "Deployment", namespace, name, &spec)
}

/// The only pod of a namespace, once it is as wanted.
fn wait_pod(api: &Api, namespace: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    wait::until(&format!("a pod in {namespace}: {what}"), SOON, || {
        let pods = api.list("pods", namespace).map_err(|refused| refused.to_string())?;
        pods.iter().find(|pod| wanted(pod)).cloned().ok_or_else(|| format!("{pods:#?}"))
    })
}

#[test]
fn a_deployment_runs_restarts_and_ends() {
    let (cluster, namespace) = (shared(), shared().namespace());
    cluster.node("deployment-1").label("lab", "deployment").create();
    let kubelet = Kubelet::start(cluster, &["deployment-1"]);
    let script = "trap 'echo told to end; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let api = cluster.api();
    api.create(&deployment(&namespace, "web", &only_on("deployment", shell(script)))).expect("it is taken");
    api.wait("deployments", &namespace, "web", SOON, |it| it["status"]["availableReplicas"] == 1);
    let pod = wait_pod(api, &namespace, "running", |pod| pod["status"]["phase"] == "Running");
    kubelet.wait_log(name(&pod), "up", SOON);
    kubelet.kill9(name(&pod));
    let again = wait_pod(api, &namespace, "started again", |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    let last = &again["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 137, "{last}");
    kubelet.wait_log(name(&pod), "up\nup\n", SOON);
    // As `kubectl logs` reads it: this start, and the one before.
    let path = format!("/api/v1/namespaces/{namespace}/pods/{}/log", name(&pod));
    for (query, said) in [("", "up\n"), ("?previous=true&tailLines=1", "up\n"), ("?limitBytes=1", "u")] {
        assert_eq!(api.read(&format!("{path}{query}")).expect("its log"), Value::from(said), "{query}");
    }
    api.delete("deployments", &namespace, "web").expect("it is deleted");
    api.wait_gone("pods", &namespace, name(&pod), SOON);
    assert!(kubelet.log(name(&pod)).ends_with("told to end\n"), "{}", kubelet.log(name(&pod)));
    assert!(kubelet.processes().is_empty());
}

#[test]
fn a_job_is_run_to_its_end() {
    let (cluster, namespace) = (shared(), shared().namespace());
    cluster.node("job-1").label("lab", "job").create();
    let kubelet = Kubelet::start(cluster, &["job-1"]);
    let api = cluster.api();
    let mut spec = only_on("job", shell("echo $POD on $NODE as $(id -u):$(id -g); touch /made; echo $$$$"));
    let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    spec["containers"][0]["env"] = json!([
        { "name": "POD", "valueFrom": field("metadata.name") },
        { "name": "NODE", "valueFrom": field("spec.nodeName") },
    ]);
    api.create(&job(&namespace, "once", spec.clone())).expect("it is taken");
    let done = api.wait("jobs", &namespace, "once", SOON, |it| it["status"]["succeeded"] == 1);
    assert_eq!(done["status"]["failed"], Value::Null, "{done:#}");
    let pod = wait_pod(api, &namespace, "over", |pod| pod["status"]["phase"] == "Succeeded");
    // It is the first process of its own, and what it wrote is gone with it.
    assert_eq!(kubelet.log(name(&pod)), format!("{} on job-1 as 0:0\n1\n", name(&pod)));
    assert!(!std::path::Path::new("/made").exists());
    spec["securityContext"] = json!({ "runAsUser": 65532, "runAsGroup": 65532, "runAsNonRoot": true });
    spec["containers"][0]["command"] =
        json!(["sh", "-c", "id -u; id -G; levers9-agent-is-not-there; exit 3"]);
    spec["containers"][0]["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    api.create(&job(&namespace, "fails", spec)).expect("it is taken");
    api.wait("jobs", &namespace, "fails", SOON, |it| it["status"]["failed"] == 1);
    let pod = wait_pod(api, &namespace, "failed", |pod| pod["status"]["phase"] == "Failed");
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["exitCode"], 3, "{ended}");
    assert!(ended["message"].as_str().is_some_and(|said| said.starts_with("65532\n65532\n")), "{ended}");
}

#[test]
fn what_cannot_be_pulled_or_crashes_is_reported() {
    let (cluster, namespace) = (shared(), shared().namespace());
    cluster.node("broken-1").label("lab", "broken").create();
    let kubelet = Kubelet::start(cluster, &["broken-1"]);
    kubelet.set_pullable("example.com/shell:1", false);
    let api = cluster.api();
    api.create(&deployment(&namespace, "web", &only_on("broken", shell("echo no good; exit 7"))))
        .expect("taken");
    for reason in ["ErrImagePull", "ImagePullBackOff"] {
        let pod = wait_pod(api, &namespace, reason, |pod| {
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
        });
        assert_eq!(pod["status"]["phase"], "Pending");
        let message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"].to_string();
        assert!(message.contains("example.com/shell:1: not found"), "{message}");
    }
    kubelet.set_pullable("example.com/shell:1", true);
    let pod = wait_pod(api, &namespace, "crashing", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["state"]["waiting"]["reason"] == "CrashLoopBackOff" && status["restartCount"] == 2
    });
    assert_eq!(pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 7);
}

#[test]
fn rbac_decides_what_a_user_may() {
    let cluster = shared();
    let (own, other) = (cluster.namespace(), cluster.namespace());
    let version = "rbac.authorization.k8s.io/v1";
    let about = |namespace: &str| json!({ "name": "reader", "namespace": namespace });
    let rules = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] }]);
    let role = json!({ "apiVersion": version, "kind": "Role", "metadata": about(&own), "rules": rules });
    let reference = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader" });
    let subject = |kind: &str, name: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name });
    let binding = json!({
        "apiVersion": version, "kind": "RoleBinding", "metadata": about(&own), "roleRef": reference,
        "subjects": [subject("User", "alice"), subject("Group", "readers")],
    });
    cluster.api().create(&role).expect("a role");
    cluster.api().create(&binding).expect("a binding");
    for (user, groups) in [("alice", &[][..]), ("bob", &["readers"]), ("eve", &["others", "readers"])] {
        let api = cluster.api_as(user, groups);
        // The authorizer hears of a binding a moment later.
        wait::until("the binding counts", SOON, || {
            api.list("pods", &own).map_err(|refused| refused.to_string())
        });
        assert_eq!(api.list("pods", &other).expect_err("it is refused").code, 403);
        let refused = api.list("secrets", &own).expect_err("it is refused");
        assert!(
            refused.message.contains(&format!("User \"{user}\" cannot list resource \"secrets\"")),
            "{refused}"
        );
    }
    let asked = cluster.audit("alice");
    let codes: Vec<i64> = asked.iter().filter_map(|event| event["responseStatus"]["code"].as_i64()).collect();
    assert!(codes.contains(&200) && codes.ends_with(&[403, 403]), "{codes:?}");
    assert!(asked.iter().all(|event| event["verb"] == "list"), "{asked:#?}");
}

#[test]
fn a_pod_that_fits_nowhere_stays_pending() {
    let (cluster, namespace) = (shared(), shared().namespace());
    cluster.node("small-1").label("lab", "small").allocatable("nvidia.com/gpu", 4).create();
    let selector = json!({ "lab": "small" });
    let neighbour = |name: &str, gpus: u32| {
        let pod = cluster.pod(&namespace, name).request("nvidia.com/gpu", gpus);
        pod.spec("nodeSelector", selector.clone()).create()
    };
    let _first = neighbour("first", 3);
    let api = cluster.api();
    api.wait("pods", &namespace, "first", SOON, |pod| pod["spec"]["nodeName"] == "small-1");
    let _second = neighbour("second", 2);
    let pod = api.wait("pods", &namespace, "second", SOON, |pod| {
        pod["status"]["conditions"][0]["reason"] == "Unschedulable"
    });
    let why = pod["status"]["conditions"][0]["message"].to_string();
    assert!(why.contains("Insufficient nvidia.com/gpu"), "{why}");
    assert_eq!(pod["spec"]["nodeName"], Value::Null);
    api.delete("pods", &namespace, "first").expect("it is deleted");
    api.wait("pods", &namespace, "second", SOON, |pod| pod["spec"]["nodeName"] == "small-1");
}

#[test]
fn nodes_say_what_they_are() {
    let (cluster, namespace) = (shared(), shared().namespace());
    cluster.node("said-1").label("lab", "said").taint("gpu", "yes", "NoSchedule").create();
    let keys = |node: &Value| -> Vec<String> {
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.iter().filter_map(|taint| taint["key"].as_str().map(str::to_owned)).collect()
    };
    let api = cluster.api();
    assert_eq!(keys(&api.get("nodes", "", "said-1").expect("it is there")), ["gpu"]);
    cluster.untaint("said-1", "gpu");
    cluster.cordon("said-1", true);
    api.wait("nodes", "", "said-1", SOON, |node| keys(node) == ["node.kubernetes.io/unschedulable"]);
    let pod = cluster.pod(&namespace, "one").spec("nodeSelector", json!({ "lab": "said" })).create();
    api.wait("pods", &namespace, name(&pod), SOON, |pod| {
        pod["status"]["conditions"][0]["reason"] == "Unschedulable"
    });
    cluster.cordon("said-1", false);
    api.wait("pods", &namespace, name(&pod), SOON, |pod| pod["spec"]["nodeName"] == "said-1");
    cluster.set_ready("said-1", false);
    cluster.set_ready("said-1", true);
    cluster.delete_node("said-1");
    api.wait_gone("nodes", "", "said-1", SOON);
}

#[test]
fn volumes_hold_what_was_said_last() {
    let (cluster, namespace) = (shared(), shared().namespace());
    cluster.node("volumes-1").label("lab", "volumes").create();
    let kubelet = Kubelet::start(cluster, &["volumes-1"]);
    let api = cluster.api();
    let secret = |word: &str| {
        let metadata = json!({ "name": "words", "namespace": namespace });
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { "word": word } })
    };
    api.create(&secret("one")).expect("a secret");
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let script = format!(
        "cat /in/word; echo; cat {account}/namespace; echo; head -n 1 {account}/ca.crt; echo $WORD; ls -A /out
         ask() {{ cat {account}/token | cut -d. -f3; }}
         echo here >/out/file; first=$(ask)
         until [ \"$(cat /in/word)\" = two ] && [ \"$(ask)\" != \"$first\" ]; do sleep 0.1; done; echo all new"
    );
    let mut spec = only_on("volumes", shell(&script));
    spec["volumes"] = json!([
        { "name": "in", "secret": { "secretName": "words" } },
        { "name": "out", "emptyDir": {} },
    ]);
    spec["containers"][0]["volumeMounts"] = json!([
        { "name": "in", "mountPath": "/in", "readOnly": true },
        { "name": "out", "mountPath": "/out" },
    ]);
    let from = json!({ "secretKeyRef": { "name": "words", "key": "word" } });
    spec["containers"][0]["env"] = json!([{ "name": "WORD", "valueFrom": from }]);
    api.create(&job(&namespace, "reads", spec)).expect("it is taken");
    let pod = wait_pod(api, &namespace, "running", |pod| pod["status"]["phase"] == "Running");
    let words = format!("one\n{namespace}\n-----BEGIN CERTIFICATE-----\none\n");
    kubelet.wait_log(name(&pod), &words, SOON);
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    wait::until("its file is here", SOON, || {
        let file = std::fs::read_to_string(kubelet.volumes(uid).join("out/file"));
        file.map_err(|error| error.to_string())
    });
    api.apply(&secret("two")).expect("a secret");
    kubelet.rotate_tokens();
    api.wait("jobs", &namespace, "reads", SOON, |it| it["status"]["succeeded"] == 1);
    assert_eq!(kubelet.log(name(&pod)), format!("{words}all new\n"));
}

#[test]
fn an_api_server_that_dies_comes_back_as_it_was() {
    let cluster = Cluster::start_with(Setup::api_only());
    let namespace = cluster.namespace();
    cluster.node("one").create();
    let kubelet = Kubelet::start(&cluster, &["one"]);
    let mut pod = object("v1", "Pod", &namespace, "stays", &shell("echo up; while :; do sleep 0.1; done"));
    pod["spec"]["nodeName"] = Value::from("one");
    pod["spec"]["terminationGracePeriodSeconds"] = Value::from(1);
    let api = cluster.api();
    api.create(&pod).expect("it is taken");
    let process = kubelet.process("stays");
    cluster.kill_apiserver();
    assert_eq!(api.get("nodes", "", "one").expect_err("nobody answers").code, 0);
    cluster.start_apiserver();
    assert_eq!(api.get("nodes", "", "one").expect("it is there")["metadata"]["name"], "one");
    assert_eq!(kubelet.process("stays"), process);
    // A dead node: nothing is done until it is back.
    kubelet.pause();
    api.delete("pods", &namespace, "stays").expect("it is deleted");
    wait::stays("the pod is only asked to go", Duration::from_secs(2), || {
        api.get("pods", &namespace, "stays").map(drop).map_err(|refused| refused.to_string())
    });
    kubelet.resume();
    api.wait_gone("pods", &namespace, "stays", SOON);
    assert!(kubelet.processes().is_empty());
}
