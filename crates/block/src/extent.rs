//! Pieces of a device that are alike.

/// Allocation state of a piece of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Bytes that must be read to be known.
    Data,
    /// Allocated, and known to read as zeroes.
    Zero,
    /// Nothing: no space behind it. Reads as zeroes where the device says so (`Unmap::zeroes`).
    Unallocated,
}

/// A piece of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Length, bytes; not 0.
    pub len: u64,
    /// Kind of extent.
    pub kind: ExtentKind,
}

impl Extent {
    /// The byte after the last.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Appends to a list in order, joining with the last one where both are alike and touch.
    pub fn push_onto(self, list: &mut Vec<Extent>) {
        match list.last_mut() {
            _ if self.len == 0 => {}
            Some(last) if last.kind == self.kind && last.end() == self.offset => last.len += self.len,
            _ => list.push(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, len: u64, kind: ExtentKind) -> Extent {
        Extent { offset, len, kind }
    }

    #[test]
    fn neighbours_that_are_alike_become_one() {
        use ExtentKind::{Data, Unallocated};
        let mut list = Vec::new();
        for piece in [
            extent(0, 10, Data),
            extent(10, 0, Unallocated),
            extent(10, 5, Data),
            extent(15, 5, Unallocated),
            extent(30, 5, Unallocated),
        ] {
            piece.push_onto(&mut list);
        }
        let expected = [extent(0, 15, Data), extent(15, 5, Unallocated), extent(30, 5, Unallocated)];
        assert_eq!(list, expected, "a gap must not be bridged and an empty piece must not stay");
    }
}
