//! The commands of the tables, and a target to send them to.

use std::sync::Arc;

use lunway_block::{Buf, Io};
use lunway_memory::RamDisk;
use lunway_scsi::cdb;
use lunway_scsi::operations::{OPERATIONS, Operation};
use lunway_scsi::{
    AccessState, LogicalUnit, LogicalUnitOptions, LunView, Nexus, PortGroup, Response, ScsiTarget,
};

/// START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL have rows for some of their CDBs: the byte and its value.
pub(crate) type Tweak = Option<(usize, u8)>;

/// A CDB of an operation that sets nothing but its operation code and service action.
pub(crate) fn cdb_of(operation: &Operation, tweak: Tweak) -> Vec<u8> {
    let mut cdb = vec![0; operation.usage.len()];
    cdb[0] = operation.opcode;
    cdb[1] = operation.service_action.unwrap_or(0);
    if let Some((at, value)) = tweak {
        cdb[at] = value;
    }
    cdb
}

pub(crate) fn operation(name: &str) -> &'static Operation {
    let found = OPERATIONS.iter().find(|operation| operation.name == name);
    found.unwrap_or_else(|| panic!("{name} is in the standard's table here, and no operation"))
}

/// Fails where an operation is in no row.
pub(crate) fn assert_complete<'a>(table: &str, rows: impl Iterator<Item = &'a str>) {
    let rows: Vec<&str> = rows.collect();
    for operation in OPERATIONS {
        assert!(rows.contains(&operation.name), "{} is not in the {table}", operation.name);
    }
}

/// A target with one disk that offers every operation, behind ports 1 and 2 in groups of their own.
pub(crate) struct Rig {
    pub(crate) target: Arc<ScsiTarget>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let disk = Arc::new(RamDisk::new(1 << 20, 512).expect("a small disk"));
        let options =
            LogicalUnitOptions { identity: "unit".to_owned(), removable: true, ..Default::default() };
        let unit = LogicalUnit::new(disk, options).expect("nothing is kept");
        for operation in OPERATIONS {
            assert!(operation.is_offered_by(&unit), "{} would be refused for another reason", operation.name);
        }
        let target = ScsiTarget::new("iqn.2026-11.com.example:access");
        target.attach(0, unit).expect("a new target");
        let rig = Self { target };
        rig.set_state(AccessState::ActiveOptimized);
        rig
    }

    /// Puts port 1 in a state; port 2 stays active.
    pub(crate) fn set_state(&self, state: AccessState) {
        let group = |tag, state| PortGroup { tag, state, preferred: false, ports: vec![tag] };
        self.target.set_port_groups(vec![group(1, state), group(2, AccessState::ActiveNonOptimized)]);
    }

    /// A nexus through a port that has heard that it is new.
    pub(crate) fn login(&self, name: &str, port: u16) -> Arc<Nexus> {
        let nexus = self.target.open_nexus(&format!("{name},i,0x000000000001"), port, LunView::ALL);
        hear_all(&nexus);
        nexus
    }
}

/// Takes all unit attentions.
pub(crate) fn hear_all(nexus: &Nexus) {
    while send(nexus, &cdb::request_sense(18), &[]).data_in.get(2).is_some_and(|key| key & 0xF == 6) {}
}

pub(crate) fn send(nexus: &Nexus, cdb: &[u8], data_out: &[u8]) -> Response {
    match nexus.execute([0; 8], cdb, Buf::copy_of(data_out).freeze()) {
        Io::Ready(response) => response,
        // An operation that goes on in the background was not refused.
        Io::Pending(_) => Response::good(),
    }
}
