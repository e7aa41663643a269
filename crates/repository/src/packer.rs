//! Writing packs: entries in, whole files out, on a thread of its own.
//!
//! A kill costs what is in packs that have no names yet. So one is ended early where the folder takes bytes slowly, as
//! its last pack tells, and where entries come slowly: as a chain makes its checkpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lunway_backup::{BackupError, Folder, INCOMPLETE, Pace, Result};

use crate::codec::{Encoded, Id};
use crate::pack::{Location, PACK_TARGET, PackBuilder, pack_name};
use crate::random::new_number;

/// Bytes that are written at a time, and for which a limit waits.
const PIECE: usize = 1 << 20;
/// Time whose sending a kill may cost: as of a chain's checkpoints.
const INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of a pack that is ended early, at least: each is a file, and less is soon sent again.
const LEAST: usize = 1 << 20;
/// Time after which a run whose packs wait for their pace asks again whether it is cancelled: as of a chain.
const LOOK: Duration = Duration::from_millis(200);
/// Time after which one with less is ended as well: what is sent in it is no more than that.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Kinds of packs: what is read to find out what a point holds lies apart from what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Leaves.
    Data,
    /// Nodes, branches, roots.
    Tree,
}

enum Message {
    Pack(PackBuilder),
    /// Everything before has been written, or why not.
    Barrier(Sender<Result<()>>),
}

/// Fills packs and has them written: one while the next one is filled, so that memory is that of two. A run that is
/// cancelled does not wait for its pace: a pack that is not written whole is not kept.
pub(crate) struct Packer<'a> {
    filling: [Filling; 2],
    /// Bytes that the folder takes in [`INTERVAL`]: a pack with as many is ended.
    target: Arc<AtomicUsize>,
    packs: Option<SyncSender<Message>>,
    writer: Option<JoinHandle<()>>,
    pace: Arc<Pace>,
    is_cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Bytes of all packs that are full or were ended.
    pub(crate) written: u64,
}

/// A pack that is being filled.
struct Filling {
    pack: PackBuilder,
    /// Since its first entry.
    since: Instant,
}

impl Filling {
    fn new() -> Result<Self> {
        Ok(Self { pack: PackBuilder::new(new_number()?), since: Instant::now() })
    }

    /// Tells whether it is to be ended, full or not.
    fn is_due(&self, target: usize, now: Instant) -> bool {
        let (len, age) = (self.pack.len() as usize, now.saturating_duration_since(self.since));
        let is_slow = age >= INTERVAL_MAX || age >= INTERVAL && len >= LEAST;
        !self.pack.is_empty() && (self.pack.is_full() || len >= target || is_slow)
    }
}

/// Bytes of a pack where so many are written in that time.
fn target(bytes: u64, took: Duration) -> usize {
    // A cast saturates, for what took no time as well.
    let in_interval = (bytes as f64 / took.as_secs_f64() * INTERVAL.as_secs_f64()) as usize;
    in_interval.clamp(LEAST, PACK_TARGET)
}

impl<'a> Packer<'a> {
    pub(crate) fn begin(
        folder: Arc<dyn Folder>,
        bytes_per_second: Option<u64>,
        is_cancelled: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Self> {
        let filling = [Filling::new()?, Filling::new()?];
        let limited = bytes_per_second.map(|bytes| target(bytes, Duration::from_secs(1)));
        let target = Arc::new(AtomicUsize::new(limited.unwrap_or(PACK_TARGET)));
        let measured = Arc::clone(&target);
        let (packs, received) = sync_channel(0);
        let pace = Arc::new(Pace::new(bytes_per_second));
        let paced = Arc::clone(&pace);
        let writer = thread::Builder::new().name("repository-packs".into());
        let writer = writer.spawn(move || write_packs(&*folder, &paced, &received, &measured));
        let writer = writer.map_err(BackupError::folder("starting a thread for", "packs"))?;
        Ok(Self { filling, target, packs: Some(packs), writer: Some(writer), pace, is_cancelled, written: 0 })
    }

    /// Adds an entry: its place. Blocks while a pack is full and the one before is not written.
    pub(crate) fn add(&mut self, kind: Kind, id: Id, encoded: &Encoded) -> Result<Location> {
        let filling = &mut self.filling[kind as usize];
        if filling.pack.is_empty() {
            filling.since = Instant::now();
        }
        let location = filling.pack.add(id, encoded);
        self.end_due()?;
        Ok(location)
    }

    /// Ends packs that are full, or that have waited for more for long enough.
    pub(crate) fn end_due(&mut self) -> Result<()> {
        let (target, now) = (self.target.load(Ordering::Relaxed), Instant::now());
        for kind in [Kind::Data, Kind::Tree] {
            if self.filling[kind as usize].is_due(target, now) {
                self.end(kind)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, kind: Kind) -> Result<()> {
        if self.filling[kind as usize].pack.is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(&mut self.filling[kind as usize], Filling::new()?).pack;
        self.written += full.len();
        match self.send(Message::Pack(full))? {
            true => Ok(()),
            false => self.barrier(),
        }
    }

    /// Hands a message to the writer; `false`: it has ended.
    fn send(&self, mut message: Message) -> Result<bool> {
        let Some(packs) = &self.packs else { return Ok(false) };
        if !self.pace.is_limited() {
            return Ok(packs.send(message).is_ok());
        }
        loop {
            match packs.try_send(message) {
                Ok(()) => return Ok(true),
                Err(TrySendError::Disconnected(_)) => return Ok(false),
                Err(TrySendError::Full(back)) => message = back,
            }
            self.look()?;
            thread::sleep(LOOK / 10);
        }
    }

    /// Ends the pace of a run that is cancelled.
    fn look(&self) -> Result<()> {
        if !(self.is_cancelled)() {
            return Ok(());
        }
        self.pace.end();
        Err(BackupError::Cancelled)
    }

    /// Ends the packs that are being filled, and waits until all have their names; they are durable after a sync.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.end(Kind::Data)?;
        self.end(Kind::Tree)?;
        self.barrier()
    }

    fn barrier(&self) -> Result<()> {
        let (reply, answer) = channel();
        if !self.send(Message::Barrier(reply))? {
            return Err(BackupError::Lost);
        }
        loop {
            match answer.recv_timeout(LOOK) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => return Err(BackupError::Lost),
                Err(RecvTimeoutError::Timeout) if self.pace.is_limited() => self.look()?,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for Packer<'_> {
    fn drop(&mut self) {
        drop(self.packs.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn write_packs(folder: &dyn Folder, pace: &Pace, packs: &Receiver<Message>, measured: &AtomicUsize) {
    let mut failed = None;
    while let Ok(message) = packs.recv() {
        match message {
            // What follows a failure would have no index.
            Message::Pack(_) if failed.is_some() => {}
            Message::Pack(pack) => {
                let (len, begun) = (pack.len(), Instant::now());
                failed = write_pack(folder, pace, pack).err();
                // Of a small one most is the time of a flush, whatever the folder takes.
                if len >= LEAST as u64 {
                    measured.store(target(len, begun.elapsed()), Ordering::Relaxed);
                }
            }
            Message::Barrier(reply) => {
                let _ = reply.send(failed.take().map_or(Ok(()), Err));
            }
        }
    }
}

/// Writes a pack whole and durable; its name is durable after a sync.
fn write_pack(folder: &dyn Folder, pace: &Pace, pack: PackBuilder) -> Result<()> {
    let name = pack_name(pack.pack());
    let unfinished = format!("{name}{INCOMPLETE}");
    let writing = || BackupError::folder("writing", &folder.show(&name));
    let write = || {
        let file = folder.create(&unfinished)?;
        let bytes = pack.finish();
        let mut at = 0;
        for piece in bytes.chunks(PIECE) {
            if !pace.wait(piece.len() as u64) {
                return Ok(false);
            }
            file.write_at(at, piece)?;
            at += piece.len() as u64;
        }
        file.flush()?;
        folder.rename(&unfinished, &name)?;
        Ok(true)
    };
    let written = write().map_err(|error: std::io::Error| writing()(error));
    match written {
        Ok(true) => Ok(()),
        not => {
            // A full folder has its room back.
            let _ = folder.remove(&unfinished);
            not.and(Err(BackupError::Cancelled))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_is_ended_where_bytes_are_taken_or_come_slowly() {
        let second = Duration::from_secs(1);
        assert_eq!(target(2_000_000, second), 10_000_000);
        assert_eq!(target(1000, second), LEAST);
        assert_eq!([target(1 << 30, second), target(1, Duration::ZERO)], [PACK_TARGET; 2]);
        let encoded = |len: usize| Encoded { bytes: vec![7; len], raw: len as u32, compressed: false };
        let mut filling = Filling::new().unwrap();
        let after = |filling: &Filling, time: Duration| filling.is_due(PACK_TARGET, filling.since + time);
        assert!(!after(&filling, 10 * INTERVAL_MAX), "an empty one is none");
        filling.pack.add([1; 32], &encoded(1000));
        assert!(!after(&filling, INTERVAL_MAX - second) && after(&filling, INTERVAL_MAX));
        filling.pack.add([2; 32], &encoded(LEAST));
        assert!(!after(&filling, INTERVAL - second) && after(&filling, INTERVAL));
        assert!(filling.is_due(LEAST, filling.since), "a slow folder");
    }
}
