//! Trees: keys, nodes and their checksums, and a cursor over a tree's items.

use crate::fields::{le16, le32, le64};
use crate::source::ByteSource;
use crate::volume::Doubt;

use super::chunk::Chunks;

/// Remedy for damage.
pub(super) const CHECK: &str = "run btrfs check, or btrfs scrub while it is mounted";

/// A key: object, type of the item, and what the type makes of the offset. Items are in the order of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) object: u64,
    pub(super) kind: u8,
    pub(super) offset: u64,
}

impl Key {
    /// Bytes of a key.
    pub(super) const LEN: usize = 17;

    pub(super) fn new(object: u64, kind: u8, offset: u64) -> Self {
        Self { object, kind, offset }
    }

    pub(super) fn read(bytes: &[u8], at: usize) -> Self {
        let kind = bytes.get(at + 8).copied().unwrap_or(0);
        Self::new(le64(bytes, at), kind, le64(bytes, at + 9))
    }
}

/// Fields of a node's header: offset.
mod field {
    pub(super) const CHECKSUM_END: usize = 32;
    pub(super) const FSID: usize = 0x20;
    pub(super) const BYTENR: usize = 0x30;
    pub(super) const GENERATION: usize = 0x50;
    pub(super) const OWNER: usize = 0x58;
    pub(super) const ITEMS: usize = 0x60;
    pub(super) const LEVEL: usize = 0x64;
    /// End of the header: the offset of the items, or in nodes above level 0 of the pointers.
    pub(super) const END: usize = 0x65;
}

/// Bytes of an item in a leaf (key, offset, length), and of a pointer (key, block, generation).
const ITEM: usize = Key::LEN + 8;
const POINTER: usize = Key::LEN + 16;
/// Levels of a tree: 0 to 7.
pub(super) const LEVELS: u8 = 8;

/// Checksum algorithm of superblocks and nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    Crc32c,
    XxHash64,
    Sha256,
    Blake2b,
}

impl Checksum {
    /// By its number in the superblock.
    pub(super) fn of(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Crc32c,
            1 => Self::XxHash64,
            2 => Self::Sha256,
            3 => Self::Blake2b,
            _ => return None,
        })
    }

    /// Returns `true` if a structure begins with the checksum of what follows its first 32 bytes.
    pub(super) fn holds(self, structure: &[u8]) -> bool {
        use blake2::digest::Digest;
        let Some((said, summed)) = structure.split_at_checked(field::CHECKSUM_END) else { return false };
        match self {
            Self::Crc32c => said.starts_with(&crc32c::crc32c(summed).to_le_bytes()),
            Self::XxHash64 => said.starts_with(&twox_hash::XxHash64::oneshot(0, summed).to_le_bytes()),
            Self::Sha256 => said == sha2::Sha256::digest(summed).as_slice(),
            Self::Blake2b => said == blake2::Blake2b256::digest(summed).as_slice(),
        }
    }
}

/// Context common to all trees of a file system.
pub(super) struct Trees<'a> {
    pub(super) source: &'a dyn ByteSource,
    pub(super) format: &'a Format,
    pub(super) chunks: &'a Chunks,
}

/// Format of nodes, from the superblock.
#[derive(Clone, Debug)]
pub(super) struct Format {
    pub(super) node: u32,
    pub(super) sector: u32,
    pub(super) checksum: Checksum,
    /// File system's id that nodes carry.
    pub(super) fsid: [u8; 16],
    /// Of the last commit: no node is newer.
    pub(super) generation: u64,
}

/// Location of a node, and the properties that it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    pub(super) block: u64,
    pub(super) generation: u64,
    pub(super) level: u8,
    /// Tree that it belongs to.
    pub(super) owner: u64,
}

struct Node {
    bytes: Vec<u8>,
    items: usize,
    level: u8,
}

impl Trees<'_> {
    /// A node, checked against what led to it. The second copy is read where the first is damaged.
    fn node(&self, pointer: &Pointer, first: Option<Key>) -> Result<Node, Doubt> {
        let len = u64::from(self.format.node);
        let damaged =
            || Doubt::new(format!("the block {} of its trees is damaged", pointer.block)).helped_by(CHECK);
        for place in self.chunks.places(pointer.block, len).ok_or_else(damaged)? {
            let Ok(bytes) = self.source.bytes(place, len as usize) else { continue };
            if let Some(node) = Node::new(bytes, self.format, pointer)
                && first.is_none_or(|first| node.key(0) == Some(first))
            {
                return Ok(node);
            }
        }
        Err(damaged())
    }

    /// A cursor at the last item whose key is not above `key`, or at the first item.
    pub(super) fn seek(&self, root: Pointer, key: Key) -> Result<Cursor<'_>, Doubt> {
        let mut cursor = Cursor { trees: self, owner: root.owner, path: Vec::new(), last: None };
        let (mut pointer, mut first) = (root, None);
        loop {
            let node = self.node(&pointer, first)?;
            let at = node.last_up_to(key);
            let below = node.pointer(at, root.owner);
            cursor.path.push((node, at));
            match below {
                Some((key, below)) => (pointer, first) = (below, Some(key)),
                None => return Ok(cursor),
            }
        }
    }

    /// A cursor at the first item that says something of `object`, or of the last one before it that has items.
    pub(super) fn seek_object(&self, root: Pointer, object: u64) -> Result<Cursor<'_>, Doubt> {
        let found = self.seek(root, Key::new(object, 0, 0))?.peek().map_or(0, |key| key.object);
        let mut cursor = self.seek(root, Key::new(found, 0, 0))?;
        while cursor.peek().is_some_and(|key| key.object < found) {
            cursor.next()?;
        }
        Ok(cursor)
    }

    /// The root of a tree, which the root tree has.
    pub(super) fn root(&self, roots: Pointer, tree: u64) -> Result<Pointer, Doubt> {
        let missing = || Doubt::new(format!("it has no tree {tree}")).helped_by(CHECK);
        let mut cursor = self.seek_object(roots, tree)?;
        while let Some((key, item)) = cursor.next()? {
            if key.object > tree {
                break;
            }
            if key.object == tree && key.kind == ROOT_ITEM {
                let item = item.get(..ROOT_ITEM_LEN).ok_or_else(missing)?;
                return Ok(Pointer {
                    block: le64(item, 176),
                    generation: le64(item, 160),
                    level: item[238],
                    owner: tree,
                });
            }
        }
        Err(missing())
    }
}

const ROOT_ITEM: u8 = 132;
/// As much of it as older kernels have written.
const ROOT_ITEM_LEN: usize = 239;

impl Node {
    fn new(bytes: Vec<u8>, format: &Format, pointer: &Pointer) -> Option<Self> {
        let header = bytes.get(..field::END)?;
        let (items, level) = (le32(header, field::ITEMS) as usize, header[field::LEVEL]);
        let generation = le64(header, field::GENERATION);
        if le64(header, field::BYTENR) != pointer.block
            || header[field::FSID..field::BYTENR] != format.fsid
            || generation != pointer.generation
            || generation > format.generation
            || le64(header, field::OWNER) != pointer.owner
            || level != pointer.level
            || level >= LEVELS
            || !format.checksum.holds(&bytes)
        {
            return None;
        }
        let width = if level == 0 { ITEM } else { POINTER };
        // Only the leaf that is a whole tree may be empty.
        if items > (bytes.len() - field::END) / width || (items == 0 && level > 0) {
            return None;
        }
        let node = Self { bytes, items, level };
        let keys = (0..items).map(|at| node.key(at));
        keys.is_sorted_by(|key, next| key < next).then_some(node)
    }

    fn key(&self, at: usize) -> Option<Key> {
        let width = if self.level == 0 { ITEM } else { POINTER };
        (at < self.items).then(|| Key::read(&self.bytes, field::END + at * width))
    }

    /// The last entry whose key is not above `key`, or the first.
    fn last_up_to(&self, key: Key) -> usize {
        let (mut low, mut high) = (0, self.items);
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle).is_some_and(|at| at <= key) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.saturating_sub(1)
    }

    fn pointer(&self, at: usize, owner: u64) -> Option<(Key, Pointer)> {
        let key = self.key(at).filter(|_| self.level > 0)?;
        let fields = field::END + at * POINTER + Key::LEN;
        let (block, generation) = (le64(&self.bytes, fields), le64(&self.bytes, fields + 8));
        Some((key, Pointer { block, generation, level: self.level - 1, owner }))
    }

    fn item(&self, at: usize) -> Option<&[u8]> {
        let fields = field::END + at * ITEM + Key::LEN;
        let (offset, len) = (le32(&self.bytes, fields) as usize, le32(&self.bytes, fields + 4) as usize);
        self.bytes.get(field::END..)?.get(offset..)?.get(..len)
    }
}

/// A place in a tree. It holds a node for each level.
pub(super) struct Cursor<'a> {
    trees: &'a Trees<'a>,
    owner: u64,
    path: Vec<(Node, usize)>,
    /// The key of the item that was given last: keys only grow, whatever the nodes say, so that every walk ends.
    last: Option<Key>,
}

impl Cursor<'_> {
    /// The key of the next item.
    pub(super) fn peek(&self) -> Option<Key> {
        let (node, at) = self.path.last()?;
        node.key(*at)
    }

    /// The next item, in the order of keys.
    pub(super) fn next(&mut self) -> Result<Option<(Key, &[u8])>, Doubt> {
        let unsorted =
            || Doubt::new(format!("the keys of its tree {} are not in order", self.owner)).helped_by(CHECK);
        // Up to a node that has more, and down to its leaf.
        while self.path.last().is_some_and(|(node, at)| *at >= node.items) {
            self.path.pop();
            if let Some((_, at)) = self.path.last_mut() {
                *at += 1;
            }
        }
        while let Some((node, at)) = self.path.last() {
            let Some((key, below)) = node.pointer(*at, self.owner) else { break };
            if self.last.is_some_and(|last| key <= last) {
                return Err(unsorted());
            }
            let node = self.trees.node(&below, Some(key))?;
            self.path.push((node, 0));
        }
        let Some((_, at)) = self.path.last_mut() else { return Ok(None) };
        let now = *at;
        *at += 1;
        let Some((node, _)) = self.path.last() else { return Ok(None) };
        let Some(key) = node.key(now) else { return Ok(None) };
        if self.last.is_some_and(|last| key <= last) {
            return Err(unsorted());
        }
        self.last = Some(key);
        let outside = || Doubt::new("an item of its trees is outside of its block").helped_by(CHECK);
        Ok(Some((key, node.item(now).ok_or_else(outside)?)))
    }
}

/// The stripes of a chunk, as a chunk item has them.
pub(super) struct ChunkItem {
    pub(super) len: u64,
    pub(super) flags: u64,
    /// Device and offset on it of each.
    pub(super) stripes: Vec<(u64, u64)>,
    /// Bytes of the item.
    pub(super) size: usize,
}

impl ChunkItem {
    const STRIPES: usize = 48;
    const STRIPE: usize = 32;

    /// From the beginning of `bytes`. More stripes than a single device can have are none.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..Self::STRIPES)?;
        let count = usize::from(le16(header, 44));
        if !(1..=2).contains(&count) {
            return None;
        }
        let size = Self::STRIPES + count * Self::STRIPE;
        let stripes = bytes.get(Self::STRIPES..size)?.chunks_exact(Self::STRIPE);
        let stripes = stripes.map(|stripe| (le64(stripe, 0), le64(stripe, 8))).collect();
        Some(Self { len: le64(header, 0), flags: le64(header, 24), stripes, size })
    }
}
