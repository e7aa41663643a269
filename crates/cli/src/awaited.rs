//! Devices whose answers a command waits for.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Extent, FileRange, Io, Layer, PathState, SharedBuf, Zeroing,
};

/// A device that counts the requests which it has not answered, so that a command that was asked to end can say what it
/// waits for. Everything is passed on, also what other layers keep to themselves: nothing is changed here.
pub(crate) struct Awaited {
    inner: Arc<dyn BlockDevice>,
    unanswered: Unanswered,
    changed: AtomicBool,
}

impl Awaited {
    /// `name`: without secrets, as a device is shown.
    pub(crate) fn new(name: String, inner: Arc<dyn BlockDevice>) -> Self {
        // Who asks what is waited for must not keep the device: it is closed when its last holder is gone.
        let device = Arc::downgrade(&inner);
        Self {
            inner,
            unanswered: Unanswered(Arc::new(Count { name, requests: AtomicUsize::new(0), device })),
            changed: AtomicBool::new(false),
        }
    }

    /// Returns `true` if anything was asked of it that changes its content, answered or not.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    fn change<T: Send + 'static>(&self, begin: impl FnOnce(&dyn BlockDevice) -> Io<T>) -> Io<T> {
        self.changed.store(true, Ordering::Relaxed);
        self.counted(begin(&*self.inner))
    }

    /// Count of the device's unanswered requests, as it will be when it is asked.
    pub(crate) fn unanswered(&self) -> Unanswered {
        self.unanswered.clone()
    }

    fn counted<T: Send + 'static>(&self, io: Io<T>) -> Io<T> {
        match io {
            Io::Pending(future) => {
                let open = OpenRequest::new(self.unanswered());
                Io::pending(async move {
                    let answer = future.await;
                    drop(open);
                    answer
                })
            }
            ready @ Io::Ready(_) => ready,
        }
    }
}

impl Layer for Awaited {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        self.counted(self.inner.read(offset, buf))
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        self.change(|inner| inner.write(offset, data, durability))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.counted(self.inner.flush())
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.change(|inner| inner.unmap(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.change(|inner| inner.write_zeroes(offset, len, zeroing))
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        self.counted(self.inner.extents(offset, len, count))
    }

    fn lend(&self, offset: u64, len: u64) -> Io<Result<Option<FileRange>, BlockError>> {
        self.counted(self.inner.lend(offset, len))
    }

    fn adopt(&self, offset: u64, from: FileRange) -> Io<Result<bool, BlockError>> {
        self.change(|inner| inner.adopt(offset, from))
    }
}

/// Count of a device's unanswered requests.
#[derive(Clone)]
pub(crate) struct Unanswered(Arc<Count>);

struct Count {
    name: String,
    requests: AtomicUsize,
    device: Weak<dyn BlockDevice>,
}

impl Unanswered {
    /// The device and how much it owes; `None`: it has answered everything.
    fn told(&self) -> Option<String> {
        let Count { name, requests, device } = &*self.0;
        let requests = requests.load(Ordering::Relaxed);
        let ways = || device.upgrade().map_or_else(String::new, |device| ways(&*device));
        match requests {
            0 => None,
            1 => Some(format!("{name}, which has not answered a request{}", ways())),
            _ => Some(format!("{name}, which has not answered {requests} requests{}", ways())),
        }
    }
}

/// Devices that a command waits for: those that owe an answer, else those without such a count.
pub(crate) fn waits_for(
    devices: Vec<Unanswered>,
    otherwise: String,
) -> impl Fn() -> String + Send + Sync + 'static {
    move || {
        let told: Vec<_> = devices.iter().filter_map(Unanswered::told).collect();
        if told.is_empty() { otherwise.clone() } else { told.join(", and for ") }
    }
}

/// A request that was not answered yet, or whose answer has no waiting caller any more.
struct OpenRequest(Unanswered);

impl OpenRequest {
    fn new(unanswered: Unanswered) -> Self {
        unanswered.0.requests.fetch_add(1, Ordering::Relaxed);
        Self(unanswered)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Paths of a device that are not up, in words; empty where there are none.
pub(crate) fn ways(device: &dyn BlockDevice) -> String {
    let paths = device.paths();
    let down: Vec<_> = paths.iter().filter(|path| path.state != PathState::Up).collect();
    if down.is_empty() {
        return String::new();
    }
    let told = down.iter().map(|path| match &path.last_event {
        Some(event) => format!("{}: {event}", path.name),
        None => path.name.clone(),
    });
    format!(" ({} of {} paths down: {})", down.len(), paths.len(), told.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lunway_block::decorate::Delay;
    use lunway_memory::RamDisk;

    use super::*;

    #[tokio::test]
    async fn a_device_is_waited_for_until_it_has_answered_everything() {
        let ram: Arc<dyn BlockDevice> = Arc::new(RamDisk::new(1 << 20, 512).unwrap());
        let slow =
            Awaited::new("slow".to_owned(), Arc::new(Delay::new(ram.clone(), Duration::from_millis(20))));
        let quick = Awaited::new("quick".to_owned(), ram);
        let told = waits_for(vec![slow.unanswered(), quick.unanswered()], "nothing".to_owned());
        assert_eq!(told(), "nothing");
        let read = |device: &Awaited| BlockDevice::read(device, 0, Buf::zeroed(512));
        let (read, flush) = (read(&slow), BlockDevice::flush(&slow));
        BlockDevice::read(&quick, 0, Buf::zeroed(512)).await.unwrap();
        assert_eq!(told(), "slow, which has not answered 2 requests");
        drop(flush);
        assert_eq!(told(), "slow, which has not answered a request");
        read.await.unwrap();
        assert_eq!(told(), "nothing");
    }
}
