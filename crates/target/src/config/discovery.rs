//! Discovery sessions: what an initiator must prove, and which portals it is told.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ChapUser;
use crate::portal::Advertise;

/// Discovery sessions (RFC 7143 §4.3): who may ask which targets there are, and which portals SendTargets names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Discovery {
    /// CHAP users. If there is any, initiators must authenticate as one of them before any target is reported to
    /// them. If there is none, an initiator that insists on CHAP is checked against the users of all targets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chap: Vec<ChapUser>,
    /// The CHAP user as which the daemon authenticates to initiators that ask for it (mutual CHAP).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutual_chap: Option<ChapUser>,
    /// Portals that SendTargets returns.
    pub advertise: Advertise,
}

impl Discovery {
    /// Nothing was said about it.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
