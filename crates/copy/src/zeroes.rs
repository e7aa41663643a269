//! Zeroes in data.

use std::ops::Range;

/// Zeroes are looked for in units of this, bytes: shorter ones are cheaper to send than to ask for.
const UNIT: usize = 64 << 10;

/// A part of a buffer that is all zeroes, or is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) range: Range<usize>,
    pub(crate) zero: bool,
}

/// Returns `true` if all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // Ored together in pieces of a few cache lines, which the compiler does with vectors; byte by byte with an early
    // end it cannot.
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Cuts a buffer into runs that take turns in being zero.
pub(crate) fn runs(data: &[u8]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, unit) in data.chunks(UNIT).enumerate() {
        let start = index * UNIT;
        let end = start + unit.len();
        let zero = is_zero(unit);
        match runs.last_mut() {
            Some(last) if last.zero == zero => last.range.end = end,
            _ => runs.push(Run { range: start..end, zero }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_the_buffer_and_take_turns() {
        let mut data = vec![0; 4 * UNIT + 512];
        data[UNIT + 5] = 1;
        data[2 * UNIT] = 1;
        data[4 * UNIT + 511] = 1;
        let run = |range, zero| Run { range, zero };
        let expected = [
            run(0..UNIT, true),
            run(UNIT..3 * UNIT, false),
            run(3 * UNIT..4 * UNIT, true),
            run(4 * UNIT..4 * UNIT + 512, false),
        ];
        assert_eq!(runs(&data), expected);
        assert_eq!(runs(&[]), []);
    }

    #[test]
    fn one_bit_anywhere_is_not_zero() {
        for at in [0, 255, 256, 999] {
            let mut data = [0; 1000];
            assert!(is_zero(&data));
            data[at] = 0x80;
            assert!(!is_zero(&data), "{at}");
        }
    }
}
