//! One connection in the transmission phase: requests out, replies in, in whatever order they come.

use std::io;
use std::sync::Arc;

use lunway_block::{BlockError, SharedBuf};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::AbortHandle;
use zerocopy::IntoBytes;

use super::handshake::Offer;
use super::reply::{Brought, Receiver, Waiting, lost};
use crate::stream::Stream;
use crate::wire::{REQUEST_MAGIC, Request, command};

/// Requests under way on one connection: as many as QEMU's server works on at a time; a further one would wait there.
const UNDER_WAY: usize = 16;

/// A request, without the data of a write.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub(super) command: u16,
    pub(super) flags: u16,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// A connection. A task receives its replies; dropped, it is closed.
pub(super) struct Connection {
    writer: Mutex<Box<dyn AsyncWrite + Send + Unpin>>,
    waiting: Arc<Waiting>,
    places: Semaphore,
    receiver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.receiver.abort();
    }
}

impl Connection {
    pub(super) fn start(stream: Stream, offer: &Offer) -> Self {
        let (reader, writer) = stream.into_halves();
        let waiting = Arc::new(Waiting::default());
        let receiver = Receiver::new(reader, Arc::clone(&waiting), offer);
        Self {
            writer: Mutex::new(writer),
            waiting,
            places: Semaphore::new(UNDER_WAY),
            receiver: tokio::spawn(receiver.run()).abort_handle(),
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.waiting.broken().is_some()
    }

    /// Sends a request, and the data of a write behind it, and waits for the reply.
    pub(super) async fn exchange(
        &self,
        ask: Ask,
        data: Option<SharedBuf>,
        into: Brought,
    ) -> Result<Brought, BlockError> {
        let _place = self.places.acquire().await.map_err(|_| BlockError::lost())?;
        let (cookie, answer) = self.waiting.expect(ask, into)?;
        if let Err(error) = self.send(ask, cookie, data).await {
            self.waiting.break_off(&error);
        }
        // A receiver that ends answers everything that waits.
        answer.await.unwrap_or_else(|_| Err(lost("the NBD connection ended")))
    }

    async fn send(&self, ask: Ask, cookie: u64, data: Option<SharedBuf>) -> io::Result<()> {
        let request = Request {
            magic: REQUEST_MAGIC.into(),
            flags: ask.flags.into(),
            command: ask.command.into(),
            cookie: cookie.into(),
            offset: ask.offset.into(),
            length: ask.length.into(),
        };
        let mut writer = self.writer.lock().await;
        writer.write_all(request.as_bytes()).await?;
        match data {
            Some(data) => writer.write_all(&data).await,
            None => Ok(()),
        }
    }

    /// Takes leave of the server, which then closes the connection without a complaint. Later requests fail.
    pub(super) async fn disconnect(&self) {
        if !self.is_broken() {
            let leave = Ask { command: command::DISC, flags: 0, offset: 0, length: 0 };
            // One that is gone needs no leave.
            let _ = self.send(leave, 0, None).await;
            self.waiting.break_off(&io::Error::other("the device was closed"));
        }
    }
}
