//! A cluster's control plane: its processes, keys and ports, who may come in,
//! and namespaces. Nodes and pods are in [`super::node`] and [`super::pod`].

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::component::Component;
use super::kubeconfig::{self, Credentials};
use super::pki::{self, Authority, Identity};
use super::{Api, audit};
use crate::live::tail;
use crate::{Home, port, wait};

/// The longest the API server may take to be ready.
const READY: Duration = Duration::from_secs(60);
/// After how many seconds without a sign a node is not ready. Long, so that
/// nodes without a kubelet stay as they were made.
const NODE_GRACE: u32 = 24 * 3600;
/// How many seconds a pod that says nothing of it stays on a node that is not ready.
const STAYS: u32 = 300;
/// How often another port is tried when one was taken meanwhile.
const TRIES: u32 = 5;
/// Who the tests are, unless they are somebody else.
const ADMIN: &str = "levers9-tests-admin";
/// Who the test kubelets are.
pub(super) const KUBELET: &str = "levers9-tests-kubelet";
/// The group that may do anything.
const MASTERS: &str = "system:masters";
/// What the API server is called in a cluster.
const NAMES: [&str; 6] = [
    "127.0.0.1",
    "10.0.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];
/// The controllers that the tests want; all of them would start more slowly.
const CONTROLLERS: &str = "\
    clusterrole-aggregation-controller,cronjob-controller,daemonset-controller,deployment-controller,\
    disruption-controller,garbage-collector-controller,job-controller,namespace-controller,\
    node-lifecycle-controller,pod-garbage-collector-controller,replicaset-controller,\
    resourcequota-controller,root-ca-certificate-publisher-controller,serviceaccount-controller,\
    serviceaccount-token-controller,statefulset-controller,taint-eviction-controller,\
    ttl-after-finished-controller";

/// How a cluster is to be, where it is not as usual.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Whether etcd and the API server are alone, without kube-controller-manager
    /// and kube-scheduler: ready soonest, and nothing happens by itself.
    api_only: bool,
}

impl Setup {
    /// etcd and the API server alone.
    #[must_use]
    pub fn api_only() -> Self {
        Self { api_only: true }
    }
}

/// The cluster of all tests of this program that do not harm it.
///
/// # Panics
/// When it does not start.
pub fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(Cluster::start)
}

/// A control plane that runs.
#[derive(Debug)]
pub struct Cluster {
    home: Home,
    setup: Setup,
    authority: Authority,
    admin: Identity,
    api: Api,
    port: u16,
    namespaces: AtomicU32,
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    etcd: Component,
    apiserver: Component,
    controllers: Component,
    scheduler: Component,
    etcd_port: u16,
}

impl Cluster {
    /// Starts one with all parts.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(Setup::default())
    }

    /// Starts one that is not as usual.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_with(setup: Setup) -> Self {
        let home = Home::new();
        let authority = Authority::new();
        write_keys(home.path(), &authority);
        let mut parts = Parts::new(home.path());
        let mut tries = 0;
        let port = loop {
            tries += 1;
            match parts.start_store_and_api(home.path()) {
                Ok(port) => break port,
                Err(why) => assert!(tries < TRIES, "the control plane does not start: {why}"),
            }
        };
        let server = format!("https://127.0.0.1:{port}");
        let admin = authority.client(ADMIN, Some(MASTERS));
        let credentials = Credentials::Certificate(admin.clone());
        let text = kubeconfig::text(&server, &authority.certificate, &credentials, "default");
        std::fs::write(home.path().join("admin.kubeconfig"), &text).expect("a kubeconfig is written");
        let api = Api::of(&text);
        let parts = Mutex::new(parts);
        let cluster = Self { home, setup, authority, admin, api, port, namespaces: AtomicU32::new(1), parts };
        cluster.wait_ready();
        if cluster.has_controllers() {
            cluster.start_controllers();
            cluster.start_scheduler();
        }
        cluster
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API as an administrator.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The API as a user sees it who may do what RBAC says of them.
    #[must_use]
    pub fn api_as(&self, user: &str, groups: &[&str]) -> Api {
        Api::of(&self.user_config(user, groups))
    }

    /// `https://127.0.0.1:PORT`.
    fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The port of the API server on 127.0.0.1.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of its authority, as PEM.
    pub(super) fn authority(&self) -> &str {
        &self.authority.certificate
    }

    /// The kubeconfig of an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder().join("admin.kubeconfig")
    }

    /// The kubeconfig of a user who may do what RBAC says of them. With up to
    /// one group they have a certificate of their own; with more, the
    /// administrator acts as them.
    #[must_use]
    pub fn kubeconfig_of(&self, user: &str, groups: &[&str]) -> PathBuf {
        self.keep_config(user, &self.user_config(user, groups))
    }

    /// Makes a namespace nobody else uses and returns its name. Pods can be
    /// made in it at once.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn namespace(&self) -> String {
        self.namespace_with(&json!({}))
    }

    /// Makes a namespace with labels nobody else uses.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn namespace_with(&self, labels: &Value) -> String {
        let name = format!("test-{}", self.namespaces.fetch_add(1, Ordering::Relaxed));
        let metadata = json!({ "name": name, "labels": labels });
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
        self.api.create(&namespace).expect("a namespace is made");
        if self.has_controllers() {
            self.api.wait("serviceaccounts", &name, "default", READY, |_| true);
            self.api.wait("configmaps", &name, "kube-root-ca.crt", READY, |_| true);
        } else {
            let own = json!({ "name": "default", "namespace": name });
            let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": own });
            self.api.create(&account).expect("an account is made");
            let own = json!({ "name": "kube-root-ca.crt", "namespace": name });
            let data = json!({ "ca.crt": self.authority() });
            let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": own, "data": data });
            self.api.create(&map).expect("a config map is made");
        }
        name
    }

    /// Kills the API server at once. What talks to it finds nobody.
    pub fn kill_apiserver(&self) {
        self.parts().apiserver.kill9();
    }

    /// Starts the API server again, where it was, and waits until it is ready.
    ///
    /// # Panics
    /// When it runs already or does not start.
    pub fn start_apiserver(&self) {
        let mut parts = self.parts();
        let args = apiserver_args(self.folder(), self.port, parts.etcd_port);
        parts.apiserver.start(&args);
        drop(parts);
        self.wait_ready();
    }

    fn start_scheduler(&self) {
        let config = self.component_config("system:kube-scheduler");
        let written = self.folder().join("scheduler.config");
        let scheduler = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": { "kubeconfig": config, "qps": 500, "burst": 1000 },
            "leaderElection": { "leaderElect": false },
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 2,
        });
        std::fs::write(&written, scheduler.to_string()).expect("a configuration is written");
        let args =
            vec![format!("--config={}", written.display()), "--secure-port=0".to_owned(), "--v=0".to_owned()];
        self.parts().scheduler.start(&args);
    }

    fn start_controllers(&self) {
        let config = self.component_config("system:kube-controller-manager");
        self.parts().controllers.start(&controllers_args(self.folder(), &config));
    }

    /// The ends of the logs of all parts, for a failure.
    fn said(&self) -> String {
        let parts = self.parts();
        let all = [&parts.etcd, &parts.apiserver, &parts.controllers, &parts.scheduler];
        all.map(|part| tail(&part.said(), 800).to_owned()).join("\n---\n")
    }

    /// Its folder, which is removed at the end.
    pub(super) fn folder(&self) -> &Path {
        self.home.path()
    }

    /// The API as the test kubelets have it.
    pub(super) fn kubelet_api(&self) -> Api {
        let credentials = Credentials::Certificate(self.authority.client(KUBELET, Some(MASTERS)));
        Api::of(&kubeconfig::text(&self.server(), self.authority(), &credentials, "default"))
    }

    /// What the test kubelets show the API server.
    pub(super) fn kubelet_identity(&self) -> Identity {
        self.authority.server(&["127.0.0.1"])
    }

    /// Whether nodes are watched by the control plane.
    pub(super) fn has_controllers(&self) -> bool {
        !self.setup.api_only
    }

    fn wait_ready(&self) {
        wait::until("the API server is ready", READY, || {
            if let Some(why) = self.parts().apiserver.ended() {
                panic!("{why}");
            }
            let ready = self.api.read("/readyz");
            ready.map(drop).map_err(|refused| format!("{refused}\n{}", self.parts().apiserver.said()))
        });
    }

    fn user_config(&self, user: &str, groups: &[&str]) -> String {
        let credentials = if groups.len() > 1 {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            Credentials::Impersonating(self.admin.clone(), user.to_owned(), groups)
        } else {
            Credentials::Certificate(self.authority.client(user, groups.first().copied()))
        };
        kubeconfig::text(&self.server(), self.authority(), &credentials, "default")
    }

    fn component_config(&self, user: &str) -> PathBuf {
        self.kubeconfig_of(user, &[])
    }

    fn keep_config(&self, whose: &str, text: &str) -> PathBuf {
        let path = self.folder().join(format!("{}.kubeconfig", whose.replace([':', '/'], "-")));
        std::fs::write(&path, text).expect("a kubeconfig is written");
        path
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::live::show(&format!("--- the control plane said at last:\n{}", self.said()));
        }
        let mut parts = self.parts();
        parts.scheduler.kill9();
        parts.controllers.kill9();
        parts.apiserver.kill9();
        parts.etcd.kill9();
    }
}

impl Parts {
    fn new(folder: &Path) -> Self {
        Self {
            etcd: Component::new("etcd", folder),
            apiserver: Component::new("kube-apiserver", folder),
            controllers: Component::new("kube-controller-manager", folder),
            scheduler: Component::new("kube-scheduler", folder),
            etcd_port: 0,
        }
    }

    /// Starts etcd and the API server on ports that seem free, and waits until
    /// both listen; an error when one of them could not.
    fn start_store_and_api(&mut self, folder: &Path) -> Result<u16, String> {
        self.etcd.kill9();
        self.apiserver.kill9();
        let (client, peer, api) = (port::free(), port::free(), port::free());
        self.etcd_port = client;
        self.etcd.start(&etcd_args(folder, client, peer));
        self.apiserver.start(&apiserver_args(folder, api, client));
        wait::until("the API server listens", READY, || {
            if let Some(why) = self.etcd.ended().or_else(|| self.apiserver.ended()) {
                return Ok(Err(why));
            }
            match std::net::TcpStream::connect(("127.0.0.1", api)) {
                Ok(_) => Ok(Ok(api)),
                Err(error) => Err(format!("{error}\n{}\n{}", self.etcd.said(), self.apiserver.said())),
            }
        })
    }
}

fn write_keys(folder: &Path, authority: &Authority) {
    let server = authority.server(&NAMES);
    let (signs, checks) = pki::pair();
    let files = [
        ("ca.crt", authority.certificate.as_str()),
        ("server.crt", &server.certificate),
        ("server.key", &server.key),
        ("accounts.key", &signs),
        ("accounts.pub", &checks),
        ("audit.policy", &audit::policy().to_string()),
    ];
    for (name, text) in files {
        std::fs::write(folder.join(name), text).expect("a file of the control plane is written");
    }
}

fn etcd_args(folder: &Path, client: u16, peer: u16) -> Vec<String> {
    // A start that failed for its port leaves nothing for the next.
    let data = folder.join(format!("etcd-{client}"));
    vec![
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls=http://127.0.0.1:{client}"),
        format!("--advertise-client-urls=http://127.0.0.1:{client}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
        format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
        format!("--initial-cluster=default=http://127.0.0.1:{peer}"),
        concat!("--un", "safe-no-fsync=true").to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

fn apiserver_args(folder: &Path, port: u16, etcd: u16) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        // Endpoints on loopback are refused; who is in the cluster is told the address.
        "--endpoint-reconciler-type=none".to_owned(),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        format!("--tls-cert-file={}", file("server.crt")),
        format!("--tls-private-key-file={}", file("server.key")),
        format!("--client-ca-file={}", file("ca.crt")),
        format!("--cert-dir={}", file("certificates")),
        "--authorization-mode=RBAC".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("accounts.pub")),
        format!("--service-account-signing-key-file={}", file("accounts.key")),
        format!("--audit-policy-file={}", file("audit.policy")),
        format!("--audit-log-path={}", file("audit.log")),
        format!("--default-not-ready-toleration-seconds={STAYS}"),
        format!("--default-unreachable-toleration-seconds={STAYS}"),
        "--event-ttl=10m".to_owned(),
        // Where the test kubelets answer; the names of nodes lead nowhere.
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--profiling=false".to_owned(),
        "--v=0".to_owned(),
    ]
}

fn controllers_args(folder: &Path, kubeconfig: &Path) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--controllers={CONTROLLERS}"),
        format!("--service-account-private-key-file={}", file("accounts.key")),
        format!("--root-ca-file={}", file("ca.crt")),
        format!("--node-monitor-grace-period={NODE_GRACE}s"),
        format!("--node-startup-grace-period={NODE_GRACE}s"),
        "--node-monitor-period=1s".to_owned(),
        // Each acts as an account of its own, with the rights of its role.
        "--use-service-account-credentials=true".to_owned(),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
        "--v=0".to_owned(),
    ]
}
