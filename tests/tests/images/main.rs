#![cfg(test)]
//! The container images, built as `make images` builds them but from the
//! binaries under test: what they say of themselves, what is in them, and that
//! what is in them runs as a pod would run it. Needs root, `runc`, and
//! `buildah` or a docker daemon.

mod container;
mod contents;
mod engine;
mod pods;

use std::sync::OnceLock;

use engine::Image;
use levers9_tests::Home;

/// Both images, unpacked.
struct Images {
    worker: Image,
    controlplane: Image,
    /// Where they are unpacked: removed when the test process is gone.
    _folder: Home,
}

/// Built once for all tests.
fn images() -> &'static Images {
    static IMAGES: OnceLock<Images> = OnceLock::new();
    IMAGES.get_or_init(engine::build)
}
