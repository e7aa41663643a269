//! A device for the tests of decorators: a vector that can answer later and change its size.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use crate::{
    BlockDevice, BlockError, Buf, Caching, Durability, Extent, ExtentKind, Geometry, Io, PathSample,
    PathState, ResizeCallback, SharedBuf, Space, Zeroing,
};

pub(crate) struct TestDevice {
    data: Mutex<Vec<u8>>,
    callbacks: Mutex<Vec<ResizeCallback>>,
    later: bool,
    flushes: AtomicU64,
}

impl TestDevice {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            data: Mutex::new(vec![0; size]),
            callbacks: Mutex::default(),
            later: false,
            flushes: AtomicU64::new(0),
        }
    }

    /// Answers are pending once before they are there.
    pub(crate) fn answering_later(self, later: bool) -> Self {
        Self { later, ..self }
    }

    pub(crate) fn shared(self) -> Arc<dyn BlockDevice> {
        Arc::new(self)
    }

    fn answer<T: Send + 'static>(&self, answer: T) -> Io<T> {
        if !self.later {
            return Io::Ready(answer);
        }
        Io::pending(async {
            YieldOnce(false).await;
            answer
        })
    }

    fn change(&self, offset: u64, len: u64, change: impl FnOnce(&mut [u8])) -> Io<Result<(), BlockError>> {
        let checked = self.geometry().check_write(offset, len);
        if checked.is_ok() {
            change(&mut self.data.lock().unwrap()[offset as usize..(offset + len) as usize]);
        }
        self.answer(checked)
    }
}

struct YieldOnce(bool);

impl Future for YieldOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl BlockDevice for TestDevice {
    fn geometry(&self) -> Geometry {
        Geometry::plain(self.data.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        if let Err(error) = self.geometry().check(offset, buf.len() as u64) {
            return self.answer(Err(error));
        }
        let offset = offset as usize;
        let len = buf.len();
        buf.copy_from_slice(&self.data.lock().unwrap()[offset..offset + len]);
        self.answer(Ok(buf))
    }

    fn write(&self, offset: u64, data: SharedBuf, _durability: Durability) -> Io<Result<(), BlockError>> {
        self.change(offset, data.len() as u64, |range| range.copy_from_slice(&data))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.answer(Ok(()))
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.change(offset, len, |range| range.fill(0))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.change(offset, len, |range| range.fill(0))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Result<Vec<Extent>, BlockError>> {
        self.answer(Ok(vec![Extent { offset, len, kind: ExtentKind::Zero }]))
    }

    fn resize(&self, size: u64) -> Io<Result<(), BlockError>> {
        self.data.lock().unwrap().resize(size as usize, 0);
        self.callbacks.lock().unwrap().iter().for_each(|callback| callback(self.geometry()));
        self.answer(Ok(()))
    }

    fn space(&self) -> Option<Space> {
        Some(Space { allocated: self.geometry().size, used: 7, available: 9 })
    }

    fn paths(&self) -> Vec<PathSample> {
        vec![PathSample {
            name: "here".to_owned(),
            state: PathState::Up,
            read_ios: 1,
            read_bytes: 2,
            write_ios: 3,
            write_bytes: 4,
            errors: 5,
            round_trip: None,
            ping: None,
            last_event: None,
        }]
    }

    fn caching(&self) -> Caching {
        Caching::WriteThrough
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.callbacks.lock().unwrap().push(callback);
    }
}

/// Proves that a decorator in its mildest setting changes nothing: each operation of the trait reaches the
/// device, and each answer and resize comes back.
pub(crate) async fn passes_everything_on(wrap: impl Fn(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>) {
    for later in [false, true] {
        let inner = Arc::new(TestDevice::new(4096).answering_later(later));
        let device = wrap(inner.clone());
        assert_eq!(device.geometry(), inner.geometry());
        device.write(512, Buf::copy_of(&[1; 1536]).freeze(), Durability::Volatile).await.unwrap();
        device.unmap(1024, 512).await.unwrap();
        device.write_zeroes(1536, 512, Zeroing::KeepAllocated).await.unwrap();
        assert_eq!(inner.data.lock().unwrap()[512..2048], [[1; 512], [0; 512], [0; 512]].concat());
        assert_eq!(&device.read(512, Buf::zeroed(512)).await.unwrap()[..], &[1; 512]);
        device.flush().await.unwrap();
        assert_eq!(inner.flushes.load(Ordering::Relaxed), 1);
        let zero = Extent { offset: 512, len: 1024, kind: ExtentKind::Zero };
        assert_eq!(device.extents(512, 1024).await, Ok(vec![zero]));
        assert!(matches!(device.read(4096, Buf::zeroed(512)).await, Err(BlockError::OutOfRange { .. })));
        let seen = Arc::new(AtomicU64::new(0));
        let size = Arc::clone(&seen);
        device.on_resize(Box::new(move |geometry| size.store(geometry.size, Ordering::Relaxed)));
        device.resize(8192).await.unwrap();
        assert_eq!((seen.load(Ordering::Relaxed), inner.geometry().size), (8192, 8192));
        assert_eq!(device.space(), inner.space());
        assert_eq!(device.caching(), inner.caching());
        assert_eq!(device.paths(), inner.paths());
    }
}
