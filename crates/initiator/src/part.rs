//! Part of a device in the way to a disk.

/// Part of a device in the way to a disk: what becomes of a command that this session cannot carry out, and who answers
/// for acknowledged writes that the target may have lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The only way: commands wait for the next connection, and this device's flushes report lost writes.
    Only,
    /// One of several ways: a command fails at once, so that another lane can carry it out.
    Lane,
    /// The same, and an observer hears of lost writes: this device's flushes do not report them.
    ObservedLane,
}

impl Part {
    /// Nothing waits for the next connection.
    pub(crate) fn fails_fast(self) -> bool {
        match self {
            Self::Only => false,
            Self::Lane | Self::ObservedLane => true,
        }
    }

    /// The fate of acknowledged writes concerns the observer, not this device's flushes.
    pub(crate) fn leaves_flushes(self) -> bool {
        self == Self::ObservedLane
    }
}
