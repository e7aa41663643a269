//! Identity of a device's disk.

/// The names of a disk.
///
/// A disk has up to two: the name that its content bears, which a copy of it bears as well, and the name of where it
/// lies, which a copy does not share. So a copy is not taken for the original, and the original is known again when it
/// lies elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Identity of the content, which a copy takes along: for a VHDX file the virtual disk's GUID.
    pub content: Option<String>,
    /// Identity of the location, the same over every path: a file's device and inode, a logical unit's designator or
    /// serial number. Valid no longer than it is open: the next file may get the inode of one that is gone.
    pub place: Option<String>,
}

impl Identity {
    /// A disk of which only the place is known.
    pub fn of_place(place: impl Into<String>) -> Self {
        Self { content: None, place: Some(place.into()) }
    }

    /// Returns `true` if both devices are certainly the same disk, so that a write to one is a write to the other.
    pub fn is_same_disk(&self, other: &Self) -> bool {
        self.place.is_some() && self.place == other.place
    }
}

/// The place of a regular file: by its inode and the number of its file system, the same for every path to it.
pub fn file_place(inode: u64, device_major: u32, device_minor: u32) -> String {
    format!("{FILE}{inode} of {device_major}:{device_minor}")
}

/// Returns `true` if a regular file lies at a place, as far as its name tells.
pub fn is_file_place(place: &str) -> bool {
    place.starts_with(FILE)
}

/// Beginning of the places of regular files.
const FILE: &str = "file ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_not_the_original_and_what_has_no_place_is_never_certain() {
        let content = Some("guid".to_owned());
        let of = |place: &str| Identity { content: content.clone(), ..Identity::of_place(place) };
        assert!(of("a").is_same_disk(&of("a")));
        assert!(!of("a").is_same_disk(&of("b")));
        let nowhere = Identity { content: content.clone(), place: None };
        assert!(!nowhere.is_same_disk(&nowhere));
    }
}
