//! A device of sectors, addressed by bytes.

use std::ops::Range;
use std::sync::Arc;

use crate::turn::Turn;
use crate::{BlockDevice, BlockError, Buf, Durability, Io, Zeroing};

/// Reads and writes any range of bytes of a device.
///
/// What does not consist of whole sectors is read, changed and written back. No other write may come between, or the
/// sector would get back what it held before: such a write holds the lock alone, whole-sector ones share it. The cost
/// to those is one uncontended atomic.
#[derive(Clone)]
pub struct Bytes {
    device: Arc<dyn BlockDevice>,
    turn: Arc<Turn>,
}

impl Bytes {
    /// Addresses `device` by bytes. Clones keep each other's parts of sectors; two made of one device do not.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, turn: Arc::default() }
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Returns the range, clipped to the end of the device.
    fn clip(&self, offset: u64, len: u64) -> Range<u64> {
        let size = self.device.geometry().size;
        offset.min(size)..offset.saturating_add(len).min(size)
    }

    /// The whole sectors that hold the range.
    fn sectors(&self, range: &Range<u64>) -> Range<u64> {
        let sector = u64::from(self.device.geometry().logical_sector);
        range.start / sector * sector..range.end.next_multiple_of(sector)
    }

    /// The bytes from `offset`, fewer where the device ends: a buffer, and where in it they are.
    pub fn read(&self, offset: u64, len: u32) -> Io<Result<(Buf, Range<usize>), BlockError>> {
        let range = self.clip(offset, len.into());
        let sectors = self.sectors(&range);
        if range.is_empty() {
            return Io::ok((Buf::empty(), 0..0));
        }
        // Both lengths are at most that of one request.
        let start = (range.start - sectors.start) as usize;
        let inside = start..start + (range.end - range.start) as usize;
        let buf = Buf::for_overwrite((sectors.end - sectors.start) as usize);
        self.device.read(sectors.start, buf).map(|result| result.map(|buf| (buf, inside)))
    }

    /// Writes what the device has room for; how many bytes that was.
    ///
    /// # Errors
    ///
    /// [`BlockError::NoSpace`] where that is none.
    pub fn write(&self, offset: u64, data: &[u8], durability: Durability) -> Io<Result<u32, BlockError>> {
        let range = self.clip(offset, data.len() as u64);
        let len = (range.end - range.start) as usize;
        if len == 0 && !data.is_empty() {
            return Io::err(BlockError::NoSpace);
        }
        let data = Buf::copy_of(&data[..len]);
        let device = Arc::clone(&self.device);
        let written = move |result: Result<(), BlockError>| result.map(|()| len as u32);
        if self.sectors(&range) == range {
            let write = move || device.write(offset, data.freeze(), durability);
            return self.beside_others(write).map(written);
        }
        let sectors = self.sectors(&range);
        self.alone(async move { patch(&*device, &sectors, offset, &data, durability).await }).map(written)
    }

    /// Makes the range read as zeroes, up to the end of the device.
    pub fn zero(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        let range = self.clip(offset, len);
        let device = Arc::clone(&self.device);
        if self.sectors(&range) == range {
            let zero = move || device.write_zeroes(range.start, range.end - range.start, zeroing);
            return self.beside_others(zero);
        }
        let sectors = self.sectors(&range);
        let sector = u64::from(device.geometry().logical_sector);
        self.alone(async move {
            // The whole sectors between the two edges; none where both edges are one.
            let inner = range.start.next_multiple_of(sector)..range.end / sector * sector;
            if inner.start >= inner.end {
                let zeroes = Buf::zeroed((range.end - range.start) as usize);
                return patch(&*device, &sectors, range.start, &zeroes, Durability::Volatile).await;
            }
            for edge in [range.start..inner.start, inner.end..range.end] {
                if !edge.is_empty() {
                    let start = edge.start / sector * sector;
                    let zeroes = Buf::zeroed((edge.end - edge.start) as usize);
                    patch(&*device, &(start..start + sector), edge.start, &zeroes, Durability::Volatile)
                        .await?;
                }
            }
            device.write_zeroes(inner.start, inner.end - inner.start, zeroing).await
        })
    }

    /// At once, unless a part of a sector is being written.
    fn beside_others(
        &self,
        operation: impl FnOnce() -> Io<Result<(), BlockError>> + Send + 'static,
    ) -> Io<Result<(), BlockError>> {
        match Turn::try_share(&self.turn) {
            Some(held) => match operation() {
                ready @ Io::Ready(_) => ready,
                Io::Pending(future) => Io::pending(async move {
                    let _held = held;
                    future.await
                }),
            },
            None => {
                let turn = Arc::clone(&self.turn);
                Io::pending(async move {
                    let _held = Turn::share(&turn).await;
                    operation().await
                })
            }
        }
    }

    fn alone(
        &self,
        operation: impl Future<Output = Result<(), BlockError>> + Send + 'static,
    ) -> Io<Result<(), BlockError>> {
        let turn = Arc::clone(&self.turn);
        Io::pending(async move {
            let _held = Turn::alone(&turn).await;
            operation.await
        })
    }
}

/// Puts `data` at `offset` into the whole sectors around it.
async fn patch(
    device: &dyn BlockDevice,
    sectors: &Range<u64>,
    offset: u64,
    data: &[u8],
    durability: Durability,
) -> Result<(), BlockError> {
    let buf = Buf::for_overwrite((sectors.end - sectors.start) as usize);
    let mut buf = device.read(sectors.start, buf).await?;
    let start = (offset - sectors.start) as usize;
    buf[start..start + data.len()].copy_from_slice(data);
    device.write(sectors.start, buf.freeze(), durability).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::conformance::Disk;
    use crate::decorate::Delay;
    use Durability::Volatile;

    fn device(size: u64, sector: u32) -> Arc<dyn BlockDevice> {
        Arc::new(Disk::new(size).with_sector(sector))
    }

    async fn content(bytes: &Bytes, len: u32) -> Vec<u8> {
        let (buf, inside) = bytes.read(0, len).await.unwrap();
        buf[inside].to_vec()
    }

    #[tokio::test]
    async fn any_range_of_bytes_is_as_in_an_ordinary_file() {
        let bytes = Bytes::new(device(64 << 10, 4096));
        let mut model = vec![0u8; 64 << 10];
        let ranges = [(0, 4096), (1, 1), (4095, 2), (4096, 8192), (100, 9000), (65_535, 1), (12_288, 5000)];
        for (turn, (at, len)) in ranges.into_iter().enumerate() {
            let value = turn as u8 + 1;
            let data = vec![value; len];
            assert_eq!(bytes.write(at as u64, &data, Volatile).await, Ok(len as u32));
            model[at..at + len].fill(value);
            assert!(content(&bytes, 64 << 10).await == model, "write of {len} at {at}");
        }
        for (at, len) in [(10, 20), (4000, 200), (4096, 4096), (5000, 20_000), (60_000, 5536)] {
            bytes.zero(at, len, Zeroing::MayUnmap).await.unwrap();
            model[at as usize..(at + len) as usize].fill(0);
            assert!(content(&bytes, 64 << 10).await == model, "zeroes of {len} at {at}");
        }
    }

    #[tokio::test]
    async fn beyond_the_end_reads_are_short_and_writes_find_no_space() {
        let bytes = Bytes::new(device(8192, 512));
        assert_eq!(content(&bytes, 100_000).await.len(), 8192);
        assert_eq!(bytes.read(9000, 10).await.unwrap().1, 0..0);
        assert_eq!(bytes.write(8000, &[1; 500], Volatile).await, Ok(192));
        assert_eq!(bytes.write(8192, &[1], Volatile).await, Err(BlockError::NoSpace));
        assert_eq!(bytes.write(u64::MAX, &[1; 5], Volatile).await, Err(BlockError::NoSpace));
        bytes.zero(8000, u64::MAX, Zeroing::MayUnmap).await.unwrap();
        assert_eq!(content(&bytes, 8192).await, [0; 8192]);
    }

    #[tokio::test]
    async fn writes_to_parts_of_one_sector_at_the_same_time_are_all_kept() {
        let slow = Delay::new(device(4096, 4096), Duration::from_millis(2));
        let bytes = Bytes::new(Arc::new(slow));
        let writes: Vec<_> =
            (0..16u8).map(|n| bytes.write(u64::from(n) * 256, &[n + 1; 256], Volatile)).collect();
        let tasks: Vec<_> = writes.into_iter().map(|write| tokio::spawn(write.into_future())).collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let content = content(&bytes, 4096).await;
        assert!((0..16).all(|n| content[n * 256..][..256].iter().all(|&byte| byte == n as u8 + 1)));
    }
}
