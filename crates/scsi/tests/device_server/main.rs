//! The device server from outside: CDBs in, responses out, read with the initiator's types.

mod device_errors;
mod exclusion;
mod extended_copy;
mod identity;
mod malformed;
mod medium_operation;
mod nexus;
mod parameters;
mod reservation;
mod support;
mod transfer;
mod view;
