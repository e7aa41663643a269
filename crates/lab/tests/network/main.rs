//! Networks that run, each test in a sandbox of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod faults;
mod inside;
mod line;
mod sandbox;
mod shape;
