//! The commands that run and follow jobs.

use clap::Args;

use super::OutputArgs;

/// `levers9 run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// A name for people to know the task by
    #[arg(long)]
    pub name: Option<String>,
    /// CPU to reserve and to be held to: cores (2, 0.5) or thousandths of one (500m)
    #[arg(long, value_name = "AMOUNT")]
    pub cpu: Option<String>,
    /// Memory to reserve and to be held to: 512Mi, 2Gi
    #[arg(long, value_name = "AMOUNT")]
    pub memory: Option<String>,
    /// The type of GPU it needs: T4, A100-80
    #[arg(long, value_name = "TYPE")]
    pub gpu: Option<String>,
    /// How many GPUs
    #[arg(long, value_name = "N", requires = "gpu", value_parser = clap::value_parser!(u32).range(1..))]
    pub gpu_count: Option<u32>,
    /// Set an environment variable; K alone passes this shell's value on. Can be repeated
    #[arg(short, long, value_name = "K=V")]
    pub env: Vec<String>,
    /// Stop each attempt after this time: 90s, 10m, 2h, or seconds
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// How often to start over when the worker is lost [default: 3]
    #[arg(long, value_name = "N")]
    pub retries: Option<u32>,
    /// Run only on workers of this pool
    #[arg(long)]
    pub pool: Option<String>,
    /// Let HTTP requests reach this TCP port of the job. Can be repeated
    #[arg(long = "port", value_name = "N")]
    pub ports: Vec<u32>,
    /// Let them in without a token
    #[arg(long, requires = "ports")]
    pub public: bool,
    /// Print the task's id and return; the task runs on by itself
    #[arg(short, long)]
    pub detach: bool,
    /// How to print the output; json prints one object per line
    #[command(flatten)]
    pub output: OutputArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// `levers9 logs`
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The id of a task, or of a container
    #[arg(value_name = "TASK|CONTAINER")]
    pub id: String,
    /// Go on until the task has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Print only what comes after this line number
    #[arg(long, value_name = "N", conflicts_with = "tail")]
    pub since_line: Option<u64>,
    /// Print only the last N lines there are now
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
    /// Print only what was written to standard output
    #[arg(long, conflicts_with = "stderr")]
    pub stdout: bool,
    /// Print only what was written to standard error
    #[arg(long)]
    pub stderr: bool,
    /// How to print the lines; json prints one object per line
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `levers9 attach`
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// The id of a task
    pub task: String,
    /// Print only what comes after this line number
    #[arg(long, value_name = "N")]
    pub since_line: Option<u64>,
    /// How to print the output; json prints one object per line
    #[command(flatten)]
    pub output: OutputArgs,
}
