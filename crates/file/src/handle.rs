//! The descriptors of an open file, and closing them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use lunway_occupancy::withdraw;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

use crate::answer::{Answer, pair};

/// An open file: shared by its device and all operations under way.
///
/// Closing a file may wait for its disk or its server (a block device writes back its cache, FUSE and NFS ask their
/// servers), so the last part that goes hands the descriptors to a thread. The lock goes with the last operation: at
/// once where locks are the kernel's own, with the descriptor where a server keeps them.
pub(crate) struct Handle {
    descriptors: Option<Descriptors>,
    placement: Placement,
    closed: Option<SyncSender<()>>,
}

struct Descriptors {
    file: OwnedFd,
    sync: OwnedFd,
    behind: Option<OwnedFd>,
}

/// Placement of the file system's data, which decides what may be asked of it without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// In this host's memory: nothing waits.
    Memory,
    /// On a disk of this host, through a file system that is known to answer from memory where it is told not to wait,
    /// and to keep attributes of open files there.
    Local,
    /// Behind a server, or a file system of which that is not known: nothing is asked on the caller's thread.
    Remote,
}

impl Handle {
    /// Takes a file that is open and locked.
    ///
    /// It is opened twice more. `fdatasync` has a file of its own with a memory of write-back errors of its own: a
    /// synchronous write that fails takes the error from the memory of the file it went through, at a moment when a
    /// flush may be just about to look there. Background write-back has another one for the same reason. Where `/proc`
    /// is missing the first two share one and that moment stays, and nothing is written back in the background.
    pub(crate) fn new(file: OwnedFd, read_only: bool, placement: Placement) -> io::Result<(Self, Closed)> {
        let sync = reopened(&file, read_only).or_else(|_| file.try_clone())?;
        let behind = if read_only { None } else { reopened(&file, read_only).ok() };
        let (closed, heard) = mpsc::sync_channel(1);
        let descriptors = Some(Descriptors { file, sync, behind });
        Ok((Self { descriptors, placement, closed: Some(closed) }, Closed(heard)))
    }

    pub(crate) fn placement(&self) -> Placement {
        self.placement
    }

    fn descriptors(&self) -> &Descriptors {
        self.descriptors.as_ref().expect("taken only when dropped")
    }

    /// For `fdatasync` alone.
    pub(crate) fn sync(&self) -> BorrowedFd<'_> {
        self.descriptors().sync.as_fd()
    }

    /// For write-back in the background alone.
    pub(crate) fn behind(&self) -> Option<BorrowedFd<'_>> {
        self.descriptors().behind.as_ref().map(AsFd::as_fd)
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptors().file.as_fd()
    }
}

impl AsRawFd for Handle {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.descriptors().file.as_raw_fd()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (descriptors, closed) = (self.descriptors.take(), self.closed.take());
        if self.placement != Placement::Remote
            && let Some(descriptors) = &descriptors
        {
            // Where it fails, closing does it.
            let _ = flock(&descriptors.file, FlockOperation::Unlock);
            withdraw(&descriptors.file);
        }
        let close = move || {
            drop(descriptors);
            // Without a waiter, the error is not heard.
            let _ = closed.map(|closed| closed.try_send(()));
        };
        if self.placement == Placement::Memory {
            return close();
        }
        // Without a thread the closure is dropped, and with it everything is closed: late is better than never.
        drop(thread::Builder::new().name("file-close".to_owned()).spawn(close));
    }
}

/// The end of a device: its descriptors are closed, and another may open the file.
pub struct Closed(Receiver<()>);

impl Closed {
    /// An end that comes when something is sent, or the sender is gone.
    pub fn new(ended: Receiver<()>) -> Self {
        Self(ended)
    }

    /// Waits for it, up to a time. It needs no runtime; where it cannot have a thread it does not wait.
    pub async fn within(self, time: Duration) {
        let waiting: Option<Answer<()>> = {
            let (sender, answer) = pair();
            let wait = move || {
                let _ = self.0.recv_timeout(time);
                sender.send(());
            };
            thread::Builder::new().name("file-closed".to_owned()).spawn(wait).is_ok().then_some(answer)
        };
        if let Some(waiting) = waiting {
            waiting.await;
        }
    }
}

/// The same file as another open file, see [`Handle::new`].
fn reopened(file: &OwnedFd, read_only: bool) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(open(path, OFlags::CLOEXEC | if read_only { OFlags::RDONLY } else { OFlags::RDWR }, Mode::empty())?)
}
