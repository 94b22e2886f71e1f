//! Kubeconfig files that hold all they need. JSON is YAML.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::pki::Identity;

/// What a kubeconfig shows the API server.
#[derive(Debug)]
pub(super) enum Credentials {
    /// A client certificate.
    Certificate(Identity),
    /// A certificate whose bearer acts as another: user and groups.
    Impersonating(Identity, String, Vec<String>),
}

/// The text of a kubeconfig with one context, `test`.
pub(super) fn text(server: &str, authority: &str, credentials: &Credentials, namespace: &str) -> String {
    let encode = |text: &str| STANDARD.encode(text);
    let certificate = |identity: &Identity| {
        json!({
            "client-certificate-data": encode(&identity.certificate),
            "client-key-data": encode(&identity.key),
        })
    };
    let user = match credentials {
        Credentials::Certificate(identity) => certificate(identity),
        Credentials::Impersonating(identity, user, groups) => {
            let mut shown = certificate(identity);
            shown["as"] = Value::from(user.as_str());
            shown["as-groups"] = json!(groups);
            shown
        }
    };
    let cluster = json!({ "server": server, "certificate-authority-data": encode(authority) });
    let context = json!({ "cluster": "test", "user": "test", "namespace": namespace });
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "test", "cluster": cluster }],
        "users": [{ "name": "test", "user": user }],
        "contexts": [{ "name": "test", "context": context }],
        "current-context": "test",
    });
    format!("{config:#}\n")
}
