//! Conversations of initiators with a running daemon, over real sockets on the loopback interface.

#![expect(clippy::unwrap_used, reason = "this is all test")]

mod access;
mod back_pressure;
mod changing;
mod discovery;
mod hostile;
mod hung_device;
mod io_limits;
mod isns;
mod isolation;
mod kept;
mod login;
mod many_luns;
mod multiple_connections;
mod namespace;
mod portals;
mod principals;
mod reading_and_writing;
mod sessions;
mod sharing;
mod shutdown;
#[path = "../../../file/tests/support/stopped.rs"]
mod stopped;
mod support;
mod task_management;
mod turns;
