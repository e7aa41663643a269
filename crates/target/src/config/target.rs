//! Targets as they are configured: logical units, users, rules.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeviceName, text};
use crate::name::IscsiName;

/// One target: a name that initiators log in to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// The target's iSCSI name: `iqn.…`, `eui.…` or `naa.…`.
    #[schemars(with = "String")]
    pub name: IscsiName,
    /// TargetAlias: a description that is sent to initiators at login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// `false`: the target is left out of discovery, logins are answered "service unavailable", and existing sessions
    /// are asked to log out.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    #[schemars(extend("default" = true))]
    pub enabled: bool,
    /// Redirects initiators to another portal at login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Redirect>,
    /// `true`: initiators that match no rule of `acl` may log in with full access. With `chap` they must authenticate
    /// first. `false`: only initiators that a rule allows.
    #[serde(default, skip_serializing_if = "is_no")]
    #[schemars(extend("default" = false))]
    pub open: bool,
    /// CHAP users. If there is any, initiators must authenticate as one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chap: Vec<ChapUser>,
    /// The CHAP user as which the target authenticates to initiators that ask for it (mutual CHAP).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_chap: Option<ChapUser>,
    /// The portal groups that offer the target, with their ALUA access states. Without it: all groups,
    /// `active-optimized`.
    #[serde(default, rename = "portal_group", skip_serializing_if = "Vec::is_empty")]
    pub portal_groups: Vec<TargetPortalGroup>,
    /// Access rules. The first rule that matches an initiator decides; an initiator that matches none may log in only
    /// if the target is `open`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acl: Vec<AccessRule>,
    /// The logical units.
    #[serde(default, rename = "lun", skip_serializing_if = "Vec::is_empty")]
    pub luns: Vec<LunConfig>,
}

impl TargetConfig {
    /// The same with the format of every device said, as it is once all of them were opened.
    #[must_use]
    pub fn with_formats(&self) -> Self {
        Self { luns: self.luns.iter().map(LunConfig::with_format).collect(), ..self.clone() }
    }

    /// An enabled target with nothing in it, which lets in no initiator.
    pub fn new(name: IscsiName) -> Self {
        Self {
            name,
            alias: None,
            enabled: true,
            redirect: None,
            open: false,
            chap: Vec::new(),
            mutual_chap: None,
            portal_groups: Vec::new(),
            acl: Vec::new(),
            luns: Vec::new(),
        }
    }

    /// Returns `true` if at least one initiator could log in: the target is open, or has a rule that does not deny.
    pub fn lets_somebody_in(&self) -> bool {
        self.open || self.acl.iter().any(|rule| !rule.deny)
    }

    /// The logical unit with this number.
    pub fn lun(&self, id: u16) -> Option<&LunConfig> {
        self.luns.iter().find(|lun| lun.id == id)
    }
}

/// Redirection of a target's initiators (RFC 7143 §11.13.5, status class 1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Redirect {
    /// The portal, `ADDRESS:PORT`.
    #[schemars(with = "String")]
    pub to: SocketAddr,
    /// `true`: the target has moved permanently, and initiators may remember the new portal.
    #[serde(default, skip_serializing_if = "is_no")]
    #[schemars(extend("default" = false))]
    pub permanent: bool,
}

/// A name and a secret for CHAP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChapUser {
    /// The user's name (CHAP_N).
    pub user: String,
    /// The file whose only line is the secret.
    // RFC 7143 [9.2-5]
    pub secret_file: PathBuf,
}

/// A portal group as one target offers it: a target port, and its access state (SPC-4 §5.15).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetPortalGroup {
    /// The tag of a portal group.
    pub tag: u16,
    /// The access state that is reported for the group.
    #[serde(default)]
    pub state: PortalGroupState,
    /// Reports the group as preferred.
    #[serde(default, skip_serializing_if = "is_no")]
    #[schemars(extend("default" = false))]
    pub preferred: bool,
}

/// Target port asymmetric access states (SPC-4 §5.15.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
// The name in the schema is the one that clients of the management interface know.
#[schemars(rename = "AccessState")]
pub enum PortalGroupState {
    /// The path to use.
    #[default]
    ActiveOptimized,
    /// Works, but another path is better.
    ActiveNonOptimized,
    /// Only commands that identify and manage the logical unit are accepted.
    Standby,
    /// Fewer commands than in `standby` are accepted.
    Unavailable,
}

/// Access rule of a target: whom it matches, and what they may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessRule {
    /// The rule's name, by which `lunway acl` and the management interface refer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Initiator names, where `*` stands for any text. Without it: any initiator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initiators: Vec<String>,
    /// Networks from which initiators connect, such as `192.0.2.0/24`. Without it: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub from: Vec<IpNet>,
    /// CHAP users. Without it: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// The LUNs that these initiators see. Without it: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luns: Option<Vec<u16>>,
    /// `true`: these initiators may not write.
    #[serde(default, skip_serializing_if = "is_no")]
    #[schemars(extend("default" = false))]
    pub read_only: bool,
    /// `true`: these initiators may not log in.
    #[serde(default, skip_serializing_if = "is_no")]
    #[schemars(extend("default" = false))]
    pub deny: bool,
    /// Commands per second of each of these initiators, over all its sessions, that read or change the medium. Without
    /// it: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_limit: Option<u64>,
    /// Bytes per second that these read and write, such as `100M`. Without it: no limit.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "text::from_rate",
        deserialize_with = "text::to_rate"
    )]
    #[schemars(with = "Option<String>")]
    pub rate_limit: Option<NonZeroU64>,
    /// After a pause, what was not used of these limits in this time may be used at once, such as `2s`. Without it:
    /// `100ms`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "text::from_time",
        deserialize_with = "text::to_time"
    )]
    #[schemars(with = "Option<String>")]
    pub limit_burst: Option<Duration>,
}

/// A logical unit and the device behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LunConfig {
    /// The logical unit number, 0 to 16383.
    pub id: u16,
    /// The device behind it, written as on the command line: `disk.img`, `ram:1G`, `iscsi://…`.
    #[schemars(with = "String")]
    pub device: DeviceName,
    /// Bytes of a logical sector, 512 or 4096. Without it: the device's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sector: Option<u32>,
    /// Bytes of a physical sector, to report a larger one than the device has: a 512e disk has `sector = 512` and
    /// `physical_sector = 4096`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_sector: Option<u32>,
    /// `true`: writes are refused.
    #[serde(default, skip_serializing_if = "is_no")]
    #[schemars(extend("default" = false))]
    pub read_only: bool,
    /// `true`: reported as a removable medium.
    #[serde(default, skip_serializing_if = "is_no")]
    #[schemars(extend("default" = false))]
    pub removable: bool,
    /// The unit serial number (VPD page 80h); the designators of VPD page 83h are derived from it. Initiators treat all
    /// LUNs with the same serial number as paths to one disk. Without it: derived from the machine's id, the target's
    /// name, the LUN and the device's path, and the same after each start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Initiators get a warning when the backing store is fuller than this percentage (soft threshold, SBC-4 §4.7.3.7).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold_percent: Option<u8>,
    /// When the VHDX file of the LUN is compacted automatically, by moving its blocks into its holes: `on-idle`, while
    /// no initiator has read or written for a minute; `on-close`, for at most 5 seconds, when the LUN is removed or the
    /// daemon ends. Without it: only on request (`lunway lun compact`). Refused for other devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compact: Vec<CompactPolicy>,
    /// `true`: changes are recorded in blocks of 64 KiB, in a file in the state directory, so that a backup reads
    /// only those blocks.
    #[serde(default, skip_serializing_if = "is_no")]
    #[schemars(extend("default" = false))]
    pub track: bool,
    /// Commands per second of all initiators together that read or change the medium. Without it: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_limit: Option<u64>,
    /// Bytes per second that they read and write, such as `100M`. Without it: no limit.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "text::from_rate",
        deserialize_with = "text::to_rate"
    )]
    #[schemars(with = "Option<String>")]
    pub rate_limit: Option<NonZeroU64>,
    /// After a pause, what was not used of these limits in this time may be used at once, such as `2s`. Without it:
    /// `100ms`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "text::from_time",
        deserialize_with = "text::to_time"
    )]
    #[schemars(with = "Option<String>")]
    pub limit_burst: Option<Duration>,
}

/// Policy of automatic compaction of a VHDX file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CompactPolicy {
    /// While no initiator has read or written for a minute.
    OnIdle,
    /// On removal of the LUN or end of the daemon, for at most 5 seconds.
    OnClose,
}

impl CompactPolicy {
    /// Its name in a configuration.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OnIdle => "on-idle",
            Self::OnClose => "on-close",
        }
    }
}

impl LunConfig {
    /// The same with the format of its device said, as it is once that was opened.
    #[must_use]
    pub fn with_format(&self) -> Self {
        Self { device: self.device.with_format(), ..self.clone() }
    }

    /// A logical unit with nothing special about it.
    pub fn new(id: u16, device: DeviceName) -> Self {
        Self {
            id,
            device,
            sector: None,
            physical_sector: None,
            read_only: false,
            removable: false,
            serial: None,
            threshold_percent: None,
            compact: Vec::new(),
            track: false,
            iops_limit: None,
            rate_limit: None,
            limit_burst: None,
        }
    }
}

pub(super) fn yes() -> bool {
    true
}

// serde hands references to these.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
pub(super) fn is_yes(value: &bool) -> bool {
    *value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
pub(super) fn is_no(value: &bool) -> bool {
    !value
}
