//! Measurement of the wire, before storage is blamed: bare TCP throughput, and round trips of storage's sizes.
//!
//! ```text
//!   Client ──── one connection per stream ────▶ Responder
//!     │   throughput, round_trips                  counts, and reports what it spent
//!     ▼
//!   Throughput, RoundTrips ──▶ Matrix (window × MTU × streams)
//! ```
//!
//! Blocking sockets on the calling thread: no runtime, and nothing between the measurement and the kernel. A caller
//! that wants to measure inside a network namespace calls from a thread that is in it.
//!
//! **Invariants.** Nothing that a peer sends makes either end allocate, wait or send without bound ([`protocol`]). This
//! crate knows neither storage nor what its figures are compared with.
//!
//! # Parts
//!
//! | part | is |
//! |---|---|
//! | [`Client`], [`Responder`], [`Loopback`] | the two ends, and both in one process |
//! | [`Throughput`], [`RoundTrips`], [`TcpInfo`] | what came of it |
//! | [`matrix()`], [`Plan`], [`Matrix`] | all of it in one go, and what it means in sentences |
//! | [`theory`] | what arithmetic says about links and windows |
//! | [`protocol`] | what the two ends say to each other |

pub mod protocol;
pub mod theory;

mod client;
mod error;
mod line;
mod loopback;
mod matrix;
mod measure;
mod option;
mod responder;
mod round_trips;
mod socket;
mod stream;
mod tcp_info;
mod verdict;

pub use client::{Client, Path, STREAMS_MAX};
pub use error::NetError;
pub use line::StopFlag;
pub use loopback::Loopback;
pub use matrix::{Cell, Matrix, Mtu, Plan, Step, matrix};
pub use measure::{Direction, End, Stream, Throughput};
pub use responder::{Responder, SESSIONS_MAX};
pub use round_trips::{DEPTH_MAX, HEADER, RoundTrips, Shape};
pub use socket::{Buffers, Window};
pub use tcp_info::TcpInfo;
pub use verdict::{Remark, RemarkTone};
