//! What a read may find, and what a flush may say.

use lunway_block::BlockError;

use crate::storage::{Loss, SECTORS, Value};

/// A moment: events are numbered.
pub(crate) type Moment = u64;

/// A value that a sector may hold from one moment to another.
#[derive(Clone, Copy, Debug)]
struct Possible {
    value: Value,
    from: Moment,
    until: Option<Moment>,
}

impl Possible {
    fn within(&self, from: Moment) -> bool {
        self.until.is_none_or(|until| until >= from)
    }
}

#[derive(Clone, Debug, Default)]
struct Sector {
    possible: Vec<Possible>,
    /// What was there since then may come back when the power goes.
    durable_since: Moment,
}

/// A value that was acknowledged, not flushed, and lost.
#[derive(Clone, Copy, Debug)]
struct Lost {
    sector: u64,
    value: Value,
    acknowledged: Moment,
    /// When a flush failed for it.
    reported: Option<Moment>,
}

/// What a read may find, and what a flush may say.
///
/// Each sector has the values that it may hold. A write adds its value when it is sent and removes all others when it
/// is acknowledged; one of unknown outcome only adds. A read may find what was possible at any time while it was under
/// way; what it finds was there, so older values are not possible after it. When the power goes, everything since the
/// last good flush is possible again.
///
/// Of a device that **retains** what is not flushed more is asked: no flush fails for a loss, what was acknowledged
/// stays whatever the power does, and what a flush has covered is on the medium.
pub(crate) struct Oracle {
    retains: bool,
    now: Moment,
    sectors: Vec<Sector>,
    /// Acknowledged volatile writes by sector: value and when.
    acknowledged: Vec<(Value, Moment)>,
    lost: Vec<Lost>,
    power_lost_at: Moment,
    /// A power-on was told and no flush has failed for it yet.
    power_on_told: bool,
    /// When one was told.
    power_on_at: Moment,
    /// When a flush last failed for one.
    reported: Moment,
    /// The first thing that was wrong.
    pub(crate) violation: Option<String>,
    /// What happened, for comparing runs.
    pub(crate) digest: u64,
}

impl Oracle {
    pub(crate) fn new(retains: bool) -> Self {
        let empty = Possible { value: 0, from: 0, until: None };
        let sector = Sector { possible: vec![empty], durable_since: 0 };
        Self {
            retains,
            now: 1,
            sectors: vec![sector; SECTORS as usize],
            acknowledged: vec![(0, 0); SECTORS as usize],
            lost: Vec::new(),
            power_lost_at: 0,
            power_on_told: false,
            power_on_at: 0,
            reported: 0,
            violation: None,
            digest: 0,
        }
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn note(&mut self, what: u64) {
        self.digest = (self.digest.rotate_left(5) ^ what).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    pub(crate) fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// An operation begins.
    pub(crate) fn begin(&mut self) -> Moment {
        self.tick()
    }

    pub(crate) fn write_sent(&mut self, first: u64, values: &[Value]) -> Moment {
        let now = self.tick();
        for (sector, &value) in (first..).zip(values) {
            self.sectors[sector as usize].possible.push(Possible { value, from: now, until: None });
        }
        now
    }

    /// The write was acknowledged: nothing else is there.
    pub(crate) fn write_acknowledged(&mut self, first: u64, values: &[Value], stable: bool, sent: Moment) {
        let now = self.tick();
        self.note(first << 8 | values.len() as u64);
        // It may have been carried out before, and nobody has heard of it until now.
        self.power_on_told |= !stable && sent < self.power_on_at;
        for (sector, &value) in (first..).zip(values) {
            let state = &mut self.sectors[sector as usize];
            // It may have been carried out before the power went.
            if !self.retains && !stable && self.power_lost_at > sent {
                continue;
            }
            for possible in state.possible.iter_mut().filter(|possible| possible.value != value) {
                possible.until.get_or_insert(now);
            }
            if stable {
                state.durable_since = state.durable_since.max(sent);
            }
            self.acknowledged[sector as usize] = (value, now);
        }
    }

    /// The write did not happen, so it is said.
    pub(crate) fn write_not_done(&mut self, first: u64, values: &[Value], sent: Moment) {
        let now = self.tick();
        for (sector, &value) in (first..).zip(values) {
            for possible in &mut self.sectors[sector as usize].possible {
                if possible.value == value && possible.from == sent {
                    possible.until.get_or_insert(now);
                }
            }
        }
    }

    /// A read that began at `begun` has found this.
    pub(crate) fn found(&mut self, first: u64, values: &[Value], begun: Moment) {
        let now = self.tick();
        self.note(values.iter().fold(first, |sum, value| sum.wrapping_mul(31) ^ value));
        for (sector, &value) in (first..).zip(values) {
            let possible = &mut self.sectors[sector as usize].possible;
            // Zeroes may be those of an older write.
            let seen = possible
                .iter()
                .filter(|one| one.value == value && one.within(begun))
                .map(|one| one.from)
                .min();
            let Some(from) = seen else {
                let kind = if possible.iter().any(|one| one.value == value) { "stale" } else { "foreign" };
                let legal: Vec<_> =
                    possible.iter().filter(|one| one.within(begun)).map(|one| one.value).collect();
                self.violate(format!(
                    "sector {sector} holds {value}, which is {kind}: it may hold {legal:?}"
                ));
                return;
            };
            if self.power_lost_at > begun {
                continue;
            }
            for older in possible.iter_mut().filter(|one| one.from < from && one.value != value) {
                older.until.get_or_insert(now);
            }
        }
    }

    /// The power went and came.
    pub(crate) fn power_lost(&mut self, losses: &[Loss]) {
        let now = self.tick();
        self.power_lost_at = now;
        for &Loss { sector, lost } in losses {
            let (value, acknowledged) = self.acknowledged[sector as usize];
            // Zeroes may be those of a younger write, which nobody has acknowledged.
            let is_younger =
                |one: &Possible| one.value == lost && one.until.is_none() && one.from > acknowledged;
            let younger = lost == 0 && self.sectors[sector as usize].possible.iter().any(is_younger);
            if value == lost && !younger && !self.retains {
                self.lost.push(Lost { sector, value, acknowledged, reported: None });
            }
        }
        for (sector, (_, acknowledged)) in self.sectors.iter_mut().zip(&self.acknowledged) {
            // What a read has found, and nobody has acknowledged, may vanish.
            let kept_since = if self.retains { *acknowledged } else { sector.durable_since };
            let again: Vec<_> = sector
                .possible
                .iter()
                .filter(|possible| possible.until.is_some_and(|until| until > kept_since))
                .map(|possible| Possible { value: possible.value, from: now, until: None })
                .collect();
            // What is possible now began before; after the loss nothing is older than anything else.
            sector.possible.iter_mut().filter(|one| one.until.is_none()).for_each(|one| one.from = now);
            sector.possible.extend(again);
        }
    }

    /// A lane reports a power-on.
    pub(crate) fn power_on(&mut self) {
        self.power_on_told = true;
        self.power_on_at = self.tick();
    }

    /// A flush that began at `begun` has ended.
    pub(crate) fn flushed(&mut self, answer: &Result<(), BlockError>, begun: Moment) {
        let now = self.tick();
        self.note(u64::from(answer.is_ok()));
        match answer {
            Ok(()) => {
                let missed = self.lost.iter().find(|lost| {
                    lost.acknowledged < begun && lost.reported.is_none_or(|reported| reported > begun)
                });
                if let Some(Lost { sector, value, .. }) = missed {
                    let what = format!("a flush succeeded although sector {sector} had lost {value}");
                    self.violate(what);
                }
                for sector in &mut self.sectors {
                    sector.durable_since = sector.durable_since.max(begun);
                }
            }
            Err(BlockError::UnflushedLost { .. }) if self.retains => {
                self.violate("a flush failed although what is lost is retained".to_owned());
            }
            Err(BlockError::UnflushedLost { .. }) => {
                // Flushes that are under way when one fails must fail too.
                if !self.power_on_told && self.reported < begun {
                    self.violate("a flush failed for a power-on that nobody reported".to_owned());
                }
                self.lost.iter_mut().for_each(|lost| {
                    lost.reported.get_or_insert(now);
                });
                (self.power_on_told, self.reported) = (false, now);
            }
            Err(_) => {}
        }
    }

    /// What is on the medium when a flush that began at `begun` has succeeded.
    pub(crate) fn found_on_medium(&mut self, medium: &[Value], begun: Moment) {
        for (sector, value) in medium.iter().enumerate() {
            let possible = &self.sectors[sector].possible;
            if !possible.iter().any(|one| one.value == *value && one.within(begun)) {
                self.violate(format!(
                    "a flush succeeded, and sector {sector} has {value} on the medium: {possible:?}"
                ));
            }
        }
    }

    /// Whether values that were acknowledged are lost and nobody was told.
    pub(crate) fn owes(&self) -> bool {
        self.lost.iter().any(|lost| lost.reported.is_none())
    }
}
