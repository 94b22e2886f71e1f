//! The API of a cluster as plain blocking calls on JSON values: what tests ask
//! and do as somebody. Each answer is what the server said, or [`Refused`];
//! nothing is tried twice, so that a test sees what its user would see.

use std::fmt;
use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use ::kube::Client;
use ::kube::config::{Config, KubeConfigOptions, Kubeconfig};
use http::{Method, Request};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::resource::Resource;
use crate::wait;

/// The longest an answer may take.
const ANSWER: Duration = Duration::from_secs(20);
/// Who the tests apply as.
const MANAGER: &str = "levers9-tests";

/// Runs a future to its end, from a thread that is in no runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    runtime().block_on(future)
}

/// The runtime below all the blocking calls.
pub(super) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).thread_name("kube").enable_all().build().expect("a runtime")
    })
}

/// What the server refused, or why it could not be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The HTTP status; 0 when there was no answer.
    pub code: u16,
    /// What it said.
    pub message: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Refused {}

impl From<::kube::Error> for Refused {
    fn from(error: ::kube::Error) -> Self {
        match error {
            ::kube::Error::Api(status) => Self { code: status.code, message: status.message.clone() },
            other => Self { code: 0, message: chain(&other) },
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", chain(source)))
}

/// The API as somebody sees it.
#[derive(Clone)]
pub struct Api {
    client: Client,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

impl Api {
    /// As whom a kubeconfig is for.
    pub(super) fn of(kubeconfig: &str) -> Self {
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig).expect("a kubeconfig");
        let client = block_on(async {
            let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
            Client::try_from(config.expect("a configuration")).expect("a client")
        });
        Self { client }
    }

    /// The client below, for what is not here; use it in [`block_on`].
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Any request.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn request(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Result<Value, Refused> {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header("content-type", content);
        let request = request.body(body).expect("a request");
        let text = block_on(async {
            let answer = tokio::time::timeout(ANSWER, self.client.request_text(request)).await;
            let late = |_| Refused { code: 0, message: format!("no answer within {ANSWER:?}") };
            answer.map_err(late)?.map_err(Refused::from)
        })?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Any path, such as `/version` or `/readyz`.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn read(&self, path: &str) -> Result<Value, Refused> {
        self.request(Method::GET, path, "application/json", None)
    }

    /// One object, by its plural: `get("pods", "default", "web")`.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Result<Value, Refused> {
        self.read(&Resource::named(plural).one(namespace, name))
    }

    /// All objects of a namespace, or of all when it is empty.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn list(&self, plural: &str, namespace: &str) -> Result<Vec<Value>, Refused> {
        self.list_where(plural, namespace, "")
    }

    /// Those whose labels are so: `a=b,c`.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn list_where(&self, plural: &str, namespace: &str, labels: &str) -> Result<Vec<Value>, Refused> {
        let resource = Resource::named(plural);
        let labels = labels.replace('=', "%3D").replace(',', "%2C");
        let list = self.read(&format!("{}?labelSelector={labels}", resource.all(namespace)))?;
        let mut items = list["items"].as_array().cloned().unwrap_or_default();
        for item in &mut items {
            // As a single object says it.
            item["kind"] = json!(resource.kind);
            item["apiVersion"] = json!(resource.version);
        }
        Ok(items)
    }

    /// Makes an object.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn create(&self, object: &Value) -> Result<Value, Refused> {
        let path = Resource::of(object).all(namespace_of(object));
        self.request(Method::POST, &path, "application/json", Some(object))
    }

    /// Makes an object or what is said of it, as `kubectl apply --server-side` does.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn apply(&self, object: &Value) -> Result<Value, Refused> {
        let name = object["metadata"]["name"].as_str().expect("what is applied has a name");
        let path = Resource::of(object).one(namespace_of(object), name);
        let path = format!("{path}?fieldManager={MANAGER}&force=true");
        self.request(Method::PATCH, &path, "application/apply-patch+yaml", Some(object))
    }

    /// Applies each object of some YAML, in its order.
    ///
    /// # Errors
    /// What the server refuses first.
    ///
    /// # Panics
    /// When it is no YAML.
    pub fn apply_yaml(&self, text: &str) -> Result<Vec<Value>, Refused> {
        objects(text).iter().map(|object| self.apply(object)).collect()
    }

    /// Changes an object or its subresource (`/status` after the name) by a merge.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn merge(&self, plural: &str, namespace: &str, name: &str, patch: &Value) -> Result<Value, Refused> {
        let path = Resource::named(plural).one(namespace, name);
        self.request(Method::PATCH, &path, "application/merge-patch+json", Some(patch))
    }

    /// Changes an object as [`Api::merge`], with lists merged by their keys.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn strategic(
        &self,
        plural: &str,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Value, Refused> {
        let path = Resource::named(plural).one(namespace, name);
        self.request(Method::PATCH, &path, "application/strategic-merge-patch+json", Some(patch))
    }

    /// Deletes an object, with what hangs on it in the background.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str) -> Result<Value, Refused> {
        self.delete_with(plural, namespace, name, &json!({ "propagationPolicy": "Background" }))
    }

    /// Deletes an object with these `DeleteOptions`.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn delete_with(
        &self,
        plural: &str,
        namespace: &str,
        name: &str,
        options: &Value,
    ) -> Result<Value, Refused> {
        let path = Resource::named(plural).one(namespace, name);
        self.request(Method::DELETE, &path, "application/json", Some(options))
    }

    /// Waits until an object is as wanted, and returns it.
    ///
    /// # Panics
    /// When it is not within that time, with what it was last.
    pub fn wait(
        &self,
        plural: &str,
        namespace: &str,
        name: &str,
        within: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        wait::until(&format!("{plural} {namespace}/{name} is as wanted"), within, || {
            let object = self.get(plural, namespace, name).map_err(|refused| refused.to_string())?;
            if wanted(&object) { Ok(object) } else { Err(format!("{object:#}")) }
        })
    }

    /// Waits until an object is not there.
    ///
    /// # Panics
    /// When it still is after that time.
    pub fn wait_gone(&self, plural: &str, namespace: &str, name: &str, within: Duration) {
        wait::until(&format!("{plural} {namespace}/{name} is gone"), within, || {
            match self.get(plural, namespace, name) {
                Err(refused) if refused.code == 404 => Ok(()),
                Err(refused) => Err(refused.to_string()),
                Ok(object) => Err(format!("{object:#}")),
            }
        });
    }
}

/// The objects of some YAML; documents that say nothing are left out.
fn objects(text: &str) -> Vec<Value> {
    use serde::Deserialize as _;
    let parse = |document| Value::deserialize(document).unwrap_or_else(|error| panic!("{error} in:\n{text}"));
    let documents = serde_yaml_ng::Deserializer::from_str(text).map(parse);
    documents.filter(|object| !object.is_null()).collect()
}

fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}
