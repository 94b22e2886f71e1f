//! Detaching a cluster, and giving its agent another token.

use levers9_wire::v1::{self, call_answer::Answer, call_open::Request};
use serde_json::{Value, json};

use super::api::{ApiServer, status};
use super::{ID, answering, id, manifest, settings};
use crate::fake::Fake;
use crate::reach::terminal::Screen;
use crate::support::{Did, token};

const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/levers9-agent-observe";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const SECRET: &str = "/api/v1/namespaces/levers9/secrets/levers9-agent";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/levers9/deployments/levers9-agent";
const JOBS: &str = "/apis/batch/v1/namespaces/levers9/jobs";

fn controlplane() -> Fake {
    answering(|request, _| {
        let manifest = Some(manifest("process", settings()));
        match request {
            Request::ClusterShow(_) => Answer::ClusterShow(v1::ClusterShowAnswer { manifest }),
            Request::ClusterRotateToken(_) => Answer::ClusterRotateToken(v1::ClusterRotateTokenAnswer {
                cluster: id(),
                token: token('n'),
                namespace: "levers9".to_owned(),
                old_until_unix_ms: levers9_wire::clock::unix_millis() + 86_400_000,
            }),
            _ => Answer::ClusterLeave(v1::ClusterLeaveAnswer { manifest, workers: 1, tasks: 2 }),
        }
    })
}

fn run(fake: &Fake, server: &ApiServer, args: &[&str]) -> Did {
    let home = crate::home(fake);
    let kubeconfig = server.kubeconfig(&home);
    home.run_with(args, &[("KUBECONFIG", &kubeconfig)], "")
}

fn of(cluster: &str, more: &Value) -> Value {
    let mut object = more.clone();
    object["metadata"] =
        json!({ "name": "x", "uid": "u", "labels": { "levers9/cluster": cluster, "app": "x" } });
    object
}

fn binding(cluster: &str) -> Value {
    let to = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "levers9-agent-observe" });
    of(cluster, &json!({ "roleRef": to }))
}

/// What an attached cluster holds, and what is beside it.
fn objects() -> Vec<(String, Value)> {
    let other = "019a0c1e-0000-7000-8000-000000000000";
    let inside = |group: &str, name: &str| format!("{group}/namespaces/levers9/{name}");
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    vec![
        (ROLE.to_owned(), of(ID, &json!({}))),
        (format!("{BINDINGS}/levers9-agent-observe-levers9"), binding(ID)),
        (DEPLOYMENT.to_owned(), of(ID, &json!({}))),
        (SECRET.to_owned(), of(ID, &json!({}))),
        (inside("/api/v1", "serviceaccounts/levers9-agent"), of(ID, &json!({}))),
        (inside(rbac, "roles/levers9-agent-launch"), of(ID, &json!({}))),
        // Somebody made this one their own.
        (inside(rbac, "rolebindings/levers9-agent-launch"), of(other, &json!({}))),
        (format!("{JOBS}/one"), of(ID, &json!({}))),
        (format!("{JOBS}/theirs"), of(other, &json!({}))),
    ]
}

fn server(more: &[(String, Value)]) -> ApiServer {
    let all = [objects(), more.to_vec()].concat();
    let all: Vec<(&str, Value)> = all.iter().map(|(path, object)| (path.as_str(), object.clone())).collect();
    ApiServer::start(&all, |_| None)
}

#[test]
fn without_a_terminal_it_takes_a_yes() {
    let fake = controlplane();
    let server = server(&[]);
    let did = run(&fake, &server, &["cluster", "leave", "gpus"]);
    let expected = "\
error: not confirmed: detach cluster \"gpus\"? 1 worker with 2 tasks there will be lost, and its agent is \
removed from namespace \"levers9\"
hint: say so with --yes";
    assert_eq!((did.code, did.out.as_str(), did.err.as_str()), (2, "", expected));
    assert_eq!((super::did(&fake), server.asked("DELETE").len()), (vec!["ask about leaving"], 0));
}

#[test]
fn at_a_terminal_it_is_asked_and_only_a_yes_is_one() {
    let fake = controlplane();
    let home = crate::home(&fake);
    let args = ["cluster", "leave", "gpus", "--keep-agent"];
    for (keys, code) in [("\n", 1), ("no\n", 1), ("y\n", 0)] {
        let mut screen = Screen::new(24, 200);
        let mut child = screen.start(&home, &args);
        screen.shows("detach cluster \"gpus\"? 1 worker with 2 tasks there will be lost [y/N] ");
        screen.types(keys.as_bytes());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{keys:?}");
        screen.shows(if code == 0 { "is detached" } else { "nothing was done" });
    }
    let asked = "ask about leaving";
    assert_eq!(super::did(&fake), [asked, asked, asked, "leave"]);
}

#[test]
fn what_is_the_clusters_goes_and_what_is_of_others_stays() {
    let fake = controlplane();
    let server = server(&[]);
    let did = run(&fake, &server, &["cluster", "leave", "gpus", "--yes"]);
    let expected = "\
levers9: cluster \"gpus\" is detached, its token is revoked
levers9: with it 1 worker with 2 tasks there end
levers9: removed Deployment levers9/levers9-agent
levers9: removed Job levers9/x
levers9: removed Secret levers9/levers9-agent
levers9: removed Role levers9/levers9-agent-launch
levers9: removed ClusterRoleBinding levers9-agent-observe-levers9
levers9: removed ClusterRole levers9-agent-observe
levers9: removed ServiceAccount levers9/levers9-agent
levers9: namespace \"levers9\" is kept";
    let gone = did.err.replace("Job levers9/one", "Job levers9/x");
    assert_eq!((did.code, did.out.as_str(), gone.as_str()), (0, "", expected));
    assert_eq!(super::did(&fake), ["ask about leaving", "leave"]);
    let left: Vec<String> = server.paths().into_iter().filter(|path| !path.ends_with("/jobs/one")).collect();
    assert_eq!(
        left,
        [
            format!("{JOBS}/theirs"),
            "/apis/rbac.authorization.k8s.io/v1/namespaces/levers9/rolebindings/levers9-agent-launch"
                .to_owned(),
        ]
    );
}

#[test]
fn the_role_of_all_agents_stays_while_another_is_bound_to_it() {
    let server = server(&[(format!("{BINDINGS}/levers9-agent-observe-other"), binding("another"))]);
    let did = run(&controlplane(), &server, &["cluster", "leave", "gpus", "--yes", "--format", "json"]);
    let shown: Value = serde_json::from_str(&did.out).unwrap();
    assert_eq!((did.code, &shown["cluster"], &shown["workers"]), (0, &ID.into(), &1.into()));
    let removed = shown["removed"].as_array().unwrap();
    assert!(removed.contains(&"ClusterRoleBinding levers9-agent-observe-levers9".into()), "{removed:?}");
    assert!(!removed.contains(&"ClusterRole levers9-agent-observe".into()), "{removed:?}");
    assert!(server.object(ROLE).is_some());
}

#[test]
fn what_cannot_be_removed_is_left_to_do_by_hand() {
    let fake = controlplane();
    let all = objects();
    let all: Vec<(&str, Value)> = all.iter().map(|(path, object)| (path.as_str(), object.clone())).collect();
    let server = ApiServer::start(&all, |asked| {
        let refused = asked.method == "DELETE" && asked.path == SECRET;
        refused.then(|| (403, status(403, "Forbidden", "no").to_string()))
    });
    let did = run(&fake, &server, &["cluster", "leave", "gpus", "--yes"]);
    let expected = format!(
        "error: the cluster is detached, but not all of it could be removed there: context \"lab\" may not \
         delete Secret levers9/levers9-agent: no\n\
         hint: remove it by hand: kubectl -n levers9 delete \
         deployments,jobs,secrets,rolebindings,roles,serviceaccounts -l levers9/cluster={ID}; \
         kubectl delete clusterrolebinding levers9-agent-observe-levers9"
    );
    assert!(did.code == 1 && did.err.ends_with(&expected), "{}", did.err);
    assert_eq!(super::did(&fake), ["ask about leaving", "leave"]);
}

#[test]
fn the_agent_may_be_kept() {
    let fake = controlplane();
    let did = crate::home(&fake).run(&["cluster", "leave", "gpus", "--yes", "--keep-agent"]);
    let expected = "\
levers9: cluster \"gpus\" is detached, its token is revoked
levers9: with it 1 worker with 2 tasks there end
levers9: the agent's objects stay in namespace \"levers9\"; it comes in no more";
    assert_eq!((did.code, did.err.as_str()), (0, expected));
}

#[test]
fn a_new_token_goes_into_the_secret_and_nowhere_else() {
    let fake = controlplane();
    let server = server(&[]);
    let did = run(&fake, &server, &["cluster", "rotate-token", "gpus"]);
    let expected = "levers9: the new token of cluster \"gpus\" is in Secret levers9/levers9-agent\n";
    assert!(did.code == 0 && did.err.starts_with(expected) && did.out.is_empty(), "{}", did.err);
    assert!(!did.err.contains(&token('n')));
    assert_eq!(server.object(SECRET).unwrap()["stringData"]["token"], token('n'));
    assert_eq!(server.asked("PATCH"), [SECRET]);
}

#[test]
fn there_is_no_new_token_before_it_can_be_put_somewhere() {
    let fake = controlplane();
    let of_another = [(SECRET.to_owned(), of("another", &json!({})))];
    let did = run(&fake, &server(&of_another), &["cluster", "rotate-token", "gpus"]);
    let expected = "\
error: nothing was changed: the new token could not be put where the agent reads it: Secret \
levers9/levers9-agent of context \"lab\" is not this cluster's
hint: pass the context of the right cluster: --kube-context CONTEXT";
    assert_eq!((did.code, did.err.as_str()), (1, expected));
    let did = run(&fake, &ApiServer::start(&[], |_| None), &["cluster", "rotate-token", "gpus"]);
    assert!(did.code == 1 && did.err.contains("is not in the cluster of context \"lab\""), "{}", did.err);
    let forbidden = ApiServer::start(&[(SECRET, of(ID, &json!({})))], |asked| {
        let mut review = asked.body.clone();
        review["status"] = json!({ "allowed": false });
        (asked.method == "POST").then(|| (201, review.to_string()))
    });
    let did = run(&fake, &forbidden, &["cluster", "rotate-token", "gpus"]);
    let expected = "context \"lab\" may not patch secrets in namespace \"levers9\"";
    assert!(did.code == 1 && did.err.contains(expected), "{}", did.err);
    assert_eq!(super::did(&fake), ["show"; 3]);
}

#[test]
fn an_agent_that_was_installed_without_its_secret_gets_one() {
    let fake = controlplane();
    let server = ApiServer::start(&[(DEPLOYMENT, of(ID, &json!({})))], |_| None);
    let did = run(&fake, &server, &["cluster", "rotate-token", "gpus", "--format", "json"]);
    let shown: Value = serde_json::from_str(&did.out).unwrap();
    assert_eq!((did.code, &shown["namespace"]), (0, &"levers9".into()));
    let secret = server.object(SECRET).unwrap();
    assert_eq!(secret["metadata"]["labels"]["levers9/cluster"], ID);
    assert!(secret["data"]["token"].as_str().is_some_and(|token| token.starts_with("bDlf")), "{secret}");
}

#[test]
fn a_token_that_could_not_be_put_there_is_in_a_private_file() {
    let fake = controlplane();
    let server = ApiServer::start(&[(SECRET, of(ID, &json!({})))], |asked| {
        (asked.method == "PATCH").then(|| (500, status(500, "InternalError", "etcd is away").to_string()))
    });
    let home = crate::home(&fake);
    let kubeconfig = server.kubeconfig(&home);
    let did = home.run_with(&["cluster", "rotate-token", "gpus"], &[("KUBECONFIG", &kubeconfig)], "");
    let file = home.path().join(".levers9/gpus.token-patch.json");
    assert!(did.code == 1 && !did.err.contains(&token('n')), "{}", did.err);
    assert!(did.err.contains("--patch-file [HOME]/.levers9/gpus.token-patch.json"), "{}", did.err);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert!(std::fs::read_to_string(&file).unwrap().contains(&token('n')));
}
