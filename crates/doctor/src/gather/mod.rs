//! Reading the facts of a machine.

mod disks;
mod ethtool;
mod host;
mod initiator;
mod mounts;
mod multipath;
mod network;
mod source;
mod stores;

pub use source::Machine;
pub use stores::stores;

use crate::facts::{FACTS_SCHEMA, Facts};

/// Reads the facts of a machine; changes nothing on it. `ports` are storage ports beside those that carry iSCSI now.
///
/// Takes some milliseconds for files, and at most [`Machine`]'s limit of time for each program that is asked.
pub fn gather(machine: &Machine, ports: &[String]) -> Facts {
    let (found, peers) = network::ports(machine, ports);
    let initiator = initiator::open_iscsi(machine);
    let maps = multipath::multipath(machine);
    let storage = disks::storage(machine, initiator.as_ref());
    Facts {
        schema: FACTS_SCHEMA,
        host: Some(host::host(machine)),
        ports: Some(found),
        peers: Some(peers),
        sysctls: network::sysctls(machine),
        open_iscsi: initiator,
        multipath: maps,
        storage: Some(storage),
        ..Facts::default()
    }
}

/// Writes a file of a machine that a test makes up.
#[cfg(test)]
fn put(root: &std::path::Path, path: &str, text: &str) {
    let path = root.join(path);
    let folder = path.parent().map(std::fs::create_dir_all).transpose();
    assert!(folder.and_then(|_| std::fs::write(path, text)).is_ok());
}
