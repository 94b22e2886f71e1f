//! A Kubernetes API server of a few lines: it keeps what is applied and lists
//! it, allows everything, and answers otherwise where a test says so. The
//! tests of the workspace use a real one; this one can fail on demand.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::Home;

/// A request, as far as answers depend on it.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// Without the query.
    pub(crate) path: String,
    query: String,
    pub(crate) body: Value,
}

/// Decides about a request instead of the server: a status and a body.
type Answers = dyn Fn(&Asked) -> Option<(u16, String)> + Send + Sync;

struct Inner {
    objects: Mutex<BTreeMap<String, Value>>,
    asked: Mutex<Vec<Asked>>,
    answers: Box<Answers>,
}

/// A running server; its threads end with the test's process.
pub(crate) struct ApiServer {
    inner: Arc<Inner>,
    place: SocketAddr,
}

impl ApiServer {
    /// Starts one that holds these objects, by their paths.
    pub(crate) fn start(
        objects: &[(&str, Value)],
        answers: impl Fn(&Asked) -> Option<(u16, String)> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        let objects = objects.iter().map(|(path, object)| ((*path).to_owned(), object.clone())).collect();
        let inner = Arc::new(Inner {
            objects: Mutex::new(objects),
            asked: Mutex::default(),
            answers: Box::new(answers),
        });
        let shared = Arc::clone(&inner);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let inner = Arc::clone(&shared);
                std::thread::spawn(move || inner.serve(stream));
            }
        });
        Self { inner, place }
    }

    /// Where it is, as messages say it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.place)
    }

    /// What to call a command with so that it uses this server, as context `lab`.
    pub(crate) fn kubeconfig(&self, home: &Home) -> String {
        let path = home.path().join("kubeconfig");
        let user = json!({ "token": "kubernetes-token" });
        std::fs::write(&path, kubeconfig(&self.url(), &user)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// What was asked with a method, by paths.
    pub(crate) fn asked(&self, method: &str) -> Vec<String> {
        let asked = self.inner.asked.lock().unwrap();
        asked.iter().filter(|asked| asked.method == method).map(|asked| asked.path.clone()).collect()
    }

    /// An object that is there now.
    pub(crate) fn object(&self, path: &str) -> Option<Value> {
        self.inner.objects.lock().unwrap().get(path).cloned()
    }

    /// The paths of all objects.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.inner.objects.lock().unwrap().keys().cloned().collect()
    }
}

/// The text of a kubeconfig with one context, `lab`.
pub(crate) fn kubeconfig(server: &str, user: &Value) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{ "name": "c", "cluster": { "server": server } }],
        "users": [{ "name": "u", "user": user }],
        "contexts": [{ "name": "lab", "context": { "cluster": "c", "user": "u" } }],
    });
    config.to_string()
}

impl Inner {
    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut writer = stream;
        while let Some(asked) = read(&mut reader) {
            self.asked.lock().unwrap().push(asked.clone());
            let (code, body) = (self.answers)(&asked).unwrap_or_else(|| self.answer(&asked));
            let head = format!("HTTP/1.1 {code} X\r\ncontent-type: application/json\r\n");
            let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
            if writer.write_all(text.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn answer(&self, asked: &Asked) -> (u16, String) {
        let Asked { method, path, body, .. } = asked;
        let mut objects = self.objects.lock().unwrap();
        let (code, answer) = match method.as_str() {
            "GET" if path == "/version" => (200, version()),
            "POST" => {
                let mut review = body.clone();
                review["status"] = json!({ "allowed": true });
                (201, review)
            }
            "PATCH" => {
                let mut object = body.clone();
                object["metadata"]["uid"] = Value::from(path.as_str());
                objects.insert(path.clone(), object.clone());
                (200, object)
            }
            "DELETE" => match objects.remove(path) {
                Some(_) => (200, json!({ "kind": "Status", "status": "Success" })),
                None => (404, status(404, "NotFound", "there is none")),
            },
            _ if is_collection(path) => (200, list(&objects, asked)),
            _ => match objects.get(path) {
                Some(object) => (200, object.clone()),
                None => (404, status(404, "NotFound", "there is none")),
            },
        };
        (code, answer.to_string())
    }
}

/// A refusal in the API's own form.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
            "reason": reason, "message": message })
}

fn version() -> Value {
    let mut version = json!({ "major": "1", "minor": "33", "gitVersion": "v1.33.1" });
    for field in ["gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"] {
        version[field] = Value::from("x");
    }
    version
}

fn is_collection(path: &str) -> bool {
    let kinds = ["nodes", "pods", "jobs", "clusterrolebindings"];
    path.rsplit('/').next().is_some_and(|last| kinds.contains(&last))
}

fn list(objects: &BTreeMap<String, Value>, asked: &Asked) -> Value {
    let selector = asked.query.split('&').find_map(|pair| pair.strip_prefix("labelSelector="));
    let selector = selector.map(|text| text.replace("%2F", "/").replace("%3D", "=")).unwrap_or_default();
    let fits = |object: &Value| match selector.split_once('=') {
        Some((key, value)) => object["metadata"]["labels"][key] == value,
        None => true,
    };
    let below = format!("{}/", asked.path);
    let items: Vec<&Value> = objects
        .iter()
        .filter(|(path, object)| path.starts_with(&below) && fits(object))
        .map(|(_, object)| object)
        .collect();
    json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items })
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok().filter(|read| *read > 0)?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(text) = header.strip_prefix("content-length:") {
            length = text.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    Some(Asked { method, path: path.to_owned(), query: query.to_owned(), body })
}
