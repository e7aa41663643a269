//! Long ranges in pieces of about a millisecond.

use std::time::Duration;

/// Duration that a piece should have: the file system keeps writers out meanwhile. A write of 4 KiB takes 30 µs on a
/// thread.
pub(crate) const PIECE_TIME: Duration = Duration::from_millis(1);
/// The shortest piece, bytes, and the first: ext4 punches as much of data in the page cache in 0.1 ms, and file systems
/// allocate in units of at most that.
const LEN_MIN: u64 = 1 << 20;
/// The longest, bytes: a hole takes no time, and data may follow it, of which this is some milliseconds.
const LEN_MAX: u64 = 64 << 20;

/// A range that is worked on in pieces, each as long as the one before shows that [`PIECE_TIME`] allows. They end at
/// multiples of the unit in which space is given up, so that none of it is missed.
pub(crate) struct Pieces {
    at: u64,
    end: u64,
    len: u64,
    /// Of the last piece, bytes.
    last: u64,
    len_min: u64,
}

impl Pieces {
    /// Of a range that is not empty. `granularity`: the unit in which the device gives up space, bytes.
    pub(crate) fn new(offset: u64, len: u64, granularity: u32) -> Self {
        let len_min = LEN_MIN.next_multiple_of(u64::from(granularity.max(1)));
        Self { at: offset, end: offset + len, len: len_min, last: 0, len_min }
    }

    /// Offset and length of the next piece.
    pub(crate) fn next(&mut self) -> (u64, u64) {
        let start = self.at;
        let stop = ((start / self.len_min * self.len_min) + self.len).min(self.end);
        self.at = stop;
        self.last = stop - start;
        (start, self.last)
    }

    /// Tells how long the last one took.
    pub(crate) fn took(&mut self, time: Duration) {
        if time > PIECE_TIME {
            self.len = (self.len / 2 / self.len_min * self.len_min).max(self.len_min);
        } else if time < PIECE_TIME / 4 && self.last * 2 > self.len {
            self.len = (self.len * 2).min(LEN_MAX.next_multiple_of(self.len_min));
        }
    }

    /// Returns `true` if there are no more.
    pub(crate) fn is_over(&self) -> bool {
        self.at >= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn all(mut pieces: Pieces, mut took: impl FnMut(u64) -> Duration) -> Vec<(u64, u64)> {
        let mut list = Vec::new();
        while !pieces.is_over() {
            let piece = pieces.next();
            pieces.took(took(piece.1));
            list.push(piece);
        }
        list
    }

    #[test]
    fn pieces_cover_the_range_and_follow_the_time_that_they_take() {
        let per_mib = |micros: u64| move |len: u64| Duration::from_micros(len * micros / MIB);
        for (offset, len, micros) in
            [(0, 1 << 40, 0), (512, 300 * MIB, 100), (7 * MIB, 64 * MIB, 5000), (512, 512, 1)]
        {
            let list = all(Pieces::new(offset, len, 4096), per_mib(micros));
            let mut next = offset;
            for (start, len) in &list {
                assert_eq!(*start, next);
                next += len;
                assert!(
                    *len > 0
                        && (next % MIB == 0 || next == offset + list.iter().map(|(_, len)| len).sum::<u64>())
                );
                assert!(len * micros / MIB <= 1000 || *len <= MIB, "{len} bytes at {micros} µs a MiB");
            }
            assert_eq!(next, offset + len);
        }
        assert!(all(Pieces::new(0, 1 << 40, 512), per_mib(0)).len() < 17_000, "1 TiB of holes");
    }

    #[test]
    fn a_piece_ends_where_a_unit_of_space_does() {
        let unit = 42 * MIB;
        let list = all(Pieces::new(MIB, 10 * unit, unit as u32), |_| Duration::from_millis(5));
        let (_, inner) = list.split_last().unwrap();
        assert!(inner.iter().all(|(start, len)| (start + len) % unit == 0), "{list:?}");
    }
}
