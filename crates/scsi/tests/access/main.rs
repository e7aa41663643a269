//! Who may do what: every command of the table of operations against the tables of the standards, written out.
//!
//! The tables here are transcribed, not computed: an operation that is added to the device server and not to them fails
//! the tests.

mod commands;
mod port_states;
mod reservations;
