//! A logical unit: a device with identity, mode parameters, reservations and the nexuses that see it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lunway_block::decorate::{Opener, Openers};
use lunway_block::{BlockDevice, Durability, FairTurn, Geometry};

use crate::data::mode::{ModeChange, ModeParameters};
use crate::model::gate::{Claim, Gate};
use crate::model::given_up::GivenUpList;
use crate::model::identity::UnitIdentity;
use crate::model::itl_nexuses::ItlNexuses;
use crate::model::medium_operation::{self, MediumOperation, MediumWork, Phase};
use crate::model::nexus::{ItlNexus, PortPair};
use crate::model::reservation::{Keeper, Reservations};
use crate::model::state_store::{StateError, StateStore, item as state_item};
use crate::model::unit_attention::UnitAttention;
use crate::model::unit_options::LogicalUnitOptions;

/// Ports that are remembered. One that is forgotten hears POWER ON again, which costs it a check and nothing else.
const GREETED_MAX: usize = 256;

/// Reason why ordinary commands need a closer look before they run: bits of the logical unit, and of the I_T_L nexus.
/// All clear is one load of each on the fast path.
pub(crate) mod obstacle {
    /// RESERVE(6) or RESERVE(10) is in force.
    pub(crate) const RESERVED: u8 = 1;
    /// A persistent reservation is in force.
    pub(crate) const PERSISTENT: u8 = 2;
    /// The medium is ejected.
    pub(crate) const NO_MEDIUM: u8 = 4;
    /// Writes are refused: to all on the logical unit, to this nexus alone on the I_T_L nexus.
    pub(crate) const PROTECTED: u8 = 8;
    /// The target port is in an asymmetric access state that refuses commands; only on the I_T_L nexus.
    pub(crate) const ASYMMETRIC: u8 = 16;
    /// An operation has the medium for itself, or left it unusable.
    pub(crate) const MEDIUM_OPERATION: u8 = 32;
    /// The device still has commands of the nexus whose place this one takes; only on the I_T_L nexus.
    pub(crate) const PREDECESSOR: u8 = 64;
    /// The device still has commands that were given up; only on the logical unit, where the same bit is free.
    pub(crate) const GIVEN_UP: u8 = 64;
    /// The nexus knew another unit under this number, and has not asked yet what this one is; only on the I_T_L nexus.
    pub(crate) const EXCHANGED: u8 = 128;
}

/// A disk as initiators see it.
///
/// Owns what belongs to the logical unit and not to a nexus: identity, mode parameters, reservations, the medium's
/// presence, the atomic gate. Shared by every target and nexus that reaches it; a unit attention is established on all
/// of them through the list of I_T_L nexuses it keeps.
///
/// The state that every command must look at is a set of `obstacle` bits: as long as it is empty, no lock is taken.
pub struct LogicalUnit {
    device: Arc<dyn BlockDevice>,
    openers: Openers,
    options: LogicalUnitOptions,
    /// Writes are refused by the administrator; begins as [`LogicalUnitOptions::read_only`].
    read_only: AtomicBool,
    identity: UnitIdentity,
    mode: ModeParameters,
    /// One MODE SELECT that saves at a time.
    saving_mode: Arc<FairTurn>,
    /// Percent; 0: none.
    threshold: AtomicU8,
    threshold_told: AtomicBool,
    obstacles: AtomicU8,
    keeper: Keeper,
    nexuses: Mutex<ItlNexuses>,
    /// Ports that were told that the unit is on, oldest first.
    greeted: Mutex<VecDeque<PortPair>>,
    gate: Gate,
    given_up: GivenUpList,
    medium_operation: MediumOperation,
}

impl AsRef<Gate> for LogicalUnit {
    fn as_ref(&self) -> &Gate {
        &self.gate
    }
}

/// The mode parameters that were saved, or the defaults.
fn load_mode(options: &LogicalUnitOptions, volatile_cache: bool) -> Result<ModeParameters, StateError> {
    let kept = match state_of(options) {
        Some((store, owner)) => store.load(owner, state_item::MODE_PAGES)?,
        None => None,
    };
    ModeParameters::new(volatile_cache, kept.as_deref()).map_err(|why| StateError::Damaged {
        owner: options.identity.clone(),
        item: state_item::MODE_PAGES.to_owned(),
        why: why.to_owned(),
    })
}

impl LogicalUnit {
    /// Puts a logical unit in front of a device, with what [`LogicalUnitOptions::state`] keeps of it. Kept state that
    /// is damaged is an error, not an empty start.
    pub fn new(device: Arc<dyn BlockDevice>, options: LogicalUnitOptions) -> Result<Arc<Self>, StateError> {
        let geometry = device.geometry();
        let protected = options.read_only || geometry.read_only;
        let keeper = Keeper::load(state_of(&options))?;
        let mode = load_mode(&options, geometry.volatile_cache)?;
        let unit = Arc::new(Self {
            identity: UnitIdentity::derive(&options),
            mode,
            saving_mode: Arc::default(),
            threshold: AtomicU8::new(options.threshold_percent.unwrap_or(0)),
            threshold_told: AtomicBool::default(),
            obstacles: AtomicU8::new(if protected { obstacle::PROTECTED } else { 0 }),
            keeper,
            nexuses: Mutex::default(),
            greeted: Mutex::default(),
            gate: Gate::default(),
            given_up: GivenUpList::default(),
            medium_operation: MediumOperation::default(),
            openers: Openers::new(device.clone()),
            device,
            read_only: AtomicBool::new(options.read_only),
            options,
        });
        let weak = Arc::downgrade(&unit);
        unit.device.on_resize(Box::new(move |_| {
            if let Some(unit) = weak.upgrade() {
                unit.establish(UnitAttention::CapacityChanged, None);
            }
        }));
        // A sanitize operation that a crash ended has failed: what it was to make unreadable may be there still.
        if let Some(unrestricted) = medium_operation::load_sanitize(state_of(&unit.options))? {
            unit.end_medium_operation(Phase::Failed { work: MediumWork::Sanitize, unrestricted });
        }
        // What was kept is in force from the first command on.
        unit.change_reservations(|_| ());
        Ok(unit)
    }

    /// The device for one more nexus.
    pub(crate) fn open(&self) -> Opener {
        self.openers.open()
    }

    /// The device behind.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Options that it was made with.
    pub fn options(&self) -> &LogicalUnitOptions {
        &self.options
    }

    /// Serial number and designators.
    pub fn identity(&self) -> &UnitIdentity {
        &self.identity
    }

    pub(crate) fn geometry(&self) -> Geometry {
        let geometry = self.device.geometry();
        let told = self.options.physical_sector.unwrap_or(0);
        Geometry { physical_sector: geometry.physical_sector.max(told), ..geometry }
    }

    pub(crate) fn mode(&self) -> &ModeParameters {
        &self.mode
    }

    /// Thin provisioning soft threshold as it is now.
    pub fn threshold_percent(&self) -> Option<u8> {
        Some(self.threshold.load(Ordering::Acquire)).filter(|&percent| percent != 0)
    }

    /// Changes the thin provisioning soft threshold; it is looked at with the next [`check_space`](Self::check_space).
    pub fn set_threshold_percent(&self, percent: Option<u8>) {
        self.threshold.store(percent.unwrap_or(0), Ordering::Release);
    }

    /// Initiators know that the backing store is nearly full.
    pub(crate) fn threshold_told(&self) -> &AtomicBool {
        &self.threshold_told
    }

    /// Keeps mode parameters over power cycles, those in force with a change that a nexus asked for, and has it take
    /// effect: one change after another, so that each is saved with those before it.
    pub(crate) async fn save_mode(&self, change: ModeChange, by: &ItlNexus) -> Result<(), StateError> {
        let _turn = self.saving_mode.take().await;
        let flags = self.mode.with(change);
        if let Some((store, owner)) = self.state() {
            // Kept first: what an initiator was told to be saved must come back.
            store.save(owner, state_item::MODE_PAGES, ModeParameters::kept(flags)).await?;
        }
        self.mode.set_saved(flags);
        self.put_mode_in_force(change, by);
        Ok(())
    }

    /// Mode parameters that a nexus asked for take effect, and the others hear of it.
    pub(crate) fn put_mode_in_force(&self, change: ModeChange, by: &ItlNexus) {
        if self.mode.put_in_force(change) {
            self.refresh_protection();
            self.establish(UnitAttention::ModeParametersChanged, Some(by));
        }
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(crate) fn given_up(&self) -> &GivenUpList {
        &self.given_up
    }

    /// A command that was given up may still change some of these blocks: BUSY.
    pub(crate) fn is_unsettled(&self, claim: &Claim) -> bool {
        self.obstacles() & obstacle::GIVEN_UP != 0 && self.given_up.overlaps(claim)
    }

    /// The store for what outlives the process, and the name under which it is kept there.
    pub(crate) fn state(&self) -> Option<(&Arc<dyn StateStore>, &str)> {
        state_of(&self.options)
    }

    pub(crate) fn medium_operation(&self) -> &MediumOperation {
        &self.medium_operation
    }

    /// Takes the medium for an operation, for the command of a nexus; the caller is alone behind the gate.
    pub(crate) fn begin_medium_operation(&self, work: MediumWork, nexus: u64) -> bool {
        let begun = self.medium_operation.begin(work, nexus);
        if begun {
            self.set_obstacle(obstacle::MEDIUM_OPERATION, true);
        }
        begun
    }

    pub(crate) fn end_medium_operation(&self, phase: Phase) {
        self.set_obstacle(obstacle::MEDIUM_OPERATION, phase != Phase::Idle);
        self.medium_operation.end(phase);
    }

    pub(crate) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    pub(crate) fn reservations(&self) -> MutexGuard<'_, Reservations> {
        self.keeper.lock()
    }

    pub(crate) fn obstacles(&self) -> u8 {
        self.obstacles.load(Ordering::Acquire)
    }

    /// Sets or clears a bit; says whether that changed it.
    pub(crate) fn set_obstacle(&self, bit: u8, on: bool) -> bool {
        let before = if on {
            self.obstacles.fetch_or(bit, Ordering::AcqRel)
        } else {
            self.obstacles.fetch_and(!bit, Ordering::AcqRel)
        };
        (before & bit != 0) != on
    }

    /// Forgets what is kept of it: the unit was removed for good, and another that gets its name must not inherit its
    /// reservations. To be called when no nexus reaches it any longer.
    pub async fn forget(&self) -> Result<(), StateError> {
        match self.state() {
            Some((store, owner)) => Self::forget_saved(&**store, owner).await,
            None => Ok(()),
        }
    }

    /// The same for a unit that is not served, by the `identity` of its options.
    pub async fn forget_saved(store: &dyn StateStore, identity: &str) -> Result<(), StateError> {
        for item in state_item::OF_UNITS {
            store.save(identity, item, Vec::new()).await?;
        }
        Ok(())
    }

    /// Writes are refused by the administrator, or by the device.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire) || self.geometry().read_only
    }

    /// Refuses writes from now on, or takes them again where the device does. Every nexus hears it: WP is a mode
    /// parameter.
    pub fn set_read_only(&self, read_only: bool) {
        if self.read_only.swap(read_only, Ordering::AcqRel) != read_only {
            self.refresh_protection();
            self.establish(UnitAttention::ModeParametersChanged, None);
        }
    }

    /// SWP of the control mode page changed, or who may write: PROTECTED follows.
    pub(crate) fn refresh_protection(&self) {
        let protected = self.is_read_only() || self.mode.software_write_protect();
        self.set_obstacle(obstacle::PROTECTED, protected);
    }

    /// Returns the durability that a write needs before it is acknowledged: with FUA, or with the write cache switched
    /// off, only stable storage.
    pub(crate) fn durability(&self, fua: bool) -> Durability {
        if fua || !self.mode.write_cache() { Durability::Stable } else { Durability::Volatile }
    }

    /// Largest transfer of one command, blocks; at least 1.
    pub(crate) fn max_transfer_blocks(&self, sector: u32) -> u32 {
        (self.options.max_transfer / sector.max(1)).max(1)
    }

    /// WRITE ATOMIC is offered.
    pub(crate) fn atomic_writes(&self) -> bool {
        self.options.atomic_writes.unwrap_or_else(|| !self.geometry().volatile_cache)
    }

    /// The nexuses that see it.
    pub(crate) fn itl_nexuses(&self) -> Vec<Arc<ItlNexus>> {
        self.nexuses().all()
    }

    fn nexuses(&self) -> MutexGuard<'_, ItlNexuses> {
        self.nexuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ports of the nexuses that see it.
    pub(crate) fn ports(&self) -> Vec<PortPair> {
        self.itl_nexuses().iter().map(|itl| itl.nexus().ports().clone()).collect()
    }

    /// Takes in a new nexus; gives the unit attention that it starts with.
    pub(crate) fn join(&self, itl: &Arc<ItlNexus>) -> UnitAttention {
        // A nexus that this one takes the place of may not have left yet: the device still has commands of it.
        let ports = itl.nexus().ports();
        self.change_reservations(|reservations| reservations.adopt(ports));
        let others: Vec<_> = self.nexuses().of(ports).collect();
        let knows = self.greeted().contains(ports)
            || others.iter().any(|other| !other.pending().has(UnitAttention::PowerOn));
        self.nexuses().add(itl);
        if knows { UnitAttention::NexusLoss } else { UnitAttention::PowerOn }
    }

    fn greeted(&self) -> MutexGuard<'_, VecDeque<PortPair>> {
        self.greeted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// I_T nexus loss (SAM-5 §6.3.5): what belonged to the nexus alone goes; persistent reservations stay.
    pub(crate) fn leave(&self, itl: &ItlNexus) {
        self.nexuses().remove(itl);
        self.change_reservations(|reservations| reservations.nexus_lost(itl.nexus().id()));
        if !itl.pending().has(UnitAttention::PowerOn) {
            let mut greeted = self.greeted();
            if !greeted.contains(itl.nexus().ports()) {
                if greeted.len() == GREETED_MAX {
                    greeted.pop_front();
                }
                greeted.push_back(itl.nexus().ports().clone());
            }
        }
    }

    /// Establishes a unit attention on every nexus but `except`.
    pub(crate) fn establish(&self, condition: UnitAttention, except: Option<&ItlNexus>) {
        for itl in self.itl_nexuses() {
            if !except.is_some_and(|except| std::ptr::eq(except, &raw const *itl)) {
                itl.pending().establish(condition);
            }
        }
    }

    /// Establishes a unit attention on the nexuses that `select` names.
    pub(crate) fn establish_on(&self, condition: UnitAttention, select: impl Fn(&ItlNexus) -> bool) {
        self.itl_nexuses()
            .iter()
            .filter(|itl| select(itl))
            .for_each(|itl| itl.pending().establish(condition));
    }

    /// Some nexus has PREVENT ALLOW MEDIUM REMOVAL in force.
    pub(crate) fn removal_prevented(&self) -> bool {
        self.itl_nexuses().iter().any(|itl| itl.prevents_removal())
    }

    /// Logical unit reset (SAM-5 §6.3.3): RESERVE is released, removal allowed, mode parameters back to their defaults,
    /// and every nexus told.
    pub(crate) fn reset(&self) {
        self.change_reservations(Reservations::release_any);
        self.mode.reset();
        self.refresh_protection();
        self.medium_operation.release(None);
        for itl in self.itl_nexuses() {
            itl.set_prevents_removal(false);
            itl.copies().cancel();
            itl.pending().establish(UnitAttention::Reset);
        }
    }
}

fn state_of(options: &LogicalUnitOptions) -> Option<(&Arc<dyn StateStore>, &str)> {
    // Without a name, two units would share what is kept.
    options.state.as_ref().filter(|_| !options.identity.is_empty()).map(|store| (store, &*options.identity))
}

impl std::fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogicalUnit").field("serial", &self.identity.serial()).finish_non_exhaustive()
    }
}
