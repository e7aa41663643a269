//! Entries as bytes: their ids, compression, encryption.
//!
//! | repository | id | stored bytes |
//! |---|---|---|
//! | open | BLAKE3 of the bytes | the bytes, or a zstd frame of them where that is shorter |
//! | encrypted | BLAKE3 of the bytes, keyed | AES-256-GCM-SIV of the same |
//!
//! The nonce is the beginning of the id, and the id is authenticated with the bytes. Equal bytes have equal ids, which
//! is what deduplication is; a nonce that is used twice with GCM-SIV tells no more than that (RFC 8452, section 1).

use std::cell::RefCell;
use std::io;

use aes_gcm_siv::aead::{Aead, Payload};
use aes_gcm_siv::{Aes256GcmSiv, KeyInit, Nonce};
use lunway_backup::{Leaf, LeafHash, is_zero};
use zeroize::Zeroizing;
use zstd::bulk::{Compressor, Decompressor};

/// Name of an entry by its content.
pub type Id = LeafHash;

/// The id that stands for zeroes, which are not stored.
pub(crate) const ZEROES: Id = [0; 32];
/// Most bytes of an entry: the root of the largest disk, 2^18 ids of branches.
pub const ENTRY_MAX: u32 = 8 << 20;
/// Bytes by which encryption makes an entry longer.
pub(crate) const TAG_LEN: u32 = 16;
/// Level of zstd: 1 is the fastest that it recommends, and a backup waits for the disk rather than for it.
const LEVEL: i32 = 1;
const NONCE_LEN: usize = 12;

/// The key of an encrypted repository, from which all others are derived.
pub type MasterKey = Zeroizing<[u8; 32]>;

thread_local! {
    // A context is some hundred kilobytes, which are allocated once for each thread.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// An entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Length of what it is of.
    pub raw: u32,
    /// They are a zstd frame.
    pub compressed: bool,
}

/// Makes ids and stored bytes of entries, and entries of stored bytes.
pub struct Codec {
    keys: Option<Keys>,
}

struct Keys {
    id: Zeroizing<[u8; 32]>,
    documents: [Zeroizing<[u8; 32]>; Document::CONTEXTS.len()],
    cipher: Aes256GcmSiv,
}

/// Small files that only a reader of an encrypted repository can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Document {
    /// The manifest of a point.
    Point,
    /// The marker of the repository.
    Marker,
    /// The head of a series.
    Head,
    /// The list of series that were removed.
    Ended,
}

impl Document {
    /// The context of each one's key, in their order.
    const CONTEXTS: [&str; 4] = [
        "lunway 2026 repository points",
        "lunway 2026 repository marker",
        "lunway 2026 repository heads",
        "lunway 2026 repository ended series",
    ];
}

impl Codec {
    /// Of a repository that is not encrypted.
    pub fn open() -> Self {
        Self { keys: None }
    }

    /// Of an encrypted one.
    pub fn encrypted(master: &MasterKey) -> Self {
        let derived = |context: &str| Zeroizing::new(blake3::derive_key(context, &**master));
        let cipher = derived("lunway 2026 repository entries");
        Self {
            keys: Some(Keys {
                id: derived("lunway 2026 repository ids"),
                documents: Document::CONTEXTS.map(derived),
                cipher: Aes256GcmSiv::new(&(*cipher).into()),
            }),
        }
    }

    /// The id of these bytes.
    pub fn id(&self, bytes: &[u8]) -> Id {
        match &self.keys {
            None => *blake3::hash(bytes).as_bytes(),
            Some(keys) => *blake3::keyed_hash(&keys.id, bytes).as_bytes(),
        }
    }

    /// The leaf that these bytes are.
    pub fn leaf(&self, bytes: &[u8]) -> Leaf {
        match is_zero(bytes) {
            true => Leaf::Zero,
            false => Leaf::Data(self.id(bytes)),
        }
    }

    /// What only a reader of the repository can say of a document: 64 hexadecimal digits; none where everyone may read
    /// it.
    pub(crate) fn authenticate(&self, document: Document, bytes: &[u8]) -> Option<String> {
        let keys = self.keys.as_ref()?;
        Some(blake3::keyed_hash(&keys.documents[document as usize], bytes).to_hex().to_string())
    }

    /// Bytes that are stored for an entry.
    pub fn encode(&self, id: &Id, bytes: &[u8]) -> Encoded {
        let raw = bytes.len() as u32;
        let smaller = compress(bytes).filter(|smaller| smaller.len() < bytes.len());
        let compressed = smaller.is_some();
        let plain = smaller.unwrap_or_else(|| bytes.to_vec());
        let bytes = match &self.keys {
            None => plain,
            Some(keys) => {
                let payload = Payload { msg: &plain, aad: id };
                // It fails on more bytes than an entry may have.
                keys.cipher.encrypt(&nonce(id), payload).unwrap_or_default()
            }
        };
        Encoded { bytes, raw, compressed }
    }

    /// An entry of its stored bytes: what has this id, and nothing else.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn decode(
        &self,
        id: &Id,
        stored: &[u8],
        raw: u32,
        compressed: bool,
    ) -> Result<Vec<u8>, &'static str> {
        let decrypted;
        let plain = match &self.keys {
            None => stored,
            Some(keys) => {
                let payload = Payload { msg: stored, aad: id };
                decrypted = keys.cipher.decrypt(&nonce(id), payload).map_err(|_| "it cannot be decrypted")?;
                &decrypted
            }
        };
        let bytes = match compressed {
            true => decompress(plain, raw.min(ENTRY_MAX)).map_err(|_| "it cannot be decompressed")?,
            false => plain.to_vec(),
        };
        match bytes.len() as u32 == raw && self.id(&bytes) == *id {
            true => Ok(bytes),
            false => Err("its bytes are not what was sent"),
        }
    }
}

fn nonce(id: &Id) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce.copy_from_slice(&id[..NONCE_LEN]);
    nonce.into()
}

fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Compressor::new(LEVEL).ok();
        }
        kept.as_mut()?.compress(bytes).ok()
    })
}

fn decompress(frame: &[u8], raw: u32) -> io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(Decompressor::new()?),
        };
        decompressor.decompress(frame, raw as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_back_and_any_flipped_byte_is_noticed() {
        let text = b"lunway ".repeat(1000);
        let noise: Vec<u8> =
            (0..2000u32).flat_map(|at| blake3::hash(&at.to_le_bytes()).as_bytes()[..1].to_vec()).collect();
        for codec in [Codec::open(), Codec::encrypted(&MasterKey::new([7; 32]))] {
            for (bytes, shrinks) in [(&text, true), (&noise, false)] {
                let id = codec.id(bytes);
                let encoded = codec.encode(&id, bytes);
                assert_eq!(encoded.compressed, shrinks);
                let decode = |stored: &[u8]| codec.decode(&id, stored, encoded.raw, encoded.compressed);
                assert_eq!(decode(&encoded.bytes).as_ref(), Ok(bytes));
                for at in 0..encoded.bytes.len() {
                    let mut flipped = encoded.bytes.clone();
                    flipped[at] ^= 1 << (at % 8);
                    // A frame may have bits that mean nothing: then the bytes are right all the same.
                    assert!(decode(&flipped).is_err() || decode(&flipped).as_ref() == Ok(bytes), "byte {at}");
                }
                assert!(codec.decode(&id, &encoded.bytes, encoded.raw - 1, encoded.compressed).is_err());
            }
        }
    }

    #[test]
    fn only_the_same_key_gives_the_same_ids() {
        let codecs = [
            Codec::open(),
            Codec::encrypted(&MasterKey::new([1; 32])),
            Codec::encrypted(&MasterKey::new([2; 32])),
        ];
        let ids: Vec<Id> = codecs.iter().map(|codec| codec.id(b"leaf")).collect();
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
        let encoded = codecs[1].encode(&ids[1], b"leaf");
        assert!(!encoded.bytes.windows(4).any(|window| window == b"leaf"));
        assert!(codecs[2].decode(&ids[1], &encoded.bytes, encoded.raw, encoded.compressed).is_err());
    }
}
