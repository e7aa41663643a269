//! Bytes to PDUs.

use std::io::IoSliceMut;

use lunway_block::Buf;

use crate::digest::{self, DIGEST_LEN};
use crate::pdu::{self, HEADER_LEN, Header};

/// At first, and again after a time of silence: a Login Request of usual size, and a command with 4 KiB of data. Little
/// to lose to connections that never log in, and ten thousand idle sessions have 80 MiB.
const SPACE_FIRST: usize = 8 << 10;
/// Once a read has filled that, in full feature phase: what the kernel hands over in one go at depth 32 with 4 KiB of
/// immediate data each. Larger data segments do not pass through it, see [`Receiver`].
const SPACE_FULL_FEATURE: usize = 128 << 10;

/// Data segments from this length on, bytes, do not pass through the space: copying more costs more than the system
/// call (1 µs) that a full space would save.
const LARGE: usize = 32 << 10;
/// The space that is offered while segments are large: the trailer of one, the header of the next with its digest, and
/// hardly any of its data.
const SPACE_BETWEEN_LARGE: usize = (3 + DIGEST_LEN + HEADER_LEN + DIGEST_LEN).next_multiple_of(64);
/// PDUs without a large segment after which many at a time are taken again: between two there may be a status, an R2T,
/// a ping.
const OTHERS_BETWEEN_LARGE: u8 = 4;

/// Reason why the byte stream cannot be followed any further: the connection must end (RFC 7143 §7.7, §7.8).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// A data segment above the MaxRecvDataSegmentLength that we declared.
    #[error("a data segment of {len} bytes exceeds MaxRecvDataSegmentLength={max}")]
    DataSegmentTooLong {
        /// Length that the header states, bytes.
        len: usize,
        /// Length that we declared, bytes.
        max: usize,
    },
    /// The header digest does not match.
    #[error("a header digest does not match")]
    HeaderDigest,
}

/// The header of a PDU whose data segment is still to come.
#[derive(Debug)]
pub(crate) struct Head {
    /// Basic header segment.
    pub(crate) bhs: Header,
    /// Additional header segments; mostly empty, which allocates nothing.
    pub(crate) ahs: Vec<u8>,
    /// Length of the data segment without padding, bytes.
    pub(crate) data_len: usize,
}

/// A data segment that has arrived.
#[derive(Debug)]
pub(crate) struct Data {
    /// The buffer given to [`Receiver::receive_data`].
    pub(crate) buf: Buf,
    /// `true` if the data digest, if there is one, matches.
    pub(crate) intact: bool,
}

struct Filling {
    buf: Buf,
    start: usize,
    at: usize,
    end: usize,
    padding: usize,
}

/// Cuts the byte stream of one direction into PDUs.
///
/// Bytes are read into [`space`](Self::space) and announced by [`received`](Self::received). Then
/// [`next_head`](Self::next_head) and, for each head with data, [`receive_data`](Self::receive_data) followed by
/// [`poll_data`](Self::poll_data) give one PDU after another until they return `None`.
///
/// Headers and small data pass through one buffer, so that one read takes many PDUs. What is missing of a data segment
/// when its header is parsed is read straight to where it belongs, and where large segments follow each other no more
/// of the next one than its header is taken: a 256 KiB segment is copied once, by the kernel.
pub(crate) struct Receiver {
    space: Vec<u8>,
    start: usize,
    end: usize,
    filling: Option<Filling>,
    /// Size of the space once a read has filled it.
    space_max: usize,
    /// For so many more PDUs segments count as large.
    large: u8,
    #[cfg(test)]
    copied: usize,
    data_max: usize,
    header_digest: bool,
    data_digest: bool,
}

impl Receiver {
    /// `data_max`: the longest data segment that is accepted, bytes.
    pub(crate) fn new(data_max: usize) -> Self {
        Self {
            space: vec![0; SPACE_FIRST],
            start: 0,
            end: 0,
            filling: None,
            space_max: SPACE_FIRST,
            large: 0,
            #[cfg(test)]
            copied: 0,
            data_max,
            header_digest: false,
            data_digest: false,
        }
    }

    /// From the next PDU on: the longest data segment as declared, the digests as negotiated, and room for many PDUs.
    pub(crate) fn enter_full_feature_phase(
        &mut self,
        data_max: usize,
        header_digest: bool,
        data_digest: bool,
    ) {
        self.data_max = data_max;
        self.header_digest = header_digest;
        self.data_digest = data_digest;
        self.space_max = SPACE_FULL_FEATURE;
    }

    /// Gives back memory that a busy connection has and an idle one does not need.
    pub(crate) fn rest(&mut self) {
        if self.start == self.end && self.filling.is_none() && self.space.len() > SPACE_FIRST {
            (self.start, self.end) = (0, 0);
            self.space = vec![0; SPACE_FIRST];
        }
    }

    /// Returns the space for the next bytes, in order. The first slice is never empty.
    pub(crate) fn space(&mut self) -> [IoSliceMut<'_>; 2] {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.start > 0 {
            // At most a header and a trailer are left over: what is complete has been taken, data is moved on.
            self.space.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let mut spare = &mut self.space[self.end..];
        if self.large > 0 && spare.len() > SPACE_BETWEEN_LARGE {
            spare = &mut spare[..SPACE_BETWEEN_LARGE];
        }
        match &mut self.filling {
            Some(filling) if filling.at < filling.end => {
                [IoSliceMut::new(&mut filling.buf[filling.at..filling.end]), IoSliceMut::new(spare)]
            }
            _ => [IoSliceMut::new(spare), IoSliceMut::new(&mut [])],
        }
    }

    /// Announces bytes that were put into [`space`](Self::space).
    pub(crate) fn received(&mut self, mut bytes: usize) {
        if let Some(filling) = &mut self.filling {
            let direct = bytes.min(filling.end - filling.at);
            filling.at += direct;
            bytes -= direct;
        }
        self.end = (self.end + bytes).min(self.space.len());
        if self.end == self.space.len() && self.end < self.space_max {
            self.space.resize(self.space_max, 0);
        }
    }

    /// Returns `true` if the basic header segment of a PDU is here that [`next_head`](Self::next_head) has not given.
    pub(crate) fn has_header(&self) -> bool {
        self.end - self.start >= HEADER_LEN
    }

    /// The next header, once it is complete and its digest has been checked.
    pub(crate) fn next_head(&mut self) -> Result<Option<Head>, ReceiveError> {
        let bytes = &self.space[self.start..self.end];
        let Some(bhs) = bytes.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let ahs_len = usize::from(bhs[4]) * 4;
        let data_len = usize::from(bhs[5]) << 16 | usize::from(bhs[6]) << 8 | usize::from(bhs[7]);
        let segments = HEADER_LEN + ahs_len;
        let total = segments + if self.header_digest { DIGEST_LEN } else { 0 };
        if bytes.len() < total {
            return Ok(None);
        }
        // The digest first: with it broken the lengths may be wrong as well, and the error would blame the wrong thing.
        if self.header_digest && digest::digest(&bytes[..segments]) != bytes[segments..total] {
            // RFC 7143 [7.8-1]
            return Err(ReceiveError::HeaderDigest);
        }
        // RFC 7143 [7.7-1]
        if data_len > self.data_max {
            return Err(ReceiveError::DataSegmentTooLong { len: data_len, max: self.data_max });
        }
        let head = Head { bhs: *bhs, ahs: bytes[HEADER_LEN..segments].to_vec(), data_len };
        self.start += total;
        self.large = if data_len >= LARGE { OTHERS_BETWEEN_LARGE } else { self.large.saturating_sub(1) };
        Ok(Some(head))
    }

    /// Says where the data segment of the head just taken goes: `len` bytes of `buf` from `start`.
    pub(crate) fn receive_data(&mut self, mut buf: Buf, start: usize, len: usize) {
        let here = len.min(self.end - self.start);
        buf[start..start + here].copy_from_slice(&self.space[self.start..self.start + here]);
        self.start += here;
        #[cfg(test)]
        {
            self.copied += here;
        }
        let padding = pdu::padding(len);
        self.filling = Some(Filling { buf, start, at: start + here, end: start + len, padding });
    }

    /// The data segment, once it is complete.
    pub(crate) fn poll_data(&mut self) -> Option<Data> {
        let filling = self.filling.as_ref()?;
        let trailer = filling.padding + if self.data_digest { DIGEST_LEN } else { 0 };
        if filling.at < filling.end || self.end - self.start < trailer {
            return None;
        }
        let (padding, sent) = self.space[self.start..self.start + trailer].split_at(filling.padding);
        // RFC 7143 [13.1-3]
        let intact = sent.is_empty()
            || digest::digest_of(&[&filling.buf[filling.start..filling.end], padding]) == sent;
        self.start += trailer;
        self.filling.take().map(|filling| Data { buf: filling.buf, intact })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes one read of a stream of which everything has arrived; returns what it left.
    fn read<'a>(receiver: &mut Receiver, mut bytes: &'a [u8]) -> &'a [u8] {
        let mut given = 0;
        for mut slice in receiver.space() {
            let n = slice.len().min(bytes.len());
            slice[..n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            given += n;
        }
        receiver.received(given);
        bytes
    }

    fn put(receiver: &mut Receiver, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = read(receiver, bytes);
            if receiver.filling.is_none() {
                assert!(bytes.is_empty(), "the test gave more than fits");
            }
        }
    }

    fn pdu(data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![7; HEADER_LEN];
        bytes[4] = 0;
        bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_data_segment_split_anywhere_arrives_whole() {
        let data: Vec<u8> = (0..=250).collect();
        let bytes = pdu(&data);
        for cut in 1..bytes.len() {
            let mut receiver = Receiver::new(8192);
            put(&mut receiver, &bytes[..cut]);
            let mut head = receiver.next_head().expect("valid");
            if let Some(head) = &head {
                receiver.receive_data(Buf::zeroed(300), 10, head.data_len);
                assert!(receiver.poll_data().is_none() || cut == bytes.len());
            }
            put(&mut receiver, &bytes[cut..]);
            if head.is_none() {
                head = receiver.next_head().expect("valid");
                receiver.receive_data(Buf::zeroed(300), 10, head.as_ref().expect("complete").data_len);
            }
            let data_in = receiver.poll_data().expect("complete");
            assert!(data_in.intact);
            assert_eq!(data_in.buf[10..10 + data.len()], data[..], "cut at {cut}");
            assert!(receiver.next_head().expect("valid").is_none());
        }
    }

    // shows RFC 7143 [7.7-1]
    #[test]
    fn a_data_segment_above_what_we_declared_is_refused() {
        let mut receiver = Receiver::new(100);
        put(&mut receiver, &pdu(&[0; 101])[..HEADER_LEN]);
        assert_eq!(
            receiver.next_head().unwrap_err(),
            ReceiveError::DataSegmentTooLong { len: 101, max: 100 }
        );
    }

    // shows RFC 7143 [7.8-1]
    #[test]
    fn a_wrong_header_digest_is_noticed_before_the_lengths_are_believed() {
        let mut receiver = Receiver::new(100);
        receiver.enter_full_feature_phase(100, true, true);
        let mut bytes = pdu(&[0; 4000]);
        bytes.splice(HEADER_LEN..HEADER_LEN, [1, 2, 3, 4]);
        put(&mut receiver, &bytes);
        assert_eq!(receiver.next_head().unwrap_err(), ReceiveError::HeaderDigest);
    }

    /// Takes all PDUs of a stream of which everything has arrived; how often it was read.
    fn take_all(receiver: &mut Receiver, mut bytes: &[u8]) -> usize {
        let mut reads = 0;
        while !bytes.is_empty() {
            reads += 1;
            bytes = read(receiver, bytes);
            loop {
                if receiver.filling.is_some() {
                    let Some(data) = receiver.poll_data() else { break };
                    assert!(data.buf.iter().all(|byte| *byte == 9));
                }
                let Some(head) = receiver.next_head().expect("valid") else { break };
                if head.data_len > 0 {
                    receiver.receive_data(Buf::zeroed(head.data_len), 0, head.data_len);
                }
            }
        }
        assert!(receiver.filling.is_none() && receiver.start == receiver.end);
        reads
    }

    #[test]
    fn large_segments_one_after_another_are_not_copied_and_small_ones_come_many_at_a_time() {
        const LEN: usize = 256 << 10;
        let mut receiver = Receiver::new(LEN);
        receiver.enter_full_feature_phase(LEN, false, false);
        // A status between two of them.
        let large = [pdu(&[9; LEN]), pdu(&[])].concat().repeat(20);
        take_all(&mut receiver, &large);
        // Before it was known that they are large, one may have filled the space.
        assert!(receiver.copied < SPACE_FULL_FEATURE + 40 * SPACE_BETWEEN_LARGE, "{}", receiver.copied);
        let reads = take_all(&mut receiver, &pdu(&[9; 4096]).repeat(320));
        assert!(reads < 40, "{reads}");
    }

    #[test]
    fn the_space_is_small_until_a_read_fills_it_and_again_after_a_rest() {
        const LEN: usize = 4096;
        let mut receiver = Receiver::new(LEN);
        receiver.enter_full_feature_phase(LEN, false, false);
        for _ in 0..2 {
            (0..10).for_each(|_| assert_eq!(take_all(&mut receiver, &pdu(&[9; LEN])), 1));
            assert_eq!(receiver.space.len(), SPACE_FIRST);
            take_all(&mut receiver, &pdu(&[9; LEN]).repeat(100));
            assert_eq!(receiver.space.len(), SPACE_FULL_FEATURE);
            // Not while a PDU is on its way.
            let bytes = pdu(&[9; LEN]);
            put(&mut receiver, &bytes[..10]);
            receiver.rest();
            assert_eq!(receiver.space.len(), SPACE_FULL_FEATURE);
            take_all(&mut receiver, &bytes[10..]);
            receiver.rest();
        }
    }
}
