//! Random sequences against the model.

use super::model::{check, stamped};
use super::space::extents_of;
use super::{Content, Instance, Model, Outcome, SIZE_MIN, Subject, Verdict, all, ensure};
use crate::{BlockDevice, BlockError, Buf, Durability, Permit, Zeroing};

/// Sequences, and operations in each: some 800 operations, of which one in 16 is as long as the device allows.
const SEEDS: [u64; 3] = [1, 2, 3];
const STEPS: u64 = 256;

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound.max(1)
    }

    /// A range of a device in bytes, short as a rule.
    pub(super) fn range(&mut self, model: &Model, sectors_max: u64) -> (u64, u64) {
        let sectors = model.len() as u64;
        let most = match self.below(16) {
            0 => sectors_max,
            1..4 => 300,
            _ => 17,
        };
        let first = self.below(sectors);
        let len = 1 + self.below(most.min(sectors - first));
        (first * model.sector(), len.min(sectors - first) * model.sector())
    }
}

pub(super) async fn random(subject: &Subject) -> Verdict {
    let mut outcome = Outcome::Holds;
    for seed in SEEDS {
        let instance = subject.fresh().await;
        outcome = sequence(&instance, seed).await.map_err(|what| format!("seed {seed}: {what}"))?;
    }
    Ok(outcome)
}

async fn sequence(instance: &Instance, seed: u64) -> Verdict {
    let device = &*instance.device;
    let (mut random, mut model) = (Random(seed), Model::of(device));
    let sectors_max = (2 << 20) / model.sector();
    for step in 1..=STEPS {
        let context = |what: String| format!("step {step}: {what}");
        if random.below(8) == 0 {
            side_by_side(device, &mut model, &mut random, step).await.map_err(context)?;
            continue;
        }
        if random.below(32) == 0 {
            another_size(device, &mut model, &mut random).await.map_err(context)?;
        }
        let (offset, len) = random.range(&model, sectors_max);
        one(device, &mut model, &mut random, step, (offset, len)).await.map_err(context)?;
    }
    model.compare_all(device).await?;
    Ok(model.kept())
}

/// Between half of what a device has at least and a quarter more.
async fn another_size(
    device: &dyn BlockDevice,
    model: &mut Model,
    random: &mut Random,
) -> Result<(), String> {
    let sectors = SIZE_MIN / 2 / model.sector();
    let sectors = sectors + random.below(sectors * 3 / 2);
    match device.resize(sectors * model.sector(), Permit::default()).await {
        Ok(()) => model.resize(sectors as usize),
        Err(BlockError::Unsupported | BlockError::ReadOnly | BlockError::Size { .. }) => {}
        Err(error) => return Err(format!("resize to {sectors} sectors: {error}")),
    }
    Ok(())
}

async fn one(
    device: &dyn BlockDevice,
    model: &mut Model,
    random: &mut Random,
    step: u64,
    (offset, len): (u64, u64),
) -> Result<(), String> {
    let geometry = device.geometry();
    let choice = if geometry.read_only { [7, 12][random.below(2) as usize] } else { random.below(14) };
    let (operation, answer) = match choice {
        0..6 => {
            let content = Content::Stamp(step);
            let durability = if step.is_multiple_of(7) { Durability::Stable } else { Durability::Volatile };
            let answer = device.write(offset, stamped(device, offset, len, content), durability).await;
            model.set(offset, len, content);
            ("write", answer)
        }
        6..9 => return check(device, model, offset, len).await,
        9 => {
            let answer = device.unmap(offset, len).await;
            if geometry.unmap.zeroes() {
                model.set(offset, len, Content::Zeroes);
            } else if geometry.unmap.frees() {
                model.set(offset, len, Content::Any);
            }
            ("unmap", answer)
        }
        10 | 11 => {
            let zeroing = if step.is_multiple_of(2) { Zeroing::MayUnmap } else { Zeroing::KeepAllocated };
            match device.write_zeroes(offset, len, zeroing).await {
                Err(BlockError::Unsupported) => return Ok(()),
                answer => {
                    model.set(offset, len, Content::Zeroes);
                    ("zeroing", answer)
                }
            }
        }
        12 => return extents_of(device, model, offset, len).await.map(drop),
        _ => ("flush", device.flush().await),
    };
    answer.map_err(|error| format!("{operation} of {len} bytes at {offset}: {error}"))
}

/// Several at the same time, in places apart.
async fn side_by_side(
    device: &dyn BlockDevice,
    model: &mut Model,
    random: &mut Random,
    step: u64,
) -> Result<(), String> {
    let sector = model.sector();
    let stride = model.len() as u64 / 16;
    let mut ios = Vec::new();
    let mut reads = Vec::new();
    for lot in 0..16 {
        let first = lot * stride + random.below(stride - 32);
        let (offset, len) = (first * sector, (1 + random.below(31)) * sector);
        if device.geometry().read_only || random.below(3) == 0 {
            reads.push((offset, device.read(offset, Buf::zeroed(len as usize))));
        } else {
            let content = Content::Stamp(step * 1000 + lot);
            ios.push(device.write(offset, stamped(device, offset, len, content), Durability::Volatile));
            model.set(offset, len, content);
        }
    }
    let (offsets, reads): (Vec<_>, Vec<_>) = reads.into_iter().unzip();
    let written = all(ios).await;
    ensure!(written.iter().all(Result::is_ok), "writes side by side: {written:?}");
    for (offset, buf) in offsets.into_iter().zip(all(reads).await) {
        let buf = buf.map_err(|error| format!("a read side by side at {offset}: {error}"))?;
        model.compare(offset, &buf)?;
    }
    Ok(())
}
