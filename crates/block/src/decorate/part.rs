//! A part of a device.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::{
    BlockDevice, BlockError, Buf, Compaction, Durability, Extent, Geometry, Identity, Io, Permit,
    ResizeCallback, SharedBuf, SnapshotCommit, Space, Zeroing,
};

/// Ranges of a device, one after the other, as a device: a partition is one range, a logical volume one or several.
///
/// Its size is fixed, and what concerns the whole device is not passed on: closing it, its size, snapshots, compaction,
/// space, identity. A flush is one of the whole device. A change of several ranges is made range by range, and an error
/// leaves those before it changed, as any write that fails may.
pub struct Part {
    inner: Arc<dyn BlockDevice>,
    ranges: Arc<[Piece]>,
    size: u64,
}

/// A range, and the address in the part at which it begins.
#[derive(Clone, Debug)]
struct Piece {
    start: u64,
    place: Range<u64>,
}

impl Part {
    /// Makes a device of these ranges of `inner`.
    ///
    /// # Errors
    ///
    /// Where a range does not consist of whole sectors inside of the device.
    pub fn new(
        inner: Arc<dyn BlockDevice>,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Self, BlockError> {
        let (geometry, mut size, mut pieces) = (inner.geometry(), 0_u64, Vec::new());
        for place in ranges {
            let len = place.end.saturating_sub(place.start);
            geometry.check(place.start, len)?;
            pieces.push(Piece { start: size, place });
            // Each range lies inside of the device, and there may be many.
            let too_long = BlockError::OutOfRange { offset: size, len, size: u64::MAX };
            size = size.checked_add(len).ok_or(too_long)?;
        }
        Ok(Self { inner, ranges: pieces.into(), size })
    }

    fn shape(&self) -> Geometry {
        Geometry { size: self.size, ..self.inner.geometry() }
    }

    /// The ranges of the device in which a range of the part lies, in order.
    fn places(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        let end = offset + len;
        let first = self.ranges.partition_point(|piece| piece.start <= offset).saturating_sub(1);
        let touched = self.ranges[first..].iter().take_while(|piece| piece.start < end);
        let places = touched.map(|piece| {
            let (from, to) = (offset.max(piece.start) - piece.start, end - piece.start);
            piece.place.start + from..piece.place.end.min(piece.place.start + to)
        });
        places.filter(|place| !place.is_empty()).collect()
    }

    /// Makes a change in one range after the other.
    fn in_each(
        &self,
        offset: u64,
        len: u64,
        change: impl Fn(&dyn BlockDevice, Range<u64>, Range<usize>) -> Io<Result<(), BlockError>> + Send + 'static,
    ) -> Io<Result<(), BlockError>> {
        if let Err(error) = self.shape().check_write(offset, len) {
            return Io::err(error);
        }
        let places = self.places(offset, len);
        let inside =
            |before: u64, place: &Range<u64>| before as usize..(before + place.end - place.start) as usize;
        match &places[..] {
            [] => Io::ok(()),
            [place] => change(&*self.inner, place.clone(), inside(0, place)),
            _ => {
                let inner = Arc::clone(&self.inner);
                Io::pending(async move {
                    let mut done = 0;
                    for place in places {
                        let (data, len) = (inside(done, &place), place.end - place.start);
                        change(&*inner, place, data).await?;
                        done += len;
                    }
                    Ok(())
                })
            }
        }
    }
}

impl crate::Layer for Part {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn geometry(&self) -> Geometry {
        self.shape()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        if let Err(error) = self.shape().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        let places = self.places(offset, buf.len() as u64);
        match &places[..] {
            [] => Io::ok(buf),
            [place] => self.inner.read(place.start, buf),
            _ => {
                let (inner, mut buf) = (Arc::clone(&self.inner), buf);
                Io::pending(async move {
                    let mut at = 0;
                    for place in places {
                        let part = Buf::for_overwrite((place.end - place.start) as usize);
                        let part = inner.read(place.start, part).await?;
                        buf[at..at + part.len()].copy_from_slice(&part);
                        at += part.len();
                    }
                    Ok(buf)
                })
            }
        }
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let len = data.len() as u64;
        self.in_each(offset, len, move |inner, place, inside| {
            inner.write(place.start, data.slice(inside), durability)
        })
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.in_each(offset, len, |inner, place, _| inner.unmap(place.start, place.end - place.start))
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.in_each(offset, len, move |inner, place, _| {
            inner.write_zeroes(place.start, place.end - place.start, zeroing)
        })
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        if let Err(error) = self.shape().check(offset, len) {
            return Io::err(error);
        }
        let (inner, places) = (Arc::clone(&self.inner), self.places(offset, len));
        Io::pending(async move {
            let (mut found, mut at) = (Vec::new(), offset);
            for place in places {
                for extent in inner.extents(place.start, place.end - place.start, count).await? {
                    // The last piece that was asked for may go on behind the range.
                    let len = extent.end().min(place.end) - extent.offset;
                    let offset = extent.offset - place.start + at;
                    Extent { offset, len, kind: extent.kind }.push_onto(&mut found);
                }
                at += place.end - place.start;
                if found.len() > count || found.last().is_some_and(|last| last.end() < at) {
                    break;
                }
            }
            Ok(found)
        })
    }

    fn resize(&self, _: u64, _: Permit) -> Io<Result<(), BlockError>> {
        Io::err(if self.shape().read_only { BlockError::ReadOnly } else { BlockError::Unsupported })
    }

    fn snapshot(&self, _: &Path, _: SnapshotCommit) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::Unsupported)
    }

    fn compact(&self, _: Arc<Compaction>) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::Unsupported)
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn space(&self) -> Option<Space> {
        None
    }

    fn on_resize(&self, _: ResizeCallback) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decorate::test_device::TestDevice;

    fn ready<T>(io: Io<T>) -> T {
        match io {
            Io::Ready(answer) => answer,
            Io::Pending(mut future) => {
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                match future.as_mut().poll(&mut context) {
                    std::task::Poll::Ready(answer) => answer,
                    std::task::Poll::Pending => panic!("not ready"),
                }
            }
        }
    }

    #[test]
    fn ranges_in_any_order_are_read_and_written_as_one_device_and_the_rest_is_left_alone() {
        let whole = TestDevice::new(8192).shared();
        for sector in 0..16_u64 {
            let data = Buf::copy_of(&[sector as u8; 512]).freeze();
            ready(whole.write(sector * 512, data, Durability::Volatile)).unwrap();
        }
        let part = Part::new(whole.clone(), [4096..5120, 512..1024, 2048..3072]).unwrap();
        let read = |device: &dyn BlockDevice| -> Vec<u8> {
            let len = device.geometry().size as usize;
            ready(device.read(0, Buf::zeroed(len))).unwrap().chunks(512).map(|sector| sector[0]).collect()
        };
        assert_eq!(read(&part), [8, 9, 1, 4, 5]);
        // The last sector of the first range to the first one of the last.
        ready(part.write(512, Buf::copy_of(&[0xAA; 1536]).freeze(), Durability::Volatile)).unwrap();
        ready(part.write_zeroes(2048, 512, Zeroing::KeepAllocated)).unwrap();
        assert_eq!(read(&*whole), [0, 0xAA, 2, 3, 0xAA, 0, 6, 7, 8, 0xAA, 10, 11, 12, 13, 14, 15]);
        let beyond = ready(part.read(2048, Buf::zeroed(1024))).unwrap_err();
        assert_eq!(beyond, BlockError::OutOfRange { offset: 2048, len: 1024, size: 2560 });
        for wrong in [256..1024, 7680..8704] {
            assert!(Part::new(whole.clone(), [wrong]).is_err());
        }
    }
}
