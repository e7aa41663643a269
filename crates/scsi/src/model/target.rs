//! A SCSI target device: a name and a map of logical units.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lunway_block::FairTurn;

use crate::data::lun::Lun;
use crate::model::logical_unit::LogicalUnit;
use crate::model::lun_view::LunView;
use crate::model::nexus::{Nexus, PortPair};
use crate::model::port_group::{AccessState, PortGroup, PortGroups};
use crate::model::state_store::{StateError, StateStore, item};

/// A logical unit number that cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LunInUse {
    /// Another logical unit has it.
    #[error("LUN {0} is in use")]
    Taken(u16),
    /// Flat space addressing has 14 bits.
    #[error("LUN {0} is beyond the largest number, 16383")]
    TooLarge(u16),
}

struct Inventory {
    luns: BTreeMap<u16, Arc<LogicalUnit>>,
    /// Numbers of units that are expected soon.
    awaited: BTreeSet<u16>,
    groups: PortGroups,
    nexuses: Vec<Weak<Nexus>>,
}

impl Inventory {
    fn port_groups(&self) -> Vec<PortGroup> {
        self.groups.now().map(|(group, _)| group.clone()).collect()
    }

    fn open_nexuses(&self) -> Vec<Arc<Nexus>> {
        self.nexuses.iter().filter_map(Weak::upgrade).collect()
    }
}

/// A SCSI target device. Shared by all its sessions on all cores; they meet here only when one comes or goes, or when
/// the map of logical units changes.
///
/// The map of logical units and the target port groups are the same for all its ports and nexuses; what a nexus sees of
/// them is its [`LunView`], and what it may do the state of the group it comes through.
pub struct ScsiTarget {
    name: String,
    inventory: Mutex<Inventory>,
    state: Option<Arc<dyn StateStore>>,
    /// Gate for one SET TARGET PORT GROUPS at a time.
    setting_groups: Arc<FairTurn>,
}

/// Reason why SET TARGET PORT GROUPS was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SetGroupsError {
    /// The choice with this index cannot be made.
    Choice(usize),
    /// Cannot be kept.
    State(StateError),
}

impl ScsiTarget {
    /// A target without logical units, and with one port: relative target port 1 in port group 1, active/optimized.
    /// `name` becomes its SCSI name string in VPD page 83h: its iSCSI name.
    pub fn new(name: &str) -> Arc<Self> {
        let groups = PortGroups::new(None).expect("nothing was kept that could be damaged");
        Self::make(name, None, groups)
    }

    /// The same, with a store for the states of target port groups that initiators choose. What it has of an earlier
    /// target of the name holds.
    pub fn with_state(name: &str, store: Arc<dyn StateStore>) -> Result<Arc<Self>, StateError> {
        let kept = store.load(name, item::PORT_GROUPS)?;
        let groups = PortGroups::new(kept.as_deref()).map_err(|why| StateError::Damaged {
            owner: name.to_owned(),
            item: item::PORT_GROUPS.to_owned(),
            why: why.to_owned(),
        })?;
        Ok(Self::make(name, Some(store), groups))
    }

    fn make(name: &str, state: Option<Arc<dyn StateStore>>, groups: PortGroups) -> Arc<Self> {
        let inventory =
            Inventory { luns: BTreeMap::new(), awaited: BTreeSet::new(), groups, nexuses: Vec::new() };
        Arc::new(Self {
            name: name.to_owned(),
            inventory: Mutex::new(inventory),
            state,
            setting_groups: Arc::default(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn inventory(&self) -> MutexGuard<'_, Inventory> {
        self.inventory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers a logical unit. Open nexuses see it at once and are told that the list has changed.
    pub fn attach(&self, lun: u16, unit: Arc<LogicalUnit>) -> Result<(), LunInUse> {
        if lun > Lun::NUMBER_MAX {
            return Err(LunInUse::TooLarge(lun));
        }
        let mut inventory = self.inventory();
        if inventory.luns.contains_key(&lun) {
            return Err(LunInUse::Taken(lun));
        }
        let nexuses = inventory.open_nexuses();
        for nexus in &nexuses {
            nexus.add(lun, &unit, true);
        }
        inventory.luns.insert(lun, unit);
        inventory.awaited.remove(&lun);
        drop(inventory);
        // A nexus dropped here closes itself, which takes the inventory: only after it is free.
        drop(nexuses);
        Ok(())
    }

    /// Expects a unit of this number soon: until it is [attached](Self::attach) or [not expected](Self::expect_no_more)
    /// any longer, initiators that know it from before, and may see it, are told that it is becoming ready. A host then
    /// repeats its commands, where "not supported" fails them.
    pub fn expect(&self, lun: u16) {
        let mut inventory = self.inventory();
        if !inventory.luns.contains_key(&lun) {
            inventory.awaited.insert(lun);
        }
    }

    /// Expects no unit of this number any longer.
    pub fn expect_no_more(&self, lun: u16) {
        self.inventory().awaited.remove(&lun);
    }

    pub(crate) fn expects(&self, lun: u16) -> bool {
        self.inventory().awaited.contains(&lun)
    }

    /// Withdraws a logical unit. Commands already under way come to their end.
    pub fn detach(&self, lun: u16) -> Option<Arc<LogicalUnit>> {
        let mut inventory = self.inventory();
        let unit = inventory.luns.remove(&lun)?;
        let nexuses = inventory.open_nexuses();
        for nexus in &nexuses {
            nexus.remove(lun);
        }
        drop(inventory);
        drop(nexuses);
        Some(unit)
    }

    /// The logical units, in order of their numbers.
    pub fn luns(&self) -> Vec<(u16, Arc<LogicalUnit>)> {
        self.inventory().luns.iter().map(|(&lun, unit)| (lun, unit.clone())).collect()
    }

    pub(crate) fn with_units<T>(&self, run: impl FnOnce(&BTreeMap<u16, Arc<LogicalUnit>>) -> T) -> T {
        run(&self.inventory().luns)
    }

    /// Its target port groups, in the states that they are in now.
    pub fn port_groups(&self) -> Vec<PortGroup> {
        self.inventory().port_groups()
    }

    pub(crate) fn groups(&self) -> PortGroups {
        self.inventory().groups.clone()
    }

    /// Relative identifiers of all its ports.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.inventory().groups.ports()
    }

    /// Gives the target other port groups, or the same in other states. Where anything changed, every nexus is told:
    /// ASYMMETRIC ACCESS STATE CHANGED. A port of no group is active and optimized.
    ///
    /// A group whose state an initiator chose by SET TARGET PORT GROUPS keeps that as long as `groups` says the same of
    /// it as when that happened.
    pub fn set_port_groups(&self, groups: Vec<PortGroup>) {
        let mut inventory = self.inventory();
        let before = inventory.groups.to_kept();
        let nexuses = Self::change_groups(&mut inventory, None, |now| now.configure(groups));
        let after = inventory.groups.to_kept();
        drop(inventory);
        drop(nexuses);
        if let Some(store) = self.state.as_ref().filter(|_| after != before) {
            // No command waits: what is kept in vain is of no effect (its group is configured otherwise) until it is
            // gone.
            drop(store.save(&self.name, item::PORT_GROUPS, after));
        }
    }

    /// Changes groups, and tells every nexus but `except`. The nexuses are to be dropped after the inventory is free:
    /// one that closes itself takes it.
    fn change_groups(
        inventory: &mut Inventory,
        except: Option<u64>,
        change: impl FnOnce(&mut PortGroups),
    ) -> Vec<Arc<Nexus>> {
        let before = inventory.port_groups();
        change(&mut inventory.groups);
        let changed = inventory.port_groups() != before;
        let nexuses = inventory.open_nexuses();
        for nexus in &nexuses {
            let group = inventory.groups.of_port(nexus.ports().relative_target_port);
            nexus.set_group(group, changed && except != Some(nexus.id()));
        }
        nexuses
    }

    /// SET TARGET PORT GROUPS from the nexus `sender`: states for groups, all or none. They are kept when this returns.
    pub(crate) async fn choose_groups(
        &self,
        sender: u64,
        choices: &[(u16, AccessState)],
    ) -> Result<(), SetGroupsError> {
        let _turn = self.setting_groups.take().await;
        let mut groups = self.groups();
        let before = groups.to_kept();
        groups.choose(choices).map_err(SetGroupsError::Choice)?;
        let after = groups.to_kept();
        if let Some(store) = self.state.as_ref().filter(|_| after != before) {
            store.save(&self.name, item::PORT_GROUPS, after).await.map_err(SetGroupsError::State)?;
        }
        let nexuses = {
            let mut inventory = self.inventory();
            // The configuration may have changed meanwhile; what is chosen of groups that are gone is void.
            Self::change_groups(&mut inventory, Some(sender), |now| {
                let _ = now.choose(choices);
            })
        };
        drop(nexuses);
        Ok(())
    }

    /// A new I_T nexus that sees what `view` shows. `initiator_port` is the SCSI initiator port name, for iSCSI the
    /// initiator's name, `,i,0x` and the ISID in hexadecimal. An older nexus between the same ports is the transport's
    /// to close first (RFC 7143 §6.3.5).
    pub fn open_nexus(
        self: &Arc<Self>,
        initiator_port: &str,
        relative_target_port: u16,
        view: LunView,
    ) -> Arc<Nexus> {
        let (initiator_port, principal) = (initiator_port.to_owned(), String::new());
        self.open_nexus_between(PortPair { initiator_port, relative_target_port, principal }, view)
    }

    /// [`open_nexus`](Self::open_nexus), where the transport tells principals apart.
    pub fn open_nexus_between(self: &Arc<Self>, ports: PortPair, view: LunView) -> Arc<Nexus> {
        let relative_target_port = ports.relative_target_port;
        let mut inventory = self.inventory();
        let group = inventory.groups.of_port(relative_target_port);
        let nexus = Arc::new(Nexus::new(self.clone(), ports, view, group));
        for (&lun, unit) in &inventory.luns {
            nexus.add(lun, unit, false);
        }
        inventory.nexuses.push(Arc::downgrade(&nexus));
        nexus
    }

    pub(crate) fn forget(&self, nexus: &Nexus) {
        self.inventory().nexuses.retain(|other| !std::ptr::eq(other.as_ptr(), nexus));
    }
}

impl fmt::Debug for ScsiTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScsiTarget").field("name", &self.name).finish_non_exhaustive()
    }
}
