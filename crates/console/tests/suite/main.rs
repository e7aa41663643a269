//! The API as its clients meet it: a server with memory behind it, asked over a Unix socket and over TCP.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod changes;
mod documented;
mod keeping;
mod page;
mod schedules;
mod schema;
mod sockets;
mod support;
