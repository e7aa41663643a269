//! Manages a running daemon: an HTTP/JSON API, its client, and the configuration file kept in step.
//!
//! ```text
//!   lunway target|lun|… ──► Client ─ Unix socket or TCP ─► listen ──► route ──► api/*
//!                                                                              │
//!                      ConfigSource (file + overrides) ◄ Manager: one change at a time ──► lunway_target::Server
//! ```
//!
//! A change is one transaction: the new configuration is checked, its devices are opened, it is written to the file,
//! and then served; an error before that leaves everything as it was. After a kill at any moment the file says what was
//! served before or after, never anything else. Every request names what it means, so all of them can be repeated.
//!
//! This crate runs on a thread of its own and must not know the command line.
//!
//! | part | is |
//! |---|---|
//! | [`Console`], [`Sockets`] | the API of one server: start and stop |
//! | [`Client`] | asks such an API |
//! | [`RunningDaemon`] | the daemons of this user that run, found by their records |
//! | [`ConfigSource`] | the file and the overrides that the configuration comes from |
//! | `api` | the operations, one file for each kind of thing |
//! | `route` | the one table that makes the router and the OpenAPI document |
//! | `manager` | changes, one at a time |
//! | `schedules` | backups by the clock, each a process |
//! | `export` | snapshots of logical units over NBD, each with a thread |
//! | `answer`, `error`, `extract`, `patch` | bodies out and in |
//! | `listen`, `admission`, `token` | sockets, limits, who is let in |
//! | `document`, `replace` | a file changed as little as possible, and all or nothing |

mod admission;
mod answer;
mod api;
mod backing;
mod client;
mod console;
mod document;
mod epoch_bitmaps;
mod error;
mod export;
mod extract;
mod killed;
mod listen;
mod manager;
mod patch;
mod replace;
mod route;
mod running;
mod schedules;
mod source;
mod token;

pub use answer::{Applied, Health, Kind, Line};
pub use client::{Client, ClientError, Endpoint, path_part};
pub use console::{Console, Sockets};
pub use error::ErrorBody;
pub use killed::KilledProcess;
pub use listen::ListenError;
pub use running::{Registration, RunningDaemon};
pub use schedules::{BackupCommands, Expected, MakeBackupCommands};
pub use source::ConfigSource;
pub use token::TokenError;

/// The methods that [`Client::call`] takes.
pub use hyper::Method;

/// The OpenAPI document of the API.
pub fn openapi() -> serde_json::Value {
    route::document(&api::routes())
}
