//! PDUs to bytes.

use std::collections::VecDeque;
use std::io::IoSlice;

use lunway_block::SharedBuf;

use crate::digest::{self, DIGEST_LEN};
use crate::pdu::{self, HEADER_LEN, Header};

struct Entry {
    /// Basic header segment, then the header digest unless there is an AHS.
    head: [u8; HEADER_LEN + DIGEST_LEN],
    head_len: usize,
    /// Additional header segments and then the header digest; empty without AHS.
    extra: Vec<u8>,
    data: SharedBuf,
    /// Padding, then the data digest.
    tail: [u8; 3 + DIGEST_LEN],
    tail_len: usize,
}

impl Entry {
    fn parts(&self) -> [&[u8]; 4] {
        [&self.head[..self.head_len], &self.extra, &self.data, &self.tail[..self.tail_len]]
    }

    fn len(&self) -> usize {
        self.head_len + self.extra.len() + self.data.len() + self.tail_len
    }
}

/// The PDUs of one direction that wait to be sent.
///
/// Data is not copied: [`gather`](Self::gather) gives slices of headers and of the buffers themselves for one vectored
/// write, [`sent`](Self::sent) takes away what the socket took.
pub(crate) struct Transmitter {
    queue: VecDeque<Entry>,
    /// Bytes of the first entry that are gone already.
    first_sent: usize,
    unsent: usize,
    /// All bytes that were ever queued.
    queued: u64,
    header_digest: bool,
    data_digest: bool,
}

impl Transmitter {
    pub(crate) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            first_sent: 0,
            unsent: 0,
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

    /// Queues a PDU. The lengths in the header are set here, from `ahs` (whole words) and `data`.
    // RFC 7143 [11.1-1, 11.2.1.5-1, 11.2.1.6-1, 13.1-2, 13.1-3]
    pub(crate) fn push(&mut self, header: &Header, ahs: &[u8], data: SharedBuf) {
        let mut head = [0; HEADER_LEN + DIGEST_LEN];
        head[..HEADER_LEN].copy_from_slice(header);
        head[4] = (ahs.len() / 4) as u8;
        head[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let mut head_len = HEADER_LEN;
        let mut extra = ahs.to_vec();
        if self.header_digest {
            let crc = digest::digest_of(&[&head[..HEADER_LEN], ahs]);
            if ahs.is_empty() {
                head[HEADER_LEN..].copy_from_slice(&crc);
                head_len += DIGEST_LEN;
            } else {
                extra.extend_from_slice(&crc);
            }
        }
        let mut tail = [0; 3 + DIGEST_LEN];
        let mut tail_len = 0;
        if !data.is_empty() {
            tail_len = pdu::padding(data.len());
            if self.data_digest {
                let crc = digest::digest_of(&[&data, &tail[..tail_len]]);
                tail[tail_len..tail_len + DIGEST_LEN].copy_from_slice(&crc);
                tail_len += DIGEST_LEN;
            }
        }
        let entry = Entry { head, head_len, extra, data, tail, tail_len };
        self.unsent += entry.len();
        self.queued += entry.len() as u64;
        self.queue.push_back(entry);
    }

    /// Bytes that wait.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent
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
        let (mut skip, mut room) = (self.first_sent, bytes_max);
        for entry in &self.queue {
            for part in entry.parts() {
                let gone = skip.min(part.len());
                skip -= gone;
                if gone == part.len() {
                    continue;
                }
                if slices.len() == max || room == 0 {
                    return;
                }
                let rest = &part[gone..];
                let taken = rest.len().min(room);
                room -= taken;
                slices.push(IoSlice::new(&rest[..taken]));
            }
        }
    }

    /// Takes away what was sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.unsent = self.unsent.saturating_sub(bytes);
        self.first_sent += bytes;
        while let Some(first) = self.queue.front() {
            let len = first.len();
            if self.first_sent < len {
                break;
            }
            self.first_sent -= len;
            self.queue.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use lunway_block::Buf;

    use super::*;

    #[test]
    fn what_is_sent_piecemeal_is_what_was_queued() {
        let mut whole = Vec::new();
        let fill = |transmitter: &mut Transmitter| {
            transmitter.enter_full_feature_phase(true, true);
            for len in [0usize, 1, 4, 511] {
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
}
