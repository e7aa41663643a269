//! A SCSI target device: a name and a map of logical units.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::logical_unit::LogicalUnit;
use crate::lun::Lun;
use crate::lun_view::LunView;
use crate::nexus::{Nexus, PortPair};
use crate::port_group::{AccessState, PortGroup};

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
    groups: Vec<PortGroup>,
    nexuses: Vec<Weak<Nexus>>,
}

impl Inventory {
    fn open_nexuses(&self) -> Vec<Arc<Nexus>> {
        self.nexuses.iter().filter_map(Weak::upgrade).collect()
    }

    fn group_of(&self, port: u16) -> Option<&PortGroup> {
        self.groups.iter().find(|group| group.ports.contains(&port))
    }
}

/// A SCSI target device. Shared by all its sessions on all cores; they meet here only when one comes or goes, or when
/// the map of logical units changes.
pub struct ScsiTarget {
    name: String,
    inventory: Mutex<Inventory>,
}

impl ScsiTarget {
    /// A target without logical units, and with one port: relative target port 1 in port group 1, active/optimized. `name`
    /// becomes its SCSI name string in VPD page 83h: its iSCSI name.
    pub fn new(name: &str) -> Arc<Self> {
        let group =
            PortGroup { tag: 1, state: AccessState::ActiveOptimized, preferred: false, ports: vec![1] };
        let inventory = Inventory { luns: BTreeMap::new(), groups: vec![group], nexuses: Vec::new() };
        Arc::new(Self { name: name.to_owned(), inventory: Mutex::new(inventory) })
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
        drop(inventory);
        // A nexus dropped here closes itself, which takes the inventory: only after it is free.
        drop(nexuses);
        Ok(())
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

    /// Its target port groups.
    pub fn port_groups(&self) -> Vec<PortGroup> {
        self.inventory().groups.clone()
    }

    /// Relative identifiers of all its ports.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.inventory().groups.iter().flat_map(|group| group.ports.iter().copied()).collect()
    }

    /// Gives the target other port groups, or the same in other states. Where anything changed, every nexus is told:
    /// ASYMMETRIC ACCESS STATE CHANGED. A port of no group is active and optimized.
    pub fn set_port_groups(&self, groups: Vec<PortGroup>) {
        let mut inventory = self.inventory();
        let changed = inventory.groups != groups;
        inventory.groups = groups;
        let nexuses = inventory.open_nexuses();
        for nexus in &nexuses {
            nexus.set_group(inventory.group_of(nexus.ports().relative_target_port), changed);
        }
        drop(inventory);
        drop(nexuses);
    }

    /// A new I_T nexus that sees what `view` shows. `initiator_port` is the SCSI initiator port name, for iSCSI the initiator's name, `,i,0x` and the
    /// ISID in hexadecimal. An older nexus between the same ports is the transport's to close first (RFC 7143 §6.3.5).
    pub fn open_nexus(
        self: &Arc<Self>,
        initiator_port: &str,
        relative_target_port: u16,
        view: LunView,
    ) -> Arc<Nexus> {
        let ports = PortPair { initiator_port: initiator_port.to_owned(), relative_target_port };
        let mut inventory = self.inventory();
        let group = inventory.group_of(relative_target_port);
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
