//! The initiator beside targets that are told what to do, and beside real ones.

#![expect(clippy::unwrap_used, reason = "a test ends where something it needs is missing")]

mod another_disk;
mod broken_network;
mod killed;
mod left_behind;
mod lost_answers;
mod lunway_target;
mod one_of_several;
mod rejected;
mod scripted_target;
mod silence;
mod support;
mod tgt;
mod unflushed;
