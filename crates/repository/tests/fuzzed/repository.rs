//! A repository with parts of its files replaced: read, verified, restored, gone on with and pruned. Nothing may panic,
//! loop or take memory without bound.
//!
//! The input is a list of patches to the files of one kind of a repository that was made in good faith: a file, an
//! offset in it, and bytes. Sums are made right again, so that what is behind them is reached. Of trees it says which
//! entries there are, and of which others each is made; the last one is the root of the newest point.

#[allow(clippy::duplicate_mod, reason = "a fuzz target has this file alone, without the tests")]
#[path = "../kit/mod.rs"]
mod kit;

use std::sync::{Arc, OnceLock};

use kit::support::How;
use kit::{CrashingPlaces, Source, identity};
use lunway_backup::Verification;
use lunway_crash::Directory;
use lunway_repository::{Codec, Id, Kept, PackBuilder, Repository, verify};

/// Which files are patched.
#[allow(dead_code, reason = "each fuzz target is of one kind")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Packs.
    Pack,
    /// Segments of the index.
    Index,
    /// Manifests of points, the marker, notes.
    Point,
    /// Entries of any lengths that name each other, zeroes, or nothing.
    Tree,
}

/// A disk of a few units, so that a run takes milliseconds.
const SIZE: u64 = (2 << 20) + 512;
/// Larger disks are not restored: their memory would be the test's own.
const RESTORED_MAX: u64 = 16 << 20;
/// Bytes of the tails of packs and of segments.
const TAIL_LEN: usize = 64;

fn source(count: u8) -> Source {
    let mut source = Source::new(SIZE);
    for number in 1..=count {
        for unit in 0..2 {
            source.write((unit << 20) + u64::from(number) * 100_000 / 512 * 512, &[number; 4096]);
        }
    }
    source
}

/// Two points in one series and one in another, with an index each.
fn made() -> &'static Directory {
    static MADE: OnceLock<Directory> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = kit::new_directory(false);
        for (number, series) in [(1, "one"), (2, "one"), (3, "other")] {
            kit::compare(&kit::crashing(&directory), series, &mut source(number), number.into());
        }
        directory.at_rest()
    })
}

/// Makes the sums of a file right.
fn seal(kind: Kind, bytes: &mut Vec<u8>) {
    let len = bytes.len();
    match kind {
        Kind::Point | Kind::Tree => {
            let Some(at) = bytes.iter().position(|byte| *byte == b'\n') else { return };
            let sum = blake3::hash(&bytes[at + 1..]).to_hex();
            bytes.splice(..at, format!("{{\"blake3\":\"{sum}\",").into_bytes());
            return;
        }
        Kind::Pack if len >= TAIL_LEN => {
            let tail = len - TAIL_LEN;
            let at = u32::from_le_bytes(bytes[tail + 12..tail + 16].try_into().expect("4 bytes")) as usize;
            if at <= tail {
                let sum = *blake3::hash(&bytes[at..tail + 16]).as_bytes();
                bytes[tail + 16..tail + 32].copy_from_slice(&sum[..16]);
            }
        }
        _ => {}
    }
    if len >= 32 {
        let hash = *blake3::hash(&bytes[..len - 32]).as_bytes();
        bytes[len - 32..].copy_from_slice(&hash);
    }
}

/// Gives the newest point a tree of its own.
fn plant(directory: &Directory, input: &[u8]) {
    let (codec, mut pack) = (Codec::open(), PackBuilder::new(0xaa));
    let mut ids: Vec<Id> = Vec::new();
    let [size, input @ ..] = input else { return };
    let mut rest = input;
    while let [count, after @ ..] = rest {
        let (picks, after) = after.split_at(usize::from(*count % 32).min(after.len()));
        rest = after;
        // Most are ids, as many as the entries of a tree have; some are any bytes.
        let repeat = if *count & 64 == 0 { 1 } else { 8 };
        let id = |pick: &u8| match usize::from(*pick) {
            0 => [0; 32],
            pick if pick <= ids.len() => ids[pick - 1],
            pick => [pick as u8; 32],
        };
        let mut bytes: Vec<u8> = picks.iter().flat_map(|pick| id(pick).repeat(repeat)).collect();
        if *count & 128 != 0 {
            bytes.extend_from_slice(picks);
        }
        if bytes.is_empty() {
            continue;
        }
        let id = codec.id(&bytes);
        pack.add(id, &codec.encode(&id, &bytes));
        ids.push(id);
    }
    let Some(root) = ids.last() else { return };
    let _ = directory.create("pack-00000000000000aa").and_then(|file| file.write(0, &pack.finish()));
    let hex: String = root.iter().map(|byte| format!("{byte:02x}")).collect();
    for name in directory.names().iter().filter(|name| name.starts_with("one~000002")) {
        let mut text = String::from_utf8_lossy(&directory.bytes(name).unwrap_or_default()).into_owned();
        let mut put = |key: &str, value: &str, len: usize| {
            if let Some(at) = text.find(key).map(|at| at + key.len()) {
                text.replace_range(at..at + len, value);
            }
        };
        put("\"root\":\"", &hex, 64);
        let bytes = (u64::from(*size) << 18 | 512).to_string();
        put("\"virtual_bytes\":", &bytes, SIZE.to_string().len());
        let mut bytes = text.into_bytes();
        seal(Kind::Tree, &mut bytes);
        directory.remove(name);
        let _ = directory.create(name).and_then(|file| file.write(0, &bytes));
    }
}

/// Runs one input.
pub(crate) fn run(kind: Kind, input: &[u8]) {
    let directory = made().at_rest();
    if kind == Kind::Tree {
        plant(&directory, input);
        return exercise(&directory);
    }
    let of_kind = |name: &String| match kind {
        Kind::Pack => name.starts_with("pack-"),
        Kind::Index => name.starts_with("index-"),
        Kind::Point => name.ends_with(".json") && !name.contains(".copy"),
        Kind::Tree => false,
    };
    let names: Vec<String> = directory.names().into_iter().filter(of_kind).collect();
    let mut rest = input;
    while let [file, low, high, len, after @ ..] = rest {
        let name = &names[usize::from(*file) % names.len()];
        let (patch, after) = after.split_at(usize::from(*len % 64).min(after.len()));
        rest = after;
        let mut bytes = directory.bytes(name).unwrap_or_default();
        let at = usize::from(u16::from_le_bytes([*low, *high])) % bytes.len().max(1);
        // From the end as well: there directories and tails are.
        let at = if len & 64 == 0 { at } else { bytes.len() - 1 - at };
        if len & 128 == 0 {
            let end = (at + patch.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&patch[..end - at]);
        } else {
            bytes.splice(at..at, patch.iter().copied());
        }
        seal(kind, &mut bytes);
        directory.remove(name);
        let _ = directory.create(name).and_then(|file| file.write(0, &bytes));
    }
    exercise(&directory);
}

/// Everything that is done with a repository.
fn exercise(directory: &Directory) {
    let places = || Arc::new(CrashingPlaces(directory.clone()));
    let Ok(repository) = Repository::open(places(), Kept::default(), &identity(false)) else { return };
    let Ok(all) = repository.all_points() else { return };
    for point in all.iter().flat_map(|(_, points)| points.points()) {
        if point.virtual_bytes <= RESTORED_MAX {
            let _ = kit::restored(&repository, point);
        } else {
            let _ = repository.content(point).map(|content| lunway_backup::Content::next(&content, 0));
        }
    }
    if let Ok(report) = verify(&repository, &all, Verification::default(), &|| false, &mut |_, _| ()) {
        for (name, points) in &all {
            let _ = report.note_series(&repository, name, points);
        }
        let _ = report.note_packs(&repository);
    }
    for seed in 7..9 {
        let mut disk = source(4);
        let changed = disk.unknown();
        let _ = kit::back_up(&repository, "one", &disk, How::new(changed, seed));
    }
    let _ = kit::pruned(&repository, "one", 1, 9);
}
