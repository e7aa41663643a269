//! Distinction of a logical unit from those of the same name elsewhere.

use std::path::Path;

use lunway_block::spec::{DeviceSpec, IscsiUrlText, is_store_address};
use sha2::{Digest, Sha256};

use crate::config::{Config, LunConfig};

/// Identity of the daemon: the machine and the portals that logical units are served from.
///
/// Initiators take logical units of one identity for one disk, and spread its data over all of them. So the names of
/// the target and the LUN, which two machines may well share, are not enough. To them come the machine's id and what
/// names the store behind the logical unit: its path as it is written, made absolute. Not what a symbolic link leads
/// to, as `/dev/disk/by-id/…` stays where `/dev/sdb` does not. Memory has no name; where one machine has two daemons,
/// they listen at different addresses, and memory does not outlive the process that does.
pub(super) struct DaemonIdentity {
    /// Of the machine.
    digest: String,
    portals: String,
}

impl DaemonIdentity {
    /// Returns the place of a daemon with this configuration.
    pub(super) fn of(config: &Config) -> Self {
        let id = config.machine_id.clone().or_else(lunway_machine::machine_id).unwrap_or_else(|| {
            let mut luns = config.targets.iter().flat_map(|target| &target.luns);
            if luns.any(|lun| lun.serial.is_none()) {
                tracing::warn!(
                    "this machine has no /etc/machine-id: initiators tell its disks from those of another machine by the host's \
                     name alone; write machine_id into the configuration, or a serial for each LUN"
                );
            }
            lunway_machine::host_name()
        });
        // The id is not to be known in the network (machine-id(5)), which serial numbers are.
        let digest = Sha256::digest(format!("lunway target\n{id}"));
        let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let portals: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
        Self { digest, portals: portals.join(" ") }
    }

    /// Returns the distinction of this logical unit from any other with its target's name and its number.
    pub(super) fn distinction(&self, lun: &LunConfig) -> String {
        let store = match lun.device.spec().leaf() {
            DeviceSpec::File { path, .. }
            | DeviceSpec::Vhdx { path }
            | DeviceSpec::Image { path, .. }
            | DeviceSpec::Paths { path } => place(path),
            DeviceSpec::Iscsi { url } => far_disk(url),
            DeviceSpec::Point { name } => match name.kept_in() {
                Some(file) => place(file),
                None if is_store_address(&name.folder) => format!("{name}"),
                None => format!("point {}@{}", place(&name.folder), name.point),
            },
            DeviceSpec::Rbd { name } => {
                format!("rbd {}:{}", name.cluster.as_deref().unwrap_or("ceph"), name.image_path())
            }
            DeviceSpec::Nbd { uri } => uri.to_string(),
            _ => format!("memory {}", self.portals),
        };
        format!("{}\n{store}", self.digest)
    }
}

/// A file or folder, wherever this process was started.
fn place(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.as_os_str().as_encoded_bytes().escape_ascii().to_string()
}

/// Target and LUN of an address: how they are reached may change.
fn far_disk(url: &IscsiUrlText) -> String {
    let shown = url.to_string();
    let path = shown.split('?').next().unwrap_or_default();
    let names: Vec<_> = path.rsplit('/').take(2).collect();
    names.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the distinction of LUN 1 of a daemon.
    fn distinction(machine: &str, listen: &str, device: &str) -> String {
        let text = format!(
            "listen = [\"{listen}\"]\nmachine_id = \"{machine}\"\n[[target]]\nname = \"iqn.2026-11.com.example:disk\"\n\
             [[target.lun]]\nid = 1\ndevice = \"{device}\"\n"
        );
        let config = Config::from_toml(&text, "lunway.toml").unwrap();
        config.check().unwrap();
        DaemonIdentity::of(&config).distinction(&config.targets[0].luns[0])
    }

    const HERE: &str = "192.0.2.1";

    #[test]
    fn the_same_name_on_another_machine_is_another_disk() {
        for device in ["ram:1M", "/srv/disk.img", "iscsi://192.0.2.9/iqn.2026-11.com.example:far/0"] {
            assert_eq!(distinction("one", HERE, device), distinction("one", HERE, device));
            assert_ne!(distinction("one", HERE, device), distinction("two", HERE, device), "{device}");
        }
        assert!(
            !distinction("one", HERE, "ram:1M").contains("one"),
            "an id that would be told to the network"
        );
    }

    #[test]
    fn a_disk_is_known_by_its_store_whatever_stands_before_it_and_wherever_it_is_served() {
        let of = |device: &str| distinction("one", HERE, device);
        assert_ne!(of("/srv/a.img"), of("/srv/b.img"));
        assert_eq!(of("/srv/a.img"), of("delay:1ms:stats:file:/srv/a.img"));
        assert_eq!(of("/srv/a.img"), distinction("one", "192.0.2.2", "/srv/a.img"));
        let here = std::env::current_dir().unwrap().join("a.img");
        assert_eq!(of("a.img"), of(here.to_str().unwrap()));
        assert_eq!(of("ram:1M"), of("ram:2M"), "memory is resized in place");
        assert_ne!(
            of("ram:1M"),
            distinction("one", "192.0.2.1:3261", "ram:1M"),
            "two daemons on one machine"
        );
        let far = |host: &str, lun: u8| {
            of(&format!("iscsi://u%p@{host}/iqn.2026-11.com.example:far/{lun}?from=192.0.2.3"))
        };
        assert_eq!(far("192.0.2.9", 0), far("192.0.2.10:3261", 0), "one disk behind two portals");
        assert_ne!(far("192.0.2.9", 0), far("192.0.2.9", 1));
    }
}
