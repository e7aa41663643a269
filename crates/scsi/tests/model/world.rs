//! A target and the model of it, side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use lunway_block::{BlockDevice, Buf, Io, Permit};
use lunway_scsi::{
    LogicalUnit, LogicalUnitOptions, Lun, LunView, Nexus, Response, ScsiTarget, Status,
    TaskManagementFunction,
};

use crate::answer::{
    INVALID_CDB, INVALID_OPCODE, NO_UNIT, Outcome, Refusal, Reply, code, compare, refuse, wrong,
};
use crate::attention::{
    CAPACITY, CLEARED, LUNS, MEDIUM, MODE, NEXUS_LOSS, POWER_ON, Pending, REGISTRATIONS_PREEMPTED, RESET,
};
use crate::device::{Looks, Shaped};
use crate::layout::{self, Command, Layout, number};
use crate::step::{Management, Step};
use crate::tally::Tally;
use crate::unit::Unit;

/// Initiators, each with one nexus.
pub(crate) const NEXUSES: usize = 4;

/// What a unit of a world is made as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitPlan {
    pub(crate) looks: Looks,
    pub(crate) blocks: u64,
    pub(crate) removable: bool,
    pub(crate) read_only: bool,
    pub(crate) atomic_writes: bool,
    pub(crate) max_transfer_blocks: u32,
}

/// A nexus in front of one unit.
#[derive(Debug, Default)]
struct Itl {
    pending: Pending,
    prevents_removal: bool,
}

struct Initiator {
    nexus: Arc<Nexus>,
    view: LunView,
    itls: BTreeMap<u16, Itl>,
    /// Units whose POWER ON it has been told, or has been spared by a reset.
    told: BTreeSet<u16>,
}

/// One target with LUNs that are numbered like its units; see [`Step`] for what can happen to it.
pub(crate) struct World {
    target: Arc<ScsiTarget>,
    devices: Vec<Arc<Shaped>>,
    real: Vec<Arc<LogicalUnit>>,
    pub(crate) units: Vec<Unit>,
    attached: BTreeSet<u16>,
    initiators: Vec<Initiator>,
    pub(crate) tally: Tally,
}

pub(crate) fn ready(io: Io<Response>) -> Response {
    let mut answer = match io {
        Io::Ready(response) => return response,
        Io::Pending(answer) => answer,
    };
    // Long commands let others in between, and go on at once.
    let polled =
        (0..10_000).find_map(|_| match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(response) => Some(response),
            Poll::Pending => None,
        });
    polled.expect("a RAM disk never waits")
}

impl World {
    pub(crate) fn new(plans: &[UnitPlan]) -> Self {
        let target = ScsiTarget::new("iqn.2026-11.com.example:model");
        let (mut devices, mut real) = (Vec::new(), Vec::new());
        for (index, plan) in plans.iter().enumerate() {
            let size = plan.blocks * u64::from(plan.looks.sector);
            let device = Arc::new(Shaped::new(size, plan.looks));
            let options = LogicalUnitOptions {
                identity: format!("model/{index}"),
                removable: plan.removable,
                read_only: plan.read_only,
                atomic_writes: Some(plan.atomic_writes),
                max_transfer: plan.max_transfer_blocks * plan.looks.sector,
                ..LogicalUnitOptions::default()
            };
            let unit = LogicalUnit::new(device.clone(), options).expect("no kept state");
            target.attach(index as u16, unit.clone()).expect("a new target");
            devices.push(device);
            real.push(unit);
        }
        let mut world = Self {
            target,
            devices,
            real,
            units: Vec::new(),
            attached: (0..plans.len() as u16).collect(),
            initiators: Vec::new(),
            tally: Tally::default(),
        };
        let scout = world.target.open_nexus("scout,i,0x1", 1, LunView::ALL);
        world.units =
            plans.iter().enumerate().map(|(lun, plan)| Unit::learn(&scout, lun as u16, plan)).collect();
        scout.close();
        world.initiators =
            (0..NEXUSES).map(|index| world.open(index, LunView::ALL, &BTreeSet::new())).collect();
        world
    }

    fn open(&self, index: usize, view: LunView, told: &BTreeSet<u16>) -> Initiator {
        let nexus = self.target.open_nexus(&format!("initiator-{index},i,0x1"), 1, view.clone());
        let start = |lun: u16| if told.contains(&lun) { NEXUS_LOSS } else { POWER_ON };
        let itls = self
            .attached
            .iter()
            .filter(|&&lun| shows(&view, lun))
            .map(|&lun| (lun, Itl { pending: Pending::one(start(lun)), prevents_removal: false }))
            .collect();
        Initiator { nexus, view, itls, told: told.clone() }
    }

    /// What a nexus loses when it, or the unit, goes.
    fn leave(&mut self, index: usize, lun: u16) {
        let Some(itl) = self.initiators[index].itls.remove(&lun) else { return };
        if !itl.pending.contains(POWER_ON) {
            self.initiators[index].told.insert(lun);
        }
        let reservations = &mut self.units[usize::from(lun)].reservations;
        if reservations.reserved_by == Some(index) {
            reservations.reserved_by = None;
        }
    }

    fn establish(&mut self, lun: u16, code: u16, except: Option<usize>) {
        for (index, initiator) in self.initiators.iter_mut().enumerate() {
            if let Some(itl) = initiator.itls.get_mut(&lun).filter(|_| except != Some(index)) {
                itl.pending.establish(code);
            }
        }
    }

    fn reset(&mut self, lun: u16) {
        let unit = &mut self.units[usize::from(lun)];
        unit.mode.reset();
        unit.reservations.reserved_by = None;
        self.establish(lun, RESET, None);
        for initiator in &mut self.initiators {
            if let Some(itl) = initiator.itls.get_mut(&lun) {
                itl.prevents_removal = false;
            }
        }
    }

    /// Takes a step on both sides; what differs is the error.
    pub(crate) fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Command { nexus, lun, cdb, data } => {
                let disk = self.units.get(usize::from(*lun)).map(|unit| &unit.disk);
                self.command(*nexus, *lun, cdb, &data.bytes(disk))?;
            }
            Step::Manage { nexus, lun, what } => self.manage(*nexus, *lun, *what),
            Step::Reopen { nexus } => {
                let luns: Vec<u16> = self.initiators[*nexus].itls.keys().copied().collect();
                for lun in luns {
                    self.leave(*nexus, lun);
                }
                self.initiators[*nexus].nexus.close();
                let (view, told) =
                    (self.initiators[*nexus].view.clone(), self.initiators[*nexus].told.clone());
                self.initiators[*nexus] = self.open(*nexus, view, &told);
            }
            Step::Attach { lun } => self.attach(*lun),
            Step::Detach { lun } => self.detach(*lun),
            Step::Resize { lun, blocks } => self.resize(*lun, *blocks),
            Step::View { nexus, luns, read_only } => {
                self.set_view(*nexus, LunView { luns: luns.clone(), read_only: *read_only });
            }
        }
        self.initiators.iter().try_for_each(|initiator| {
            let (real, model) = (initiator.nexus.luns(), initiator.itls.keys().copied().collect::<Vec<_>>());
            if real == model {
                Ok(())
            } else {
                Err(format!("a nexus sees {real:?}, and should see {model:?}"))
            }
        })
    }

    fn manage(&mut self, nexus: usize, lun: u16, what: Management) {
        use TaskManagementFunction as Function;
        let function = match what {
            Management::Cleared => {
                self.initiators[nexus].nexus.commands_cleared(lun);
                if let Some(itl) = self.initiators[nexus].itls.get_mut(&lun) {
                    itl.pending.establish(CLEARED);
                }
                return;
            }
            Management::AbortTaskSet => Function::AbortTaskSet,
            Management::ClearTaskSet => Function::ClearTaskSet,
            Management::LogicalUnitReset => Function::LogicalUnitReset,
            Management::TargetReset => Function::TargetWarmReset,
        };
        let _ = self.initiators[nexus].nexus.task_management(Lun::new(lun).0, function);
        match what {
            // A nexus that may not write resets nothing, one that does not see everything not everything.
            _ if self.initiators[nexus].view.read_only => {}
            Management::TargetReset
                if self.attached.iter().all(|lun| self.initiators[nexus].itls.contains_key(lun)) =>
            {
                for lun in self.attached.clone() {
                    self.reset(lun);
                }
            }
            Management::LogicalUnitReset if self.initiators[nexus].itls.contains_key(&lun) => self.reset(lun),
            _ => {}
        }
    }

    fn attach(&mut self, lun: u16) {
        if !self.attached.insert(lun) {
            return;
        }
        self.target.attach(lun, self.real[usize::from(lun)].clone()).expect("it is not attached");
        for initiator in &mut self.initiators {
            if shows(&initiator.view, lun) {
                initiator.itls.values_mut().for_each(|itl| itl.pending.establish(LUNS));
                let start = if initiator.told.contains(&lun) { NEXUS_LOSS } else { POWER_ON };
                initiator.itls.insert(lun, Itl { pending: Pending::one(start), prevents_removal: false });
            }
        }
    }

    fn detach(&mut self, lun: u16) {
        if !self.attached.remove(&lun) {
            return;
        }
        self.target.detach(lun).expect("it is attached");
        for index in 0..NEXUSES {
            if self.initiators[index].itls.contains_key(&lun) {
                self.leave(index, lun);
                self.initiators[index].itls.values_mut().for_each(|itl| itl.pending.establish(LUNS));
            }
        }
    }

    fn resize(&mut self, lun: u16, blocks: u64) {
        let unit = &mut self.units[usize::from(lun)];
        let size = blocks * unit.disk.sector as u64;
        assert!(matches!(self.devices[usize::from(lun)].resize(size, Permit::default()), Io::Ready(Ok(()))));
        if unit.disk.blocks() != blocks {
            unit.disk.resize(blocks);
            self.establish(lun, CAPACITY, None);
        }
    }

    fn set_view(&mut self, nexus: usize, view: LunView) {
        self.initiators[nexus].nexus.set_view(view.clone());
        let protection = self.initiators[nexus].view.read_only != view.read_only;
        let hidden: Vec<u16> =
            self.initiators[nexus].itls.keys().copied().filter(|&lun| !shows(&view, lun)).collect();
        for &lun in &hidden {
            self.leave(nexus, lun);
        }
        let attached = self.attached.clone();
        let initiator = &mut self.initiators[nexus];
        initiator.view = view;
        if protection {
            initiator.itls.values_mut().for_each(|itl| itl.pending.establish(MODE));
        }
        let mut changed = !hidden.is_empty();
        for lun in attached {
            if shows(&initiator.view, lun) && !initiator.itls.contains_key(&lun) {
                let start = if initiator.told.contains(&lun) { NEXUS_LOSS } else { POWER_ON };
                initiator.itls.insert(lun, Itl { pending: Pending::one(start), prevents_removal: false });
                changed = true;
            }
        }
        if changed {
            initiator.itls.values_mut().for_each(|itl| itl.pending.establish(LUNS));
        }
    }

    fn command(&mut self, nexus: usize, lun: u16, cdb: &[u8], data: &[u8]) -> Result<(), String> {
        let io = self.initiators[nexus].nexus.execute(Lun::new(lun).0, cdb, Buf::copy_of(data).freeze());
        let actual = ready(io);
        // Which format sense data is in was decided before the command could change it.
        let descriptor = match self.units.get(usize::from(lun)) {
            Some(unit) if self.initiators[nexus].itls.contains_key(&lun) => {
                Some(unit.mode.descriptor_sense())
            }
            _ => None,
        };
        let expected = self.expect(nexus, lun, cdb, data, &actual);
        compare(&expected, &actual)?;
        if let Some(layout) = layout::find(cdb) {
            self.tally.count(layout, actual.status == Status::GOOD);
        }
        match (&actual.sense, descriptor) {
            (Some(sense), Some(descriptor)) if sense.descriptor_format != descriptor => Err(format!(
                "sense data in descriptor format: {}, D_SENSE: {descriptor}",
                sense.descriptor_format
            )),
            _ => Ok(()),
        }
    }

    /// What the model says, and what it makes of itself.
    fn expect(&mut self, nexus: usize, lun: u16, cdb: &[u8], data: &[u8], actual: &Response) -> Outcome {
        if !self.initiators[nexus].itls.contains_key(&lun) {
            return self.expect_without_unit(nexus, cdb, actual);
        }
        let layout = layout::find(cdb);
        let malformed = match layout {
            None => Some(vec![INVALID_OPCODE, INVALID_CDB]),
            Some(layout) if cdb.len() < layout.fields.len() => Some(vec![INVALID_CDB]),
            Some(layout) if !self.offers(lun, layout) => Some(vec![INVALID_OPCODE, INVALID_CDB]),
            Some(layout) if layout.has_refused_bits(cdb) => Some(vec![INVALID_CDB]),
            Some(_) => None,
        };
        let exempt = layout.is_some_and(|layout| {
            matches!(layout.command, Command::Inquiry | Command::ReportLuns | Command::RequestSense)
        });
        let owed = &mut self.initiators[nexus].itls.get_mut(&lun).expect("looked up").pending;
        let told = code(actual).filter(|&(key, _)| key == 6 && !exempt).map(|(_, code)| code);
        let conflicts = match (&malformed, layout) {
            (None, Some(layout)) if exempt || !owed.has_reset() => {
                self.units[usize::from(lun)].reservations.conflicts(layout.access(cdb), nexus)
            }
            _ => false,
        };
        if conflicts {
            return Err(Refusal::Conflict);
        }
        if let Some(code) = told {
            return owed.told(code).map_or_else(wrong, |()| refuse(&[(6, code)]));
        }
        if let Some(any_of) = malformed {
            // Whether a malformed command waits for a unit attention to be told is open.
            return refuse(&any_of);
        }
        if !exempt && !owed.is_empty() {
            return wrong(format!("no word of {owed:04x?}"));
        }
        let Some(layout) = layout else { return wrong("a command without a layout") };
        self.expect_on(nexus, lun, layout, cdb, data, actual)
    }

    fn offers(&self, lun: u16, layout: &Layout) -> bool {
        let unit = &self.units[usize::from(lun)];
        match layout.command {
            Command::Unmap => unit.thin,
            Command::Sanitize => unit.thin || layout.action != Some(0x02),
            Command::WriteAtomic => unit.limits.atomic_max > 0,
            _ => true,
        }
    }

    /// The LUN under which a nexus sees the unit of this name.
    pub(crate) fn named(&self, nexus: usize, naa: &[u8]) -> Option<u16> {
        self.initiators[nexus].itls.keys().copied().find(|&lun| self.units[usize::from(lun)].naa == naa)
    }

    pub(crate) fn protected(&self, nexus: usize, lun: u16) -> bool {
        let unit = &self.units[usize::from(lun)];
        unit.read_only || unit.mode.write_protected() || self.initiators[nexus].view.read_only
    }

    fn expect_on(
        &mut self,
        nexus: usize,
        lun: u16,
        layout: &Layout,
        cdb: &[u8],
        data: &[u8],
        actual: &Response,
    ) -> Outcome {
        let protected = self.protected(nexus, lun);
        if self.initiators[nexus].view.read_only && layout.changes_state(cdb, data) {
            return refuse(&[(5, 0x2002)]);
        }
        let unit = &mut self.units[usize::from(lun)];
        if layout.medium && !unit.medium {
            return refuse(&[(2, 0x3A00), (2, 0x3A01), (2, 0x3A02)]);
        }
        if layout.writes && protected {
            return refuse(&[(7, 0x2700), (7, 0x2702)]);
        }
        match layout.command {
            Command::TestUnitReady => Reply::nothing(),
            Command::RequestSense => self.request_sense(nexus, lun, cdb, actual),
            Command::Inquiry => unit.inquiry(cdb, actual),
            Command::ReportLuns => self.report_luns(nexus, cdb),
            Command::ReadCapacity10 | Command::ReadCapacity16 => unit.read_capacity(cdb),
            Command::Read => unit.read(cdb, actual),
            Command::Write => unit.write(cdb, data, actual),
            Command::Verify => unit.verify(cdb, data, actual),
            Command::WriteAndVerify => unit.write_and_verify(cdb, data, actual),
            Command::WriteSame => unit.write_same(cdb, data, actual),
            Command::Unmap => unit.unmap(cdb, data),
            Command::CompareAndWrite => unit.compare_and_write(cdb, data, actual),
            Command::OrWrite => unit.or_write(cdb, data, actual),
            Command::WriteAtomic => unit.write_atomic(cdb, data, actual),
            Command::GetLbaStatus => unit.get_lba_status(cdb, actual),
            Command::Sanitize => unit.sanitize(cdb, data),
            Command::ExtendedCopy => self.extended_copy(nexus, cdb, data),
            Command::PreFetch | Command::SynchronizeCache => unit.range_only(cdb, actual),
            Command::ModeSense => unit.mode_sense(cdb, protected),
            Command::ModeSelect => {
                let (took, changed) = unit.mode_select(cdb, data)?;
                if changed {
                    self.establish(lun, MODE, Some(nexus));
                }
                Reply::took(took)
            }
            Command::Reserve => unit.reservations.reserve_unit(nexus).and_then(|()| Reply::nothing()),
            Command::Release => unit.reservations.release_unit(nexus).and_then(|()| Reply::nothing()),
            Command::ReadKeys | Command::ReadReservation | Command::ReadFullStatus => {
                unit.reservations.read(layout.command, cdb, actual)
            }
            Command::ReserveOut => self.reserve_out(nexus, lun, cdb, data),
            Command::StartStop => self.start_stop(nexus, lun, cdb),
            Command::PreventAllow => match cdb[4] & 3 {
                value @ (0 | 1) => {
                    let itl = self.initiators[nexus].itls.get_mut(&lun).expect("looked up");
                    itl.prevents_removal = value == 1;
                    Reply::nothing()
                }
                _ => refuse(&[INVALID_CDB]),
            },
        }
    }

    fn request_sense(&mut self, nexus: usize, lun: u16, cdb: &[u8], actual: &Response) -> Outcome {
        let owed = &mut self.initiators[nexus].itls.get_mut(&lun).expect("looked up").pending;
        let allocation = usize::from(cdb[4]);
        let data = &actual.data_in[..];
        if data.len() > allocation {
            return wrong("more than the allocation length");
        }
        let descriptor = cdb[1] & 1 != 0;
        let (key_at, code_at) = if descriptor { (1, 2) } else { (2, 12) };
        if data.len() < code_at + 2 {
            return wrong("sense data without a code");
        }
        if data[0] & 0x7F != if descriptor { 0x72 } else { 0x70 } {
            return wrong("sense data of the other format");
        }
        let (key, code) = (data[key_at] & 0xF, number(&data[code_at..code_at + 2]) as u16);
        match (owed.is_empty(), key, code) {
            (true, 0, 0) => Reply::checked(),
            (false, 6, code) => owed.told(code).map_or_else(wrong, |()| Reply::checked()),
            _ => wrong(format!("sense data {key:x}/{code:04x}, pending are {owed:04x?}")),
        }
    }

    fn report_luns(&mut self, nexus: usize, cdb: &[u8]) -> Outcome {
        let initiator = &mut self.initiators[nexus];
        let units = initiator.itls.keys().map(|&lun| Lun::new(lun));
        let luns: Vec<Lun> = match cdb[2] {
            0 => units.collect(),
            1 => vec![Lun::REPORT_LUNS],
            2 => std::iter::once(Lun::REPORT_LUNS).chain(units).collect(),
            _ => return refuse(&[INVALID_CDB]),
        };
        initiator.itls.values_mut().for_each(|itl| itl.pending.forget(LUNS));
        let mut data = (8 * luns.len() as u64).to_be_bytes().to_vec();
        data.rotate_left(4);
        data.extend(luns.iter().flat_map(|lun| lun.0));
        Reply::data(data, number(&cdb[6..10]) as usize)
    }

    fn reserve_out(&mut self, nexus: usize, lun: u16, cdb: &[u8], data: &[u8]) -> Outcome {
        const FLAGS: u8 = 0x0D;
        let reservations = &mut self.units[usize::from(lun)].reservations;
        if number(&cdb[5..9]) != 24 || data.len() < 24 {
            return refuse(&[crate::answer::LIST_LENGTH]);
        }
        if data[20] & FLAGS != 0 {
            return refuse(&[crate::answer::INVALID_PARAMETER, crate::answer::LIST_LENGTH]);
        }
        let (key, new) = (number(&data[..8]), number(&data[8..16]));
        let action = cdb[1] & 0x1F;
        for (who, code) in reservations.out(nexus, action, cdb[2], key, new)? {
            if let Some(itl) = self.initiators[who].itls.get_mut(&lun) {
                itl.pending.establish(code);
                // PREEMPT AND ABORT lets the medium go that the preempted have prevented from going.
                itl.prevents_removal &= (action, code) != (5, REGISTRATIONS_PREEMPTED);
            }
        }
        Reply::took(24)
    }

    fn start_stop(&mut self, nexus: usize, lun: u16, cdb: &[u8]) -> Outcome {
        let (start, load_or_eject) = (cdb[4] & 1 != 0, cdb[4] & 2 != 0);
        let prevented = self
            .initiators
            .iter()
            .any(|initiator| initiator.itls.get(&lun).is_some_and(|itl| itl.prevents_removal));
        let unit = &mut self.units[usize::from(lun)];
        if cdb[4] >> 4 != 0 || !load_or_eject {
            return Reply::nothing();
        }
        if !unit.removable {
            return refuse(&[INVALID_CDB]);
        }
        if prevented {
            return refuse(&[(5, 0x5302)]);
        }
        if std::mem::replace(&mut unit.medium, start) != start && start {
            self.establish(lun, MEDIUM, Some(nexus));
        }
        Reply::nothing()
    }

    fn expect_without_unit(&mut self, nexus: usize, cdb: &[u8], actual: &Response) -> Outcome {
        let Some(layout) = layout::find(cdb) else { return refuse(&[INVALID_OPCODE, NO_UNIT, INVALID_CDB]) };
        if cdb.len() < layout.fields.len() || layout.has_refused_bits(cdb) {
            return refuse(&[INVALID_CDB, NO_UNIT]);
        }
        match layout.command {
            Command::ReportLuns => self.report_luns(nexus, cdb),
            Command::Inquiry if cdb[2] != 0 => refuse(&[INVALID_CDB]),
            Command::Inquiry => match actual.data_in.first() {
                Some(&first) if first != 0x7F => wrong("a unit that is not there has a peripheral"),
                _ => Reply::checked(),
            },
            Command::RequestSense => Reply::checked(),
            _ => refuse(&[NO_UNIT]),
        }
    }
}

fn shows(view: &LunView, lun: u16) -> bool {
    view.luns.as_ref().is_none_or(|luns| luns.contains(&lun))
}
