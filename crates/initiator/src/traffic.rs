//! What has gone over a session.

use crate::slots::Effect;

/// What has gone over a session since it was opened, reconnections included.
///
/// Plain numbers: they are counted where the session's lock is held anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) read_ios: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_ios: u64,
    pub(crate) write_bytes: u64,
    pub(crate) errors: u64,
}

impl Traffic {
    /// A command was answered with GOOD after that many bytes in and out.
    #[inline]
    pub(crate) fn count(&mut self, effect: Effect, received: usize, sent: usize) {
        match effect {
            Effect::Read => {
                self.read_ios += 1;
                self.read_bytes += received as u64;
            }
            Effect::Write | Effect::WriteThrough => {
                self.write_ios += 1;
                self.write_bytes += sent as u64;
            }
            Effect::Query | Effect::WriteRange | Effect::Flush | Effect::Barrier | Effect::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_are_counted_and_questions_are_not() {
        let mut traffic = Traffic::default();
        traffic.count(Effect::Read, 4096, 0);
        traffic.count(Effect::Write, 0, 512);
        traffic.count(Effect::WriteThrough, 0, 512);
        traffic.count(Effect::Query, 96, 0);
        traffic.count(Effect::WriteRange, 0, 512);
        let wanted = Traffic { read_ios: 1, read_bytes: 4096, write_ios: 2, write_bytes: 1024, errors: 0 };
        assert_eq!(traffic, wanted);
    }
}
