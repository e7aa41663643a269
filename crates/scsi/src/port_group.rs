//! Target port groups and their asymmetric access states (SPC-4 5.16).

use crate::operations::Reach;
use crate::sense::AdditionalSense;

/// ASYMMETRIC ACCESS STATE (SPC-4 6.37, table 247).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AccessState {
    /// The path to prefer.
    #[default]
    ActiveOptimized = 0x0,
    /// Works as well, and costs more.
    ActiveNonOptimized = 0x1,
    /// Answers questions, does no I/O; can become active quickly.
    Standby = 0x2,
    /// Answers only questions about what it is.
    Unavailable = 0x3,
    /// On the way from one state to another.
    Transitioning = 0xF,
}

impl AccessState {
    /// From the field.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x0 => Self::ActiveOptimized,
            0x1 => Self::ActiveNonOptimized,
            0x2 => Self::Standby,
            0x3 => Self::Unavailable,
            0xF => Self::Transitioning,
            _ => return None,
        })
    }

    /// The field.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Why a command of this reach is not carried out through a port in this state.
    pub(crate) fn refuses(self, reach: Reach) -> Option<AdditionalSense> {
        let (least, code) = match self {
            Self::ActiveOptimized | Self::ActiveNonOptimized => return None,
            Self::Standby => (Reach::Standby, AdditionalSense::TARGET_PORT_STANDBY),
            Self::Unavailable => (Reach::Unavailable, AdditionalSense::TARGET_PORT_UNAVAILABLE),
            Self::Transitioning => (Reach::Every, AdditionalSense::ASYMMETRIC_ACCESS_TRANSITION),
        };
        (reach < least).then_some(code)
    }

    /// Every command is carried out.
    pub fn is_active(self) -> bool {
        matches!(self, Self::ActiveOptimized | Self::ActiveNonOptimized)
    }
}

/// Ports of a target that are in the same asymmetric access state for all its logical units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroup {
    /// TARGET PORT GROUP; 1 to 65535.
    pub tag: u16,
    /// The state of its ports.
    pub state: AccessState,
    /// PREF: the group that the administrator prefers.
    pub preferred: bool,
    /// Relative target port identifiers of its ports.
    pub ports: Vec<u16>,
}
