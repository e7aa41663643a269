//! What all sessions together have done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many failures are kept in words.
const FAILURES_SHOWN: usize = 10;

macro_rules! tally {
    ($($name:ident: $what:literal,)*) => {
        /// Counters, and the first failures.
        #[derive(Default)]
        pub(crate) struct Tally {
            $(#[doc = $what] pub(crate) $name: Counter,)*
            failures: Mutex<Vec<String>>,
        }

        impl Tally {
            /// All counters by name.
            pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

tally! {
    logins: "Sessions that were opened.",
    written: "Blocks that were written and acknowledged.",
    verified: "Blocks that were read and compared.",
    cut: "Connections that were cut, most of them in the middle of something.",
    aborts: "Task management functions that abort.",
    resets: "Logical unit resets.",
    unanswered: "Commands that another session's reset or abort took away.",
    hostile: "Connections that never became sessions.",
    failed: "What must not happen.",
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Tally {
    pub(crate) fn fail(&self, what: impl Into<String>) {
        self.failed.add(1);
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < FAILURES_SHOWN {
            failures.push(what.into());
        }
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// SplitMix64, one for each session.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
