//! How the double answers one request.

use std::collections::BTreeMap;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use http::header::{AUTHORIZATION, DATE};
use http::{Method, Request, Response};
use http_body::Body as _;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::rfc2822;
use kube::client::Body;
use serde_json::{Value, json};

use super::watch::{Pieces, follow};
use super::{Answer, Asked, Double, is_selected, key_of};

pub(super) async fn answer(double: Arc<Double>, request: Request<Body>) -> Answer {
    let (parts, body) = request.into_parts();
    let body = read(body).await;
    let asked = Asked {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: query(parts.uri.query().unwrap_or_default()),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        code: None,
    };
    let said = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (nth, away, hangs, stranger) = {
        let mut state = double.state();
        state.asked.push(asked.clone());
        let stranger = state.faults.token.as_ref().is_some_and(|t| said != Some(format!("Bearer {t}")));
        (state.asked.len() - 1, state.faults.away, state.faults.hangs, stranger)
    };
    if away {
        return Err("connection refused".into());
    }
    if hangs {
        return pending().await;
    }
    let answered =
        if stranger { status(401, "Unauthorized", "Unauthorized") } else { route(&double, &asked) };
    let Some((code, body)) = answered else { return Err("connection reset by peer".into()) };
    double.state().asked[nth].code = Some(code);
    let body = match body {
        Said::Whole(value) => Pieces::whole(&value),
        Said::Watch => follow(double.clone(), &asked),
    };
    let response = Response::builder().status(code).header(DATE, date(&double));
    Ok(response.body(body)?)
}

/// What is said in an answer.
enum Said {
    Whole(Value),
    Watch,
}

/// Nothing where the connection breaks.
type Answered = Option<(u16, Said)>;

fn whole(code: u16, value: Value) -> Answered {
    Some((code, Said::Whole(value)))
}

fn status(code: u16, reason: &str, message: &str) -> Answered {
    whole(code, json!({ "kind": "Status", "code": code, "reason": reason, "message": message }))
}

fn route(double: &Double, asked: &Asked) -> Answered {
    let words: Vec<&str> = asked.path.trim_start_matches('/').split('/').collect();
    match (&asked.method, words.as_slice()) {
        (&Method::GET, ["version"]) => whole(200, json!({ "gitVersion": "v1.99.0" })),
        (&Method::GET, ["api", "v1", "nodes"]) => list(double, asked, "nodes"),
        (&Method::GET, ["api", "v1", "pods"]) => list(double, asked, "pods"),
        (&Method::GET, [.., "namespaces", _, "jobs"]) => list(double, asked, "jobs"),
        (&Method::GET, [.., "namespaces", _, "jobs", name]) => match double.get("jobs", name) {
            Some(job) => whole(200, job),
            None => status(404, "NotFound", "there is no such Job"),
        },
        (&Method::POST, [.., "namespaces", _, "jobs"]) => create(double, &asked.body),
        (&Method::DELETE, [.., "namespaces", _, "jobs", name]) => delete(double, name, &asked.body),
        _ => status(405, "MethodNotAllowed", "not here"),
    }
}

fn list(double: &Double, asked: &Asked, plural: &'static str) -> Answered {
    let state = double.state();
    let selector = asked.query.get("labelSelector");
    if asked.is_watch() {
        let from: u64 = asked.query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or_default();
        if from < state.oldest {
            return status(410, "Expired", "too old resource version");
        }
        return Some((200, Said::Watch));
    }
    if state.faults.garbage {
        return whole(200, json!({ "metadata": { "resourceVersion": "1" }, "items": [7] }));
    }
    let limit: usize = asked.query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    let (version, skip) = match asked.query.get("continue") {
        None => (state.version, 0),
        Some(token) => {
            let (version, skip) = token.split_once('-').unwrap();
            (version.parse().unwrap(), skip.parse().unwrap())
        }
    };
    if version < state.oldest {
        return status(410, "Expired", "the continue parameter is too old");
    }
    let all = state.objects.iter().filter(|((p, _), object)| *p == plural && is_selected(object, selector));
    let mut rest = all.map(|(_, object)| object.clone()).skip(skip);
    let items: Vec<Value> = rest.by_ref().take(limit).collect();
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if rest.next().is_some() {
        metadata["continue"] = json!(format!("{version}-{}", skip + items.len()));
    }
    whole(200, json!({ "metadata": metadata, "items": items }))
}

fn create(double: &Double, job: &Value) -> Answered {
    let mut state = double.state();
    if let Some((code, reason)) = state.faults.creates {
        return status(code, reason, "no");
    }
    let key = ("jobs", key_of(job));
    if state.objects.contains_key(&key) {
        return status(409, "AlreadyExists", "a Job of that name already exists");
    }
    let mut job = job.clone();
    job["metadata"]["uid"] = json!(format!("job-{}", state.version));
    job["metadata"]["creationTimestamp"] = json!(double.timestamp());
    state.put("jobs", job.clone());
    let lost = state.faults.lost_answers > 0;
    state.faults.lost_answers = state.faults.lost_answers.saturating_sub(1);
    drop(state);
    double.changed.send_replace(());
    if lost { None } else { whole(201, job) }
}

/// Marks a Job as being deleted. It goes when the test removes it.
fn delete(double: &Double, name: &str, params: &Value) -> Answered {
    let Some(mut job) = double.get("jobs", name) else { return status(404, "NotFound", "no such Job") };
    let only = &params["preconditions"];
    for (wanted, is) in [("uid", "uid"), ("resourceVersion", "resourceVersion")] {
        if only[wanted].is_string() && only[wanted] != job["metadata"][is] {
            return status(409, "Conflict", "the precondition does not hold");
        }
    }
    job["metadata"]["deletionTimestamp"] = json!(double.timestamp());
    double.put("jobs", job.clone());
    whole(200, job)
}

fn date(double: &Double) -> String {
    let now = Timestamp::from_millisecond(double.now_ms()).unwrap();
    rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&now).unwrap()
}

async fn read(mut body: Body) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame.unwrap().into_data() {
            whole.extend_from_slice(&data);
        }
    }
    whole
}

fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (decoded(key), decoded(value))).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        let hex = more.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            (b'+', _) => bytes.push(b' '),
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).unwrap()
}
