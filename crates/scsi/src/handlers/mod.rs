//! Handlers, one file per family of commands. Each does only what its command is about: the device server has found the
//! command's row, passed the gate and asked what stands in the way before.

pub(crate) mod access;
pub(crate) mod atomic;
pub(crate) mod copy_results;
pub(crate) mod diagnostic;
pub(crate) mod extended_copy;
pub(crate) mod format;
pub(crate) mod identify;
pub(crate) mod log;
pub(crate) mod medium;
pub(crate) mod mode;
pub(crate) mod ports;
mod product_data;
pub(crate) mod report;
pub(crate) mod sanitize;
pub(crate) mod thin;
mod third_party_copy;
pub(crate) mod transfer;
pub(crate) mod verify;
