//! The storage that lanes lead to: it remembers what comes late, and forgets what was not flushed.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::random::Random;

/// A logical sector, bytes.
pub(crate) const SECTOR: usize = 4096;

/// How many sectors the disk has: large enough that requests are divided.
pub(crate) const SECTORS: u64 = 256;

/// What a sector holds: its first eight bytes.
pub(crate) type Value = u64;

/// What a command does to the disk.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Read(Range<u64>),
    /// The first sector, the values, and whether they go to the medium.
    Write(u64, Vec<Value>, bool),
    Flush,
}

/// A disk with a volatile cache, as a target keeps it.
pub(crate) struct Storage {
    medium: Vec<Value>,
    cache: BTreeMap<u64, Value>,
    /// How often its power was off.
    pub(crate) restarts: u64,
}

/// A sector that lost a value with the power.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    pub(crate) sector: u64,
    pub(crate) lost: Value,
}

impl Storage {
    pub(crate) fn new() -> Self {
        Self { medium: vec![0; SECTORS as usize], cache: BTreeMap::new(), restarts: 0 }
    }

    /// What would live through a loss of power.
    pub(crate) fn medium(&self) -> &[Value] {
        &self.medium
    }

    fn sector(&self, sector: u64) -> Value {
        self.cache.get(&sector).copied().unwrap_or(self.medium[sector as usize])
    }

    /// Carries a command out; gives what a read found.
    pub(crate) fn execute(&mut self, effect: &Effect) -> Vec<Value> {
        match effect {
            Effect::Read(range) => return range.clone().map(|sector| self.sector(sector)).collect(),
            Effect::Write(first, values, stable) => {
                for (sector, &value) in (*first..).zip(values) {
                    self.put(sector, value, *stable);
                }
            }
            Effect::Flush => {
                for (sector, value) in std::mem::take(&mut self.cache) {
                    self.medium[sector as usize] = value;
                }
            }
        }
        Vec::new()
    }

    fn put(&mut self, sector: u64, value: Value, stable: bool) {
        if stable {
            self.cache.remove(&sector);
            self.medium[sector as usize] = value;
        } else {
            self.cache.insert(sector, value);
        }
    }

    /// Carries out a part of a write, as a target does that is interrupted.
    pub(crate) fn execute_in_part(&mut self, effect: &Effect, random: &mut Random) {
        let Effect::Write(first, values, stable) = effect else { return };
        for (sector, &value) in (*first..).zip(values) {
            if random.percent(50) {
                self.put(sector, value, *stable);
            }
        }
    }

    /// The cache writes something back by itself.
    pub(crate) fn write_back(&mut self, random: &mut Random) {
        self.cache.retain(|&sector, &mut value| {
            let keep = random.percent(70);
            if !keep {
                self.medium[sector as usize] = value;
            }
            keep
        });
    }

    /// The power goes and comes: of what was not flushed some is there and some is not.
    pub(crate) fn restart(&mut self, random: &mut Random) -> Vec<Loss> {
        self.restarts += 1;
        let mut losses = Vec::new();
        for (sector, value) in std::mem::take(&mut self.cache) {
            if random.percent(30) {
                self.medium[sector as usize] = value;
            } else if self.medium[sector as usize] != value {
                losses.push(Loss { sector, lost: value });
            }
        }
        losses
    }
}
