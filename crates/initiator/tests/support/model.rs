//! Random I/O against a device, checked against what it must hold.

use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_block::{BlockDevice, BlockError, Buf, Durability};

use super::Random;

/// Sectors of one region: a worker writes and reads only its own, so that what it reads is what it last wrote.
const REGION_SECTORS: u64 = 256;
const SECTOR: usize = 512;

/// Fills a sector so that place, writer and version can be told from any eight bytes of it.
fn fill(sector: &mut [u8], lba: u64, version: u64) {
    for (index, word) in sector.chunks_exact_mut(8).enumerate() {
        let mut mix = Random(lba << 32 ^ version << 8 ^ index as u64);
        word.copy_from_slice(&mix.next().to_le_bytes());
    }
}

/// What a flush may answer besides success.
pub type Flushes = fn(&BlockError) -> bool;

/// `workers` tasks at a time, each `rounds` times: writes a random range of its region, or reads one and compares every
/// byte. Every error but that of a flush that `tolerated` knows is a failure. Ends with a full comparison. The caller
/// goes on as `meanwhile` as long as it wants to.
pub async fn verified_io<D: BlockDevice + ?Sized>(
    device: Arc<D>,
    workers: u64,
    rounds: usize,
    tolerated: Flushes,
) {
    let mut tasks = FuturesUnordered::new();
    for worker in 0..workers {
        let device = device.clone();
        tasks.push(async move { work(&*device, worker, rounds, tolerated).await });
    }
    while tasks.next().await.is_some() {}
}

async fn work<D: BlockDevice + ?Sized>(device: &D, worker: u64, rounds: usize, tolerated: Flushes) {
    let base = worker * REGION_SECTORS;
    let mut random = Random(worker + 1);
    let mut versions = vec![0u64; REGION_SECTORS as usize];
    let zero = Buf::zeroed(REGION_SECTORS as usize * SECTOR).freeze();
    device.write(base * SECTOR as u64, zero, Durability::Volatile).await.expect("the first write");
    for round in 0..rounds {
        let first = random.below(REGION_SECTORS);
        let count = 1 + random.below((REGION_SECTORS - first).min(64));
        let offset = (base + first) * SECTOR as u64;
        match random.below(16) {
            0 => match device.flush().await {
                Ok(()) => {}
                Err(error) if tolerated(&error) => {}
                Err(error) => panic!("flush: {error}"),
            },
            1..=8 => {
                let version = round as u64 + 1;
                let mut buf = Buf::for_overwrite(count as usize * SECTOR);
                for (index, sector) in buf.chunks_exact_mut(SECTOR).enumerate() {
                    fill(sector, base + first + index as u64, version);
                    versions[first as usize + index] = version;
                }
                let durability = if round % 5 == 0 { Durability::Stable } else { Durability::Volatile };
                device.write(offset, buf.freeze(), durability).await.expect("write");
            }
            _ => check(device, base, first, count, &versions).await,
        }
    }
    check(device, base, 0, REGION_SECTORS, &versions).await;
}

async fn check<D: BlockDevice + ?Sized>(device: &D, base: u64, first: u64, count: u64, versions: &[u64]) {
    let buf = Buf::for_overwrite(count as usize * SECTOR);
    let read = device.read((base + first) * SECTOR as u64, buf).await.expect("read");
    let mut expected = [0; SECTOR];
    for (index, sector) in read.chunks_exact(SECTOR).enumerate() {
        let version = versions[first as usize + index];
        let lba = base + first + index as u64;
        match version {
            0 => expected.fill(0),
            _ => fill(&mut expected, lba, version),
        }
        assert!(sector == expected, "sector {lba} does not hold version {version}");
    }
}
