//! The iSCSI target daemon: what stands behind `lunway serve`.
//!
//! ```text
//!   portals ──► acceptor ──► the core with the fewest connections
//!                              │
//!     socket ◄──► driver ◄──► lunway_iscsi::target (bytes ↔ commands, no I/O)
//!                   │
//!                   └──► lunway_scsi::Nexus (commands → BlockDevice)
//! ```
//!
//! A connection is one task on one pinned core; with one connection per session, so is a session. Connections meet only
//! in the registry, when sessions come and go and when tasks are managed. This crate must not know what devices are
//! made of: it is given a function that opens them.
//!
//! | part | is |
//! |---|---|
//! | [`Config`], [`Overrides`] | what to serve: a TOML file, and what stands above it for one process |
//! | [`IscsiName`] | names of nodes, checked and normalised |
//! | [`Server`] | start, stop, and what is served |
//! | `driver` | **the hot path**: a connection's read – execute – write loop; task management; its end |
//! | `polling` | when to poll instead of sleeping |
//! | `shared` | decisions at login, SendTargets |
//! | `access` | the rules of a target: who may log in, and see and do what |
//! | `principal` | who sessions and reservations belong to |
//! | `source` | limits of logins, and lines about denials, by where they come from |
//! | [`SourceQuota`] | connections with a bounded number of places, none of which one source can take from others |
//! | `io_limit` | limits on I/O: what logical units and initiators may have per second |
//! | `chap_failures` | how long a secret that was tried in vain has to wait |
//! | `metrics` | what is counted, and what Prometheus reads |
//! | `isns` | registration with a name server |
//! | `registry` | connections and sessions, reinstatement, their limits |
//! | `acceptor` | connections taken from sockets, and given to cores |
//! | `worker` | a core's thread |
//! | `portal` | listening, and the addresses that initiators are told |
//! | `summary`, `warning` | what is served, and what may not be meant so, as it is told |
//! | [`FileStore`] | what outlives the process: reservations, mode pages, access states |
//! | `secret`, `log_limit` | CHAP secrets in files; log lines that peers can cause |

mod acceptor;
mod access;
mod background;
mod chap_failures;
mod config;
mod driver;
mod io_limit;
mod isns;
mod log_limit;
mod metrics;
mod name;
mod polling;
mod portal;
mod principal;
mod registry;
mod secret;
mod server;
mod shared;
mod source;
mod source_quota;
mod state;
mod summary;
mod warning;
mod worker;

pub use config::{
    AccessRule, ApiConfig, BackupConfig, BackupSource, Change, ChangeKind, ChapUser, CompactPolicy, Config,
    ConfigError, DeviceName, DigestUse, Discovery, FIRST_PORTAL_GROUP, IoLimit, IsnsConfig, Limits,
    LunConfig, Overrides, PortalGroupConfig, PortalGroupState, Redirect, RenamedKey, TargetConfig,
    TargetPortalGroup,
};
pub use metrics::{
    BackupPoint, BackupReading, BackupReport, DeviceReading, FailureMetrics, InitiatorLimitReading,
    LimitReading, LunLimitReading, LunMetrics, LunReading, MemoryReading, MetricsSnapshot, OperationMetrics,
    PortalReading, PrincipalMemoryReading, Rates, SessionReading, TaskManagementReading, WarningCount,
};
pub use name::{IscsiName, NameDeparture, NameError};
pub use portal::{Advertise, BindError, ISCSI_PORT, PortalScope, PortalSpec, PortalSpecError, PortalSummary};
pub use secret::SecretError;
pub use server::{
    BackEndError, ChangeError, ChangeOptions, Changed, Closing, CompactionState, CompactionSummary,
    FileDiffers, FlushFailure, KeepFormats, Load, LunOpenOptions, LunRegistration, LunReservations,
    OpenDevice, OpenedDevice, OpeningDevice, PassingError, Persist, Served, Server, ShutdownError,
    SnapshotChanges, SnapshotHandle, SnapshotOrder, SnapshotSummary, StartError, UnansweredDevice,
};
pub use source::SourceHost;
pub use source_quota::SourceQuota;
pub use state::{BACKUPS_FILE, FileStore, StateDirError};
pub use summary::{LunSummary, PullReading, SessionKeys, SessionSummary, SpaceReading, TargetSummary};
pub use warning::{Warning, WarningKind};
