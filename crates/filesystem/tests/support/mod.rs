//! Images made by foreign tools, and what must hold of every free map.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

pub(crate) mod fuse;
pub(crate) mod oracle;
pub(crate) mod partclone;
#[path = "../../../scsi/tests/model/random.rs"]
pub(crate) mod random;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use lunway_filesystem::probe::{Found, probe};
use lunway_filesystem::source::Budget;
use lunway_filesystem::volume::free_in;
use lunway_filesystem::{ByteSource, Doubt, Examined, Unreadable, Volume};
pub(crate) use random::Random;

/// A file as a disk.
pub struct Image(File, u64);

impl Image {
    pub fn open(path: &Path) -> Self {
        let file = File::open(path).expect("an image");
        let len = file.metadata().expect("metadata").len();
        Self(file, len)
    }
}

impl ByteSource for Image {
    fn len(&self) -> u64 {
        self.1
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.0.read_exact_at(buf, offset).map_err(|error| Unreadable { what: error.to_string() })
    }
}

/// Runs a tool that has to succeed; what it says.
pub fn run(program: &str, args: &[&str]) -> String {
    let (text, code) = exit(program, args);
    assert_eq!(code, 0, "{program} {args:?}: {text}");
    text
}

/// Runs a tool; what it says, and its exit code.
pub fn exit(program: &str, args: &[&str]) -> (String, i32) {
    let path = lunway_foreign::program(program).unwrap_or_else(|| program.into());
    let output = Command::new(path).args(args).env("LC_ALL", "C").output().expect("it starts");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (text, output.status.code().unwrap_or(-1))
}

/// Whether all these programs are here.
pub fn have(programs: &[&str]) -> bool {
    programs.iter().all(|program| lunway_foreign::program(program).is_some())
}

/// All variants with a seed for each, as many times as `LUNWAY_FILESYSTEM_ROUNDS` says.
pub fn rounds<T: Copy>(variants: &[T]) -> impl Iterator<Item = (usize, T)> {
    let rounds = std::env::var("LUNWAY_FILESYSTEM_ROUNDS").ok();
    let rounds = rounds.map_or(1, |rounds| rounds.parse().expect("LUNWAY_FILESYSTEM_ROUNDS is a number"));
    (0..rounds * variants.len()).map(|at| (at, variants[at % variants.len()]))
}

/// A sparse file.
pub fn sparse(folder: &Path, name: &str, size: u64) -> PathBuf {
    let path = folder.join(name);
    File::create(&path).and_then(|file| file.set_len(size)).expect("a file");
    path
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Examines an image with one format's reader, as the tree does: behind a cache and within a budget.
pub fn examined(
    image: &Image,
    examine: fn(&dyn ByteSource) -> Result<Examined, Doubt>,
) -> Result<Examined, Doubt> {
    examine(&Budget::for_examination(image))
}

/// Examines an image that has to be recognised as this format, and no other.
pub fn examined_as(name: &str, path: &Path) -> (Image, Examined) {
    let image = Image::open(path);
    let format = match probe(&image, 512).expect("readable") {
        Found::Volume(format) => format,
        found => panic!("{found:?}"),
    };
    assert_eq!(format.name, name);
    let examined = examined(&image, format.examine).expect("an identity");
    (image, examined)
}

/// The volume, whose map has to be proven.
pub fn volume(examined: &Examined) -> &dyn Volume {
    match &examined.verdict {
        Ok(volume) => volume.as_ref(),
        Err(doubt) => panic!("{doubt:?}"),
    }
}

/// The free ranges of a volume, after what must hold of all: they are sorted, disjoint, do not touch, are as many bytes
/// as the volume says, avoid metadata, and are the same when they are asked for by windows of odd sizes.
pub fn free_ranges(volume: &dyn Volume, source: &dyn ByteSource) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    free_in(volume, source, 0..u64::MAX, &mut |range| all.push(range)).expect("a proven map");
    for pair in all.windows(2) {
        assert!(pair[0].end < pair[1].start, "{pair:?}");
    }
    for range in &all {
        assert!(range.start < range.end && range.end <= volume.size().min(source.len()), "{range:?}");
        assert!(!volume.metadata().touches(range), "{range:?} is metadata");
    }
    assert_eq!(all.iter().map(|range| range.end - range.start).sum::<u64>(), volume.free_bytes());
    for parts in [3, 7] {
        let window = (source.len() / parts).next_multiple_of(511).max(511);
        let mut joined: Vec<Range<u64>> = Vec::new();
        let mut at = 0;
        while at < source.len() {
            free_in(volume, source, at..at + window, &mut |range| match joined.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => joined.push(range),
            })
            .expect("a proven map");
            at += window;
        }
        assert_eq!(joined, all, "by windows of {window}");
    }
    all
}

/// The most of one range that is overwritten: its start and its end, where a mistake by one would be.
const POISONED: u64 = 256 << 10;

/// Overwrites what is called free with random bytes.
pub fn poison(path: &Path, ranges: &[Range<u64>]) {
    let file = File::options().write(true).open(path).expect("an image");
    let mut random = Random::new(0x15);
    for range in ranges {
        let len = (range.end - range.start).min(POISONED);
        for start in [range.start, range.end - len] {
            let mut bytes = vec![0; len as usize];
            random.fill(&mut bytes);
            file.write_all_at(&bytes, start).expect("a write");
        }
    }
}

/// Makes a tree of files below `folder`: small ones, a few large ones, folders, links. The same seed, the same tree.
pub fn tree(folder: &Path, seed: u64, bytes: u64) {
    let mut random = Random::new(seed);
    let mut left = bytes;
    let mut number = 0;
    while left > 0 {
        let below = folder.join(format!("d{}", random.below(7))).join(format!("e{}", random.below(5)));
        std::fs::create_dir_all(&below).expect("a folder");
        let len = match random.below(10) {
            0 => random.below(4 << 20),
            1..4 => random.below(200 << 10),
            _ => random.below(12 << 10),
        }
        .clamp(1, left);
        let mut bytes = vec![0; len as usize];
        random.fill(&mut bytes);
        std::fs::write(below.join(format!("f{number}")), bytes).expect("a file");
        if number % 20 == 0 {
            let _ = std::os::unix::fs::symlink(format!("f{number}"), below.join(format!("l{number}")));
        }
        left -= len;
        number += 1;
    }
}

/// Every file below a folder, and a sum of its content.
pub fn sums(folder: &Path) -> BTreeMap<PathBuf, (u64, u32)> {
    let all = readable(folder).into_iter();
    all.map(|(path, sum)| (path, sum.expect("a file that can be read"))).collect()
}

/// Files by name: length and sum, or why it cannot be read.
pub type Readable = BTreeMap<PathBuf, Result<(u64, u32), String>>;

/// The same of a volume that may be damaged.
pub fn readable(folder: &Path) -> Readable {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) => {
                all.insert(folder, Err(error.to_string()));
                continue;
            }
        };
        for path in entries.into_iter().map(|entry| entry.path()) {
            match std::fs::symlink_metadata(&path).map(|metadata| metadata.file_type()) {
                Ok(kind) if kind.is_dir() => folders.push(path),
                Ok(kind) if !kind.is_file() => {}
                Ok(_) => {
                    let sum = std::fs::read(&path).map(|bytes| (bytes.len() as u64, crc32c::crc32c(&bytes)));
                    all.insert(path, sum.map_err(|error| error.to_string()));
                }
                Err(error) => drop(all.insert(path, Err(error.to_string()))),
            }
        }
    }
    all
}

/// A loop device, for programs that want a block device.
pub struct Loop(pub PathBuf);

impl Loop {
    /// `None`, noted, where there are none.
    pub fn new(image: &Path) -> Option<Self> {
        Self::with(&["--find", "--show", text(image)])
    }

    /// The same past the page cache, so that writes come to the file one by one and in their order.
    pub fn direct(image: &Path) -> Option<Self> {
        Self::with(&["--find", "--show", "--direct-io=on", text(image)])
    }

    fn with(args: &[&str]) -> Option<Self> {
        let (said, code) = exit("losetup", args);
        if code != 0 {
            lunway_foreign::machine_lacks(&format!("loop devices: {}", said.trim()));
            return None;
        }
        Some(Self(said.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = exit("losetup", &["-d", text(&self.0)]);
    }
}

/// Ten seconds of them: a soak met one that was busy in a hundred.
const UNMOUNT_ATTEMPTS: u32 = 100;

/// Unmounts. Whoever looks at all mounts of a machine holds this one for a moment.
pub fn unmount(folder: &Path) {
    for attempt in 0.. {
        let (said, code) = exit("umount", &[text(folder)]);
        if code == 0 {
            break;
        }
        assert!(attempt < UNMOUNT_ATTEMPTS && said.contains("busy"), "{said}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// An image that the kernel of this machine has mounted.
pub struct Mounted {
    pub at: PathBuf,
    _folder: tempfile::TempDir,
}

impl Mounted {
    /// Mounts an image; `None`, noted, where that is not allowed here.
    pub fn new(image: &Path, options: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let options = format!("loop,{options}");
        let (text, code) = exit("mount", &["-o", &options, self::text(image), self::text(folder.path())]);
        if code != 0 {
            lunway_foreign::machine_lacks(&format!("a kernel that mounts this: {}", text.trim()));
            return None;
        }
        Some(Self { at: folder.path().to_owned(), _folder: folder })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A volume that was shut down cannot be written back, and is unmounted nevertheless.
        let _ = exit("umount", &[text(&self.at)]);
    }
}
