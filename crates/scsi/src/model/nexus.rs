//! I_T nexuses: who is talking to which target port, and what each logical unit owes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use lunway_block::decorate::Opener;
use lunway_block::{Io, Owner};

use crate::data::lun::{Lun, LunAddress};
use crate::model::authority::Authority;
use crate::model::copy_record::CopyRecords;
use crate::model::logical_unit::{LogicalUnit, obstacle};
use crate::model::lun_view::LunView;
use crate::model::port_group::{AccessState, PortGroup};
use crate::model::target::ScsiTarget;
use crate::model::task_management::{self, NexusTasks, Scope, TaskManagementFunction, TaskManagementOutcome};
use crate::model::unit_attention::{Pending, UnitAttention};

/// Port pair of a nexus. Persistent reservations are registered to it: it outlives the nexus itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortPair {
    /// SCSI initiator port name; for iSCSI `name,i,0x` and the ISID.
    pub initiator_port: String,
    /// Relative identifier of the target port.
    pub relative_target_port: u16,
    /// Principal that owns the initiator port, as the transport tells principals apart: a name is only a claim. Two
    /// principals with ports of one name share nothing. Empty where all initiators are admitted alike.
    pub principal: String,
}

impl PortPair {
    /// An owner of operations in the group of the host, which is one of the principal's: see [`Owner::in_groups`].
    fn owner(&self) -> Owner {
        let host = self.initiator_port.rsplit_once(",i,").map_or(&*self.initiator_port, |(name, _)| name);
        Owner::in_groups([&self.principal, host])
    }
}

/// State shared by all I_T_L nexuses of one I_T nexus.
#[derive(Debug)]
pub(crate) struct NexusIdentity {
    id: u64,
    ports: PortPair,
    target: Arc<ScsiTarget>,
    /// Commands of the nexus, which its transport keeps.
    tasks: OnceLock<Arc<dyn NexusTasks>>,
    /// Tag of the target port group and code of its state, see [`Self::set_group`].
    group: AtomicU32,
}

impl NexusIdentity {
    /// Unique while the process lives.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn ports(&self) -> &PortPair {
        &self.ports
    }

    pub(crate) fn target(&self) -> &Arc<ScsiTarget> {
        &self.target
    }

    /// The target port group that the nexus comes through, and its state. Ports of no group are active and optimized.
    pub(crate) fn group(&self) -> (Option<u16>, AccessState) {
        let [tag_high, tag_low, _, code] = self.group.load(Ordering::Acquire).to_be_bytes();
        let tag = u16::from_be_bytes([tag_high, tag_low]);
        ((tag != 0).then_some(tag), AccessState::from_code(code).unwrap_or_default())
    }

    fn set_group(&self, group: Option<&PortGroup>) {
        let (tag, state) = group.map_or((0, AccessState::default()), |group| (group.tag, group.state));
        self.group.store(u32::from(tag) << 16 | u32::from(state.code()), Ordering::Release);
    }
}

/// Set in [`ItlNexus::inquiry`] by the first INQUIRY.
const ASKED: u64 = 1 << 33;
/// Set instead by the second, with its number.
const INQUIRED: u64 = 1 << 32;

/// Nothing that was sent before an INQUIRY comes this many commands after it: far more than a command window.
const LATER_MAX: i32 = 1 << 20;

/// I_T_L nexus (SAM-5), of one nexus and one logical unit: pending unit attentions, obstacles of its commands alone,
/// and PREVENT.
#[derive(Debug)]
pub(crate) struct ItlNexus {
    lun: u16,
    unit: Arc<LogicalUnit>,
    nexus: Arc<NexusIdentity>,
    pending: Pending,
    obstacles: AtomicU8,
    /// INQUIRY since the unit took the place of another: nothing, [`ASKED`], or [`INQUIRED`] and the second one's
    /// number.
    inquiry: AtomicU64,
    prevents_removal: AtomicBool,
    /// Number of holds not yet released: each waits for commands of a nexus whose place this one takes.
    predecessors: Mutex<u32>,
    copies: CopyRecords,
    /// A flush that failed for another nexus has lost what this one wrote as well.
    opener: Opener,
}

impl ItlNexus {
    /// The device, as this nexus flushes it.
    pub(crate) fn opener(&self) -> &Opener {
        &self.opener
    }

    pub(crate) fn unit(&self) -> &Arc<LogicalUnit> {
        &self.unit
    }

    pub(crate) fn nexus(&self) -> &NexusIdentity {
        &self.nexus
    }

    pub(crate) fn pending(&self) -> &Pending {
        &self.pending
    }

    /// Has the transport drop every command of the nexus on this unit.
    pub(crate) fn abort_tasks(&self) -> Io<()> {
        self.copies.cancel();
        self.unit.medium_operation().release(Some(self.nexus.id));
        self.nexus.tasks.get().map_or(Io::Ready(()), |tasks| tasks.abort(self.lun))
    }

    /// Bits of [`obstacle`] that are this nexus's alone.
    pub(crate) fn obstacles(&self) -> u8 {
        self.obstacles.load(Ordering::Acquire)
    }

    fn set_obstacle(&self, bit: u8, on: bool) {
        if on {
            self.obstacles.fetch_or(bit, Ordering::AcqRel);
        } else {
            self.obstacles.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// The nexus may write to the unit, and change its state.
    pub(crate) fn may_change(&self) -> bool {
        self.obstacles() & obstacle::PROTECTED == 0
    }

    fn change_predecessors(&self, change: impl FnOnce(u32) -> u32) {
        let mut predecessors = self.predecessors.lock().unwrap_or_else(PoisonError::into_inner);
        *predecessors = change(*predecessors);
        self.set_obstacle(obstacle::PREDECESSOR, *predecessors > 0);
    }

    /// INQUIRY has come, which tells what the unit is. One that came before the unit attentions of the exchange were
    /// told may have been sent before it, and the first after them before these were heard: an initiator asks one
    /// question after another, so that the second was not.
    pub(crate) fn inquired(&self, number: Option<u32>) {
        if !self.pending.is_empty() {
            return;
        }
        let inquiry = INQUIRED | u64::from(number.unwrap_or_default());
        if self.inquiry.compare_exchange(0, ASKED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            let _ = self.inquiry.compare_exchange(ASKED, inquiry, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Returns `true` if a command was sent after the nexus had asked for the identity of the unit that has taken the
    /// place of another.
    pub(crate) fn is_meant(&self, number: Option<u32>) -> bool {
        let inquiry = self.inquiry.load(Ordering::Acquire);
        let has_asked = inquiry & INQUIRED != 0;
        let Some(number) = number.filter(|_| has_asked) else { return has_asked };
        // RFC 1982: numbers before and after are those of the nearer half.
        let later = number.wrapping_sub(inquiry as u32).cast_signed();
        if later > LATER_MAX {
            self.set_obstacle(obstacle::EXCHANGED, false);
        }
        later >= 0
    }

    /// The copies that were asked for here.
    pub(crate) fn copies(&self) -> &CopyRecords {
        &self.copies
    }

    pub(crate) fn prevents_removal(&self) -> bool {
        self.prevents_removal.load(Ordering::Acquire)
    }

    pub(crate) fn set_prevents_removal(&self, on: bool) {
        self.prevents_removal.store(on, Ordering::Release);
    }
}

/// I_T nexus: an initiator port talking to a target port. Made by [`ScsiTarget::open_nexus`].
///
/// A new nexus has the unit attention POWER ON OCCURRED pending on each logical unit, or I_T NEXUS LOSS OCCURRED where
/// the same ports were told before that it is on: an initiator that comes back thus knows that no write cache was lost.
/// Closing it, or dropping it, is an I_T nexus loss: RESERVE is released, PREVENT ALLOW MEDIUM REMOVAL undone;
/// persistent reservations stay, and are found again by the same pair of ports.
///
/// A unit of another serial number under the number of one that the nexus knew answers what reads or changes something
/// with the unit attention REPORTED LUNS DATA HAS CHANGED to all commands that were sent before it was asked by INQUIRY
/// what it is: one unit attention alone would let pass the commands that were on their way when it was sent, and those
/// of a host that does not look.
///
/// The list of logical units is the nexus's own copy, as far as its [`LunView`] goes, renewed when the target's
/// changes, so that finding one on the way to an I/O meets no other core.
pub struct Nexus {
    identity: Arc<NexusIdentity>,
    seen: RwLock<Seen>,
    closed: AtomicBool,
    owner: Owner,
}

/// View of a nexus, and the units that it sees.
struct Seen {
    view: LunView,
    /// In order of their numbers.
    units: Vec<Arc<ItlNexus>>,
    /// Serial numbers of the units that the nexus knew under these numbers before they went.
    former: BTreeMap<u16, String>,
}

impl Seen {
    fn position(&self, lun: u16) -> Result<usize, usize> {
        self.units.binary_search_by_key(&lun, |itl| itl.lun)
    }

    fn establish(&self, condition: UnitAttention) {
        self.units.iter().for_each(|itl| itl.pending.establish(condition));
    }

    fn remove(&mut self, lun: u16) -> bool {
        let Ok(index) = self.position(lun) else { return false };
        let gone = self.units.remove(index);
        // One that came in the place of another, and was never asked what it is, the initiator takes for the other
        // still.
        if gone.obstacles() & obstacle::EXCHANGED == 0 || gone.is_meant(None) {
            self.former.insert(lun, gone.unit.identity().serial().to_owned());
        }
        gone.unit.leave(&gone);
        true
    }
}

impl Nexus {
    pub(crate) fn new(
        target: Arc<ScsiTarget>,
        ports: PortPair,
        view: LunView,
        group: Option<&PortGroup>,
    ) -> Self {
        // Counted over all targets, because a logical unit may belong to several.
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        let id = LAST_ID.fetch_add(1, Ordering::Relaxed);
        let identity =
            NexusIdentity { id, ports, target, tasks: OnceLock::new(), group: AtomicU32::default() };
        identity.set_group(group);
        let owner = identity.ports.owner();
        Self {
            identity: Arc::new(identity),
            seen: RwLock::new(Seen { view, units: Vec::new(), former: BTreeMap::new() }),
            closed: AtomicBool::new(false),
            owner,
        }
    }

    /// Whom devices work for that carry out its commands. The transport enters it when it executes commands and when it
    /// polls them, and has it leave when their initiator is gone.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns `true` if a unit is expected soon under a number that this nexus may see.
    pub(crate) fn awaits(&self, number: u16) -> bool {
        self.target().expects(number) && self.seen().view.shows(number)
    }

    /// The unit that it sees under a number.
    pub(crate) fn find(&self, number: u16) -> Option<Arc<ItlNexus>> {
        let seen = self.seen();
        let index = seen.position(number).ok()?;
        Some(seen.units[index].clone())
    }

    fn seen(&self) -> RwLockReadGuard<'_, Seen> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen_mut(&self) -> RwLockWriteGuard<'_, Seen> {
        self.seen.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of the logical units that this nexus sees, in order.
    pub fn luns(&self) -> Vec<u16> {
        self.seen().units.iter().map(|itl| itl.lun).collect()
    }

    /// Returns `true` if it sees all logical units of the target, and may write to each: what concerns the whole target
    /// is its to change.
    pub(crate) fn may_change_all(&self) -> bool {
        let view = self.view();
        !view.read_only && self.target().luns().iter().all(|(lun, _)| view.shows(*lun))
    }

    /// The logical units that it sees, for a copy manager.
    pub(crate) fn units(&self) -> Vec<Arc<ItlNexus>> {
        self.seen().units.clone()
    }

    /// Lets go the commands that only wait for an operation which goes on without them, such as a SANITIZE without
    /// IMMED. The transport calls it when their initiator is gone.
    pub fn release_waiting(&self) {
        for itl in &self.seen().units {
            itl.unit.medium_operation().release(Some(self.identity.id));
        }
    }

    /// Unique while the process lives.
    pub(crate) fn id(&self) -> u64 {
        self.identity.id
    }

    /// Port pair of the nexus.
    pub fn ports(&self) -> &PortPair {
        &self.identity.ports
    }

    /// The target it belongs to.
    pub fn target(&self) -> &Arc<ScsiTarget> {
        &self.identity.target
    }

    /// Tells where its commands are, so that they can be aborted when another nexus preempts this one. To be called
    /// once, before the first command; without it such commands come to their end.
    pub fn set_tasks(&self, tasks: Arc<dyn NexusTasks>) {
        let _ = self.identity.tasks.set(tasks);
    }

    /// Carries out what a task management function does to logical units and nexuses (SAM-5 §7). The commands
    /// themselves are the transport's: it drops those that the outcome names.
    pub fn task_management(&self, lun: [u8; 8], function: TaskManagementFunction) -> TaskManagementOutcome {
        use TaskManagementFunction as Function;
        let Some(row) = task_management::find(function) else {
            return TaskManagementOutcome::NOT_SUPPORTED;
        };
        if row.authority == Authority::ChangeAll {
            if !self.may_change_all() {
                return TaskManagementOutcome::NOT_AUTHORIZED;
            }
            self.target().luns().iter().for_each(|(_, unit)| unit.reset());
            return TaskManagementOutcome::complete(Scope::Target);
        }
        let LunAddress::Unit(number) = Lun(lun).address() else {
            return TaskManagementOutcome::INCORRECT_LUN;
        };
        let Some(itl) = self.find(number) else { return TaskManagementOutcome::INCORRECT_LUN };
        if row.authority == Authority::Change && !itl.may_change() {
            return TaskManagementOutcome::NOT_AUTHORIZED;
        }
        // One that waits for an operation of the unit's would keep the function from ending; the operation goes on.
        itl.unit.medium_operation().release(Some(self.identity.id));
        if function == Function::AbortTaskSet {
            itl.copies.cancel();
        }
        TaskManagementOutcome::complete(match function {
            Function::AbortTask => Scope::Task,
            Function::AbortTaskSet => Scope::NexusUnit { lun: number },
            Function::LogicalUnitReset => {
                itl.unit.reset();
                Scope::Unit { lun: number, unit: itl.unit.clone() }
            }
            Function::ClearTaskSet => Scope::Unit { lun: number, unit: itl.unit.clone() },
            _ => return TaskManagementOutcome::NOT_SUPPORTED,
        })
    }

    /// The transport dropped commands of this nexus on `lun` because of another nexus's CLEAR TASK SET.
    pub fn commands_cleared(&self, lun: u16) {
        if let Some(itl) = self.find(lun) {
            itl.pending.establish(UnitAttention::CommandsCleared);
        }
    }

    /// The transport dropped commands of this nexus on `lun` with the connection they came over, while the nexus goes
    /// on.
    pub fn commands_lost(&self, lun: [u8; 8]) {
        if let LunAddress::Unit(number) = Lun(lun).address()
            && let Some(itl) = self.find(number)
        {
            itl.pending.establish(UnitAttention::CommandsLost);
        }
    }

    /// I_T nexus loss. Commands sent afterwards find no logical unit. Does nothing the second time.
    pub fn close(&self) {
        self.close_but(&BTreeSet::new());
    }

    /// I_T nexus loss on all logical units but those whose devices still have commands of the nexus (`busy`, by
    /// number): what it holds there, such as RESERVE, must not be another's before these have ended. To be called again
    /// as they end; the transport executes nothing for the nexus any more.
    pub fn close_but(&self, busy: &BTreeSet<u16>) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.target().forget(self);
        }
        let mut seen = self.seen_mut();
        let (stay, leave) =
            std::mem::take(&mut seen.units).into_iter().partition(|itl| busy.contains(&itl.lun));
        seen.units = stay;
        drop(seen);
        let leave: Vec<Arc<ItlNexus>> = leave;
        for itl in leave {
            itl.unit.leave(&itl);
        }
    }

    /// The devices behind these logical units still have commands of the nexus whose place this one takes. Until
    /// [`release`](Self::release) commands to them are answered BUSY, so that nothing of the old nexus happens after
    /// something of this one. Those of INQUIRY and REPORT LUNS are not: they change nothing, and a host needs them to
    /// find its other units.
    pub fn hold(&self, luns: &BTreeSet<u16>) {
        luns.iter()
            .filter_map(|lun| self.find(*lun))
            .for_each(|itl| itl.change_predecessors(|count| count + 1));
    }

    /// The commands for which these logical units were [held](Self::hold) have ended.
    pub fn release(&self, luns: &BTreeSet<u16>) {
        let held = luns.iter().filter_map(|lun| self.find(*lun));
        held.for_each(|itl| itl.change_predecessors(|count| count.saturating_sub(1)));
    }

    /// View of the nexus: what it may see.
    pub fn view(&self) -> LunView {
        self.seen().view.clone()
    }

    /// Changes what it may see, while it runs. It is told what changed: REPORTED LUNS DATA HAS CHANGED on the units
    /// that it still sees, and, as WP is a mode parameter, MODE PARAMETERS CHANGED where writing became allowed or
    /// forbidden. From when this returns nothing begins to change a unit that the nexus sees no longer: what waits for
    /// its turn there is refused as to a nexus that may not write, and copies end; other commands under way come to
    /// their end. What the nexus held there (RESERVE, PREVENT) goes; registrations and persistent reservations stay.
    pub fn set_view(&self, view: LunView) {
        // Under the target's lock, so that no unit comes or goes at the same time.
        self.target().with_units(|units| {
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            let mut seen = self.seen_mut();
            let protection = seen.view.read_only != view.read_only;
            seen.view = view;
            let hidden: Vec<u16> =
                seen.units.iter().map(|itl| itl.lun).filter(|&lun| !seen.view.shows(lun)).collect();
            let mut changed = !hidden.is_empty();
            for lun in hidden {
                if let Ok(index) = seen.position(lun) {
                    // For commands that have found the unit and wait.
                    seen.units[index].set_obstacle(obstacle::PROTECTED, true);
                    seen.units[index].copies.cancel();
                }
                seen.remove(lun);
            }
            if protection {
                seen.units.iter().for_each(|itl| itl.set_obstacle(obstacle::PROTECTED, seen.view.read_only));
                seen.establish(UnitAttention::ModeParametersChanged);
            }
            let old = seen.units.len();
            for (&lun, unit) in units {
                self.insert(&mut seen, lun, unit);
            }
            changed |= seen.units.len() != old;
            if changed {
                seen.establish(UnitAttention::LunsChanged);
            }
        });
    }

    /// The target got a logical unit. `announce`: the nexus is told that its list has changed.
    pub(crate) fn add(&self, lun: u16, unit: &Arc<LogicalUnit>, announce: bool) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        let mut seen = self.seen_mut();
        if announce && seen.view.shows(lun) {
            seen.establish(UnitAttention::LunsChanged);
        }
        self.insert(&mut seen, lun, unit);
    }

    /// Takes in a unit that the view shows and that is not there yet.
    fn insert(&self, seen: &mut Seen, lun: u16, unit: &Arc<LogicalUnit>) {
        let Err(index) = seen.position(lun) else { return };
        if !seen.view.shows(lun) {
            return;
        }
        let itl = Arc::new(ItlNexus {
            lun,
            unit: unit.clone(),
            nexus: self.identity.clone(),
            pending: Pending::default(),
            obstacles: AtomicU8::default(),
            inquiry: AtomicU64::default(),
            prevents_removal: AtomicBool::new(false),
            predecessors: Mutex::default(),
            copies: CopyRecords::default(),
            opener: unit.open(),
        });
        itl.set_obstacle(obstacle::PROTECTED, seen.view.read_only);
        itl.set_obstacle(obstacle::ASYMMETRIC, !self.identity.group().1.is_active());
        let former = seen.former.get(&lun);
        itl.set_obstacle(
            obstacle::EXCHANGED,
            former.is_some_and(|serial| serial != unit.identity().serial()),
        );
        itl.pending.establish(unit.join(&itl));
        seen.units.insert(index, itl);
    }

    /// The target lost a logical unit.
    pub(crate) fn remove(&self, lun: u16) {
        let mut seen = self.seen_mut();
        if seen.remove(lun) {
            seen.establish(UnitAttention::LunsChanged);
        }
    }

    /// The port group that the nexus comes through is another one now, or in another state; `announce`: it is told that
    /// some group of the target has changed.
    pub(crate) fn set_group(&self, group: Option<&PortGroup>, announce: bool) {
        self.identity.set_group(group);
        let refuses = !self.identity.group().1.is_active();
        let seen = self.seen();
        seen.units.iter().for_each(|itl| itl.set_obstacle(obstacle::ASYMMETRIC, refuses));
        if announce {
            seen.establish(UnitAttention::AsymmetricAccessChanged);
        }
    }

    /// REPORT LUNS told the nexus what LunsChanged would have (SPC-4 §6.33).
    pub(crate) fn luns_reported(&self) {
        self.seen().units.iter().for_each(|itl| itl.pending.clear(UnitAttention::LunsChanged));
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Nexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nexus").field("ports", self.ports()).finish_non_exhaustive()
    }
}
