//! A destination with parts of its files replaced: read, verified, restored, gone on with and pruned. Nothing may
//! panic, loop or take memory without bound.
//!
//! The input is a list of patches to the files of one kind of a folder that was made in good faith: a file, an offset
//! in it, and bytes. Sums are made right again, so that what is behind them is reached.

#[allow(
    clippy::duplicate_mod,
    reason = "a fuzz target has this file alone, without the support of the tests"
)]
#[path = "../support/crashing.rs"]
mod crashing;

use std::sync::{Arc, OnceLock};

use crashing::Crashing;
use lunway_backup::{
    Catalogue, Changed, Folder, Guids, Lease, Level, Order, Request, Retention, Target, Verification, prune,
    restore, run as back_up, verify,
};
use lunway_block::{BlockDevice as _, Buf, Durability};
use lunway_copy::Skipped;
use lunway_crash::Directory;
use lunway_memory::RamDisk;
use lunway_vhdx::format::Guid;

/// Which files are patched.
#[allow(dead_code, reason = "each fuzz target is of one kind")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Manifests, the notes.
    Manifest,
    /// Leaf hashes.
    Leaves,
    /// The journal of an incomplete point.
    Journal,
}

/// A disk of a few units, so that a run takes milliseconds.
const SIZE: u64 = (2 << 20) + 512;
/// Larger disks are not restored: their memory would be the test's own.
const RESTORED_MAX: u64 = 16 << 20;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn guids() -> Guids {
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    Arc::new(|| {
        Box::new(|| {
            let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Guid::from_digits(u128::from(count) << 64 | u128::from(count.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
        })
    })
}

fn lease(folder: &dyn Folder) -> Option<Lease<'_>> {
    let holder = lunway_backup::Holder {
        machine: "m".into(),
        host: "h".into(),
        process: 1,
        nonce: 1,
        ..lunway_backup::Holder::default()
    };
    Lease::take(folder, holder, &|| true).ok()
}

fn one_run(folder: &Arc<dyn Folder>, disk: &RamDisk, state: &str, stops: bool) -> bool {
    let Some(lease) = lease(&**folder) else { return false };
    let asked = std::sync::atomic::AtomicU32::new(0);
    let request = Request {
        source: disk,
        source_name: "disk".into(),
        changed: Changed::Unknown { why: "test".into() },
        skipped: &Skipped::default(),
        skipped_why: "",
        state: Some(state.into()),
        epoch: None,
        due: None,
        level: Level::Crash,
        time: Some(7),
        full: false,
        rename_source: true,
        bytes_per_second: None,
        sample_bytes: 0,
        seed: 1,
        // After the first unit.
        is_cancelled: &|| stops && asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0,
    };
    block_on(back_up(folder, &lease, &guids(), None, request, &mut |_| ())).is_ok()
}

fn disk() -> &'static RamDisk {
    static DISK: OnceLock<RamDisk> = OnceLock::new();
    DISK.get_or_init(|| RamDisk::new(SIZE, 512).expect("memory"))
}

fn write(offset: u64, byte: u8) {
    let data = Buf::copy_of(&[byte; 4096]).freeze();
    block_on(async { disk().write(offset, data, Durability::Volatile).await }).expect("memory");
}

/// Three points and an incomplete one.
fn made() -> &'static Directory {
    static MADE: OnceLock<Directory> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = Directory::default();
        let folder: Arc<dyn Folder> = Arc::new(Crashing(directory.clone()));
        for number in 0..4u8 {
            for unit in 0..2 {
                write((unit << 20) + u64::from(number) * 100_000 / 512 * 512, number + 1);
            }
            let whole = one_run(&folder, disk(), "frozen", number == 3);
            assert_eq!(whole, number < 3, "the last one is stopped");
        }
        assert!(directory.names().iter().any(|name| name.contains("journal")));
        directory.at_rest()
    })
}

/// Makes the sums of a file right.
fn seal(name: &str, bytes: &mut Vec<u8>) {
    if name.contains(".json") {
        let Some(at) = bytes.iter().position(|byte| *byte == b'\n') else { return };
        let sum = blake3::hash(&bytes[at + 1..]).to_hex();
        let head = format!("{{\"blake3\":\"{sum}\",");
        bytes.splice(..at, head.into_bytes());
    } else if name.contains("journal") {
        let lines = bytes.split(|byte| *byte == b'\n').map(|line| {
            let json = line.get(17..).unwrap_or_default();
            [blake3::hash(json).to_hex()[..16].as_bytes(), b" ", json].concat()
        });
        *bytes = lines.collect::<Vec<_>>().join(&b'\n');
    } else if let Some(tail_at) = bytes.len().checked_sub(64) {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")) as usize;
        let directory = number(tail_at + 16);
        if directory > tail_at {
            return;
        }
        for entry in (directory..tail_at.saturating_sub(39)).step_by(40) {
            let offset =
                u64::from_le_bytes(bytes[entry + 8..entry + 16].try_into().expect("8 bytes")) as usize;
            let len = u32::from_le_bytes(bytes[entry + 16..entry + 20].try_into().expect("4 bytes")) as usize;
            let Some(part) = offset.checked_add(len).and_then(|end| bytes.get(offset..end)) else { continue };
            let sum = *blake3::hash(part).as_bytes();
            bytes[entry + 24..entry + 40].copy_from_slice(&sum[..16]);
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes[..32]).update(&bytes[directory..tail_at]).update(&bytes[tail_at..tail_at + 32]);
        bytes[tail_at + 32..].copy_from_slice(hasher.finalize().as_bytes());
    }
}

/// Makes the root that a manifest names right for its sidecar.
fn seal_root(directory: &Directory, name: &str) {
    let manifest = name.replace(".leaves", ".json");
    let (Some(leaves), Some(text)) = (directory.bytes(name), directory.bytes(&manifest)) else { return };
    let Some(sum) = leaves.len().checked_sub(32).map(|at| &leaves[at..]) else { return };
    let mut hasher = blake3::Hasher::new_derive_key("lunway 2026 backup point root");
    hasher.update(sum).update(&SIZE.to_le_bytes());
    let text = String::from_utf8_lossy(&text).into_owned();
    let Some(at) = text.find("\"root\": \"").map(|at| at + 9) else { return };
    let mut text = text.into_bytes();
    text[at..at + 64].copy_from_slice(hasher.finalize().to_hex().as_bytes());
    seal(&manifest, &mut text);
    put(directory, &manifest, &text);
}

fn put(directory: &Directory, name: &str, bytes: &[u8]) {
    directory.remove(name);
    let _ = directory.create(name).and_then(|file| file.write(0, bytes));
}

/// Runs one input.
pub(crate) fn run(kind: Kind, input: &[u8]) {
    let directory = made().at_rest();
    let of_kind = |name: &String| match kind {
        Kind::Manifest => name.ends_with(".json") && !name.ends_with(".copy.json"),
        Kind::Leaves => name.ends_with(".leaves"),
        Kind::Journal => name.contains("journal"),
    };
    let names: Vec<String> = directory.names().into_iter().filter(of_kind).collect();
    let mut rest = input;
    while let [file, low, high, len, after @ ..] = rest {
        let name = &names[usize::from(*file) % names.len()];
        let (patch, after) = after.split_at(usize::from(*len % 64).min(after.len()));
        rest = after;
        let mut bytes = directory.bytes(name).unwrap_or_default();
        let at = usize::from(u16::from_le_bytes([*low, *high])) % bytes.len().max(1);
        // From the end as well: there the directory is.
        let at = if len & 64 == 0 { at } else { bytes.len() - 1 - at };
        if len & 128 == 0 {
            let end = (at + patch.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&patch[..end - at]);
        } else {
            bytes.splice(at..at, patch.iter().copied());
        }
        seal(name, &mut bytes);
        put(&directory, name, &bytes);
        if kind == Kind::Leaves {
            seal_root(&directory, name);
        }
    }
    exercise(&(Arc::new(Crashing(directory)) as Arc<dyn Folder>));
}

/// Everything that is done with a destination.
pub(crate) fn exercise(folder: &Arc<dyn Folder>) {
    let Ok(catalogue) = Catalogue::load(&**folder) else { return };
    for point in catalogue.points() {
        let id = point.manifest.point;
        let _ = catalogue.chain(id);
        if let Ok(history) = catalogue.history(&**folder, id) {
            for unit in [0, 1, 2, u32::MAX] {
                let _ = (history.unit(unit), history.next(unit));
            }
        }
        if point.manifest.virtual_bytes <= RESTORED_MAX
            && let Ok(disk) = RamDisk::new(point.manifest.virtual_bytes.next_multiple_of(512), 512)
        {
            let order = Order { point: id, range: None, target: Target::Blank };
            let _ = block_on(restore(folder, &catalogue, order, &disk, &|| false, &mut |_| ()));
        }
    }
    let verification = Verification::default();
    if let Ok(report) = verify(&**folder, &catalogue, verification, &|| false, &mut |_, _| ()) {
        let _ = report.note(&**folder, &verification);
    }
    one_run(folder, disk(), "frozen", false);
    one_run(folder, disk(), "another", false);
    if let Some(lease) = lease(&**folder) {
        let retention = Retention { last: 1, ..Retention::default() };
        let _ = prune(&**folder, &lease, &guids(), &retention, &mut |_, _, _| true);
    }
}
