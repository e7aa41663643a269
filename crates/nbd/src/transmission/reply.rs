//! Replies, in the pieces in which they are sent.

use lunway_block::SharedBuf;
use zerocopy::IntoBytes;

use crate::wire::{self, Chunk, Request, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply};

/// A chunk's header and the offset of the data behind it.
pub(super) const HEAD_MAX: usize = size_of::<Chunk>() + size_of::<u64>();

/// A piece of what is to be sent.
pub(super) enum Piece {
    Head([u8; HEAD_MAX], usize),
    /// Short data: a pooled buffer has 4 KiB at least.
    Short(Vec<u8>),
    Data(SharedBuf),
}

impl Piece {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Head(bytes, len) => &bytes[..*len],
            Self::Short(bytes) => bytes,
            Self::Data(data) => data,
        }
    }

    /// The memory that it holds, bytes.
    pub(super) fn memory(&self) -> usize {
        let data = match self {
            Self::Head(..) => 0,
            Self::Short(bytes) => bytes.capacity(),
            Self::Data(data) => data.pinned(),
        };
        size_of::<Self>() + data
    }
}

/// The head of a reply: at most a chunk's header and the first field of its payload.
pub(super) fn head(parts: [&[u8]; 2]) -> Piece {
    let mut bytes = [0; HEAD_MAX];
    let [first, second] = parts;
    bytes[..first.len()].copy_from_slice(first);
    bytes[first.len()..first.len() + second.len()].copy_from_slice(second);
    Piece::Head(bytes, first.len() + second.len())
}

pub(super) fn simple(request: &Request, error: u32) -> Piece {
    let reply = SimpleReply { magic: SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: request.cookie };
    head([reply.as_bytes(), &[]])
}

/// The last chunk of a reply, as a rule the only one: `first` and `rest` more bytes are its payload.
pub(super) fn chunk(request: &Request, kind: u16, first: &[u8], rest: usize) -> Piece {
    flagged(request, wire::chunk::DONE, kind, first, rest)
}

/// A chunk behind which others follow.
pub(super) fn chunk_before(request: &Request, kind: u16, first: &[u8], rest: usize) -> Piece {
    flagged(request, 0, kind, first, rest)
}

fn flagged(request: &Request, flags: u16, kind: u16, first: &[u8], rest: usize) -> Piece {
    let chunk = Chunk {
        magic: STRUCTURED_REPLY_MAGIC.into(),
        flags: flags.into(),
        kind: kind.into(),
        cookie: request.cookie,
        // Both are bounded by the longest read.
        length: ((first.len() + rest) as u32).into(),
    };
    head([chunk.as_bytes(), first])
}
