//! Configuration of the daemon: a TOML file, and overrides of it.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`Config`]: reading, writing, errors |
//! | `target.rs`, `device.rs`, `discovery.rs`, `limits.rs`, `io_limit.rs`, `backup.rs` | its parts |
//! | `text.rs` | values that are text with a unit |
//! | `check.rs` | what cannot be served |
//! | `change.rs` | [`Change`]: how two configurations differ |

mod backup;
mod change;
mod check;
mod device;
mod discovery;
mod io_limit;
mod limits;
mod overrides;
mod target;
mod text;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use lunway_block::small_file;
use lunway_block::spec::place_in_folder;
use lunway_iscsi::negotiation::DigestPolicy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::portal::PortalSpec;

pub use backup::{BackupConfig, BackupSource};
pub use change::{Change, ChangeKind};
pub use device::DeviceName;
pub use discovery::Discovery;
pub use io_limit::IoLimit;
pub use limits::{Limits, RenamedKey};
pub use overrides::Overrides;
pub use target::{
    AccessRule, ChapUser, CompactPolicy, LunConfig, PortalGroupState, Redirect, TargetConfig,
    TargetPortalGroup,
};

/// The tag of the portal group that [`Config::listen`] describes.
pub const FIRST_PORTAL_GROUP: u16 = 1;

/// Everything that a [`Server`](crate::Server) needs to know, from one file:
///
/// ```toml
/// listen = ["0.0.0.0:3260", "[::]:3260"]    # port 3260 where none is written
/// cores = 2                                 # default: all that the process may use
/// state_dir = "/var/lib/lunway"             # what outlives the process: reservations with APTPL, saved mode pages
/// header_digest = "allow"                   # CRC32C: "never", "allow" if the initiator wants it, or "require"
/// data_digest = "allow"
/// error_recovery_level = 0                  # 1: initiators may ask for lost PDUs again (RFC 7143 chapter 7)
///
/// [[portal_group]]                          # `listen` is portal group 1; others are target ports of their own
/// tag = 2
/// listen = ["192.0.2.2"]
///
/// [api]
/// socket = "/run/lunway/lunway.sock"        # how `lunway target`, `lunway lun` and the like reach the daemon
///
/// [discovery]
/// advertise = "reachable"                   # portals that SendTargets names: or "same-network", "all"
/// # [[discovery.chap]] and [discovery.mutual_chap] as for targets
///
/// [[target]]
/// name = "iqn.2026-11.com.example:disks"
/// alias = "the fast ones"
/// open = false                              # true: initiators that match no rule below may do everything
///
/// [[target.portal_group]]                   # access states (ALUA); default: every group, active-optimized
/// tag = 2
/// state = "active-non-optimized"
///
/// [[target.acl]]                            # the first match decides; with none, and without `open`, nothing gets in
/// initiators = ["iqn.2026-11.com.example:host-*"]
/// from = ["192.0.2.0/24"]
/// luns = [0]
///
/// [[target.chap]]                           # with any of these, initiators must prove to be one of them
/// user = "host-1"
/// secret_file = "/etc/lunway/host-1.secret"
///
/// [target.mutual_chap]                      # how the target proves itself to those that ask
/// user = "disks"
/// secret_file = "/etc/lunway/disks.secret"
///
/// [[target.lun]]
/// id = 0
/// device = "ram:1G"                         # any device that the command line takes
/// sector = 4096
/// read_only = false
/// removable = false
/// serial = "4F2A"                           # default: made of the machine, the target, the LUN and the device
/// iops_limit = 5000                         # I/Os per second of all initiators together; default: no limit
/// rate_limit = "200M"                       # and bytes per second; rules have the same keys for each initiator
///
/// [[backup]]                                # the daemon backs a LUN up by the clock; it needs `state_dir`
/// name = "db"
/// source = "iqn.2026-11.com.example:disks/0"
/// destination = "/mnt/share/db"
/// at = ["02:00"]                            # or every = "6h"
/// keep_last = 7
///
/// [limits]
/// sessions = 256
/// ```
///
/// Nothing in it may be unknown, and each [`ConfigError`] says where and what is wrong. Secrets stand in files of their
/// own, never here: this file may be shown and shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The portals of portal group 1: an address, an interface (`eth0`) or a network (`10.0.1.0/24`), each with an
    /// optional port. Port 0 lets the kernel choose; the daemon prints its choice.
    #[serde(default = "default_listen")]
    #[schemars(with = "Vec<String>")]
    pub listen: Vec<PortalSpec>,
    /// Number of cores that serve connections. Without it: all cores that this process may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<usize>,
    /// Directory for state that must survive a restart: reservations with APTPL, saved mode pages, access states.
    /// Without it no such state is saved, and initiators are informed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<PathBuf>,
    /// Identifies this machine in the serial numbers of its disks. Without it: `/etc/machine-id`. Set it in containers,
    /// whose own id changes with each start or is shared with other containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// Use of CRC32C digests over headers in sessions.
    #[serde(default)]
    pub header_digest: DigestUse,
    /// Use of CRC32C digests over data in sessions.
    #[serde(default)]
    pub data_digest: DigestUse,
    /// The highest ErrorRecoveryLevel that is negotiated (RFC 7143 §13.20): 0 or 1. Some initiators offer a level that
    /// they do not handle well.
    #[serde(default)]
    pub error_recovery_level: u8,
    /// Limits on the resources that peers can use.
    #[serde(default)]
    pub limits: Limits,
    /// The management interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiConfig>,
    /// Discovery sessions: their authentication, and the portals that SendTargets returns.
    #[serde(default, skip_serializing_if = "Discovery::is_default")]
    pub discovery: Discovery,
    /// The iSNS server at which the targets are registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isns: Option<IsnsConfig>,
    /// More portal groups; `listen` is group 1.
    #[serde(default, rename = "portal_group", skip_serializing_if = "Vec::is_empty")]
    pub portal_groups: Vec<PortalGroupConfig>,
    /// The targets.
    #[serde(default, rename = "target", skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetConfig>,
    /// Backups of logical units by the clock.
    #[serde(default, rename = "backup", skip_serializing_if = "Vec::is_empty")]
    pub backups: Vec<BackupConfig>,
    /// Origin of the configuration, for messages: a file's name, or "the command line".
    #[serde(skip)]
    pub origin: String,
}

/// Portals that belong together: a target port (RFC 7143 §4.2.5, SPC-4 §3.1.182). Its tag is the relative target port
/// identifier and the tag of the ALUA target port group as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortalGroupConfig {
    /// The portal group tag, 2 to 65535. Group 1 is [`Config::listen`].
    pub tag: u16,
    /// Its portals, in the form of [`Config::listen`].
    #[schemars(with = "Vec<String>")]
    pub listen: Vec<PortalSpec>,
}

/// The management interface: HTTP with JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiConfig {
    /// The Unix socket. Only the user that the daemon runs as, and root, may connect to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// A TCP address in addition to the socket. Requests over TCP must carry the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// The file whose only line is the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
}

/// An iSNS server (RFC 4171).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IsnsConfig {
    /// The server's `ADDRESS:PORT`; the usual port is 3205.
    #[schemars(with = "String")]
    pub server: SocketAddr,
}

/// Use of a digest in sessions (RFC 7143 §13.1). The initiator offers, so there is nothing to prefer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Digest")]
pub enum DigestUse {
    /// Off. Initiators that require it are refused.
    Never,
    /// On for initiators that ask for it. It costs one pass over the data.
    #[default]
    Allow,
    /// On. Initiators that do not support it are refused.
    Require,
}

impl From<DigestUse> for DigestPolicy {
    fn from(digest: DigestUse) -> Self {
        match digest {
            DigestUse::Never => Self::Never,
            DigestUse::Allow => Self::Allow,
            DigestUse::Require => Self::Require,
        }
    }
}

/// Error in a configuration, and its location.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Underlying error.
        source: std::io::Error,
    },
    /// The file that it shall be saved to is taken, or cannot be written.
    #[error("cannot save the configuration to {file}: {why}")]
    Save {
        /// The file.
        file: String,
        /// Reason, and what to do.
        why: String,
    },
    /// Not TOML, or has an unknown key, or a value of the wrong kind.
    #[error(
        "{file}, line {line}{key}: {message}",
        key = .key.as_ref().map_or(String::new(), |key| format!(", {}", shortened(key))),
        message = shortened(message)
    )]
    Syntax {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The key on that line.
        key: Option<String>,
        /// Description of the error.
        message: String,
    },
    /// A value that cannot be.
    #[error(
        "{}{key} = {value:?}: {why}",
        before(origin),
        key = shortened(key),
        value = shortened(value),
        why = shortened(why)
    )]
    Value {
        /// The file, or the command line; empty: a change of what is served.
        origin: String,
        /// The key or flag, with the target and LUN it belongs to.
        key: String,
        /// Its value.
        value: String,
        /// Description of the error, and of a right value.
        why: String,
    },
    /// The file that changes are to be saved to is there already.
    #[error("{file} already exists")]
    Exists {
        /// Its name.
        file: String,
    },
    /// Cannot be written as TOML: a path that is not UTF-8.
    #[error("{origin} cannot be written as TOML: {why}")]
    Unwritable {
        /// Origin of the configuration.
        origin: String,
        /// Obstacle to writing it.
        why: String,
    },
    /// Nothing to serve.
    #[error("{}", match &origin[..] {
        "" => "the last target cannot be removed: add another one first, or stop the daemon".to_owned(),
        origin => format!("{origin} names no target: add a [[target]] with a name and a [[target.lun]]"),
    })]
    NoTargets {
        /// The file, or the command line; empty: a change of what is served.
        origin: String,
    },
    /// No way in.
    #[error("{}", match &origin[..] {
        "" => "the last portal of portal group 1 cannot be removed: add another one first (lunway portal add)".to_owned(),
        origin => format!("{origin}: listen is empty: at least one address is needed"),
    })]
    NoPortals {
        /// The file, or the command line; empty: a change of what is served.
        origin: String,
    },
}

/// Longest part of a message, characters. Of a longer one the beginning and the end are left, `PART_END` of each.
const PART_MAX: usize = 1000;
const PART_END: usize = 200;

/// A part of a message, which a configuration may have given any length.
fn shortened(text: &str) -> Cow<'_, str> {
    if text.chars().nth(PART_MAX).is_none() {
        return text.into();
    }
    let left_out = text.chars().count() - 2 * PART_END;
    let (begin, end) = (text.chars().take(PART_END), text.chars().skip(PART_END + left_out));
    begin.chain(format!(" … {left_out} more characters … ").chars()).chain(end).collect::<String>().into()
}

/// `FILE: `, where there is one.
fn before(origin: &str) -> String {
    if origin.is_empty() { String::new() } else { format!("{origin}: ") }
}

impl ConfigError {
    /// The same of a change that was asked of a running server: no file and no flag said it.
    #[must_use]
    pub fn of_change(self) -> Self {
        let nothing = String::new;
        match self {
            Self::Value { key, value, why, .. } => Self::Value { origin: nothing(), key, value, why },
            Self::NoTargets { .. } => Self::NoTargets { origin: nothing() },
            Self::NoPortals { .. } => Self::NoPortals { origin: nothing() },
            other => other,
        }
    }
}

/// Origin of a configuration that no file says.
const COMMAND_LINE: &str = "the command line";

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: default_listen(),
            cores: None,
            state_dir: None,
            machine_id: None,
            error_recovery_level: 0,
            header_digest: DigestUse::default(),
            data_digest: DigestUse::default(),
            limits: Limits::default(),
            api: None,
            discovery: Discovery::default(),
            isns: None,
            portal_groups: Vec::new(),
            targets: Vec::new(),
            backups: Vec::new(),
            origin: COMMAND_LINE.to_owned(),
        }
    }
}

impl Config {
    /// Keys of the daemon as a whole that are read only at its start: threads are pinned, stores and sockets open.
    pub const FIXED: [&str; 5] = ["cores", "state_dir", "machine_id", "isns", "api"];

    /// Takes the values of [`FIXED`](Self::FIXED) from another configuration.
    pub fn take_fixed(&mut self, other: &Self) {
        self.cores = other.cores;
        self.state_dir.clone_from(&other.state_dir);
        self.machine_id.clone_from(&other.machine_id);
        self.isns.clone_from(&other.isns);
        self.api.clone_from(&other.api);
    }

    /// Longest file that is read, bytes: as long as a request to the management interface may be. A file with one LUN
    /// to a line has room for 25,000.
    pub const FILE_LEN_MAX: u64 = 4 << 20;

    /// Reads and checks a file.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        match small_file::read_text(path, Self::FILE_LEN_MAX) {
            Ok(text) => Ok(Self::from_toml(&text, &file)?.in_folder_of(path)),
            Err(source) => Err(ConfigError::Read { file, source }),
        }
    }

    /// Parses the text of a file; `origin` is its name in errors. Not yet [checked](Self::check).
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, ConfigError> {
        match toml::from_str::<Self>(text) {
            Ok(config) => Ok(Self { origin: origin.to_owned(), ..config }),
            Err(error) => Err(syntax_error(&error, text, origin)),
        }
    }

    /// Sentences about keys in the text of a file that are read under an old name: what to write instead.
    pub fn outdated_keys(text: &str, origin: &str) -> Vec<String> {
        RenamedKey::sentences(text, origin)
    }

    /// The text of a file that says the same: what [`from_toml`](Self::from_toml) reads back. Names of devices are as
    /// they were written, secrets in them included.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self)
            .map_err(|error| ConfigError::Unwritable { origin: self.origin.clone(), why: error.to_string() })
    }

    /// The same without the secrets that addresses of devices may hold: for people to see.
    #[must_use]
    pub fn redacted(&self) -> Self {
        let mut shown = self.clone();
        for lun in shown.targets.iter_mut().flat_map(|target| &mut target.luns) {
            lun.device = lun.device.redacted();
        }
        shown
    }

    /// The same with relative files found from the folder of the file that the configuration stands in.
    #[must_use]
    pub fn in_folder_of(mut self, file: &Path) -> Self {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let folder = file.parent().unwrap_or(Path::new("/"));
        let Self { state_dir, api, discovery, targets, backups, .. } = &mut self;
        let api = api.iter_mut().flat_map(|api| api.socket.iter_mut().chain(&mut api.token_file));
        let discovery = discovery.chap.iter_mut().chain(&mut discovery.mutual_chap);
        let (mut users, mut luns): (Vec<&mut ChapUser>, Vec<&mut LunConfig>) =
            (discovery.collect(), Vec::new());
        for target in targets {
            users.extend(target.chap.iter_mut().chain(&mut target.mutual_chap));
            luns.extend(&mut target.luns);
        }
        let secrets = users.into_iter().map(|user| &mut user.secret_file);
        let mut destinations = Vec::new();
        for backup in backups {
            backup.destination = place_in_folder(folder, &backup.destination);
            destinations.extend(backup.key_file.iter_mut().chain(&mut backup.credentials_file));
        }
        for path in state_dir.iter_mut().chain(api).chain(secrets).chain(destinations) {
            *path = folder.join(&*path);
        }
        for lun in luns {
            lun.device = lun.device.in_folder(folder);
        }
        self
    }

    /// Returns the folder for state: `state_dir`, else the folder that the service manager gave (`STATE_DIRECTORY`,
    /// systemd.exec(5)).
    pub(crate) fn state_folder(&self) -> Option<PathBuf> {
        let given = || std::env::var_os("STATE_DIRECTORY").filter(|folders| !folders.is_empty());
        // Several are separated by colons; the unit that is shipped asks for one.
        let first = |folders: std::ffi::OsString| std::env::split_paths(&folders).next();
        self.state_dir.clone().or_else(|| first(given()?))
    }

    /// The same with the format of every device said, as it is once all of them were opened.
    ///
    /// A configuration that is served names no file without its format: what is a raw disk when it is first opened is
    /// one for good, whatever its initiators write where a container would have its signature.
    #[must_use]
    pub fn with_formats(&self) -> Self {
        let targets = self.targets.iter().map(TargetConfig::with_formats).collect();
        Self { targets, ..self.clone() }
    }

    /// Returns `true` if [`with_formats`](Self::with_formats) says more.
    pub fn lacks_formats(&self) -> bool {
        self.targets.iter().flat_map(|target| &target.luns).any(|lun| lun.device.with_format() != lun.device)
    }

    /// Takes over the formats that `served` says of the same devices: those are not opened for the first time.
    pub(crate) fn keep_formats(&mut self, served: &Self) {
        for target in &mut self.targets {
            let Some(served) = served.target(target.name.as_str()) else { continue };
            for lun in &mut target.luns {
                let said = lun.device.with_format();
                match served.lun(lun.id) {
                    Some(served) if served.device.spec() == said.spec() && lun.device != said => {
                        lun.device = served.device.clone();
                    }
                    _ => {}
                }
            }
        }
    }

    /// The target of this name.
    pub fn target(&self, name: &str) -> Option<&TargetConfig> {
        self.targets.iter().find(|target| target.name.as_str() == name)
    }

    /// The tags of all portal groups.
    pub fn portal_group_tags(&self) -> Vec<u16> {
        let further = self.portal_groups.iter().map(|group| group.tag);
        std::iter::once(FIRST_PORTAL_GROUP).chain(further).collect()
    }
}

fn default_listen() -> Vec<PortalSpec> {
    vec![PortalSpec::EVERY_IPV4]
}

/// Says line and key of what the parser did not like. Its own message is kept, its excerpt of the file is not: someone
/// may have written a secret there.
fn syntax_error(error: &toml::de::Error, text: &str, file: &str) -> ConfigError {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = text.get(..start).unwrap_or("");
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = text.get(line_start..).and_then(|rest| rest.lines().next()).unwrap_or("");
    let key = line.split_once('=').map(|(key, _)| key.trim().to_owned()).filter(|key| !key.is_empty());
    ConfigError::Syntax {
        file: file.to_owned(),
        line: before.matches('\n').count() + 1,
        key,
        message: error.message().replace('\n', "; "),
    }
}

#[cfg(test)]
mod tests;
