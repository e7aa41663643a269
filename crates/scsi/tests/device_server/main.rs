//! The device server from outside: CDBs in, responses out, read with the initiator's types.

mod identity;
mod malformed;
mod nexus;
mod reservation;
mod support;
mod transfer;
mod view;
