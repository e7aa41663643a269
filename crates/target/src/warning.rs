//! A warning, as it is told: its kind and a sentence.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of a [`Warning`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WarningKind {
    /// A target admits every initiator.
    OpenTarget,
    /// A target admits no initiator.
    ClosedTarget,
    /// Initiators may refuse the name of a target.
    OddName,
    /// A CHAP secret can be guessed.
    WeakSecret,
    /// Every user of this machine can read a secret or the token.
    ReadableSecret,
    /// The daemon cannot listen on an entry of `listen`.
    IdlePortal,
    /// The device of a logical unit cannot be opened.
    OfflineLun,
    /// A resize or snapshot of a logical unit has not ended, and its caller no longer waits.
    UnsettledLun,
    /// A change of the configuration was given up, and its files do not answer, or hold it.
    UnsettledConfig,
    /// The changes of a logical unit are not recorded, although it has `track`.
    UntrackedLun,
    /// The name of a served file leads elsewhere, the file was made shorter by another program, or a flush of a VHDX
    /// file has failed.
    LostFile,
    /// A raw image has fewer bytes than when it was served last.
    ShrunkLun,
    /// The path of the state directory leads elsewhere or nowhere, so that nothing can be saved.
    LostStateDir,
}

impl WarningKind {
    /// All.
    pub(crate) const ALL: [Self; 13] = [
        Self::OpenTarget,
        Self::ClosedTarget,
        Self::OddName,
        Self::WeakSecret,
        Self::ReadableSecret,
        Self::IdlePortal,
        Self::OfflineLun,
        Self::UnsettledLun,
        Self::UnsettledConfig,
        Self::UntrackedLun,
        Self::LostFile,
        Self::ShrunkLun,
        Self::LostStateDir,
    ];

    /// Its name in metrics, as in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OpenTarget => "open_target",
            Self::ClosedTarget => "closed_target",
            Self::OddName => "odd_name",
            Self::WeakSecret => "weak_secret",
            Self::ReadableSecret => "readable_secret",
            Self::IdlePortal => "idle_portal",
            Self::OfflineLun => "offline_lun",
            Self::UnsettledLun => "unsettled_lun",
            Self::UnsettledConfig => "unsettled_config",
            Self::UntrackedLun => "untracked_lun",
            Self::LostFile => "lost_file",
            Self::ShrunkLun => "shrunk_lun",
            Self::LostStateDir => "lost_state_dir",
        }
    }
}

/// A warning about a configuration that is served as it is.
///
/// It is logged at the start and when a change brings it, is in the answer to that change, and is counted as long as it
/// is so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Warning {
    /// Its kind.
    pub kind: WarningKind,
    /// A sentence: what, where, and what to do.
    pub text: String,
}
