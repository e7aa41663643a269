//! Limits on the I/O of logical units and initiators.
//!
//! | file | room of |
//! |---|---|
//! | `account.rs` | what a limit lets pass, with time as an argument |
//! | `limiter.rs` | [`Limiter`]: an account that sessions share, and whose turn it is |
//! | `table.rs` | [`IoLimits`]: the limiters of all logical units and initiators |
//!
//! A session has a limiter for each limit that it is under, and none where there is no limit. How its commands wait is
//! the driver's.

mod account;
mod limiter;
mod table;

pub(crate) use limiter::Limiter;
pub(crate) use table::{InitiatorKey, IoLimits, LunLimiters};
