//! A point of a chain that is proven as it is read: each leaf is compared with its hash before it is given out first.
//!
//! ```text
//!   read ──▶ all its leaves proven? ──yes──────────────────────────────▶ the chain's own device
//!                  └─no──▶ a thread reads them, compares, marks them ──▶┘
//! ```
//!
//! So a leaf is read twice the first time, the second time out of the page cache as a rule, and from then on a bit is
//! looked at. Damage is an error of the medium at its place, also where a writer has overwritten it since: which parts
//! of a leaf that has done is not known here.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use lunway_backup::{BackupError, Content, LEAF, LEAVES, UNIT, leaf_range};
use lunway_block::{BlockDevice, BlockError, Buf, Io, Layer};
use lunway_file::Workers;

use crate::damage::Damage;

/// A device on a point of a chain.
pub(crate) struct Proven {
    inner: Arc<dyn BlockDevice>,
    proof: Arc<Proof>,
    workers: Workers,
}

/// Words of 64 leaves that are made together: of a gibibyte.
const WORDS: usize = 256;
/// Leaves of a word.
const BITS: u64 = u64::BITS as u64;

struct Proof {
    content: Arc<dyn Content>,
    /// A bit for each leaf that is what was backed up: of each stretch of the disk once one of it is read, so that
    /// memory follows what is read: 2 MiB for a tebibyte.
    proven: Vec<OnceLock<Box<[AtomicU64; WORDS]>>>,
    damage: Damage,
}

impl Proven {
    /// A device whose content was that of a point when it was opened.
    pub(crate) fn new(inner: Arc<dyn BlockDevice>, content: Arc<dyn Content>) -> Self {
        let stretches = content.size().div_ceil(LEAF * BITS * WORDS as u64) as usize;
        let mut proven = Vec::new();
        proven.resize_with(stretches, OnceLock::new);
        let proof = Proof { content, proven, damage: Damage::default() };
        Self { inner, proof: Arc::new(proof), workers: Workers::new() }
    }
}

impl Proof {
    fn is_proven(&self, leaf: u64) -> bool {
        let (word, bit) = (leaf / BITS, leaf % BITS);
        let stretch = self.proven[(word / WORDS as u64) as usize].get();
        stretch.is_some_and(|words| words[word as usize % WORDS].load(Ordering::Relaxed) >> bit & 1 == 1)
    }

    fn mark(&self, leaf: u64) {
        let (word, bit) = (leaf / BITS, leaf % BITS);
        let stretch = self.proven[(word / WORDS as u64) as usize]
            .get_or_init(|| Box::new([const { AtomicU64::new(0) }; WORDS]));
        stretch[word as usize % WORDS].fetch_or(1 << bit, Ordering::Relaxed);
    }

    /// Reads and compares those of these leaves that are not proven. Blocks.
    fn prove(&self, leaves: Range<u64>) -> Result<(), BlockError> {
        let mut bytes = Vec::new();
        let mut leaf = leaves.start;
        while leaf < leaves.end {
            if self.is_proven(leaf) {
                leaf += 1;
                continue;
            }
            let unit_end = (leaf / LEAVES as u64 + 1) * LEAVES as u64;
            let end = leaves.end.min(unit_end);
            let end = (leaf + 1..end).find(|next| self.is_proven(*next)).unwrap_or(end);
            self.prove_of_unit(leaf..end, &mut bytes)
                .map_err(|error| self.damage.told(leaf * LEAF, error))?;
            (leaf..end).for_each(|leaf| self.mark(leaf));
            leaf = end;
        }
        Ok(())
    }

    /// The same for leaves of one unit.
    fn prove_of_unit(&self, leaves: Range<u64>, bytes: &mut Vec<u8>) -> Result<(), BackupError> {
        let unit = (leaves.start * LEAF / UNIT) as u32;
        let within = |leaf: u64| (leaf - u64::from(unit) * LEAVES as u64) as usize;
        let (first, end) = (within(leaves.start), within(leaves.end));
        let size = self.content.size();
        let span = leaf_range(unit, first, size).start..leaf_range(unit, end - 1, size).end;
        bytes.resize((span.end - span.start) as usize, 0);
        let states = self.content.unit(unit)?;
        self.content.read(unit, first..end, &states, bytes)
    }
}

impl Layer for Proven {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        let len = buf.len() as u64;
        if let Err(error) = self.inner.geometry().check(offset, len) {
            return Io::err(error);
        }
        let leaves = offset / LEAF..(offset + len).div_ceil(LEAF);
        if leaves.clone().all(|leaf| self.proof.is_proven(leaf)) {
            return self.inner.read(offset, buf);
        }
        let (proof, inner) = (Arc::clone(&self.proof), Arc::clone(&self.inner));
        let proven = self.workers.reads.io(move || proof.prove(leaves));
        Io::pending(async move {
            proven.await?;
            inner.read(offset, buf).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use lunway_backup::{Leaf, PointId};
    use lunway_block::Durability;
    use lunway_memory::RamDisk;

    use super::*;

    /// A disk of 40 leaves and a bit, of which one is damaged.
    struct Told {
        asked: AtomicUsize,
    }

    const SIZE: u64 = 40 * LEAF + 4096;
    const DAMAGED: u64 = 21;

    impl Content for Told {
        fn size(&self) -> u64 {
            SIZE
        }

        fn next(&self, _: u32) -> Result<Option<u32>, BackupError> {
            unreachable!()
        }

        fn unit(&self, _: u32) -> Result<[Leaf; LEAVES], BackupError> {
            Ok([Leaf::Zero; LEAVES])
        }

        fn leaf_of(&self, _: &[u8]) -> Leaf {
            unreachable!()
        }

        fn read(
            &self,
            unit: u32,
            leaves: Range<usize>,
            _: &[Leaf; LEAVES],
            data: &mut [u8],
        ) -> Result<(), BackupError> {
            self.asked.fetch_add(leaves.len(), Ordering::Relaxed);
            let at = |leaf: usize| leaf_range(unit, leaf, SIZE);
            assert_eq!(data.len() as u64, at(leaves.end - 1).end - at(leaves.start).start);
            match leaves.map(|leaf| at(leaf).start / LEAF).any(|leaf| leaf == DAMAGED) {
                true => Err(BackupError::Damaged { point: PointId(1), what: "x".into() }),
                false => Ok(()),
            }
        }
    }

    #[tokio::test]
    async fn each_leaf_is_compared_once_and_a_damaged_one_is_never_given_out() {
        let disk = Arc::new(RamDisk::new(SIZE, 512).unwrap());
        disk.write(0, Buf::copy_of(&[7; SIZE as usize]).freeze(), Durability::Volatile).await.unwrap();
        let told = Arc::new(Told { asked: AtomicUsize::new(0) });
        let proven = Proven::new(disk, told.clone());
        let read = async |offset: u64, len: usize| BlockDevice::read(&proven, offset, Buf::zeroed(len)).await;
        let asked = || told.asked.load(Ordering::Relaxed);
        for _ in 0..3 {
            assert!(read(4096, 512).await.unwrap().iter().all(|byte| *byte == 7));
        }
        assert_eq!(asked(), 1);
        // Over the ends of leaves and units: those that are known are left out.
        for _ in 0..2 {
            assert!(read(LEAF - 512, 18 * LEAF as usize).await.is_ok());
        }
        assert_eq!(asked(), 19);
        for _ in 0..2 {
            let failed = read(DAMAGED * LEAF + 512, 512).await.unwrap_err();
            assert!(matches!(failed, BlockError::Medium { offset } if offset == DAMAGED * LEAF), "{failed}");
            assert!(read(19 * LEAF, 4 * LEAF as usize).await.is_err());
        }
        assert!(read(22 * LEAF, (SIZE - 22 * LEAF) as usize).await.is_ok());
        assert!(read(SIZE - 512, 512).await.is_ok());
        assert!(read(SIZE, 512).await.is_err());
    }
}
