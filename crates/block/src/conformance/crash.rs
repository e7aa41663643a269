//! Power cuts under what lies on another device.

use std::sync::Arc;

use lunway_crash::{Crash, MemoryStorage};

use super::model::{read, stamped};
use super::random::Random;
use super::{Below, Content, Disk, Local, Model, Outcome, SIZE_MIN, Subject, Verdict, ensure};
use crate::{BlockDevice, BlockError, Durability, Zeroing};

/// Operations between two power cuts at most. Each is cut at every prefix; of what is not durable every single unit,
/// all, none and random halves are kept.
const STEPS: u64 = 40;
const SEEDS: [u64; 2] = [1, 2];
/// Random halves for each prefix.
const HALVES: u64 = 2;
/// Single units that are kept or left out for each prefix.
const SINGLES: usize = 2;
/// Unit that a disk writes atomically, bytes.
const UNIT: u64 = 512;
/// A format is opened again for each state, which takes milliseconds: so many states for each seed, spread over all.
const STATES_MAX: usize = 48;

/// Something that was acknowledged.
struct Step {
    /// Number of operations that the disk below had seen when this one was issued, and when it was acknowledged.
    issued: usize,
    acknowledged: usize,
    did: Did,
}

enum Did {
    Change { offset: u64, len: u64, content: Content, stable: bool },
    Flush,
}

pub(super) async fn crash(subject: &Subject) -> Verdict {
    let (over, size, format) = match &subject.below {
        Below::Nothing => return Ok(Outcome::Lacks("n/a: no medium to cut off")),
        Below::Device(over) => (over, SIZE_MIN, false),
        Below::Format(size, over) => (over, *size, true),
    };
    let instance = over(Arc::new(Disk::new(size))).await;
    if instance.device.geometry().read_only {
        return Ok(Outcome::Lacks("read-only"));
    }
    drop(instance);
    for seed in SEEDS {
        one(over, size, format, seed).await.map_err(|what| format!("seed {seed}: {what}"))?;
    }
    Ok(Outcome::Holds)
}

async fn one(
    over: &dyn Fn(Arc<dyn BlockDevice>) -> Local<'static, super::Instance>,
    size: u64,
    format: bool,
    seed: u64,
) -> Result<(), String> {
    let disk = Arc::new(Disk::new(size));
    let instance = over(disk.clone()).await;
    let device = &*instance.device;
    let mut random = Random(seed);
    let fresh = Model::of(device);
    let count = || disk.recorder().count();
    let (mut steps, begin) = (Vec::new(), count());
    for stamp in 1..=STEPS {
        let (offset, len) = random.range(&fresh, 300);
        let issued = count();
        let (did, answer) = match random.below(10) {
            0 | 1 => (Did::Flush, device.flush().await),
            2 => {
                let content = Content::Zeroes;
                let did = Did::Change { offset, len, content, stable: false };
                match device.write_zeroes(offset, len, Zeroing::MayUnmap).await {
                    Err(BlockError::Unsupported) => continue,
                    answer => (did, answer),
                }
            }
            choice => {
                let (content, stable) = (Content::Stamp(stamp), choice == 3);
                let durability = if stable { Durability::Stable } else { Durability::Volatile };
                let answer = device.write(offset, stamped(device, offset, len, content), durability).await;
                (Did::Change { offset, len, content, stable }, answer)
            }
        };
        answer.map_err(|error| format!("step {stamp}: {error}"))?;
        steps.push(Step { issued, acknowledged: count(), did });
    }
    let mut states: Vec<(usize, MemoryStorage)> = Vec::new();
    disk.recorder().each_crash(|crash| {
        // Before the workload the device was being made.
        if crash.done >= begin {
            states_of(crash, &mut random, |image| states.push((crash.done, image)));
        }
    });
    drop(instance);
    let every = if format { states.len().div_ceil(STATES_MAX) } else { 1 };
    for (done, image) in states.into_iter().step_by(every) {
        let medium = Disk::of(image);
        let verified = if format {
            let again = over(Arc::new(medium)).await;
            verify(&*again.device, &fresh, &steps, done).await
        } else {
            verify(&medium, &fresh, &steps, done).await
        };
        verified.map_err(|what| format!("power cut after {done} operations of the disk below: {what}"))?;
    }
    Ok(())
}

/// States of one prefix: all, nothing, one unit kept, one left out, random halves.
fn states_of(crash: &Crash<'_>, random: &mut Random, mut visit: impl FnMut(MemoryStorage)) {
    let units = crash.units(UNIT);
    visit(crash.image(UNIT, |_| true));
    if units == 0 {
        return;
    }
    visit(crash.image(UNIT, |_| false));
    for _ in 0..SINGLES.min(units) {
        let single = random.below(units as u64) as usize;
        visit(crash.image(UNIT, |unit| unit == single));
        visit(crash.image(UNIT, |unit| unit != single));
    }
    for _ in 0..HALVES {
        visit(crash.image(UNIT, |_| random.below(2) == 0));
    }
}

/// Each sector holds what was durable or something newer that was issued.
async fn verify(device: &dyn BlockDevice, fresh: &Model, steps: &[Step], done: usize) -> Result<(), String> {
    let sector = fresh.sector();
    let mut allowed: Vec<Vec<Content>> = (0..fresh.len()).map(|_| vec![Content::Zeroes]).collect();
    for step in steps.iter().filter(|step| step.issued <= done) {
        let acknowledged = step.acknowledged <= done;
        match step.did {
            // What is newest when a flush is acknowledged is durable, and so is what it replaced gone.
            Did::Flush if acknowledged => allowed.iter_mut().for_each(|contents| {
                contents.drain(..contents.len() - 1);
            }),
            Did::Flush => {}
            Did::Change { offset, len, content, stable } => {
                for contents in &mut allowed[(offset / sector) as usize..((offset + len) / sector) as usize] {
                    if stable && acknowledged {
                        contents.clear();
                    }
                    contents.push(content);
                }
            }
        }
    }
    let size = fresh.len() as u64 * sector;
    ensure!(device.geometry().size == size, "{} bytes instead of {size}", device.geometry().size);
    let mut at = 0;
    while at < size {
        let buf = read(device, at, (1 << 20).min(size - at)).await?;
        for (number, bytes) in (at / sector..).zip(buf.chunks(sector as usize)) {
            let contents = &allowed[number as usize];
            ensure!(
                contents.iter().any(|content| content.is(number, bytes)),
                "sector {number}: {:02x?} instead of one of {contents:?}",
                &bytes[..16]
            );
        }
        at += buf.len() as u64;
    }
    Ok(())
}
