//! PDUs to bytes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;

use lunway_block::{Buf, Lent, LockedBytes, SharedBuf};

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
    /// What is not gone yet of data that is still where the device has it.
    Lent(Box<Lent>),
}

/// Bytes that are lent, and locked.
struct LockedPiece<'a> {
    /// Place among all bytes that wait.
    start: usize,
    bytes: LockedBytes<'a>,
}

/// The PDUs of one direction that wait to be sent.
///
/// Headers, trailers and [short](COPIED_MAX) data lie one after another in one buffer. Longer data is not copied:
/// [`gather`](Self::gather) gives slices of both for one vectored write, [`sent`](Self::sent) takes away what the
/// socket took. Data that a device has [lent](Lent) is not copied either, and is locked while the socket takes it
/// ([`send_lent`](Self::send_lent)); what the socket leaves is copied ([`settle_lent`](Self::settle_lent)), before the
/// caller waits for anything.
pub(crate) struct Transmitter {
    copied: VecDeque<u8>,
    parts: VecDeque<Part>,
    unsent: usize,
    /// Memory that data of `parts` keeps, bytes. What is lent counts like its copy.
    pinned: usize,
    /// Parts that are lent.
    lent: usize,
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
            lent: 0,
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

    /// PDUs have a digest of their data.
    pub(crate) fn has_data_digest(&self) -> bool {
        self.data_digest
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
        self.push_header(header, ahs, data.len());
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

    /// Queues a PDU whose data a device has lent: without a digest, which would have to be of the bytes that are sent
    /// later.
    pub(crate) fn push_lent(&mut self, header: &Header, data: Lent) {
        debug_assert!(!self.data_digest);
        self.push_header(header, &[], data.len());
        self.count(data.len());
        self.pinned += data.len();
        self.lent += 1;
        let padding = &[0; 3][..pdu::padding(data.len())];
        self.parts.push_back(Part::Lent(Box::new(data)));
        self.push_bytes(padding);
    }

    fn push_header(&mut self, header: &Header, ahs: &[u8], data_len: usize) {
        let mut header = *header;
        header[4] = (ahs.len() / 4) as u8;
        header[5..8].copy_from_slice(&(data_len as u32).to_be_bytes()[1..]);
        self.push_bytes(&header);
        self.push_bytes(ahs);
        if self.header_digest {
            self.push_bytes(&digest::digest_of(&[&header, ahs]));
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

    /// Appends what must be sent next, up to `max` slices in all and `bytes_max` bytes more, and no further than to
    /// what is lent.
    pub(crate) fn gather<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>, max: usize, bytes_max: usize) {
        self.gather_with(&[], slices, max, bytes_max);
    }

    /// The same, with these pieces of what is lent, in order from the first byte of the first lent part.
    fn gather_with<'a>(
        &'a self,
        locked: &'a [LockedPiece<'_>],
        slices: &mut Vec<IoSlice<'a>>,
        max: usize,
        bytes_max: usize,
    ) {
        let (mut front, mut back) = self.copied.as_slices();
        let (mut room, mut locked) = (bytes_max, locked.iter());
        for part in &self.parts {
            // Copied bytes go round the end of their buffer once at most.
            let stretches = match part {
                Part::Copied(len) => {
                    let first = front.split_off(..front.len().min(*len)).unwrap_or_default();
                    [first, back.split_off(..len - first.len()).unwrap_or_default()]
                }
                Part::Data { data, sent, .. } => [&data[*sent..], &[]],
                Part::Lent(lent) => {
                    let mut left = lent.len();
                    while left > 0 {
                        let Some(piece) = locked.next() else { return };
                        if slices.len() == max || room == 0 {
                            return;
                        }
                        left -= piece.bytes.len();
                        let taken = piece.bytes.len().min(room);
                        room -= taken;
                        slices.push(IoSlice::new(&piece.bytes[..taken]));
                    }
                    continue;
                }
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

    /// Parts of what waits are lent.
    pub(crate) fn has_lent(&self) -> bool {
        self.lent > 0
    }

    /// Has `write` send what is next, of up to `max` slices and `bytes_max` bytes, and takes away what it took. What is
    /// lent is locked meanwhile, in pieces, each of which is of one moment: of one that is sent in part the rest is
    /// copied.
    pub(crate) fn send_lent(
        &mut self,
        max: usize,
        bytes_max: usize,
        write: &mut dyn FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let Some((taken, rest)) = self.write_locked(max, bytes_max, write)? else {
            // A writer has what is next. This waits for it, with nothing else locked.
            self.settle_lent();
            return Ok(0);
        };
        self.sent(taken);
        if let Some(rest) = rest
            && let Some(Part::Lent(lent)) = self.parts.front_mut()
        {
            lent.advance(rest.len());
            self.pinned -= rest.len();
            if lent.is_empty() {
                self.lent -= 1;
                self.parts.pop_front();
            }
            self.pinned += rest.pinned();
            let pinned = rest.pinned();
            self.parts.push_front(Part::Data { data: rest, sent: 0, pinned });
        }
        Ok(taken)
    }

    /// Returns the bytes that were taken, and the rest of the locked piece in which they end; `None`: the first piece
    /// could not be locked.
    fn write_locked(
        &self,
        max: usize,
        bytes_max: usize,
        write: &mut dyn FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<Option<(usize, Option<SharedBuf>)>> {
        let locked = self.lock(bytes_max);
        let mut slices = Vec::new();
        self.gather_with(&locked, &mut slices, max, bytes_max);
        if slices.is_empty() && self.unsent > 0 && bytes_max > 0 {
            return Ok(None);
        }
        let taken = write(&slices)?;
        let is_cut =
            |piece: &&LockedPiece<'_>| piece.start < taken && taken < piece.start + piece.bytes.len();
        let cut = locked.iter().find(is_cut);
        Ok(Some((taken, cut.map(|piece| Buf::copy_of(&piece.bytes[taken - piece.start..]).freeze()))))
    }

    /// Locks what is lent of the next `bytes_max` bytes, as far as no writer has it.
    fn lock(&self, bytes_max: usize) -> Vec<LockedPiece<'_>> {
        let (mut locked, mut start) = (Vec::new(), 0);
        for part in &self.parts {
            if start >= bytes_max {
                break;
            }
            match part {
                Part::Copied(len) => start += len,
                Part::Data { data, sent, .. } => start += data.len() - sent,
                Part::Lent(lent) => {
                    let end = start + lent.len();
                    while start < end.min(bytes_max) {
                        let Some(bytes) = lent.try_lock(lent.len() - (end - start)) else { return locked };
                        locked.push(LockedPiece { start, bytes });
                        start += locked.last().map_or(0, |piece| piece.bytes.len());
                    }
                    start = end;
                }
            }
        }
        locked
    }

    /// Copies what is lent, and so ends the loan.
    pub(crate) fn settle_lent(&mut self) {
        if mem::take(&mut self.lent) == 0 {
            return;
        }
        for part in &mut self.parts {
            if let Part::Lent(lent) = part {
                let data = lent.copy();
                let pinned = data.pinned();
                self.pinned = self.pinned - lent.len() + pinned;
                *part = Part::Data { data, sent: 0, pinned };
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
                Part::Lent(lent) => lent.len(),
            };
            let gone = left.min(rest);
            left -= gone;
            match first {
                Part::Copied(len) => {
                    *len -= gone;
                    copied += gone;
                }
                Part::Data { sent, .. } => *sent += gone,
                Part::Lent(lent) => {
                    lent.advance(gone);
                    self.pinned -= gone;
                }
            }
            if gone == rest {
                match self.parts.pop_front() {
                    Some(Part::Data { pinned, .. }) => self.pinned -= pinned,
                    Some(Part::Lent(_)) => self.lent -= 1,
                    Some(Part::Copied(_)) | None => {}
                }
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU8, Ordering};

    use lunway_block::{Buf, DeviceMemory};

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

    /// Memory that is written whole after each look at it; nothing of it is changed while it is locked.
    #[derive(Default)]
    struct Restless(AtomicU8);

    impl Restless {
        const PIECE: usize = 64;
    }

    impl DeviceMemory for Restless {
        fn try_lock(&self, offset: u64, len: usize) -> Option<LockedBytes<'_>> {
            let len = len.min(Self::PIECE - offset as usize % Self::PIECE);
            Some(Box::new(vec![self.0.load(Ordering::Relaxed); len]))
        }

        fn copy_to(&self, _: u64, bytes: &mut [u8]) {
            // Each piece is of another moment.
            bytes
                .chunks_mut(Self::PIECE)
                .for_each(|piece| piece.fill(self.0.fetch_add(1, Ordering::Relaxed)));
        }
    }

    #[test]
    fn each_piece_of_lent_memory_is_of_one_moment_however_the_socket_takes_it() {
        let len = 10 * Restless::PIECE;
        for taken_at_once in [1, 7, 63, 64, 65, 200, 1000, 5000] {
            for settled_every in [2, 5, usize::MAX] {
                let memory = Arc::new(Restless::default());
                let mut transmitter = Transmitter::new();
                let kept = Arc::new(());
                for _ in 0..3 {
                    let mut lent = Lent::new(memory.clone(), 0, len);
                    lent.keep(kept.clone());
                    transmitter.push_lent(&[0; HEADER_LEN], lent.slice(0..len / 2));
                    transmitter.push_lent(&[0; HEADER_LEN], lent.slice(len / 2..len));
                }
                assert!(transmitter.memory() > 3 * len, "counted like a copy: {}", transmitter.memory());
                let (mut got, mut round) = (Vec::new(), 0);
                while transmitter.unsent() > 0 {
                    round += 1;
                    let mut write = |slices: &[IoSlice<'_>]| {
                        let flat = slices.iter().flat_map(|slice| slice.to_vec()).take(taken_at_once);
                        let before = got.len();
                        got.extend(flat);
                        Ok(got.len() - before)
                    };
                    transmitter.send_lent(9, 700, &mut write).unwrap();
                    memory.0.fetch_add(1, Ordering::Relaxed);
                    if round % settled_every == 0 {
                        transmitter.settle_lent();
                        assert!(!transmitter.has_lent());
                    }
                }
                assert_eq!((got.len(), transmitter.memory()), (3 * len + 6 * HEADER_LEN, 0));
                assert!(!transmitter.has_lent() && Arc::strong_count(&kept) == 1);
                for answer in got.chunks(HEADER_LEN + len / 2) {
                    for piece in answer[HEADER_LEN..].chunks(Restless::PIECE) {
                        assert!(
                            piece.iter().all(|byte| *byte == piece[0]),
                            "torn at {taken_at_once}: {piece:?}"
                        );
                    }
                }
            }
        }
    }

    /// Memory that a writer has.
    struct Taken;

    impl DeviceMemory for Taken {
        fn try_lock(&self, offset: u64, len: usize) -> Option<LockedBytes<'_>> {
            (offset < 64).then(|| Box::new(vec![1_u8; len.min(64 - offset as usize)]) as LockedBytes<'_>)
        }

        fn copy_to(&self, _: u64, bytes: &mut [u8]) {
            bytes.fill(2);
        }
    }

    #[test]
    fn what_a_writer_has_is_copied_when_it_is_next() {
        let mut transmitter = Transmitter::new();
        transmitter.push_lent(&[0; HEADER_LEN], Lent::new(Arc::new(Taken), 0, 256));
        let mut got = Vec::new();
        let mut send = |transmitter: &mut Transmitter| {
            let mut write = |slices: &[IoSlice<'_>]| {
                got.extend(slices.iter().flat_map(|slice| slice.to_vec()));
                Ok(slices.iter().map(|slice| slice.len()).sum())
            };
            transmitter.send_lent(99, usize::MAX, &mut write).unwrap()
        };
        assert_eq!(send(&mut transmitter), HEADER_LEN + 64, "as far as it is free");
        assert_eq!(
            (send(&mut transmitter), transmitter.has_lent()),
            (0, false),
            "the rest has been waited for"
        );
        assert_eq!(send(&mut transmitter), 192);
        assert_eq!(got[HEADER_LEN..], [[1; 64], [2; 64], [2; 64], [2; 64]].concat());
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
