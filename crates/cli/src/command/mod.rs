//! The commands, one file each: its arguments, what it calls, what it prints.

pub(crate) mod attach;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod copy;
pub(crate) mod demo;
pub(crate) mod discover;
pub(crate) mod disk;
pub(crate) mod doctor;
pub(crate) mod inspect;
pub(crate) mod lab;
pub(crate) mod man;
pub(crate) mod manage;
pub(crate) mod net;
pub(crate) mod paths;
pub(crate) mod report;
pub(crate) mod serve;
