//! Access patterns: which blocks are read or written, and in which order.

use serde::Deserialize;

use crate::JobError;

/// Access type of a job, in fio's terms (its `rw`): a pattern, and whether it reads, writes or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RwMode {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    Randread,
    /// Random writes.
    Randwrite,
    /// Sequential reads and writes.
    Rw,
    /// Random reads and writes.
    Randrw,
}

impl RwMode {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::Randread, Self::Randwrite, Self::Rw, Self::Randrw];

    /// The word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
            Self::Rw => "rw",
            Self::Randrw => "randrw",
        }
    }

    /// Description for people.
    pub fn about(self) -> &'static str {
        match self {
            Self::Read => "Sequential reads",
            Self::Write => "Sequential writes",
            Self::Randread => "Random reads",
            Self::Randwrite => "Random writes",
            Self::Rw => "Sequential reads and writes",
            Self::Randrw => "Random reads and writes",
        }
    }

    /// Returns `true` if it reads.
    pub fn reads(self) -> bool {
        !matches!(self, Self::Write | Self::Randwrite)
    }

    /// Returns `true` if it writes.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::Randread)
    }

    /// Returns `true` if it does both: how much of each is to be said.
    pub fn is_mixed(self) -> bool {
        self.reads() && self.writes()
    }

    /// Its addresses are in no order.
    pub fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite | Self::Randrw)
    }

    /// The order of its addresses; `distribution` is of random ones.
    pub fn pattern(self, distribution: Distribution) -> Pattern {
        if self.is_random() { Pattern::Random(distribution) } else { Pattern::Sequential }
    }

    /// Its reads and writes; `read_percent` is of those that do both.
    pub fn mix(self, read_percent: u8) -> Mix {
        match (self.reads(), self.writes()) {
            (true, false) => Mix::READ,
            (false, _) => Mix::WRITE,
            (true, true) => Mix { read_percent },
        }
    }
}

/// Order of addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Consecutive blocks, wrapping around at the end of the region.
    Sequential,
    /// In no order, each block as often as the distribution says.
    Random(Distribution),
}

impl Pattern {
    /// All blocks alike, each time anew.
    pub const RANDOM: Self = Self::Random(Distribution::Uniform);

    /// Refuses distributions that are none.
    pub(crate) fn check(self) -> Result<(), JobError> {
        let refuse = |what, value| Err(JobError::Distribution { what, value });
        match self {
            Self::Random(Distribution::Zipf(theta)) if !(theta > 0.0 && theta <= Distribution::THETA_MAX) => {
                refuse("zipf", theta)
            }
            Self::Random(Distribution::Pareto(h)) if !(h > 0.0 && h < 1.0) => refuse("pareto", h),
            _ => Ok(()),
        }
    }
}

/// Frequency distribution of the blocks in a random pattern.
///
/// Hot blocks of the skewed ones do not lie side by side: ranks are spread over the region by a permutation that
/// depends on the seed, as fio spreads them by a hash.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All alike; a block may come again before all others have come (fio's `norandommap`).
    Uniform,
    /// Each block once, in random order, before any comes again; the next pass has another order (fio's default, the
    /// random map). Takes no memory, however large the region is.
    Once,
    /// The block of rank `k` comes in proportion to `1 / k^theta` (fio's `random_distribution=zipf:theta`). At 1.2 over
    /// a million blocks the hottest one per cent takes nine I/Os of ten.
    Zipf(f64),
    /// A share `h` of the blocks takes the share `1 − h` of the I/Os, and so on within it (fio's
    /// `random_distribution=pareto:h`): 0.2 is the rule of 80 to 20, 0.5 is uniform.
    Pareto(f64),
}

impl Distribution {
    /// With a larger exponent all but one I/O in a thousand million go to one block.
    pub(crate) const THETA_MAX: f64 = 30.0;
}

/// Share of reads; the rest are writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// 100: reads only. 0: writes only.
    pub read_percent: u8,
}

impl Mix {
    /// Reads only.
    pub const READ: Self = Self { read_percent: 100 };
    /// Writes only.
    pub const WRITE: Self = Self { read_percent: 0 };

    /// Any reads.
    pub fn reads(self) -> bool {
        self.read_percent > 0
    }

    /// Any writes.
    pub fn writes(self) -> bool {
        self.read_percent < 100
    }
}
