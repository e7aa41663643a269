//! Somebody who uses the disk and checks what it says.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, SharedBuf, Zeroing};
use tokio::time::{Instant, sleep, timeout};

use crate::lane::value_of;
use crate::oracle::Moment;
use crate::random::Random;
use crate::storage::{SECTOR, SECTORS, Value};
use crate::world::{PATIENCE, World};

/// What each client does.
const OPERATIONS: u64 = 40;

/// Somebody who uses the disk and checks what it says. No two write the same sector at the same time; everything else
/// is allowed.
pub(crate) struct Client {
    id: u64,
    world: Arc<World>,
    device: Arc<dyn BlockDevice>,
    random: Random,
    written: u64,
}

impl Client {
    pub(crate) fn new(id: u64, world: Arc<World>, device: Arc<dyn BlockDevice>, random: Random) -> Self {
        Self { id, world, device, random, written: 0 }
    }

    pub(crate) async fn run(mut self) {
        for _ in 0..OPERATIONS {
            if self.world.oracle().violation.is_some() {
                return;
            }
            let started = Instant::now();
            match self.random.below(100) {
                0..45 => self.write().await,
                45..50 => self.clear().await,
                50..92 => self.read().await,
                _ => self.flush().await,
            }
            let time = started.elapsed();
            // To settle, and for a lane; with what is retained also for changes under way, and for those that are made
            // again.
            let waits = if self.world.config.retains { 4 } else { 1 };
            if time > waits * 2 * PATIENCE + Duration::from_secs(5) {
                self.world.oracle().violate(format!("an operation took {time:?}"));
            }
            if self.random.percent(40) {
                sleep(self.random.long_tail(20)).await;
            }
        }
    }

    /// Now and then large enough to be divided.
    fn some_sectors(&mut self) -> (u64, u64) {
        let most = if self.random.percent(8) { 128 } else { 12 };
        let count = 1 + self.random.below(most);
        (self.random.below(SECTORS - count + 1), count)
    }

    fn some_sectors_to_write(&mut self) -> Option<(u64, u64)> {
        let (first, count) = self.some_sectors();
        self.world.take(first, count).then_some((first, count))
    }

    async fn write(&mut self) {
        let Some((first, count)) = self.some_sectors_to_write() else { return };
        let values: Vec<Value> = (0..count)
            .map(|_| {
                self.written += 1;
                (self.id + 1) << 32 | self.written
            })
            .collect();
        let stable = self.random.percent(10);
        let durability = if stable { Durability::Stable } else { Durability::Volatile };
        let sent = self.world.oracle().write_sent(first, &values);
        let answer = self.device.write(first * SECTOR as u64, bytes_of(&values), durability);
        if self.random.percent(4) {
            // Whoever drops it may write the place again at once.
            let time = self.random.micros(1500);
            if let Ok(answer) = timeout(time, answer.into_future()).await {
                self.written(first, &values, stable, sent, answer);
            }
        } else {
            let answer = answer.await;
            self.written(first, &values, stable, sent, answer);
        }
        self.world.give_back(first, count);
    }

    async fn clear(&mut self) {
        let Some((first, count)) = self.some_sectors_to_write() else { return };
        let values = vec![0; count as usize];
        let (offset, len) = (first * SECTOR as u64, count * SECTOR as u64);
        let sent = self.world.oracle().write_sent(first, &values);
        let answer = match self.random.percent(50) {
            true => self.device.unmap(offset, len).await,
            false => self.device.write_zeroes(offset, len, Zeroing::MayUnmap).await,
        };
        self.written(first, &values, false, sent, answer);
        self.world.give_back(first, count);
    }

    fn written(
        &self,
        first: u64,
        values: &[Value],
        stable: bool,
        sent: Moment,
        answer: Result<(), BlockError>,
    ) {
        match answer {
            Ok(()) => self.world.oracle().write_acknowledged(first, values, stable, sent),
            // A part of a divided write may have happened.
            Err(error @ (BlockError::Gone { .. } | BlockError::Busy)) => {
                if values.len() < 64 {
                    self.world.oracle().write_not_done(first, values, sent);
                }
                self.failed(&error);
            }
            Err(error) => self.failed(&error),
        }
    }

    async fn read(&mut self) {
        let (first, count) = self.some_sectors();
        let begun = self.world.oracle().begin();
        let buf = Buf::for_overwrite(count as usize * SECTOR);
        let answer = self.device.read(first * SECTOR as u64, buf);
        let answer = match self.random.percent(3) {
            true => match timeout(self.random.micros(1000), answer.into_future()).await {
                Ok(answer) => answer,
                Err(_) => return,
            },
            false => answer.await,
        };
        match answer {
            Ok(buf) => {
                let values: Vec<_> = buf.chunks_exact(SECTOR).map(value_of).collect();
                self.world.oracle().found(first, &values, begun);
            }
            Err(error) => self.failed(&error),
        }
    }

    async fn flush(&mut self) {
        let begun = self.world.oracle().begin();
        let answer = self.device.flush().await;
        self.world.flushed(&answer, begun);
        match answer {
            Err(BlockError::Io { .. } | BlockError::UnflushedLost { .. }) | Ok(()) => {}
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&self, error: &BlockError) {
        let failed = &self.world.failed;
        failed.set(failed.get() + 1);
        let expected =
            matches!(error, BlockError::Timeout { .. } | BlockError::Gone { .. } | BlockError::Busy)
                || matches!(error, BlockError::Io { kind: io::ErrorKind::TimedOut, .. });
        if !expected || !self.world.config.long_outages {
            self.world.oracle().violate(format!("client {} was told: {error}", self.id));
        }
    }
}

fn bytes_of(values: &[Value]) -> SharedBuf {
    let mut buf = Buf::for_overwrite(values.len() * SECTOR);
    for (sector, value) in buf.chunks_exact_mut(SECTOR).zip(values) {
        sector[..8].copy_from_slice(&value.to_le_bytes());
    }
    buf.freeze()
}
