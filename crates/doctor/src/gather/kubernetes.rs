//! Facts of a node of Kubernetes that a CSI driver's node plugin depends on.

use std::path::Path;

use super::mount_info;
use super::source::Machine;
use crate::facts::Kubernetes;

/// Directories of a kubelet's state: kubeadm and most distributions, MicroK8s, k0s. k3s and RKE2 use the first.
const STATE: [&str; 3] =
    ["/var/lib/kubelet", "/var/snap/microk8s/common/var/lib/kubelet", "/var/lib/k0s/kubelet"];

/// Words in the names of CSI drivers that use the node's iSCSI initiator.
const DRIVERS: [&str; 5] = ["iscsi", "trident", "csi.hpe.com", "longhorn", "truenas"];

/// The node's facts; `None`: this machine is none, or one that uses no iSCSI: it has neither a driver for it nor an
/// initiator.
pub(super) fn kubernetes(machine: &Machine) -> Option<Kubernetes> {
    let kubelet = STATE.into_iter().find(|folder| machine.has_entry(folder))?;
    let drivers = machine.names(&format!("{kubelet}/plugins"));
    let of_iscsi = |driver: &String| DRIVERS.iter().any(|word| driver.contains(word));
    if !drivers.iter().any(of_iscsi) && !machine.exists("/etc/iscsi") {
        return None;
    }
    Some(Kubernetes {
        kubelet: kubelet.to_owned(),
        tcp_module: match machine.exists("/sys/module") {
            true => Ok(machine.exists("/sys/module/iscsi_tcp")),
            false => Err("there is no /sys/module".to_owned()),
        }
        .into(),
        shared: shared(machine, kubelet).into(),
        multipathd: multipathd(machine).into(),
    })
}

/// Returns `true` if mounts below a folder are seen in other mount namespaces (mount_namespaces(7)), by the mount that
/// it is on.
fn shared(machine: &Machine, folder: &str) -> Result<bool, String> {
    let table = mount_info::table(machine)?;
    let above = mount_info::listed(&table).filter(|mount| Path::new(folder).starts_with(&mount.point));
    let deepest = above.max_by_key(|mount| mount.point.len());
    deepest.map(|mount| mount.shared).ok_or_else(|| format!("no mount has {folder}"))
}

/// Returns `true` if multipathd of the machine itself runs: by its socket's entry among the abstract ones, which every
/// user may read.
fn multipathd(machine: &Machine) -> Result<bool, String> {
    let folder = if machine.is_live() { "/proc/thread-self/net" } else { "/proc/net" };
    let text = machine.text(&format!("{folder}/unix"))?;
    Ok(text.lines().any(|line| line.ends_with("org/kernel/linux/storage/multipathd")))
}

#[cfg(test)]
mod tests {
    use super::super::put;
    use super::*;
    use crate::seen::Seen;

    #[test]
    fn a_node_is_known_by_its_kubelet_and_its_mounts_by_the_deepest_one() {
        let root = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let machine = Machine::copy(root.path());
        assert_eq!(kubernetes(&machine), None);
        put(root.path(), "var/lib/kubelet/plugins/nfs.csi.k8s.io/x", "");
        assert_eq!(kubernetes(&machine), None, "it uses no iSCSI");
        put(root.path(), "var/lib/kubelet/plugins/iscsi.csi.k8s.io/x", "");
        put(root.path(), "sys/module/iscsi_tcp/refcnt", "0");
        put(
            root.path(),
            "proc/self/mountinfo",
            "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n2 1 8:2 / /var rw,noatime - ext4 /dev/sda2 rw\n\
             3 1 8:3 / /var/lib/kubelet2 rw shared:3 - ext4 /dev/sda3 rw\nodd\n",
        );
        put(root.path(), "proc/net/unix", "0: 2 0 10000 1 1 7 @/org/kernel/linux/storage/multipathd\n");
        let found = kubernetes(&machine).unwrap_or_default();
        let known = Seen::Value(true);
        assert_eq!((&found.tcp_module, &found.multipathd), (&known, &known));
        assert_eq!(found.shared, Seen::Value(false), "that of /var: {found:?}");
        put(root.path(), "proc/self/mountinfo", "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n");
        assert_eq!(kubernetes(&machine).unwrap_or_default().shared, known);
    }
}
