//! SCSI status codes.

use std::fmt;

/// Status of an ended command (SAM-5 §5.3.1). Open: a value that the standard does not know survives.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u8);

impl Status {
    /// The command did what it should.
    pub const GOOD: Self = Self(0x00);
    /// Sense data says what happened.
    pub const CHECK_CONDITION: Self = Self(0x02);
    /// PRE-FETCH: everything asked for fits into the cache.
    pub const CONDITION_MET: Self = Self(0x04);
    /// The logical unit cannot take the command now.
    pub const BUSY: Self = Self(0x08);
    /// Another I_T nexus holds a reservation.
    pub const RESERVATION_CONFLICT: Self = Self(0x18);
    /// No room for another command.
    pub const TASK_SET_FULL: Self = Self(0x28);
    /// An auto contingent allegiance is in force.
    pub const ACA_ACTIVE: Self = Self(0x30);
    /// Aborted by another I_T nexus.
    pub const TASK_ABORTED: Self = Self(0x40);

    /// The standard's name, where it has one.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::GOOD => "GOOD",
            Self::CHECK_CONDITION => "CHECK CONDITION",
            Self::CONDITION_MET => "CONDITION MET",
            Self::BUSY => "BUSY",
            Self::RESERVATION_CONFLICT => "RESERVATION CONFLICT",
            Self::TASK_SET_FULL => "TASK SET FULL",
            Self::ACA_ACTIVE => "ACA ACTIVE",
            Self::TASK_ABORTED => "TASK ABORTED",
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "status {:02X}h", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
