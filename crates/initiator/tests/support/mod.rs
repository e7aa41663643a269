//! What the conversations in this directory need: a target that does as it is told, a proxy that breaks connections, a
//! model that remembers what a disk must hold.
#![allow(unreachable_pub, reason = "a module of a test program")]

pub mod line;
pub mod model;
pub mod proxy;
pub mod recorder;
pub mod rejecting;
pub mod scripted;
pub mod two_portals;
pub mod victim;

use std::time::Duration;

use lunway_initiator::SessionOptions;

/// Patience for tests: all waits short, so that the long ones of real life do not have to be lived through.
pub fn quick() -> SessionOptions {
    SessionOptions {
        connect_timeout: Duration::from_secs(2),
        login_timeout: Duration::from_secs(2),
        command_timeout: Duration::from_secs(5),
        abort_timeout: Duration::from_millis(500),
        replacement_timeout: Duration::from_secs(10),
        nop_interval: Duration::from_millis(500),
        nop_timeout: Duration::from_millis(500),
        // Tests count commands.
        look_interval: Duration::ZERO,
        logout_timeout: Duration::from_millis(500),
        ..SessionOptions::default()
    }
}

/// A small random generator (splitmix64): the same numbers in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
