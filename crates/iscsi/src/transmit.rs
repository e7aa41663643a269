//! PDUs to bytes.

use std::collections::VecDeque;
use std::io::IoSlice;

use lunway_block::SharedBuf;

use crate::digest;
use crate::pdu::{self, Header};

/// Data segments up to this length, bytes, are copied: that takes 20 ns, no more than to count a reference and send a
/// slice. A reference keeps the whole buffer, of 4 KiB at least: answers of 48 bytes that the peer does not take would
/// occupy a hundred times what [`Transmitter::unsent`] says.
const COPIED_MAX: usize = 1 << 10;
/// Memory for copied bytes that is kept when there are none, bytes: the headers and short answers of a full window.
const BYTES_KEPT: usize = 64 << 10;

/// A stretch of what waits to be sent.
enum Part {
    /// So many of the copied bytes, the next ones.
    Copied(usize),
    Data {
        data: SharedBuf,
        /// Bytes that are gone already.
        sent: usize,
        /// Memory that goes with this part: none where a later part is of the same buffer.
        pinned: usize,
    },
}

/// The PDUs of one direction that wait to be sent.
///
/// Headers, trailers and [short](COPIED_MAX) data lie one after another in one buffer. Longer data is not copied:
/// [`gather`](Self::gather) gives slices of both for one vectored write, [`sent`](Self::sent) takes away what the
/// socket took.
pub(crate) struct Transmitter {
    copied: VecDeque<u8>,
    parts: VecDeque<Part>,
    unsent: usize,
    /// Memory that data of `parts` keeps, bytes.
    pinned: usize,
    /// All bytes that were ever queued.
    queued: u64,
    header_digest: bool,
    data_digest: bool,
}

impl Transmitter {
    pub(crate) fn new() -> Self {
        Self {
            copied: VecDeque::new(),
            parts: VecDeque::new(),
            unsent: 0,
            pinned: 0,
            queued: 0,
            header_digest: false,
            data_digest: false,
        }
    }

    /// From the next PDU queued on: the digests as negotiated.
    pub(crate) fn enter_full_feature_phase(&mut self, header_digest: bool, data_digest: bool) {
        self.header_digest = header_digest;
        self.data_digest = data_digest;
    }

    /// Gives back memory that a busy connection has and an idle one does not need.
    pub(crate) fn rest(&mut self) {
        if self.unsent == 0 {
            (self.copied, self.parts) = (VecDeque::new(), VecDeque::new());
        }
    }

    /// Queues a PDU. The lengths in the header are set here, from `ahs` (whole words) and `data`.
    // RFC 7143 [11.1-1, 11.2.1.5-1, 11.2.1.6-1, 13.1-2, 13.1-3]
    pub(crate) fn push(&mut self, header: &Header, ahs: &[u8], data: SharedBuf) {
        let mut header = *header;
        header[4] = (ahs.len() / 4) as u8;
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        self.push_bytes(&header);
        self.push_bytes(ahs);
        if self.header_digest {
            self.push_bytes(&digest::digest_of(&[&header, ahs]));
        }
        if data.is_empty() {
            return;
        }
        let padding = &[0; 3][..pdu::padding(data.len())];
        let data_digest = self.data_digest.then(|| digest::digest_of(&[&data, padding]));
        if data.len() <= COPIED_MAX {
            self.push_bytes(&data);
        } else {
            self.push_data(data);
        }
        self.push_bytes(padding);
        if let Some(digest) = data_digest {
            self.push_bytes(&digest);
        }
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.copied.extend(bytes);
        match self.parts.back_mut() {
            _ if bytes.is_empty() => {}
            Some(Part::Copied(len)) => *len += bytes.len(),
            _ => self.parts.push_back(Part::Copied(bytes.len())),
        }
    }

    fn push_data(&mut self, data: SharedBuf) {
        self.count(data.len());
        let pinned = data.pinned();
        self.pinned += pinned;
        // A buffer that is cut into several segments goes with the last of them. Between two are copied bytes.
        let before = self.parts.iter_mut().rev().take(2).find_map(|part| match part {
            Part::Data { data: before, pinned, .. } if before.memory() == data.memory() => Some(pinned),
            _ => None,
        });
        self.pinned -= before.map_or(0, std::mem::take);
        self.parts.push_back(Part::Data { data, sent: 0, pinned });
    }

    fn count(&mut self, bytes: usize) {
        self.unsent += bytes;
        self.queued += bytes as u64;
    }

    /// Bytes that wait.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Memory that they occupy, bytes: all of each buffer that they are a part of.
    pub(crate) fn memory(&self) -> usize {
        self.copied.len() + self.pinned + self.parts.len() * size_of::<Part>()
    }

    /// Bytes that were queued since the beginning: where the next PDU begins.
    pub(crate) fn end(&self) -> u64 {
        self.queued
    }

    /// Bytes that were sent since the beginning.
    pub(crate) fn position(&self) -> u64 {
        self.queued - self.unsent as u64
    }

    /// Appends what must be sent next, up to `max` slices in all and `bytes_max` bytes more.
    pub(crate) fn gather<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>, max: usize, bytes_max: usize) {
        let (mut front, mut back) = self.copied.as_slices();
        let mut room = bytes_max;
        for part in &self.parts {
            // Copied bytes go round the end of their buffer once at most.
            let stretches = match part {
                Part::Copied(len) => {
                    let first = front.split_off(..front.len().min(*len)).unwrap_or_default();
                    [first, back.split_off(..len - first.len()).unwrap_or_default()]
                }
                Part::Data { data, sent, .. } => [&data[*sent..], &[]],
            };
            for stretch in stretches.into_iter().filter(|stretch| !stretch.is_empty()) {
                if slices.len() == max || room == 0 {
                    return;
                }
                let taken = stretch.len().min(room);
                room -= taken;
                slices.push(IoSlice::new(&stretch[..taken]));
            }
        }
    }

    /// Takes away what was sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        let (mut left, mut copied) = (bytes.min(self.unsent), 0);
        self.unsent -= left;
        while left > 0
            && let Some(first) = self.parts.front_mut()
        {
            let rest = match first {
                Part::Copied(len) => *len,
                Part::Data { data, sent, .. } => data.len() - *sent,
            };
            let gone = left.min(rest);
            left -= gone;
            match first {
                Part::Copied(len) => {
                    *len -= gone;
                    copied += gone;
                }
                Part::Data { sent, .. } => *sent += gone,
            }
            if gone == rest
                && let Some(Part::Data { pinned, .. }) = self.parts.pop_front()
            {
                self.pinned -= pinned;
            }
        }
        self.copied.drain(..copied);
        if self.copied.is_empty() && self.copied.capacity() > BYTES_KEPT {
            self.copied.shrink_to(BYTES_KEPT);
        }
    }
}

#[cfg(test)]
mod tests {
    use lunway_block::Buf;

    use crate::pdu::HEADER_LEN;

    use super::*;

    #[test]
    fn what_is_sent_piecemeal_is_what_was_queued() {
        let mut whole = Vec::new();
        let fill = |transmitter: &mut Transmitter| {
            transmitter.enter_full_feature_phase(true, true);
            for len in [0usize, 1, 4, 511, COPIED_MAX, COPIED_MAX + 1, 5000] {
                transmitter.push(&[len as u8; HEADER_LEN], &[], Buf::copy_of(&vec![9; len]).freeze());
                transmitter.push(&[1; HEADER_LEN], &[5; 8], SharedBuf::default());
            }
        };
        let mut transmitter = Transmitter::new();
        fill(&mut transmitter);
        let total = transmitter.unsent();
        let mut slices = Vec::new();
        transmitter.gather(&mut slices, usize::MAX, usize::MAX);
        slices.iter().for_each(|slice| whole.extend_from_slice(slice));
        assert_eq!(whole.len(), total);

        for (step, bytes_max) in [(1, 1), (3, 9), (47, 40), (48, 99), (49, 600), (1000, usize::MAX)] {
            let mut transmitter = Transmitter::new();
            fill(&mut transmitter);
            let mut got = Vec::new();
            while transmitter.unsent() > 0 {
                let mut slices = Vec::new();
                transmitter.gather(&mut slices, 2, bytes_max);
                assert!(!slices.is_empty() && slices.len() <= 2);
                assert!(slices.iter().map(|slice| slice.len()).sum::<usize>() <= bytes_max);
                let flat: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).take(step).collect();
                got.extend_from_slice(&flat);
                transmitter.sent(flat.len());
            }
            assert_eq!(got, whole, "in steps of {step}");
        }
    }
    /// Answers of a few bytes that were not taken kept 8 KiB each, 45 MiB for one connection that was said to have 512
    /// KiB.
    #[test]
    fn short_data_that_waits_takes_no_more_memory_than_it_has_bytes() {
        let mut transmitter = Transmitter::new();
        for _ in 0..1000 {
            let whole = Buf::zeroed(256 << 10).freeze();
            transmitter.push(&[0; HEADER_LEN], &[], whole.slice(7..7 + HEADER_LEN));
        }
        assert_eq!(transmitter.unsent(), 2000 * HEADER_LEN);
        assert!(transmitter.memory() < transmitter.unsent() + 100, "{}", transmitter.memory());
    }

    #[test]
    fn longer_data_counts_with_all_of_its_buffer_once_until_the_last_of_it_is_sent() {
        let mut transmitter = Transmitter::new();
        let buf = Buf::zeroed(256 << 10).freeze();
        for part in 0..4 {
            transmitter.push(&[0; HEADER_LEN], &[], buf.slice(part * 2000..(part + 1) * 2000));
        }
        let pinned = |transmitter: &Transmitter| transmitter.memory() >> 10 << 10;
        assert_eq!(pinned(&transmitter), 256 << 10);
        transmitter.push(&[0; HEADER_LEN], &[], Buf::zeroed(4096).freeze());
        assert_eq!(pinned(&transmitter), 260 << 10);
        transmitter.sent(4 * (HEADER_LEN + 2000) - 1);
        assert_eq!(pinned(&transmitter), 260 << 10);
        transmitter.sent(1);
        assert_eq!(pinned(&transmitter), 4 << 10);
        transmitter.sent(usize::MAX);
        assert_eq!((transmitter.memory(), transmitter.unsent()), (0, 0));
    }

    #[test]
    fn memory_for_many_short_answers_is_given_back_when_they_are_sent() {
        let mut transmitter = Transmitter::new();
        for _ in 0..10_000 {
            transmitter.push(&[0; HEADER_LEN], &[], SharedBuf::default());
        }
        transmitter.sent(transmitter.unsent());
        assert!(transmitter.copied.capacity() <= BYTES_KEPT, "{}", transmitter.copied.capacity());
    }
}
