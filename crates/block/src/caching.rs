//! Caches between a device's callers and its medium.

/// Caching between a device's callers and the medium, as far as the device knows. Measurements must report it beside
/// their figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// The device cannot tell.
    #[default]
    Unknown,
    /// Nothing is stored at all.
    Nowhere,
    /// The medium *is* this host's memory.
    Memory,
    /// This host's page cache keeps what is read and written.
    PageCache,
    /// This host keeps nothing; what the disk itself keeps is not known.
    PastPageCache,
    /// The far end acknowledges writes before they are on the medium (WCE of its caching mode page is 1).
    WriteBack,
    /// The far end acknowledges writes when they are on the medium (WCE is 0).
    WriteThrough,
}

impl Caching {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Nowhere,
        Self::Memory,
        Self::PageCache,
        Self::PastPageCache,
        Self::WriteBack,
        Self::WriteThrough,
    ];

    /// A short name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Nowhere => "nowhere",
            Self::Memory => "memory",
            Self::PageCache => "page-cache",
            Self::PastPageCache => "past-page-cache",
            Self::WriteBack => "write-back",
            Self::WriteThrough => "write-through",
        }
    }

    /// Effect on a figure that was measured: the `what` of a [`Finding`](crate::Finding).
    pub fn clause(self) -> &'static str {
        match self {
            Self::Unknown => "the caches of the device are unknown",
            Self::Nowhere => "nothing is stored: reads and writes cost no more than asking for them",
            Self::Memory => "the device is memory of this host, with no disk behind it",
            Self::PageCache => {
                "reads may come from this host's page cache, and writes end in it before they reach the disk"
            }
            Self::PastPageCache => {
                "this host's page cache is not used; caches of the disk itself are unknown"
            }
            Self::WriteBack => {
                "the target reports WCE=1 (write cache on): it acknowledges writes before they are on the medium; reads may come from its memory"
            }
            Self::WriteThrough => {
                "the target reports WCE=0 (write cache off): it acknowledges writes once they are on the medium; reads may come from its memory"
            }
        }
    }
}
