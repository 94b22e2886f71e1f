//! The commands about attached Kubernetes clusters, and why a task waits.

use clap::{Args, Subcommand};
use levers9_agent::template::Flavor;

use super::OutputArgs;

/// `levers9 cluster`
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ClusterCommand,
}

/// What can be done with clusters.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Attach the Kubernetes cluster of the current kube context, and wait for its agent
    Join(JoinArgs),
    /// List the clusters that serve this workspace
    List {
        /// How to print the list
        #[command(flatten)]
        output: OutputArgs,
    },
    /// List a cluster's nodes and what is free on them
    Nodes {
        /// The cluster's name or id
        cluster: String,
        /// Say what is taken by whom, and why a node is not offered
        #[arg(long)]
        why: bool,
        /// How to print the list
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Print the objects of a cluster's agent as YAML for kubectl, all but the token
    Manifest {
        /// The cluster's name or id
        cluster: String,
        /// How to print them: text is YAML
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Let a cluster run the jobs of every workspace (admin)
    Share {
        /// The cluster's name or id
        cluster: String,
        /// Give it back to the workspace that attached it
        #[arg(long)]
        off: bool,
        /// How to print the result
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Detach a cluster: revoke its token, forget it, remove its agent and workers
    Leave(LeaveArgs),
    /// Give a cluster's agent a new token, without a gap
    RotateToken {
        /// The cluster's name or id
        cluster: String,
        /// Where its Secret is
        #[command(flatten)]
        kube: KubeArgs,
        /// How to print the result
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// Which Kubernetes cluster is meant.
#[derive(Debug, Clone, Args)]
pub struct KubeArgs {
    /// The context of the kubeconfig to use [default: its current one]
    #[arg(long, value_name = "CONTEXT")]
    pub kube_context: Option<String>,
}

/// `levers9 cluster join`
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// What to call it: a-z, 0-9 and '-'
    pub name: String,
    /// What its cards are: L40S, A100-80
    #[arg(long, value_name = "TYPE")]
    pub gpu: String,
    /// Lend only nodes with this label: key=value, 'key=in (a,b)' or key. Repeated, all must hold [default: every node]
    #[arg(long, value_name = "ITEM")]
    pub selector: Vec<String>,
    /// The namespace of the agent and the workers
    #[arg(long, default_value = "levers9")]
    pub namespace: String,
    /// Whose cloud it is: gke, eks or aks [default: what the nodes' labels say]
    #[arg(long, value_enum, hide_possible_values = true)]
    pub flavor: Option<Flavor>,
    /// The worker image, from where the cluster can pull it [default: the controlplane's]
    #[arg(long, value_name = "IMAGE")]
    pub worker_image: Option<String>,
    /// The Secret in the namespace to pull it with
    #[arg(long, value_name = "NAME")]
    pub pull_secret: Option<String>,
    /// Register it and print the objects for kubectl, token included, instead of applying them
    #[arg(long, conflicts_with = "kube_context")]
    pub manifest_only: bool,
    /// Where to apply them
    #[command(flatten)]
    pub kube: KubeArgs,
    /// How long to wait for the agent
    #[arg(long, value_name = "TIME", default_value = "180")]
    pub timeout: String,
    /// How to print the result
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `levers9 cluster leave`
#[derive(Debug, Args)]
pub struct LeaveArgs {
    /// The cluster's name or id
    pub cluster: String,
    /// Do not ask, and end what runs there
    #[arg(short, long)]
    pub yes: bool,
    /// Leave the agent's objects in the cluster
    #[arg(long, conflicts_with = "kube_context")]
    pub keep_agent: bool,
    /// Where they are
    #[command(flatten)]
    pub kube: KubeArgs,
    /// How to print the result
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `levers9 why`
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The id of a task
    pub task: String,
    /// How to print the answer
    #[command(flatten)]
    pub output: OutputArgs,
}
