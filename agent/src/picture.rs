//! What the agent sees of the cluster, as the API server last showed it, and
//! what it says of that. The watches feed it facts, the session asks for
//! reports, orders ask for room. Pure: it takes the time as an argument and
//! does no I/O.
//!
//! A watch is replayed like this; the agent's own watches do the same:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use levers9_agent::capacity::Terms;
//! use levers9_agent::picture::Picture;
//! use levers9_agent::picture::facts::{Eye, Kind};
//! use levers9_agent::picture::lent::Lent;
//! use tokio::time::Instant;
//!
//! let eye = Eye { lent: Lent::read(["pool=a"]), terms: Terms::new("levers9", "a cluster's id") };
//! let mut picture = Picture::new(eye.lent.problem());
//! // What the lists said: objects as JSON, as the API server writes them.
//! let node = r#"{"metadata": {"name": "n", "labels": {"pool": "a"}}, "status": {"allocatable": {"cpu": "4"}}}"#;
//! picture.replace(Kind::Nodes, vec![eye.read(Kind::Nodes, node)?], Instant::now());
//! picture.replace(Kind::Pods, Vec::new(), Instant::now());
//! picture.replace(Kind::Jobs, Vec::new(), Instant::now());
//! // What the watches say from then on.
//! let pod = r#"{"metadata": {"name": "p", "namespace": "x"}, "spec": {"nodeName": "n", "containers": []}}"#;
//! let fact = eye.read(Kind::Pods, pod)?;
//! picture.put(fact.clone());
//! picture.remove(&fact);
//! picture.proved(Kind::Pods, Instant::now());
//! // Once a second where something came, and for every report.
//! picture.settle();
//! let report = picture.report(Instant::now(), 0, Duration::ZERO);
//! assert_eq!((report.nodes.len(), report.nodes_in_cluster), (1, 1));
//! # Ok(())
//! # }
//! ```

pub mod books;
pub mod facts;
pub mod freshness;
pub mod jobs;
pub mod lent;
pub mod own;

use levers9_wire::{limits, name, v1};
use prost::Message as _;
use std::time::Duration;
use tokio::time::Instant;

use books::Books;
use facts::{Fact, Kind};
use freshness::Freshness;
use jobs::Jobs;

/// Room in a report's frame for all that is not nodes.
const ROOM: usize = 64 * 1024;
/// The age of a picture that says nothing any more: no worker is placed by it.
pub const STALE: Duration = Duration::from_secs(90);

/// What the agent sees.
#[derive(Debug, Default)]
pub struct Picture {
    /// The nodes and what is held of them.
    pub books: Books,
    /// The worker Jobs.
    pub jobs: Jobs,
    /// How old all of it is.
    pub freshness: Freshness,
    /// What is wrong for as long as the agent runs: its selector.
    standing: Option<String>,
    /// What is wrong with reaching the API server at all.
    access: Option<String>,
    /// Rises whenever something that matters has changed.
    revision: u64,
}

impl Picture {
    /// Nothing seen yet; `standing` is what is wrong whatever comes.
    #[must_use]
    pub fn new(standing: Option<String>) -> Self {
        Self { standing, ..Self::default() }
    }

    /// Everything of a kind was listed, as it was at `asked`.
    pub fn replace(&mut self, kind: Kind, facts: Vec<Fact>, asked: Instant) {
        match kind {
            Kind::Nodes => {
                let node = |fact| if let Fact::Node(node) = fact { Some(node) } else { None };
                self.books.replace_nodes(facts.into_iter().filter_map(node).collect());
            }
            Kind::Pods => {
                let pod = |fact| if let Fact::Pod(pod) = fact { Some(pod) } else { None };
                let mut pods: Vec<_> = facts.into_iter().filter_map(pod).collect();
                let own = |pod: &mut facts::PodFacts| Some((pod.key.clone(), *pod.own.take()?));
                self.jobs.replace_pods(pods.iter_mut().filter_map(own).collect());
                self.books.replace_pods(pods);
            }
            Kind::Jobs => {
                let job = |fact| if let Fact::Job(job) = fact { job } else { None };
                self.jobs.replace_jobs(facts.into_iter().filter_map(job).collect());
            }
        }
        self.proved(kind, asked);
    }

    /// Something came or changed.
    pub fn put(&mut self, fact: Fact) {
        match fact {
            Fact::Node(node) => self.books.put_node(node),
            Fact::Pod(mut pod) => {
                match pod.own.take() {
                    Some(own) => self.jobs.put_pod(&pod.key, *own),
                    None => self.jobs.remove_pod(&pod.key),
                }
                self.books.put_pod(pod);
            }
            Fact::Job(Some(job)) => self.jobs.put_job(job),
            Fact::Job(None) => {}
        }
    }

    /// Something is gone.
    pub fn remove(&mut self, fact: &Fact) {
        match fact {
            Fact::Node(node) => self.books.remove_node(&node.name),
            Fact::Pod(pod) => {
                self.jobs.remove_pod(&pod.key);
                self.books.remove_pod(&pod.key);
            }
            Fact::Job(Some(job)) => self.jobs.remove_job(job),
            Fact::Job(None) => {}
        }
    }

    /// The API server has proved what is known of a kind.
    pub fn proved(&mut self, kind: Kind, at: Instant) {
        if self.freshness.proved(kind, at) {
            self.revision += 1;
        }
        if kind == Kind::Jobs {
            self.jobs.forget_ordered(at);
        }
    }

    /// A watch cannot be kept. Returns whether that is news.
    pub fn failed(&mut self, kind: Kind, problem: &str) -> bool {
        let news = self.freshness.failed(kind, problem);
        self.revision += u64::from(news);
        news
    }

    /// There is no way to the API server, or there is one. Returns whether that is news.
    pub fn access(&mut self, problem: Option<String>) -> bool {
        let news = self.access != problem;
        self.access = problem;
        self.revision += u64::from(news);
        news
    }

    /// Counts what has changed. Returns what could not be read, by node.
    pub fn settle(&mut self) -> Vec<(String, String)> {
        let books = self.books.settle();
        let jobs = self.jobs.settle();
        self.revision += u64::from(books.changed || jobs);
        books.unreadable
    }

    /// Rises whenever something that matters has changed, as of the last
    /// [`Picture::settle`].
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether there is anything to say: everything was listed, or cannot be.
    #[must_use]
    pub fn says_something(&self) -> bool {
        self.freshness.complete() || self.problem().is_some()
    }

    /// Whether everything was listed and nothing keeps it from being seen.
    #[must_use]
    pub fn sees(&self) -> bool {
        self.freshness.complete() && self.problem().is_none()
    }

    /// The age of the picture, unless something was not listed yet.
    #[must_use]
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.freshness.age(now)
    }

    fn problem(&self) -> Option<String> {
        let parts = self.standing.iter().chain(&self.access).map(String::as_str);
        let parts: Vec<&str> = parts.chain(self.freshness.problems()).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// What is reported, as of the last [`Picture::settle`], at `now` on this
    /// process's clock, `now_ms` on the API server's in Unix milliseconds and
    /// `uptime` after the process began.
    #[must_use]
    pub fn report(&self, now: Instant, now_ms: i64, uptime: Duration) -> v1::NodeReport {
        let mut problems: Vec<String> = self.problem().into_iter().collect();
        let ms = |age: Option<Duration>| u64::try_from(age.unwrap_or(uptime).as_millis()).unwrap_or(u64::MAX);
        let mut report = v1::NodeReport {
            age_ms: ms(self.freshness.age(now)),
            jobs_age_ms: ms(self.freshness.jobs_age(now)),
            nodes_in_cluster: u32::try_from(self.books.nodes()).unwrap_or(u32::MAX),
            ..v1::NodeReport::default()
        };
        if self.freshness.complete() {
            report.nodes = self.books.states().take(limits::NODES).cloned().collect();
            report.jobs = self.jobs.wire(now_ms).take(limits::JOBS).collect();
            let lent = self.books.states().count();
            if let Some(words) = fit(&mut report, lent) {
                problems.push(words);
            }
        } else if problems.is_empty() {
            problems.push("the API server has not listed everything yet".to_owned());
        }
        report.problem = name::printable(&problems.join("; "), limits::TEXT / 4);
        report
    }
}

/// Leaves out of a report what does not fit its frame, and says so.
fn fit(report: &mut v1::NodeReport, lent: usize) -> Option<String> {
    let fits = |report: &v1::NodeReport| report.encoded_len() <= limits::NODE_REPORT - ROOM;
    if !fits(report) {
        report.jobs.iter_mut().for_each(|job| job.reason.clear());
    }
    while !fits(report) && report.nodes.len() + report.jobs.len() > 0 {
        let keep = |count: usize| count - count.div_ceil(8);
        report.nodes.truncate(keep(report.nodes.len()));
        report.jobs.truncate(keep(report.jobs.len()));
    }
    let shown = report.nodes.len();
    (shown < lent).then(|| format!("{lent} nodes are lent, more than a report can hold; {shown} are shown"))
}

#[cfg(test)]
mod tests;
