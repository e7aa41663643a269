//! A running target as its management interface tells of it: the fields of its answers that rules use.

use serde::{Deserialize, Serialize};

use crate::seen::Seen;

/// A running target daemon and its initiators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Target {
    /// Time of the query, Unix time, seconds; 0: not known.
    pub looked_at: u64,
    /// Seconds for which it has served.
    pub uptime_s: u64,
    /// Warnings that it gives about itself.
    pub warnings: Vec<TargetWarning>,
    /// Entries of `listen`.
    pub portals: Vec<PortalState>,
    /// The targets.
    pub targets: Vec<ServedTarget>,
    /// The sessions.
    pub sessions: Vec<ServedSession>,
    /// Logins that were refused since it serves.
    pub logins_refused: Seen<u64>,
    /// Activity of each logical unit.
    pub units: Vec<UnitActivity>,
    /// Sizes and stores.
    pub devices: Vec<Device>,
    /// Its stores as they were at an earlier look.
    pub earlier: Option<Look>,
    /// Reservations.
    pub reservations: Vec<UnitReservations>,
    /// Backups by the clock.
    pub schedules: Seen<Vec<BackupSchedule>>,
    /// Parts of its answers that were not examined, because there are more than the limits allow.
    pub left_out: Vec<String>,
    /// Stores of the logical units, where the daemon is on this machine.
    pub stores: Seen<Vec<LunStore>>,
}

/// A warning of the daemon's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetWarning {
    /// `open_target`.
    pub kind: String,
    /// A sentence.
    pub text: String,
}

/// An entry of `listen`, and what it stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortalState {
    /// The entry.
    pub listen: String,
    /// The portals.
    pub portals: Vec<String>,
    /// Reason why there are none, or not all.
    #[serde(default)]
    pub waiting: Option<String>,
}

/// A target of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedTarget {
    /// Its name.
    pub name: String,
    /// Its logical units.
    pub luns: Vec<ServedLun>,
}

/// A logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedLun {
    /// Its number.
    pub id: u16,
    /// The device behind it, without secrets.
    pub device: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical sector.
    pub sector: u32,
    /// Bytes of a physical sector that it is configured to report; `None`: those of its device.
    #[serde(default)]
    pub physical_sector: Option<u32>,
    /// Writes are refused.
    pub read_only: bool,
    /// The unit serial number.
    pub serial: String,
}

/// A session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServedSession {
    /// Its handle.
    pub tsih: u16,
    /// The initiator's name.
    pub initiator: String,
    /// Name that the initiator gives itself, often its host's name.
    #[serde(default)]
    pub initiator_alias: Option<String>,
    /// The initiator's part of the session's identity.
    pub isid: String,
    /// The target's name.
    pub target: String,
    /// Address of the initiator, `ADDRESS:PORT`.
    pub peer: String,
    /// The portal that it came by.
    pub portal: String,
    /// CRC32C over headers, over data.
    pub digests: [bool; 2],
    /// Other keys that were negotiated.
    #[serde(default)]
    pub keys: Seen<SessionKeys>,
    /// Task management functions of its initiator.
    #[serde(default)]
    pub task_management: Seen<TaskManagement>,
    /// Time of the login, Unix time.
    pub since: u64,
    /// Activity, by kind of operation.
    #[serde(default)]
    pub operations: Vec<Operations>,
}

/// Operational keys of a session (RFC 7143 §13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionKeys {
    /// InitialR2T: even the first burst of a write needs an R2T.
    pub initial_r2t: bool,
    /// ImmediateData: a write may carry data with its command.
    pub immediate_data: bool,
    /// FirstBurstLength: most data of a write without an R2T, bytes.
    pub first_burst_length: u32,
    /// MaxBurstLength: longest sequence of data, bytes.
    pub max_burst_length: u32,
    /// MaxRecvDataSegmentLength of the target: longest data segment of a write, bytes.
    pub max_recv_target: u32,
    /// MaxRecvDataSegmentLength of the initiator: longest data segment of a read, bytes.
    pub max_recv_initiator: u32,
}

/// Task management functions that an initiator has asked for (RFC 7143 §11.5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskManagement {
    /// Commands or task sets that were aborted.
    pub aborts: u64,
    /// Resets of a logical unit or of the target.
    pub resets: u64,
}

/// Commands of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operations {
    /// `read`, `write`, `unmap`, `flush`, `other`.
    pub operation: String,
    /// Commands that have ended.
    pub operations: u64,
    /// Commands that the device could not carry out.
    #[serde(default)]
    pub failed: u64,
    /// Microseconds that they took, all together.
    #[serde(default)]
    pub latency_us_total: u64,
}

/// Commands that a device has failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// `full`, `medium`, `gone`, `timeout`, `internal`.
    pub cause: String,
    /// Number of commands.
    pub count: u64,
}

/// Activity of a logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitActivity {
    /// The target's name.
    pub target: String,
    /// Its number.
    pub lun: u16,
    /// By kind of operation.
    pub operations: Vec<Operations>,
    /// By cause.
    pub failures: Vec<Failures>,
}

/// The size of a logical unit, and its store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The target's name.
    pub target: String,
    /// Its number.
    pub lun: u16,
    /// Size seen by initiators, bytes.
    pub size: u64,
    /// Its store; `None`: it does not tell.
    #[serde(default)]
    pub space: Option<Space>,
}

/// Stores at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Look {
    /// Unix time, seconds.
    pub looked_at: u64,
    /// Sizes and stores.
    pub devices: Vec<Device>,
}

/// A store, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Space that the logical unit takes.
    pub allocated: u64,
    /// Space in use, by everything in it.
    pub used: u64,
    /// Space left.
    pub available: u64,
}

/// Reservations of a logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitReservations {
    /// The target's name.
    pub target: String,
    /// Its number.
    pub lun: u16,
    /// Registered initiators.
    #[serde(default)]
    pub registrations: Vec<Registration>,
    /// The type of the persistent reservation.
    #[serde(default)]
    pub reservation: Option<String>,
    /// The port that used RESERVE.
    #[serde(default)]
    pub reserved_by: Option<String>,
}

/// A registration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Registration {
    /// The initiator's name.
    pub initiator: String,
}

/// A backup that the daemon makes by the clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackupSchedule {
    /// Its name in the configuration.
    pub name: String,
    /// The logical unit, `TARGET/LUN`.
    pub source: String,
    /// The folder of the points.
    pub destination: String,
    /// Longest time between two due times, seconds.
    pub interval_s: u64,
    /// End of the last run that made a point, Unix time; `None`: none is known.
    pub last_success: Option<u64>,
    /// When its daemon saw it first, Unix time; `None`: that is not known.
    pub known_since: Option<u64>,
    /// When the run under way began, Unix time; `None`: none is.
    pub running_since: Option<u64>,
    /// Reason why the last run has failed; `None`: it has not.
    pub error: Option<String>,
    /// The folder, where the daemon is on this machine.
    pub folder: Option<Seen<BackupFolder>>,
}

/// The folder of a backup's points.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackupFolder {
    /// It is there, or is made by the first run.
    pub exists: bool,
    /// Nothing is in it.
    pub is_empty: bool,
    /// Mount point that it lies on, which `/etc/fstab` names, and on which nothing is mounted.
    pub unmounted: Option<String>,
}

/// The file or disk behind a logical unit, on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LunStore {
    /// The target's name.
    pub target: String,
    /// Its number.
    pub lun: u16,
    /// The file or block device.
    pub path: String,
    /// Identity of the file: device and inode, or the number of the block device.
    pub identity: String,
    /// Number of the file system that it lies in; the same for LUNs that share their space.
    pub file_system: String,
    /// Bytes of a logical sector of the disk below.
    pub logical_sector: Seen<u32>,
    /// Bytes of a physical sector of the disk below.
    pub physical_sector: Seen<u32>,
    /// Caching of the disk below: `write back` or `write through`.
    pub write_cache: Seen<String>,
    /// Quota of the folder that the file lies in.
    pub quota: Seen<FolderQuota>,
    /// Quotas of the user and of the group that the file belongs to, where they have one.
    pub owner_quotas: Seen<Vec<OwnerQuota>>,
}

/// Quota of a user or a group on one file system (quotactl(2)), bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnerQuota {
    /// `user` or `group`.
    pub kind: String,
    /// Its number.
    pub id: u32,
    /// Most that all its files may take: of the hard limit and the soft one, which is as hard after some days, the
    /// smaller.
    pub limit: u64,
    /// Space that they take.
    pub used: u64,
}

/// Quota of a folder (a project of XFS or ext4), bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FolderQuota {
    /// Most that all files below the folder may take; 0: there is no quota.
    pub limit: u64,
    /// Space that they take.
    pub used: u64,
}
