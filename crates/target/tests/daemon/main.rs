//! Conversations of initiators with a running daemon, over real sockets on the loopback interface.

#![expect(clippy::unwrap_used, reason = "this is all test")]

mod changing;
mod hostile;
mod login;
mod reading_and_writing;
mod sessions;
mod shutdown;
mod support;
mod task_management;
