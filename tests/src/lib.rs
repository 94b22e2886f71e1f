//! What the tests of the whole product stand on: the real binaries, started as
//! an operator would start them, killed and cut off as the world would.
//!
//! Everything is plain blocking code. A [`World`] is a controlplane with its
//! own folder, ports and home; [`World::worker`] adds workers, [`World::cli`]
//! runs the command. Whatever it starts ends with it, and with the test
//! process, however that goes ([`watchdog`]).
//!
//! ```no_run
//! use levers9_tests::{Backend, World};
//!
//! let world = World::start(Backend::Sqlite);
//! let worker = world.worker("one");
//! let run = world.cli(&["run", "--", "echo", "hi"]).ok();
//! assert_eq!(run.text(), "hi\n");
//! world.controlplane.kill9();
//! world.controlplane.start();
//! worker.kill9();
//! ```
//!
//! Nothing sleeps for a time that should be enough: [`wait::until`] looks until
//! something is so, or fails with what it last saw.
#![expect(clippy::expect_used, reason = "what a test stands on fails the test, with words")]

pub mod binaries;
pub mod controlplane;
pub mod counting;
pub mod home;
pub mod http;
pub mod http2;
pub mod kube;
pub mod live;
pub mod person;
pub mod port;
pub mod postgres;
pub mod relay;
pub mod slow;
pub mod wait;
pub mod watchdog;
pub mod worker;
pub mod world;

pub use controlplane::Controlplane;
pub use counting::Counting;
pub use home::{Home, Output};
pub use live::Live;
pub use person::Person;
pub use relay::{Relay, Way};
pub use worker::Worker;
pub use world::{Backend, Setup, World};
