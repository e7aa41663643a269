//! A device for the tests of decorators: a vector that can answer later and change its size.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use crate::{
    BlockDevice, BlockError, Buf, Durability, Geometry, Io, Permit, ResizeCallback, SharedBuf, Zeroing,
};

pub(crate) struct TestDevice {
    data: Mutex<Vec<u8>>,
    callbacks: Mutex<Vec<ResizeCallback>>,
    later: bool,
}

impl TestDevice {
    pub(crate) fn new(size: usize) -> Self {
        Self { data: Mutex::new(vec![0; size]), callbacks: Mutex::default(), later: false }
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
        self.answer(Ok(()))
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.change(offset, len, |range| range.fill(0))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.change(offset, len, |range| range.fill(0))
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        if let Err(error) = permit.begin() {
            return self.answer(Err(error));
        }
        self.data.lock().unwrap().resize(size as usize, 0);
        self.callbacks.lock().unwrap().iter().for_each(|callback| callback(self.geometry()));
        self.answer(Ok(()))
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.callbacks.lock().unwrap().push(callback);
    }
}
