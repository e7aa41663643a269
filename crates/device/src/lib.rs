//! The device grammar: opens what a command line names.
