//! Every size the protocol allows, in one place. Each is checked before
//! anything is allocated.

/// The largest `StreamOpen` frame, in bytes.
pub const STREAM_OPEN: usize = 64 * 1024;
/// The largest frame after it, in bytes.
pub const FRAME: usize = 1024 * 1024 + 64 * 1024;
/// The largest control frame, in bytes: a Hello carries an inventory.
pub const CONTROL: usize = 256 * 1024;
/// The largest node report, in bytes.
pub const NODE_REPORT: usize = 4 * 1024 * 1024;
/// The most nodes of a cluster in one report.
pub const NODES: usize = 10_000;
/// The most worker Jobs in one report or answer.
pub const JOBS: usize = 20_000;
/// The longest name of a node, in bytes; DNS's own limit.
pub const NODE_NAME: usize = 253;
/// The most requirements of a selector, and values of one of them.
pub const SELECTOR: usize = 64;
/// The longest reference of an image, in bytes.
pub const IMAGE: usize = 512;
/// Memory a worker in a pod takes for itself, in bytes: its pod asks for this
/// much more than its jobs may have.
pub const WORKER_MEMORY: u64 = 128 << 20;
/// The largest piece of a log line in one record, in bytes.
pub const LOG_PIECE: usize = 1024 * 1024;
/// The most bytes of log data put into one batch of several records.
pub const LOG_BATCH: usize = 256 * 1024;
/// The longest command line: number of words.
pub const COMMAND_WORDS: usize = 1024;
/// The longest command line and environment together, in bytes, with
/// [`WORD_OVERHEAD`] for each word and variable. It leaves room for the rest of
/// the `StreamOpen` that carries them.
pub const COMMAND_BYTES: usize = STREAM_OPEN - 8 * 1024;
/// What a word or variable costs beside its own bytes.
pub const WORD_OVERHEAD: usize = 12;
/// The most environment variables of a job.
pub const ENV_VARS: usize = 512;
/// The longest name a person gives, in bytes.
pub const NAME: usize = 63;
/// The most containers in one inventory.
pub const INVENTORY: usize = 4096;
/// The longest token, in bytes.
pub const TOKEN: usize = 256;
/// The longest text meant for people, in bytes.
pub const TEXT: usize = 4096;
/// The most ports of a container that HTTP requests may reach.
pub const PORTS: usize = 16;
/// The longest measurement on one stream.
pub const BENCH: std::time::Duration = std::time::Duration::from_secs(60);
/// The most bytes of input or output in one frame of an exec.
pub const EXEC_PIECE: usize = 64 * 1024;
