//! Attaching a cluster: what is checked before anything is registered, what is
//! applied, and what is said when the agent does not come.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use levers9_wire::v1::{self, FailureCode, call_answer::Answer, call_open::Request};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::api::{ApiServer, kubeconfig, status};
use super::{agents_token, answering, id, manifest, nodes, settings};
use crate::fake::{Fake, failure};
use crate::support::{Did, Home};

const NODE: &str = "/api/v1/nodes/gpu-1";
const SECRET: &str = "/api/v1/namespaces/levers9/secrets/levers9-agent";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/levers9/deployments/levers9-agent";
const POD: &str = "/api/v1/namespaces/levers9/pods/levers9-agent-x";

fn gpu_node() -> Value {
    let labels = json!({ "pool": "a", "cloud.google.com/gke-nodepool": "gpu",
                         "cloud.google.com/gke-accelerator": "nvidia-l40s" });
    json!({ "metadata": { "name": "gpu-1", "labels": labels } })
}

/// A controlplane that lets every cluster in, whose agent comes or does not.
fn controlplane(runtime: &'static str, address: &'static str, agent_comes: bool) -> Fake {
    // As it was registered.
    let registered: Mutex<Option<v1::ClusterSettings>> = Mutex::default();
    answering(move |request, _| match request {
        Request::ClusterJoin(asked) => {
            let filled = v1::ClusterSettings {
                worker_image: settings().worker_image,
                ..asked.settings.clone().unwrap_or_default()
            };
            *registered.lock().unwrap() = Some(filled.clone());
            let manifest =
                Some(v1::ClusterManifest { address: address.to_owned(), ..manifest(runtime, filled) });
            let (cluster, token) = (id(), agents_token());
            Answer::ClusterJoin(v1::ClusterJoinAnswer { cluster, token, manifest })
        }
        Request::ClusterNodes(_) if agent_comes => Answer::ClusterNodes(nodes()),
        Request::ClusterNodes(_) => Answer::ClusterNodes(v1::ClusterNodesAnswer::default()),
        _ => Answer::ClusterLeave(v1::ClusterLeaveAnswer::default()),
    })
}

/// What is always said when the cluster is not reached from here.
const ELSEWHERE: &str = "to apply the objects from a machine that reaches the cluster: --manifest-only";

const CP: &str = "levers9://cp.example:443";

fn server(objects: &[(&str, Value)]) -> ApiServer {
    ApiServer::start(objects, |_| None)
}

fn join(fake: &Fake, server: &ApiServer, more: &[&str]) -> Did {
    let home = crate::home(fake);
    let kubeconfig = server.kubeconfig(&home);
    let args = [&["cluster", "join", "gpus", "--gpu", "L40S"], more].concat();
    let did = home.run_with(&args, &[("KUBECONFIG", &kubeconfig)], "");
    Did { err: did.err.replace(&server.url(), "[API]"), ..did }
}

#[test]
fn each_step_is_said_and_the_nodes_are_printed() {
    let fake = controlplane("process", CP, true);
    let server = server(&[(NODE, gpu_node())]);
    let did = join(&fake, &server, &[]);
    let expected = "\
levers9: context \"lab\" reaches Kubernetes v1.33.1 at [API]
levers9: lends 1 of the cluster's 1 nodes
levers9: its nodes are those of gke
levers9: cluster \"gpus\" is registered as 019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6c
levers9: applied Namespace levers9
levers9: applied ServiceAccount levers9/levers9-agent
levers9: applied ClusterRole levers9-agent-observe
levers9: applied ClusterRoleBinding levers9-agent-observe-levers9
levers9: applied Role levers9/levers9-agent-launch
levers9: applied RoleBinding levers9/levers9-agent-launch
levers9: applied Secret levers9/levers9-agent
levers9: applied Deployment levers9/levers9-agent
levers9: waiting for the agent, at most 3m
levers9: workers there are unprivileged pods that run jobs as plain processes, one workspace each";
    assert_eq!((did.code, did.err.as_str()), (0, expected));
    assert!(did.out.starts_with("NODE   READY  OFFERED  CARDS FREE"), "{}", did.out);
    let labels = |path: &str| server.object(path).unwrap()["metadata"]["labels"].clone();
    assert_eq!(labels("/api/v1/namespaces/levers9")["pod-security.kubernetes.io/enforce"], "baseline");
    assert_eq!(labels(DEPLOYMENT)["levers9/cluster"], super::ID);
    let deployment = server.object(DEPLOYMENT).unwrap().to_string();
    assert!(
        deployment.contains("--flavor\",\"gke\"") && !deployment.contains(&agents_token()),
        "{deployment}"
    );
}

#[test]
fn scripts_get_the_nodes_and_what_was_applied() {
    let fake = controlplane("process", CP, true);
    let did = join(&fake, &server(&[(NODE, gpu_node())]), &["--format", "json"]);
    let shown: Value = serde_json::from_str(&did.out).unwrap();
    assert_eq!(shown["cluster"]["id"], super::ID);
    assert_eq!(shown["nodes"][0]["name"], "gpu-1");
    assert_eq!(shown["applied"][7], "Deployment levers9/levers9-agent");
    assert!(!did.out.contains(&agents_token()) && !did.err.contains(&agents_token()));
}

#[test]
fn what_looks_wrong_is_warned_of_and_done_all_the_same() {
    let fake = controlplane("process", "levers9://127.0.0.1:4433", true);
    let server = server(&[(NODE, gpu_node())]);
    let did = join(&fake, &server, &["--selector", "pool=b", "--pull-secret", "regcred"]);
    assert_eq!(did.code, 0, "{}", did.err);
    for expected in [
        "levers9: lends 0 of the cluster's 1 nodes\n",
        "levers9: warning: the selector pool=b does not name the cluster's only node, so nothing is lent now: \
         pool is a; the nodes have labels of these keys: cloud.google.com/gke-accelerator, \
         cloud.google.com/gke-nodepool, pool\n",
        "levers9: warning: Secret levers9/regcred is not there, and no image is pulled with it until it is; \
         make it: kubectl -n levers9 create secret docker-registry regcred ",
        "levers9: warning: the agent will dial 127.0.0.1:4433, which in the cluster is the agent's own pod; \
         set publicAddress in the controlplane's configuration\n",
    ] {
        assert!(did.err.contains(expected), "{expected:?} is not in {}", did.err);
    }
    let home = crate::home(&fake);
    let kubeconfig = server.kubeconfig(&home);
    let args = ["cluster", "join", "gpus", "--gpu", "H100", "--namespace", "other"];
    let did = home.run_with(&args, &[("KUBECONFIG", &kubeconfig)], "");
    let expected =
        "warning: no node says that it has H100: by their labels they have L40S; those serve CPU jobs only";
    assert!(did.code == 0 && did.err.contains(expected), "{}", did.err);
}

#[test]
fn without_nodes_it_is_attached_and_says_so() {
    let fake = controlplane("process", CP, true);
    let did = join(&fake, &server(&[]), &["--selector", "pool=b"]);
    assert_eq!(did.code, 0, "{}", did.err);
    assert!(did.err.contains("the cluster has no nodes yet"), "{}", did.err);
}

#[test]
fn what_the_context_may_not_do_is_named_before_anything_is_registered() {
    let missing = |verb: &'static str, resource: &'static str| {
        ApiServer::start(&[(NODE, gpu_node())], move |asked| {
            let of = &asked.body["spec"]["resourceAttributes"];
            let gives = of["verb"] == "escalate" || of["verb"] == "bind";
            let no = gives || (of["verb"] == verb && of["resource"] == resource);
            no.then(|| {
                let mut review = asked.body.clone();
                review["status"] = json!({ "allowed": false });
                (201, review.to_string())
            })
        })
    };
    let fake = controlplane("process", CP, true);
    let did = join(&fake, &missing("patch", "deployments"), &[]);
    let hint =
        "hint: ask an administrator of the cluster for the right, or to apply what --manifest-only prints";
    let expected =
        format!("error: context \"lab\" may not patch deployments.apps in namespace \"levers9\"\n{hint}");
    assert!(did.code == 1 && did.err.ends_with(&expected), "{}", did.err);
    let did = join(&fake, &missing("delete", "jobs"), &[]);
    let expected = format!(
        "error: context \"lab\" may not delete jobs.batch in namespace \"levers9\", \
         so it cannot let the agent do it\n{hint}"
    );
    assert!(did.code == 1 && did.err.ends_with(&expected), "{}", did.err);
    assert_eq!(super::did(&fake), [""; 0]);
}

#[test]
fn a_namespace_with_another_agent_is_left_alone() {
    let fake = controlplane("process", CP, true);
    let labels = json!({ "levers9/cluster": "019a0c1e-0000-7000-8000-000000000000" });
    let theirs = json!({ "metadata": { "name": "levers9-agent", "labels": labels } });
    let server = server(&[(NODE, gpu_node()), (SECRET, theirs)]);
    let did = join(&fake, &server, &[]);
    let expected = "error: namespace \"levers9\" holds another agent, that of cluster \
                    019a0c1e-0000-7000-8000-000000000000: its Secret levers9/levers9-agent is there\nhint: choose";
    assert!(did.code == 1 && did.err.contains(expected), "{}", did.err);
    assert_eq!((super::did(&fake), server.asked("PATCH")), (Vec::new(), Vec::new()));
}

#[test]
fn a_namespace_that_keeps_privileged_pods_out_is_refused_and_the_registration_undone() {
    let fake = controlplane("runc", CP, true);
    let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
    let namespace = json!({ "metadata": { "name": "levers9", "labels": labels } });
    let server = server(&[(NODE, gpu_node()), ("/api/v1/namespaces/levers9", namespace)]);
    let did = join(&fake, &server, &[]);
    let expected = "\
levers9: rolled back: the cluster is detached again, its token is revoked
error: namespace \"levers9\" enforces the Pod Security level \"restricted\", which keeps out the privileged \
workers of the runtime runc
hint: use another namespace: --namespace NAME, or let them in: kubectl label --overwrite namespace levers9 \
pod-security.kubernetes.io/enforce=privileged";
    assert!(did.code == 1 && did.err.ends_with(expected), "{}", did.err);
    assert_eq!((super::did(&fake), server.asked("PATCH")), (vec!["join", "leave"], Vec::new()));
}

#[test]
fn autopilot_is_no_place_for_privileged_workers() {
    let fake = controlplane("runsc", CP, true);
    let server = server(&[("/api/v1/nodes/gk3-x", json!({ "metadata": { "name": "gk3-x" } }))]);
    let did = join(&fake, &server, &[]);
    assert!(
        did.err.contains("warning: this is GKE Autopilot, which lets in no privileged pods"),
        "{}",
        did.err
    );
    assert!(
        did.err.ends_with(
            "error: GKE Autopilot keeps out the privileged workers of the runtime runsc\n\
             hint: attach a GKE Standard cluster"
        ),
        "{}",
        did.err
    );
    assert_eq!((did.code, super::did(&fake)), (1, vec!["join", "leave"]));
}

#[test]
fn what_was_applied_is_removed_again_when_the_rest_cannot_be() {
    let fake = controlplane("process", CP, true);
    let server = ApiServer::start(&[(NODE, gpu_node())], |asked| {
        let refused = asked.method == "PATCH" && asked.path == DEPLOYMENT;
        refused.then(|| (403, status(403, "Forbidden", "exceeded quota").to_string()))
    });
    let did = join(&fake, &server, &[]);
    let expected = "\
levers9: applied Secret levers9/levers9-agent
levers9: rolled back: the cluster is detached again, its token is revoked
error: context \"lab\" may not apply Deployment levers9/levers9-agent: exceeded quota";
    assert!(did.code == 1 && did.err.ends_with(expected), "{}", did.err);
    assert_eq!(super::did(&fake), ["join", "leave"]);
    // The namespace may hold what is of others.
    assert_eq!(server.paths(), ["/api/v1/namespaces/levers9", NODE]);
}

#[test]
fn a_refusal_of_the_controlplane_changes_nothing_in_the_cluster() {
    let fake = answering(|_, _| {
        let text = "this workspace has a cluster \"gpus\" already";
        Answer::Failure(failure(FailureCode::Conflict, text, "detach it"))
    });
    let server = server(&[(NODE, gpu_node())]);
    let did = join(&fake, &server, &[]);
    let expected = "error: this workspace has a cluster \"gpus\" already\nhint: detach it";
    assert!(did.code == 1 && did.err.ends_with(expected), "{}", did.err);
    assert_eq!((super::did(&fake), server.asked("PATCH")), (vec!["join"], Vec::new()));
}

#[test]
fn an_agent_that_does_not_come_is_said_with_what_was_found() {
    let container = json!({ "name": "agent", "image": "registry.example/levers9/worker:1", "imageID": "",
        "ready": false, "restartCount": 0,
        "state": { "waiting": { "reason": "ImagePullBackOff", "message": "not found" } } });
    let pod = json!({
        "metadata": { "name": "levers9-agent-x", "labels": { "app.kubernetes.io/name": "levers9-agent" } },
        "spec": { "nodeName": "gpu-1", "containers": [] },
        "status": { "phase": "Pending", "containerStatuses": [container] },
    });
    let fake = controlplane("process", CP, false);
    let server = server(&[(NODE, gpu_node()), (POD, pod)]);
    let did = join(&fake, &server, &["--timeout", "1"]);
    let expected = "\
levers9: waiting for the agent, at most 1s
levers9: the agent: its image cannot be pulled
levers9: cluster \"gpus\" stays attached and is used as soon as its agent comes; look: levers9 cluster list; \
undo: levers9 cluster leave gpus
error: the agent of cluster \"gpus\" did not come within 1s: its image \"registry.example/levers9/worker:1\" \
cannot be pulled: ImagePullBackOff: not found
hint: name one that the cluster can pull: --worker-image, with --pull-secret where it needs one";
    assert!(did.code == 1 && did.err.ends_with(expected), "{}", did.err);
    assert!(server.object(DEPLOYMENT).is_some());
}

#[test]
fn an_agent_that_runs_says_in_its_log_why_it_is_not_here() {
    let container = json!({ "name": "agent", "image": "x", "imageID": "", "ready": true,
        "restartCount": 0, "state": { "running": {} } });
    let pod = json!({
        "metadata": { "name": "levers9-agent-x", "labels": { "app.kubernetes.io/name": "levers9-agent" } },
        "spec": { "nodeName": "gpu-1", "containers": [] },
        "status": { "phase": "Running", "containerStatuses": [container] },
    });
    let server = ApiServer::start(&[(NODE, gpu_node()), (POD, pod)], |asked| {
        let log = "WARN levers9_transport::link: no session problem=no answer from UDP cp.example:443: \
                   it is down, or UDP is blocked on the way\n";
        (asked.path == format!("{POD}/log")).then(|| (200, log.to_owned()))
    });
    let did = join(&controlplane("process", CP, false), &server, &["--timeout", "1"]);
    let expected = "its pod runs but has not reached the controlplane at cp.example:443: no answer from UDP \
                    cp.example:443: it is down, or UDP is blocked on the way\nhint: is UDP, or TCP, to that address open";
    assert!(did.code == 1 && did.err.contains(expected), "{}", did.err);
}

#[test]
fn a_manifest_for_others_to_apply_needs_no_kubeconfig_and_holds_the_token() {
    let fake = controlplane("process", CP, false);
    let home = crate::home(&fake);
    let did = home.run(&["cluster", "join", "gpus", "--gpu", "L40S", "--manifest-only"]);
    let kinds = did.out.lines().filter(|line| line.starts_with("kind: ")).count();
    assert_eq!((did.code, kinds), (0, 8), "{}", did.err);
    assert!(!did.out.contains(&agents_token()) && did.out.contains("bDlf"), "{}", did.out);
    let expected = "\
levers9: cluster \"gpus\" is registered as 019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6c
levers9: what was printed holds a secret, the token of the cluster's agent; apply it with: kubectl apply -f -
levers9: the nodes were not looked at; of a cluster of Google, Amazon or Microsoft say so: --flavor gke, eks or aks
levers9: its agent comes by itself then; look: levers9 cluster list";
    assert_eq!(did.err, expected);
    assert_eq!(super::did(&fake), ["join"]);
}

#[test]
fn an_api_server_that_is_none_is_said_to_be_none() {
    let fake = controlplane("process", CP, true);
    let answers = |code: u16, body: &'static str| {
        let server = ApiServer::start(&[], move |_| Some((code, body.to_owned())));
        let did = join(&fake, &server, &[]);
        assert_eq!(did.code, 1);
        did.err
    };
    for (code, body) in
        [(200, "<html>welcome</html>"), (200, ""), (200, "{\"major\":"), (502, "<html>bad</html>")]
    {
        let err = answers(code, body);
        let expected = "error: what answers at [API] does not answer like a Kubernetes API server";
        assert!(err.starts_with(expected), "{code} {body}: {err}");
    }
    let unauthorized = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#;
    let err = answers(401, unauthorized);
    assert!(
        err.starts_with("error: the API server at [API] does not accept the credentials of context \"lab\""),
        "{err}"
    );
    assert!(!err.contains("kubernetes-token"));
    assert_eq!(super::did(&fake), [""; 0]);
}

#[test]
fn an_api_server_that_hangs_or_hangs_up_is_given_up_in_bounded_time() {
    let fake = controlplane("process", CP, true);
    let home = crate::home(&fake);
    let join = |answer: &'static str, hang: bool| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for mut stream in listener.incoming().flatten() {
                // An answer that comes before its question is another failure.
                let _asked = stream.read(&mut [0; 4096]);
                let _gone = stream.write_all(answer.as_bytes());
                if hang {
                    held.push(stream);
                }
            }
        });
        let path = home.path().join(if hang { "hangs" } else { "hangs-up" });
        std::fs::write(&path, kubeconfig(&server, &json!({}))).unwrap();
        let args = ["cluster", "join", "gpus", "--gpu", "L40S"];
        let did = home.run_with(&args, &[("KUBECONFIG", path.to_str().unwrap())], "");
        assert_eq!((did.code, did.out.as_str()), (1, ""));
        did.err.replace(&server, "[API]")
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n";
    let err = join(head, false);
    assert!(err.starts_with("error: the API server at [API] cannot be reached: "), "{err}");
    let started = Instant::now();
    let err = join(head, true);
    let expected = "error: the API server at [API] does not answer: nothing came in 10 s when it was to be asked for \
                    its version\nhint: is it up";
    assert!(err.starts_with(expected), "{err}");
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(super::did(&fake), [""; 0]);
}

/// Reads until a line has this in it; gives all that was read.
fn read_until(reader: &mut impl BufRead, text: &str) -> String {
    let mut all = String::new();
    while !all.contains(text) {
        assert!(reader.read_line(&mut all).unwrap() > 0, "it never came to {text:?}: {all}");
    }
    all
}

#[test]
fn an_interrupt_while_waiting_leaves_it_attached_and_one_before_undoes_it() {
    let join = |server: &ApiServer, until: &str| {
        let fake = controlplane("process", CP, false);
        let home = crate::home(&fake);
        let args = ["cluster", "join", "gpus", "--gpu", "L40S"];
        let mut command = home.command(&args);
        command.env("KUBECONFIG", server.kubeconfig(&home));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut said = read_until(&mut err, until);
        crate::tell(&child, Signal::SIGINT);
        err.read_to_string(&mut said).unwrap();
        (child.wait().unwrap().code(), said, super::did(&fake))
    };
    let (code, said, did) = join(&server(&[(NODE, gpu_node())]), "the agent: ");
    assert!(code == Some(130) && said.contains("cluster \"gpus\" stays attached"), "{code:?} {said}");
    assert!(!did.contains(&"leave"), "{did:?}");
    let hangs = ApiServer::start(&[(NODE, gpu_node())], |asked| {
        if asked.method == "PATCH" && asked.path == SECRET {
            std::thread::sleep(Duration::from_secs(60));
        }
        None
    });
    let (code, said, did) = join(&hangs, "applied RoleBinding");
    assert!(
        code == Some(130) && said.contains("rolled back: the cluster is detached again"),
        "{code:?} {said}"
    );
    assert_eq!(did, ["join", "leave"]);
}

#[test]
fn a_cluster_that_is_detached_meanwhile_is_waited_for_no_longer() {
    let fake = answering(|request, _| match request {
        Request::ClusterJoin(_) => Answer::ClusterJoin(v1::ClusterJoinAnswer {
            cluster: id(),
            token: agents_token(),
            manifest: Some(manifest("process", settings())),
        }),
        _ => Answer::Failure(failure(FailureCode::NotFound, "there is no cluster \"gpus\"", "")),
    });
    let did = join(&fake, &server(&[(NODE, gpu_node())]), &[]);
    assert!(did.code == 1 && did.err.ends_with("error: there is no cluster \"gpus\""), "{}", did.err);
}

#[test]
fn a_namespace_of_others_keeps_what_it_says_of_itself() {
    let labels = json!({ "app.kubernetes.io/managed-by": "Helm" });
    let namespace = json!({ "metadata": { "name": "levers9", "labels": labels } });
    let server = server(&[(NODE, gpu_node()), ("/api/v1/namespaces/levers9", namespace)]);
    let did = join(&controlplane("process", CP, true), &server, &[]);
    assert_eq!(did.code, 0, "{}", did.err);
    // What was applied over it; a real server keeps the rest.
    let applied = server.object("/api/v1/namespaces/levers9").unwrap()["metadata"]["labels"].clone();
    assert_eq!(applied, json!({ "levers9/cluster": super::ID }));
}

#[test]
fn a_kubeconfig_that_is_none_is_said_before_anything_is_asked() {
    let home = Home::new().with_context("here", CP);
    let join = |kubeconfig: &str, more: &[&str]| {
        let args = [&["-c", "here", "cluster", "join", "gpus", "--gpu", "L40S"], more].concat();
        let did = home.run_with(&args, &[("KUBECONFIG", kubeconfig)], "");
        assert_eq!((did.code, did.out.as_str()), (1, ""), "{}", did.err);
        did.err
    };
    let nowhere = home.path().join("nowhere").to_str().unwrap().to_owned();
    let err = join(&nowhere, &[]);
    assert!(
        err.starts_with("error: there is no kubeconfig at [HOME]/nowhere\nhint: point KUBECONFIG at one"),
        "{err}"
    );
    let broken = home.path().join("broken");
    std::fs::write(&broken, "users:\n- user:\n    token: hunter2\n  - bad: [\n").unwrap();
    assert_eq!(
        join(broken.to_str().unwrap(), &[]),
        format!(
            "error: the kubeconfig cannot be understood: line 4, column 5: this is no YAML, or not that of a \
             kubeconfig\nhint: {ELSEWHERE}"
        )
    );
    let server = server(&[]);
    let err = join(&server.kubeconfig(&home), &["--kube-context", "prod"]);
    assert_eq!(
        err,
        format!("error: the kubeconfig has no context \"prod\"\nhint: there are lab; {ELSEWHERE}")
    );
    let plugin = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", "echo hunter2; echo 'please log in' >&2; exit 3"] } });
    let path = home.path().join("plugin");
    std::fs::write(&path, kubeconfig(&server.url(), &plugin)).unwrap();
    assert_eq!(
        join(path.to_str().unwrap(), &[]),
        format!(
            "error: the kube context \"lab\" cannot be used: the credential plugin failed with exit status: 3: \
             please log in\nhint: its credential plugin is \"sh\"; does it work with kubectl? \
             kubectl --context lab get nodes; {ELSEWHERE}"
        )
    );
}
