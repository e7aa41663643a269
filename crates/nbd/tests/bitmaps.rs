//! Dirty bitmaps of an export: how they are listed and chosen, and what is told of a range in several contexts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use lunway_block::spec::NbdUri;
use lunway_block::{BlockDevice, BlockError, Io};
use lunway_memory::RamDisk;
use lunway_nbd::{DirtyBitmaps, Export, NbdAddress, NbdClient, NbdServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const SIZE: u64 = 8 << 30;
const LIST: u32 = 9;
const SET: u32 = 10;

/// Of `odd` every second mebibyte is dirty, of `all` everything, and `gone` is not known any more.
struct Bitmaps;

impl DirtyBitmaps for Bitmaps {
    fn names(&self) -> Vec<String> {
        ["odd", "all", "gone", "", &"x".repeat(1024)].map(str::to_owned).to_vec()
    }

    fn dirty(
        &self,
        name: &str,
        offset: u64,
        len: u64,
        count: usize,
    ) -> Io<Result<Vec<(u64, bool)>, BlockError>> {
        match name {
            "all" => Io::ok(vec![(len, true)]),
            "odd" => {
                let end = offset + len;
                let (mut at, mut parts) = (offset, Vec::new());
                while at < end && parts.len() < count {
                    let next = end.min((at / (1 << 20) + 1) << 20);
                    parts.push((next - at, (at >> 20) % 2 == 1));
                    at = next;
                }
                Io::pending(async move { Ok(parts) })
            }
            _ => Io::err(BlockError::gone("the epoch was released")),
        }
    }
}

struct Served {
    socket: std::path::PathBuf,
    _stop: tokio::sync::oneshot::Sender<()>,
    _folder: tempfile::TempDir,
}

async fn serve() -> Served {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd.sock");
    let device: Arc<dyn BlockDevice> = Arc::new(RamDisk::new(SIZE, 512).unwrap());
    let bitmaps: Option<Arc<dyn DirtyBitmaps>> = Some(Arc::new(Bitmaps));
    let export = Export { name: "x".to_owned(), description: String::new(), device, bitmaps };
    let server = NbdServer::bind(&NbdAddress::Unix(socket.clone()), export).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(server.serve(async { drop(stopped.await) }));
    Served { socket, _stop: stop, _folder: folder }
}

/// A connection on which structured replies were agreed upon.
struct Raw(UnixStream);

impl Raw {
    async fn open(served: &Served) -> Self {
        let mut stream = UnixStream::connect(&served.socket).await.unwrap();
        stream.read_exact(&mut [0; 18]).await.unwrap();
        stream.write_u32(3).await.unwrap();
        let mut raw = Self(stream);
        raw.option(8, &[]).await;
        assert_eq!(raw.reply().await, (1, Vec::new()));
        raw
    }

    async fn option(&mut self, option: u32, data: &[u8]) {
        let header = [&b"IHAVEOPT"[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes()].concat();
        self.0.write_all(&[&header, data].concat()).await.unwrap();
    }

    /// Type and data of a reply to an option.
    async fn reply(&mut self) -> (u32, Vec<u8>) {
        self.0.read_exact(&mut [0; 12]).await.unwrap();
        let kind = self.0.read_u32().await.unwrap();
        let mut data = vec![0; self.0.read_u32().await.unwrap() as usize];
        self.0.read_exact(&mut data).await.unwrap();
        (kind, data)
    }

    /// The contexts that are told in answer to queries, with their numbers.
    async fn contexts(&mut self, option: u32, queries: &[&str]) -> Vec<(u32, String)> {
        let text = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
        let mut data = text("x");
        data.extend((queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| data.extend(text(query)));
        self.option(option, &data).await;
        let mut contexts = Vec::new();
        loop {
            match self.reply().await {
                (4, data) => {
                    let (number, name) = data.split_at(4);
                    let number = u32::from_be_bytes(number.try_into().unwrap());
                    contexts.push((number, String::from_utf8(name.to_vec()).unwrap()));
                }
                (kind, _) => {
                    assert_eq!(kind, 1);
                    return contexts;
                }
            }
        }
    }

    /// Enters the transmission phase.
    async fn go(&mut self) {
        self.option(7, &[&1u32.to_be_bytes()[..], b"x", &[0, 0]].concat()).await;
        while self.reply().await.0 != 1 {}
    }

    /// Chunks of a block status: kind, context, and pairs of length and flags; of an error none.
    async fn status(&mut self, flags: u16, offset: u64, len: u32) -> Vec<(u16, u32, Vec<(u32, u32)>)> {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend([flags.to_be_bytes(), 7u16.to_be_bytes()].concat());
        request.extend([9u64.to_be_bytes(), offset.to_be_bytes()].concat());
        request.extend(len.to_be_bytes());
        self.0.write_all(&request).await.unwrap();
        let mut chunks = Vec::new();
        loop {
            assert_eq!(self.0.read_u32().await.unwrap(), 0x668e_33ef);
            let (flags, kind) = (self.0.read_u16().await.unwrap(), self.0.read_u16().await.unwrap());
            assert_eq!(self.0.read_u64().await.unwrap(), 9);
            let mut data = vec![0; self.0.read_u32().await.unwrap() as usize];
            self.0.read_exact(&mut data).await.unwrap();
            let numbers: Vec<u32> =
                data.as_chunks::<4>().0.iter().map(|bytes| u32::from_be_bytes(*bytes)).collect();
            let pairs = if kind == 5 { numbers[1..].as_chunks::<2>().0 } else { &[] };
            chunks.push((kind, numbers[0], pairs.iter().map(|[len, flags]| (*len, *flags)).collect()));
            if flags & 1 == 1 {
                return chunks;
            }
        }
    }
}

fn names(contexts: &[(u32, String)]) -> Vec<&str> {
    contexts.iter().map(|(_, name)| &**name).collect()
}

#[tokio::test]
async fn bitmaps_are_listed_by_namespace_and_chosen_by_their_names_alone() {
    let served = serve().await;
    let mut raw = Raw::open(&served).await;
    let bitmaps = ["qemu:dirty-bitmap:odd", "qemu:dirty-bitmap:all", "qemu:dirty-bitmap:gone"];
    let all = [&["base:allocation"][..], &bitmaps].concat();
    for (queries, expected) in [
        (&[][..], &all[..]),
        (&["base:"], &all[..1]),
        (&["qemu:"], &bitmaps),
        (&["qemu:dirty-bitmap:"], &bitmaps),
        (&["qemu:dirty-bitmap:all", "base:allocation"], &["base:allocation", bitmaps[1]]),
        (&["qemu:dirty-bitmap:", "qemu:dirty-bitmap:odd", "qemu:"], &bitmaps),
        (&["qemu:dirty-bitmap:none", "qemu:allocation-depth", "other:"], &[]),
    ] {
        let listed = raw.contexts(LIST, queries).await;
        assert_eq!(names(&listed), expected, "{queries:?}");
        assert!(listed.iter().all(|(number, _)| *number == 0), "{listed:?}");
    }
    // Chosen are no wildcards.
    assert_eq!(raw.contexts(SET, &[]).await, []);
    assert_eq!(raw.contexts(SET, &["qemu:", "qemu:dirty-bitmap:", "base:"]).await, []);
    let set = raw.contexts(SET, &["qemu:dirty-bitmap:odd", "qemu:dirty-bitmap:odd"]).await;
    assert_eq!(names(&set), [bitmaps[0]]);
    // Anew: what was chosen before is forgotten.
    let set = raw.contexts(SET, &["base:allocation", "qemu:dirty-bitmap:all", "qemu:dirty-bitmap:odd"]).await;
    assert_eq!(names(&set), [all[0], bitmaps[0], bitmaps[1]]);
    let numbers: std::collections::BTreeSet<u32> = set.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers.len(), 3);
    raw.go().await;

    // A chunk for each context.
    let chunks = raw.status(0, 512, 3 << 20).await;
    let [allocation, odd, everything] = [0, 1, 2].map(|at| chunks[at].clone());
    assert_eq!(allocation, (5, set[0].0, vec![(3 << 20, 3)]));
    let expected = [((1 << 20) - 512, 0), (1 << 20, 1), (1 << 20, 0), (512, 1)];
    assert_eq!(odd, (5, set[1].0, expected.to_vec()));
    assert_eq!(everything, (5, set[2].0, vec![(3 << 20, 1)]));
    // One descriptor each, where that is asked for.
    let chunks = raw.status(8, 0, 3 << 20).await;
    assert_eq!(chunks[1], (5, set[1].0, vec![(1 << 20, 0)]));
    // A long range is bounded, by no more descriptors than one context may have.
    let chunks = raw.status(0, 0, u32::MAX - 511).await;
    let count: usize = chunks.iter().map(|(_, _, pairs)| pairs.len()).sum();
    assert!((1000..=4096).contains(&count), "{count}");
}

#[tokio::test]
async fn a_bitmap_that_is_not_known_any_more_is_an_error_and_the_connection_goes_on() {
    let served = serve().await;
    let mut raw = Raw::open(&served).await;
    assert_eq!(raw.contexts(SET, &["qemu:dirty-bitmap:gone", "base:allocation"]).await.len(), 2);
    raw.go().await;
    for _ in 0..2 {
        let chunks = raw.status(0, 0, 1 << 20).await;
        assert_eq!(chunks.len(), 1, "{chunks:?}");
        assert_eq!((chunks[0].0, chunks[0].1), ((1 << 15) | 1, 5), "EIO");
    }
}

#[tokio::test]
async fn our_client_reads_a_bitmap_to_its_end() {
    let served = serve().await;
    let uri = NbdUri::on_socket(&served.socket);
    let client = NbdClient::connect(&uri, Some("odd")).await.unwrap();
    assert!(client.has_bitmap());
    let (mut at, mut dirty) = (0, 0);
    while at < SIZE {
        let part = client.dirty(at).await.unwrap();
        for range in &part.ranges {
            assert_eq!((range.start >> 20) % 2, 1);
            dirty += range.end - range.start;
        }
        at = part.end;
    }
    assert_eq!(dirty, SIZE / 2);
    assert!(!NbdClient::connect(&uri, Some("none")).await.unwrap().has_bitmap());
}
