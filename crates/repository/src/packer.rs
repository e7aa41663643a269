//! Writing packs: entries in, whole files out, on a thread of its own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use lunway_backup::{BackupError, Folder, INCOMPLETE, Pace, Result};

use crate::codec::{Encoded, Id};
use crate::pack::{Location, PackBuilder, pack_name};
use crate::random::new_number;

/// Bytes that are written at a time, and for which a limit waits.
const PIECE: usize = 1 << 20;

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

/// Fills packs and has them written: one while the next one is filled, so that memory is that of two.
pub(crate) struct Packer {
    filling: [PackBuilder; 2],
    packs: Option<SyncSender<Message>>,
    writer: Option<JoinHandle<()>>,
    /// Bytes of all packs that are full or were ended.
    pub(crate) written: u64,
}

impl Packer {
    pub(crate) fn begin(folder: Arc<dyn Folder>, bytes_per_second: Option<u64>) -> Result<Self> {
        let filling = [PackBuilder::new(new_number()?), PackBuilder::new(new_number()?)];
        let (packs, received) = sync_channel(0);
        let pace = Pace::new(bytes_per_second);
        let writer = thread::Builder::new().name("repository-packs".into());
        let writer = writer.spawn(move || write_packs(&*folder, &pace, &received));
        let writer = writer.map_err(BackupError::folder("starting a thread for", "packs"))?;
        Ok(Self { filling, packs: Some(packs), writer: Some(writer), written: 0 })
    }

    /// Adds an entry: its place. Blocks while a pack is full and the one before is not written.
    pub(crate) fn add(&mut self, kind: Kind, id: Id, encoded: &Encoded) -> Result<Location> {
        let location = self.filling[kind as usize].add(id, encoded);
        if self.filling[kind as usize].is_full() {
            self.end(kind)?;
        }
        Ok(location)
    }

    fn end(&mut self, kind: Kind) -> Result<()> {
        if self.filling[kind as usize].is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(&mut self.filling[kind as usize], PackBuilder::new(new_number()?));
        self.written += full.len();
        match self.packs.as_ref().map(|packs| packs.send(Message::Pack(full))) {
            Some(Ok(())) => Ok(()),
            _ => self.barrier(),
        }
    }

    /// Ends the packs that are being filled, and waits until all have their names; they are durable after a sync.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.end(Kind::Data)?;
        self.end(Kind::Tree)?;
        self.barrier()
    }

    fn barrier(&self) -> Result<()> {
        let (reply, answer) = channel();
        let sent = self.packs.as_ref().map(|packs| packs.send(Message::Barrier(reply)));
        match (sent, answer.recv()) {
            (Some(Ok(())), Ok(answer)) => answer,
            _ => Err(BackupError::Lost),
        }
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        drop(self.packs.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn write_packs(folder: &dyn Folder, pace: &Pace, packs: &Receiver<Message>) {
    let mut failed = None;
    while let Ok(message) = packs.recv() {
        match message {
            // What follows a failure would have no index.
            Message::Pack(_) if failed.is_some() => {}
            Message::Pack(pack) => failed = write_pack(folder, pace, pack).err(),
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
    let file = folder.create(&unfinished).map_err(writing())?;
    let bytes = pack.finish();
    let mut at = 0;
    for piece in bytes.chunks(PIECE) {
        pace.wait(piece.len() as u64);
        file.write_at(at, piece).map_err(writing())?;
        at += piece.len() as u64;
    }
    file.flush().map_err(writing())?;
    folder.rename(&unfinished, &name).map_err(writing())
}
