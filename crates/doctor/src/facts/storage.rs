//! Disks, arrays and file systems.

use serde::{Deserialize, Serialize};

use crate::seen::Seen;

/// Storage stack of a machine: what lies under and on its disks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Storage {
    /// Disks, those of iSCSI among them.
    pub disks: Seen<Vec<Disk>>,
    /// md arrays.
    pub arrays: Seen<Vec<Array>>,
    /// ZFS pools.
    pub pools: Seen<Vec<Array>>,
    /// LVM volume groups and thin pools.
    pub volumes: Seen<Vec<Array>>,
    /// File systems on disks.
    pub mounts: Seen<Vec<Mount>>,
    /// `/etc/fstab`.
    pub fstab: Seen<Vec<FstabEntry>>,
    /// Swap areas.
    pub swaps: Seen<Vec<Swap>>,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// `sda`.
    pub name: String,
    /// The iSCSI session that it is reached by.
    pub session: Option<String>,
    /// Number of the logical unit that it is, for a SCSI disk.
    pub lun: Option<u64>,
    /// Identity of the content's place (`wwid` in sysfs).
    pub wwid: Option<String>,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical sector.
    pub logical_sector: u32,
    /// Bytes of a physical sector.
    pub physical_sector: u32,
    /// Has turning platters, or says so.
    pub rotational: Seen<bool>,
    /// I/O scheduler in use.
    pub scheduler: Seen<String>,
    /// Its I/O feeds the kernel's random numbers.
    pub add_random: Seen<bool>,
    /// Largest request that the kernel sends, KiB.
    pub max_sectors_kb: Seen<u32>,
    /// `write back` or `write through`.
    pub write_cache: Seen<String>,
    /// Seconds that the SCSI layer waits for a command.
    pub timeout: Seen<u32>,
    /// State in the SCSI layer: `running`, `offline`, `blocked`, `transport-offline`.
    pub state: Seen<String>,
    /// On which processor a request is completed (`rq_affinity`): 0 any, 1 the group of the submitter, 2 the submitter.
    pub rq_affinity: Seen<u32>,
    /// Requests that the kernel keeps for it.
    pub nr_requests: Seen<u32>,
    /// KiB that are read ahead.
    pub read_ahead_kb: Seen<u32>,
    /// Holders of the whole disk: maps, arrays.
    pub holders: Vec<String>,
    /// Its partitions.
    pub partitions: Vec<Partition>,
    /// Its own prediction of failure (SMART overall health): true is healthy.
    pub healthy: Seen<bool>,
}

/// A partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Partition {
    /// `sda1`.
    pub name: String,
    /// Its first byte.
    pub start: u64,
    /// Holders of the partition.
    pub holders: Vec<String>,
}

/// Software that an array is made by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrayKind {
    /// Linux md.
    #[default]
    Md,
    /// A ZFS pool.
    Zfs,
    /// An LVM volume group, or a thin pool in one.
    Lvm,
}

/// Several disks as one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Array {
    /// `md0`, a pool's name, a group's, `group/pool`.
    pub name: String,
    /// Software that it is made by.
    pub kind: ArrayKind,
    /// `raid1`, `mirror`; empty where it is not told.
    pub level: String,
    /// Redundancy is lost: members are missing or have failed.
    pub degraded: Seen<bool>,
    /// Sectors of an md array whose copies differ; errors of a ZFS pool's devices and files.
    pub errors: Seen<u64>,
    /// The form of an md array's superblocks: `1.2`, `0.90`, `none`; empty elsewhere.
    pub superblock: String,
    /// Current action: `idle`, `resync`, `recover`, `scrub`.
    pub action: String,
    /// Disks or partitions that it is made of.
    pub members: Vec<String>,
    /// Percentage in use, where it can run full.
    pub used_percent: Option<f64>,
    /// The same of a thin pool's metadata.
    pub metadata_percent: Option<f64>,
}

/// A mounted file system on a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mount {
    /// `/dev/sda1`.
    pub device: String,
    /// Mount point.
    pub point: String,
    /// `ext4`.
    pub kind: String,
    /// Options in effect.
    pub options: Vec<String>,
    /// Its superblock is read-only and its mount is not: the kernel has made it so after an error, mount(8) sets both.
    pub made_read_only: Seen<bool>,
    /// Error that its root answers with; empty: none.
    pub root_error: Seen<String>,
    /// Faults that it has met.
    pub faults: Seen<MountFaults>,
    /// Lies on a disk that is reached over iSCSI.
    pub iscsi: bool,
    /// Percentage of its bytes in use.
    pub used_percent: Seen<f64>,
    /// Percentage of its inodes in use.
    pub inodes_percent: Seen<f64>,
}

/// Faults that a file system's kernel has counted: damage of its structure (ext4), or failed reads, writes, flushes and
/// checksums of its disks (btrfs).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountFaults {
    /// Faults since a check or an administrator has set the count to zero.
    pub count: u64,
    /// Function of the kernel that met the last one; empty where it is not told.
    pub function: String,
    /// The last one was met after this machine has started, and a fault ends all writes (`errors=remount-ro`).
    pub ended_writes: bool,
}

/// A line of `/etc/fstab`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FstabEntry {
    /// First field: a device, `UUID=…`, `LABEL=…`.
    pub device: String,
    /// Mount point.
    pub point: String,
    /// `ext4`.
    pub kind: String,
    /// Options.
    pub options: Vec<String>,
    /// The disk behind it is reached over iSCSI.
    pub iscsi: bool,
    /// iSCSI targets that its disk is reached by; empty where the disk is not there.
    pub targets: Vec<String>,
}

/// Swap space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Swap {
    /// A device or a file.
    pub path: String,
    /// Lies on a disk that is reached over iSCSI.
    pub iscsi: Seen<bool>,
}
