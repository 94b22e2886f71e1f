//! What a kubelet hears of pods, and says of its nodes, whether the API server
//! is there or not.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ::kube::core::WatchEvent;
use futures_util::TryStreamExt as _;
use http::Request;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::state::Shared;
use crate::kube::node;

/// The pause before an API server that was lost is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// How often a node says that it is there.
const BEAT: Duration = Duration::from_secs(2);
/// How long a node is said to be there from then on.
const LEASE_SECONDS: u32 = 40;

/// Follows all pods of the cluster, for ever.
pub(super) async fn follow(shared: Arc<Shared>) {
    loop {
        // Why a round ended changes nothing: what there is is asked for anew.
        let _lost = round(&shared).await;
        tokio::time::sleep(AGAIN).await;
    }
}

async fn round(shared: &Arc<Shared>) -> Result<(), ::kube::Error> {
    let client = shared.api.client();
    let list: Value = client.request(asking("/api/v1/pods")).await?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    shared.replace(list["items"].as_array().cloned().unwrap_or_default());
    let path = format!("/api/v1/pods?watch=true&resourceVersion={version}&timeoutSeconds=300");
    let mut events = pin!(client.request_events::<Value>(asking(&path)).await?);
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => shared.put(pod),
            WatchEvent::Deleted(pod) => shared.remove(&pod),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(_) => return Ok(()),
        }
    }
    Ok(())
}

/// Says that the nodes are there, for ever.
pub(super) async fn beat(shared: Arc<Shared>) {
    loop {
        beat_once(&shared).await;
        tokio::time::sleep(BEAT).await;
    }
}

/// Says that the nodes are there, and where this kubelet is.
pub(super) async fn beat_once(shared: &Shared) {
    let (nodes, paused) = {
        let state = shared.state();
        (state.nodes.clone(), state.paused)
    };
    for node in nodes.iter().filter(|_| !paused) {
        // A server that is away hears it at the next beat.
        let _away = say(shared, node).await;
    }
}

/// Renews a node's lease, and says that it is ready where others have given it up.
async fn say(shared: &Shared, name: &str) -> Result<(), ::kube::Error> {
    let client = shared.api.client();
    let found: Value = client.request(asking(&format!("/api/v1/nodes/{name}"))).await?;
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name, "namespace": "kube-node-lease" },
        "spec": { "holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now },
    });
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}");
    let path = format!("{path}?fieldManager=kubelet&force=true");
    let _renewed: Value = client.request(patching(&path, "application/apply-patch+yaml", &lease)).await?;
    let mut status = json!({});
    if found["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] != shared.door {
        status["daemonEndpoints"] = json!({ "kubeletEndpoint": { "Port": shared.door } });
    }
    let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    // A test may have said that it is not ready; only what the control plane does not know is mended.
    if conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "Unknown") {
        status["conditions"] = json!([node::condition("Ready", "True")]);
    }
    if status != json!({}) {
        let patch = json!({ "status": status });
        let path = format!("/api/v1/nodes/{name}/status");
        let content = "application/strategic-merge-patch+json";
        let _said: Value = client.request(patching(&path, content, &patch)).await?;
    }
    Ok(())
}

fn asking(path: &str) -> Request<Vec<u8>> {
    Request::get(path).body(Vec::new()).expect("a request")
}

fn patching(path: &str, content: &str, body: &Value) -> Request<Vec<u8>> {
    let request = Request::patch(path).header("content-type", content);
    request.body(body.to_string().into_bytes()).expect("a request")
}
