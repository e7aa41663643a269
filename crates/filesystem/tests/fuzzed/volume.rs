//! A real volume with parts of it replaced: examined, and its map read. Nothing may panic, loop, or take memory without
//! bound, and what is free must be what the contract says: sorted, disjoint, inside, and as much as was promised.
//!
//! The input is a list of patches: a page of the volume that is not empty, an offset in it, and bytes. Checksums are
//! made right again, so that what is behind them is reached.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use lunway_filesystem::source::Budget;
use lunway_filesystem::tree::{Disk, Node};
use lunway_filesystem::volume::free_in;
use lunway_filesystem::{ByteSource, Doubt, Examined, Mounted, Unreadable};

/// Patches are within pages of this size, and so are the smallest structures that have a checksum.
const PAGE: usize = 4096;

/// A format to be tried.
pub(crate) struct Format {
    /// How its volumes are made: MiB, the program and its options.
    volumes: &'static [(u64, &'static [&'static str])],
    examine: fn(&dyn ByteSource) -> Result<Examined, Doubt>,
    seal: fn(&mut Patched<'_>),
    bases: OnceLock<Option<Vec<Base>>>,
}

#[allow(dead_code, reason = "each fuzz target is of one format")]
pub(crate) static NTFS: Format = Format {
    volumes: &[(4, &["mkntfs", "-F", "-q"]), (8, &["mkntfs", "-F", "-q", "-s", "4096", "-c", "65536"])],
    examine: lunway_filesystem::ntfs::examine,
    seal: |_| (),
    bases: OnceLock::new(),
};

#[allow(dead_code, reason = "each fuzz target is of one format")]
pub(crate) static FAT: Format = Format {
    volumes: &[
        (2, &["mkfs.fat", "-F", "12"]),
        (16, &["mkfs.fat", "-F", "16"]),
        (34, &["mkfs.fat", "-F", "32", "-s", "1"]),
    ],
    examine: lunway_filesystem::fat::examine,
    seal: |_| (),
    bases: OnceLock::new(),
};

#[allow(dead_code, reason = "each fuzz target is of one format")]
pub(crate) static EXFAT: Format = Format {
    volumes: &[(4, &["mkfs.exfat"]), (4, &["mkfs.exfat", "-c", "512", "-b", "512"])],
    examine: lunway_filesystem::exfat::examine,
    seal: seal_exfat,
    bases: OnceLock::new(),
};

#[allow(dead_code, reason = "each fuzz target is of one format")]
pub(crate) static BTRFS: Format = Format {
    volumes: &[
        (128, &["mkfs.btrfs", "-q", "-n", "4096"]),
        (128, &["mkfs.btrfs", "-q", "-n", "4096", "-R", "^free-space-tree", "-m", "single"]),
        (32, &["mkfs.btrfs", "-q", "--mixed"]),
    ],
    examine: lunway_filesystem::btrfs::examine,
    seal: seal_btrfs,
    bases: OnceLock::new(),
};

#[allow(dead_code, reason = "each fuzz target is of one format")]
pub(crate) static EXT: Format = Format {
    volumes: &[
        (4, &["mke2fs", "-q", "-F", "-t", "ext2", "-b", "1024", "-g", "1024"]),
        (8, &["mke2fs", "-q", "-F", "-t", "ext4", "-O", "bigalloc,^metadata_csum", "-C", "16384"]),
        // With a log to be replayed: the first blocks of the volume, and one that is revoked.
        (8, &["sh", "-c", LOGGED]),
    ],
    examine: lunway_filesystem::ext::examine,
    seal: |_| (),
    bases: OnceLock::new(),
};

/// mke2fs, then debugfs, which can write a log.
const LOGGED: &str = "mke2fs -q -F -t ext3 -b 1024 $0 8192 && dd if=$0 of=$0.log bs=1024 skip=1 count=40 2>/dev/null && \
    printf 'jo\\njw -b 1,2,3,4 '$0'.log\\njw -r 3\\njw -b 1,2 '$0'.log\\njc\\n' | debugfs -w $0 >/dev/null 2>&1; rm -f $0.log";

#[allow(dead_code, reason = "each fuzz target is of one format")]
pub(crate) static XFS: Format = Format {
    volumes: &[
        (300, &["mkfs.xfs", "-q", "-f", "-d", "agcount=2"]),
        (300, &["mkfs.xfs", "-q", "-f", "-m", "crc=0,finobt=0"]),
    ],
    examine: lunway_filesystem::xfs::examine,
    seal: seal_xfs,
    bases: OnceLock::new(),
};

#[allow(dead_code, reason = "each fuzz target is of one format")]
pub(crate) static TABLE: Format = Format {
    volumes: &[
        (64, &["sh", "-c", "printf 'label: gpt\nsize=9MiB\nsize=8MiB\nsize=7MiB\n' | sfdisk -q $0"]),
        (64, &["sh", "-c", "printf 'label: dos\nsize=9MiB\ntype=5\nsize=8MiB\nsize=7MiB\n' | sfdisk -q $0"]),
    ],
    examine: |source| {
        Err(Doubt::new(format!("{:?}", lunway_filesystem::partition::layout::read(source, 512))))
    },
    seal: seal_gpt,
    bases: OnceLock::new(),
};

/// Whole disks: a table with file systems and swap space in it, a table in a partition of a table.
#[allow(dead_code, reason = "each fuzz target is of one format")]
pub(crate) static DISK: Format = Format {
    volumes: &[(40, &["sh", "-c", DISK_OF_FOUR]), (24, &["sh", "-c", DISK_IN_DISK])],
    examine: examine_disk,
    seal: seal_gpt,
    bases: OnceLock::new(),
};

const DISK_OF_FOUR: &str = "printf 'label: gpt\nstart=1MiB, size=8MiB\nsize=8MiB, type=swap\nsize=8MiB\nsize=8MiB\n' | \
    sfdisk -q $0 && mke2fs -q -F -b 1024 -E offset=1048576 $0 8192 && \
    truncate -s 8M $0.in && mkswap -q $0.in && dd if=$0.in of=$0 bs=1M seek=9 conv=notrunc 2>/dev/null && rm $0.in && \
    mkfs.fat -F 16 -s 1 --offset 34816 $0 8192 >/dev/null && mke2fs -q -F -t ext4 -E offset=26214400 $0 8192";

const DISK_IN_DISK: &str = "printf 'label: dos\nstart=1MiB, size=16MiB\ntype=5\nsize=2MiB\n' | sfdisk -q $0 && \
    truncate -s 16M $0.in && printf 'label: gpt\nstart=1MiB, size=8MiB\nsize=4MiB\n' | sfdisk -q $0.in && \
    mke2fs -q -F -b 1024 -E offset=1048576 $0.in 8192 && dd if=$0.in of=$0 bs=1M seek=1 conv=notrunc 2>/dev/null; \
    rm -f $0.in";

/// A physical volume of LVM2 with two logical volumes, ext in one of them. It takes root and a loop device.
#[allow(dead_code, reason = "each fuzz target is of one format")]
pub(crate) static LVM: Format = Format {
    volumes: &[(40, &["sh", "-c", PHYSICAL_VOLUME])],
    examine: examine_disk,
    seal: seal_lvm,
    bases: OnceLock::new(),
};

const PHYSICAL_VOLUME: &str = "D=$(losetup -f --show $0) || exit 1; \
    lvm2() { C=$1; shift; $C --driverloaded n --config 'devices{filter=[\"a|^'$D'$|\",\"r|.*|\"] use_devicesfile=0} \
    backup{backup=0 archive=0} activation{udev_sync=0 udev_rules=0}' \"$@\" >/dev/null 2>&1; }; \
    lvm2 pvcreate -q $D && lvm2 vgcreate -q -s 1m vg $D && lvm2 lvcreate -q -an -Zn -Wn -n one -l 8 vg && \
    lvm2 lvcreate -q -an -Zn -Wn -n two -l 4 vg && lvm2 lvextend -q -l +4 vg/one; R=$?; losetup -d $D; \
    mke2fs -q -F -b 1024 -E offset=1048576 $0 8192; exit $R";

/// The disk as a whole: what every part says of its bytes adds up, and the ranges are all of the disk, in order.
fn examine_disk(source: &dyn ByteSource) -> Result<Examined, Doubt> {
    let mut disk = Disk::examine(source, 512);
    for least in [None, Some(Mounted::Yes), Some(Mounted::Untold)] {
        if let Some(least) = least {
            disk.distrust(least);
        }
        check_node(disk.root(), 0);
        let (mut at, mut sums) = (0, [0u64; 3]);
        let given = disk.for_each(source, 0..u64::MAX, &mut |span| {
            assert!(
                span.range.start == at && span.range.start < span.range.end,
                "{:?} after {at}",
                span.range
            );
            at = span.range.end;
            sums[span.what as usize] += span.range.end - span.range.start;
        });
        assert!(given.is_ok(), "proven maps are given: {given:?}");
        assert_eq!(at, source.len());
        let root = disk.root();
        assert_eq!(sums, [root.used, root.free, root.unknown]);
    }
    Err(Doubt::new("a disk is no volume"))
}

fn check_node(node: &Node, depth: usize) {
    assert!(depth <= lunway_filesystem::DEPTH + 1);
    assert_eq!(node.used + node.free + node.unknown, node.len, "{:?} at {}", node.kind, node.offset);
    let free = node.children.iter().map(|child| child.free).sum::<u64>();
    assert!(node.children.is_empty() || node.free >= free);
    for child in &node.children {
        assert!(child.len <= node.len);
        check_node(child, depth + 1);
    }
}

/// A volume as it was made: its pages that are not empty.
pub(crate) struct Base {
    len: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Base {
    /// `None` where the program is missing or refuses.
    fn make(name: &str, mib: u64, command: &[&str]) -> Option<Self> {
        let path: PathBuf = std::env::temp_dir().join(format!("lunway-{name}-{}", std::process::id()));
        let made = File::create(&path).and_then(|file| file.set_len(mib << 20)).ok().and_then(|()| {
            let (program, options) = command.split_first()?;
            let paths = ["/usr/sbin/", "/sbin/", "/usr/bin/", ""].map(|folder| format!("{folder}{program}"));
            let program =
                paths.iter().find(|path| path.contains(program) && PathBuf::from(path).is_file())?;
            Command::new(program).args(options).arg(&path).output().ok()?.status.success().then_some(())
        });
        let base = made.and_then(|()| Self::read(&path).ok());
        let _ = std::fs::remove_file(&path);
        base
    }

    fn read(path: &PathBuf) -> std::io::Result<Self> {
        let mut file = File::open(path)?;
        let (len, mut pages, mut page) = (file.metadata()?.len(), BTreeMap::new(), vec![0; PAGE]);
        for number in 0..len / PAGE as u64 {
            file.seek(SeekFrom::Start(number * PAGE as u64))?;
            file.read_exact(&mut page)?;
            if page.iter().any(|byte| *byte != 0) {
                pages.insert(number, page.clone());
            }
        }
        Ok(Self { len, pages })
    }
}

impl Format {
    fn bases(&self) -> &[Base] {
        let make = || {
            let volumes = self.volumes.iter().enumerate();
            volumes
                .map(|(at, (mib, command))| Base::make(&format!("{}-{at}", command[0]), *mib, command))
                .collect()
        };
        self.bases.get_or_init(make).as_deref().unwrap_or_default()
    }
}

/// A base with some of its pages replaced.
pub(crate) struct Patched<'a> {
    base: &'a Base,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Patched<'_> {
    fn page(&self, number: u64) -> Option<&[u8]> {
        self.pages.get(&number).or_else(|| self.base.pages.get(&number)).map(Vec::as_slice)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let (number, inside) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let old = || self.base.pages.get(&number).cloned().unwrap_or_else(|| vec![0; PAGE]);
        let page = self.pages.entry(number).or_insert_with(old);
        for (byte, new) in page[inside..].iter_mut().zip(bytes) {
            *byte = *new;
        }
    }
}

impl ByteSource for Patched<'_> {
    fn len(&self) -> u64 {
        self.base.len
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.base.len) {
            return Err(Unreadable::outside(offset, buf.len() as u64, self.base.len));
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (number, inside) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let len = (PAGE - inside).min(buf.len() - done);
            match self.page(number) {
                Some(page) => buf[done..done + len].copy_from_slice(&page[inside..inside + len]),
                None => buf[done..done + len].fill(0),
            }
            done += len;
        }
        Ok(())
    }
}

/// The checksum of the boot region, with sectors of 512 bytes.
fn seal_exfat(volume: &mut Patched<'_>) {
    let mut region = vec![0; 11 * 512];
    if volume.read(0, &mut region).is_ok() {
        let bytes = region.iter().enumerate().filter(|(at, _)| ![106, 107, 112].contains(at));
        let sum = bytes.fold(0u32, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u32::from(*byte)));
        for word in 0..128 {
            volume.write(11 * 512 + word * 4, &sum.to_le_bytes());
        }
    }
}

/// CRC-32C of every page that was replaced: superblocks and blocks of trees have 4096 bytes here.
fn seal_btrfs(volume: &mut Patched<'_>) {
    for page in volume.pages.values_mut() {
        let sum = crc32c::crc32c(&page[32..]);
        page[..4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// CRC-32C of headers in sectors of 512 bytes, and of blocks of trees, of which version 5 has 4096 bytes.
fn seal_xfs(volume: &mut Patched<'_>) {
    let seal = |bytes: &mut [u8], at: usize| {
        bytes[at..at + 4].fill(0);
        let sum = crc32c::crc32c(bytes);
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    };
    for page in volume.pages.values_mut() {
        if page.starts_with(b"XFSB") && page[101] & 0xF == 5 {
            for (sector, at) in [(0, 224), (1, 216), (3, 32)] {
                seal(&mut page[sector * 512..(sector + 1) * 512], at);
            }
        } else if page.starts_with(b"AB3") {
            seal(page, 52);
        }
    }
}

/// LVM2's CRC of the label's sector, of the header of the metadata area at 4096, and of the text in it.
fn seal_lvm(volume: &mut Patched<'_>) {
    let crc = |bytes: &[u8]| {
        bytes.iter().fold(0xF597_A6CFu32, |crc, byte| {
            (0..8).fold(
                crc ^ u32::from(*byte),
                |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 },
            )
        })
    };
    let mut sector = [0; 512];
    if volume.read(512, &mut sector).is_ok() {
        volume.write(512 + 16, &crc(&sector[20..]).to_le_bytes());
    }
    if volume.read(4096, &mut sector).is_ok() {
        let field = |at: usize| sector[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mut text = vec![0; field(48).min(1 << 20) as usize];
        if field(40).checked_add(4096).is_some_and(|at| volume.read(at, &mut text).is_ok()) {
            volume.write(4096 + 56, &crc(&text).to_le_bytes());
        }
    }
    if volume.read(4096, &mut sector).is_ok() {
        volume.write(4096, &crc(&sector[4..]).to_le_bytes());
    }
}

/// CRC-32 of 128 entries of 128 bytes, and of the header before them.
fn seal_gpt(volume: &mut Patched<'_>) {
    let crc32 = |bytes: &[u8]| {
        !bytes.iter().fold(!0u32, |crc, byte| {
            (0..8).fold(
                crc ^ u32::from(*byte),
                |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 },
            )
        })
    };
    let (mut entries, mut header) = (vec![0; 128 * 128], vec![0; 92]);
    if volume.read(1024, &mut entries).is_ok() {
        volume.write(512 + 88, &crc32(&entries).to_le_bytes());
        volume.write(512 + 16, &[0; 4]);
    }
    if volume.read(512, &mut header).is_ok() && header.starts_with(b"EFI PART") {
        volume.write(512 + 16, &crc32(&header).to_le_bytes());
    }
}

/// Whether there is a volume to try.
#[allow(dead_code, reason = "the tests say what is missing; fuzzers cannot")]
pub(crate) fn is_there(format: &Format) -> bool {
    !format.bases().is_empty()
}

pub(crate) fn run(format: &Format, input: &[u8]) {
    let Some((choice, mut patches)) = input.split_first() else { return };
    let bases = format.bases();
    let Some(base) = bases.get(usize::from(choice % 16) % bases.len().max(1)) else { return };
    let numbers: Vec<u64> = base.pages.keys().copied().collect();
    let mut volume = Patched { base, pages: BTreeMap::new() };
    while let [page, page_high, low, high, len, rest @ ..] = patches {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(len % 17)));
        let page = usize::from(u16::from_le_bytes([*page, *page_high])) % numbers.len();
        let inside = u64::from(u16::from_le_bytes([*low, *high])) % PAGE as u64;
        volume.write(numbers[page] * PAGE as u64 + inside, bytes);
        patches = rest;
    }
    if choice & 0x80 == 0 {
        (format.seal)(&mut volume);
    }

    let cached = Budget::for_examination(&volume);
    let Ok(examined) = (format.examine)(&cached) else { return };
    let Ok(map) = examined.verdict else { return };
    let (mut total, mut end, mut first) = (0, None, true);
    let given = free_in(map.as_ref(), &cached, 0..u64::MAX, &mut |range| {
        assert!(range.start < range.end && range.end <= volume.len(), "{range:?}");
        assert!(first || Some(range.start) > end, "{range:?} behind {end:?}");
        assert!(!map.metadata().touches(&range), "{range:?} is metadata");
        total += range.end - range.start;
        (end, first) = (Some(range.end), false);
    });
    assert!(given.is_ok(), "a proven map is given: {given:?}");
    assert_eq!(total, map.free_bytes());
}
