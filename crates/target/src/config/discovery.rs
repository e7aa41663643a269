//! Discovery sessions: what an initiator must prove, and which portals it is told.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ChapUser;

/// Discovery sessions (RFC 7143 §4.3): who may ask which targets there are, and which portals SendTargets names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Discovery {
    /// CHAP users: an initiator must prove to be one of them before it is told of any target. Empty: nothing has to be proven; an
    /// initiator that offers CHAP alone is then checked against the users of all targets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chap: Vec<ChapUser>,
    /// How the daemon proves itself to initiators that ask for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutual_chap: Option<ChapUser>,
    /// Which portals SendTargets names.
    pub advertise: Advertise,
}

impl Discovery {
    /// Nothing was said about it.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Which portals SendTargets names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Advertise {
    /// Those that `listen` names by address, interface or network; of those that an entry for every address brings along
    /// (`0.0.0.0`, `[::]`) the ones in the network of the initiator or of the portal that it came by.
    #[default]
    Reachable,
    /// Only those in the network of the initiator or of the portal that it came by.
    SameNetwork,
    /// All.
    All,
}
