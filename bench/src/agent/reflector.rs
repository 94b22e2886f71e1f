//! The peer: what a plain controller does to know its cluster. kube's
//! `watcher` and `reflector` keep every node and pod whole, as k8s-openapi's
//! types. It counts nothing and reports to nobody.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Config, Resource};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::PATIENCE;

/// What the reflector is started with.
#[derive(Debug, Parser)]
pub(crate) struct ReflectorArgs {
    /// Where the API server is.
    #[arg(long)]
    kubeconfig: PathBuf,
}

/// Everything was listed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Listed {
    pub(super) nodes: usize,
    pub(super) pods: usize,
}

/// Watches until it is killed. Says once that everything was listed.
pub(crate) fn run(args: &ReflectorArgs) -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let file = Kubeconfig::read_from(&args.kubeconfig)?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let (nodes, watch_nodes) = keep::<Node>(&client);
        let (pods, watch_pods) = keep::<Pod>(&client);
        let tell = async {
            let listed =
                async { anyhow::Ok((nodes.wait_until_ready().await?, pods.wait_until_ready().await?)) };
            timeout(PATIENCE, listed).await.context("the peer could not list everything in time")??;
            let mut line = serde_json::to_vec(&Listed { nodes: nodes.len(), pods: pods.len() })?;
            line.push(b'\n');
            std::io::stdout().write_all(&line)?;
            std::future::pending::<Result<()>>().await
        };
        tokio::select! {
            ended = watch_nodes => ended,
            ended = watch_pods => ended,
            told = tell => told,
        }
    })
}

/// A store of all objects of a kind, and what keeps it up to date.
fn keep<K>(client: &Client) -> (Store<K>, impl Future<Output = Result<()>> + use<K>)
where
    K: Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let (reader, writer) = reflector::store();
    let events = watcher(Api::<K>::all(client.clone()), watcher::Config::default()).default_backoff();
    let mut kept = Box::pin(reflector::reflector(writer, events));
    let kept = async move {
        while let Some(event) = kept.next().await {
            // The double never fails: a peer that starts over would be slow for no reason of its own.
            event.context("the peer cannot watch")?;
        }
        bail!("a watch of the peer ended")
    };
    (reader, kept)
}
