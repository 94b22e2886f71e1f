//! The levers9 controlplane: who may do what, which task runs where, and what
//! came of it. Everything it must not forget is in [`store`]; what must not be
//! read back by others is sealed by [`seal`] before it gets there.

pub mod seal;
pub mod store;
