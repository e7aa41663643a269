//! Reading the facts of a machine.

mod arrays;
mod destinations;
mod disks;
mod ethtool;
mod faults;
mod flows;
mod host;
mod initiator;
mod interrupts;
mod kubernetes;
mod mount_info;
mod mounts;
mod multipath;
mod network;
mod owner_quota;
mod quota;
mod source;
mod stores;

pub use destinations::destinations;
pub use source::Machine;
pub use stores::stores;

use std::panic::resume_unwind;
use std::thread;

use crate::facts::{FACTS_SCHEMA, Facts};

/// Reads the facts of a machine; changes nothing on it. `ports` are storage ports beside those that carry iSCSI now.
///
/// Takes some milliseconds for files, and at most 4 s for all programs that are asked: parts that do not need each
/// other are read at once, and what was not reached by then is unseen with that reason.
pub fn gather(machine: &Machine, ports: &[String]) -> Facts {
    let machine = &machine.for_a_run();
    let initiator = initiator::open_iscsi(machine);
    // Threads are in the network namespace of the one that starts them.
    let ((found, peers, default_ports), maps, storage, host) = thread::scope(|scope| {
        let network = scope.spawn(|| {
            let (found, peers) = network::ports(machine, ports);
            (found, peers, network::default_ports(machine))
        });
        let maps = scope.spawn(|| multipath::multipath(machine));
        let host = scope.spawn(|| host::host(machine));
        let storage = disks::storage(machine, initiator.as_ref());
        let (network, maps, host) = (network.join(), maps.join(), host.join());
        let network = network.unwrap_or_else(|panic| resume_unwind(panic));
        let maps = maps.unwrap_or_else(|panic| resume_unwind(panic));
        (network, maps, storage, host.unwrap_or_else(|panic| resume_unwind(panic)))
    });
    Facts {
        schema: FACTS_SCHEMA,
        host: Some(host),
        kubernetes: kubernetes::kubernetes(machine),
        ports: Some(found),
        peers: Some(peers),
        sysctls: network::sysctls(machine),
        open_iscsi: initiator,
        multipath: maps,
        storage: Some(storage),
        default_ports,
        left_out: machine.notes(),
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
