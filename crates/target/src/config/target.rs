//! Targets as they are configured: logical units, users, rules.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DeviceName;
use crate::name::IscsiName;

/// One target: a name that initiators log in to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// Its name.
    #[schemars(with = "String")]
    pub name: IscsiName,
    /// A name for people, told at login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// `false`: nobody is told of it, logins are answered "service unavailable", and sessions are asked to end.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub enabled: bool,
    /// Where initiators are sent instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Redirect>,
    /// Initiators that match no rule of `acl` may log in, and see and do everything: every initiator that reaches the target,
    /// or with `chap` every initiator that proves to be one of its users. `false`: only those that a rule lets in.
    #[serde(default, skip_serializing_if = "is_no")]
    pub open: bool,
    /// CHAP users: initiators must prove to be one of them; empty: nothing has to be proven.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chap: Vec<ChapUser>,
    /// How the target proves itself to initiators that ask for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_chap: Option<ChapUser>,
    /// The portal groups that offer it, with their access states; empty: all of them, active/optimized.
    #[serde(default, rename = "portal_group", skip_serializing_if = "Vec::is_empty")]
    pub portal_groups: Vec<TargetPortalGroup>,
    /// Access rules: the first that matches an initiator decides; an initiator that matches none is let in only if the target
    /// is `open`. Without rules and without `open` no initiator may log in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acl: Vec<AccessRule>,
    /// Its logical units.
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

    /// Whether at least one initiator could log in: the target is open, or has a rule that does not deny.
    pub fn lets_somebody_in(&self) -> bool {
        self.open || self.acl.iter().any(|rule| !rule.deny)
    }

    /// The logical unit with this number.
    pub fn lun(&self, id: u16) -> Option<&LunConfig> {
        self.luns.iter().find(|lun| lun.id == id)
    }
}

/// Where initiators of a target are sent (RFC 7143 §11.13.5, status class 1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Redirect {
    /// `ADDRESS:PORT`.
    #[schemars(with = "String")]
    pub to: SocketAddr,
    /// Initiators may remember it.
    #[serde(default, skip_serializing_if = "is_no")]
    pub permanent: bool,
}

/// A name and a secret for CHAP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChapUser {
    /// CHAP_N.
    pub user: String,
    /// The file whose only line is the secret.
    // RFC 7143 [9.2-5]
    pub secret_file: PathBuf,
}

/// A portal group as one target offers it: a target port, and its access state (SPC-4 5.15).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetPortalGroup {
    /// Its tag.
    pub tag: u16,
    /// What initiators may do through it.
    #[serde(default)]
    pub state: AccessState,
    /// Initiators should use it where they can.
    #[serde(default, skip_serializing_if = "is_no")]
    pub preferred: bool,
}

/// Target port asymmetric access states (SPC-4 5.15.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AccessState {
    /// The way to use.
    #[default]
    ActiveOptimized,
    /// It works; another way is better.
    ActiveNonOptimized,
    /// Only what identifies and manages the logical unit works.
    Standby,
    /// Even less works.
    Unavailable,
}

/// Who may do what with a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessRule {
    /// A name for people and for the management interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Names of initiators, where `*` stands for anything; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initiators: Vec<String>,
    /// Networks that they come from; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub from: Vec<IpNet>,
    /// CHAP users; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// The logical units that exist for them; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luns: Option<Vec<u16>>,
    /// They may not write.
    #[serde(default, skip_serializing_if = "is_no")]
    pub read_only: bool,
    /// They are refused.
    #[serde(default, skip_serializing_if = "is_no")]
    pub deny: bool,
}

/// A logical unit and the device behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LunConfig {
    /// Its number, 0 to 16383.
    pub id: u16,
    /// The device, in the grammar of the command line.
    #[schemars(with = "String")]
    pub device: DeviceName,
    /// Bytes of a logical sector, 512 or 4096; `None`: what the device says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sector: Option<u32>,
    /// Bytes of a physical sector, where initiators are to be told a larger one than the device has: 512e is `sector` 512 and
    /// `physical_sector` 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_sector: Option<u32>,
    /// Writes are refused.
    #[serde(default, skip_serializing_if = "is_no")]
    pub read_only: bool,
    /// Shown as a removable medium.
    #[serde(default, skip_serializing_if = "is_no")]
    pub removable: bool,
    /// The unit serial number (VPD page 80h), of which the names of VPD page 83h are made: initiators take all that has the same
    /// for ways to one disk. `None`: made of the machine's id, the target's name, the LUN and the device's path, the same after
    /// each start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Initiators are warned when the backing store is fuller than this (SBC-4 4.7.3.7, soft threshold).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold_percent: Option<u8>,
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
        }
    }
}

fn yes() -> bool {
    true
}

// serde hands references to these.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_yes(value: &bool) -> bool {
    *value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_no(value: &bool) -> bool {
    !value
}
