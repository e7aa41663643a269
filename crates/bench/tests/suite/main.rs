//! The crate from outside. One binary, so that the devices in `support` are built once.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod comparing;
mod comparing_devices;
mod fio_layout;
mod generator;
mod h2bench;
mod job_files;
mod json_plus;
mod machine;
mod open_loop;
mod profiles;
mod running;
mod steady;
mod support;
mod verifying;
mod workers;
