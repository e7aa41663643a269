//! A file of a draft that another program exchanges for an older copy, in mid-run or between two runs: what is sealed
//! has every byte of the source.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lunway_backup::{BackupError, Folder, Lease, Progress, Retention, prune};
use lunway_crash::Directory;
use lunway_vhdx::format::Guid;
use lunway_vhdx::{Disk, VhdxOpenOptions};
use support::crashing::Crashing;
use support::failing::{Failing, Failures};
use support::{
    How, MIB, Random, Source, assert_same, back_up, back_up_telling, contents, guids, holder, restored,
};

/// The incomplete file that ends so: its name, and its bytes.
fn draft(directory: &Directory, end: &str) -> Option<(String, Vec<u8>)> {
    let name = directory.names().into_iter().find(|name| name.ends_with(end))?;
    let bytes = directory.bytes(&name)?;
    Some((name, bytes))
}

/// Another file with these bytes takes the name, as a program that restores or synchronises files does it.
fn put(folder: &Arc<dyn Folder>, name: &str, bytes: &[u8]) {
    folder.create("copy.of.another").unwrap().write_at(0, bytes).unwrap();
    folder.rename("copy.of.another", name).unwrap();
}

/// A disk without zeroes.
fn source(size: u64) -> Source {
    let mut source = Source::new(size);
    let mut random = Random::new(7);
    let words = std::iter::repeat_with(|| random.next().to_le_bytes());
    let bytes: Vec<u8> = words.take((size / 8) as usize).flatten().collect();
    source.write(0, &bytes);
    source
}

/// A folder in which another program acts at one flush of a file.
struct Moment {
    folder: Arc<dyn Folder>,
    flushes: Arc<AtomicU64>,
    number: u64,
}

impl Moment {
    /// At the flush of that number, counted from 1, the incomplete file that ends so is exchanged: `other` makes the
    /// bytes of the new one from those that it has.
    fn new(
        directory: &Directory,
        number: u64,
        end: &'static str,
        other: impl Fn(Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let inner: Arc<dyn Folder> = Arc::new(Crashing(directory.clone()));
        let (failures, flushes) = (Failures::none(), Arc::new(AtomicU64::new(0)));
        let (there, directory, count) = (Arc::clone(&inner), directory.clone(), Arc::clone(&flushes));
        failures.before_each_flush(move || {
            if count.fetch_add(1, Ordering::SeqCst) + 1 == number
                && let Some((name, bytes)) = draft(&directory, end)
            {
                put(&there, &name, &other(bytes));
            }
        });
        Self { folder: Arc::new(Failing { inner, failures }), flushes, number }
    }

    /// There were fewer flushes.
    fn is_behind_the_end(&self) -> bool {
        self.flushes.load(Ordering::SeqCst) < self.number
    }
}

#[test]
fn a_draft_that_is_exchanged_in_mid_run_is_given_up_and_written_anew() {
    let mut source = source(24 * MIB);
    let mut given_up = 0;
    for end in [".vhdx.incomplete", ".leaves.incomplete"] {
        for moment in 1.. {
            let directory = Directory::default();
            let at = Moment::new(&directory, moment, end, |bytes| bytes);
            let how = How::new(source.unknown(), moment);
            let made = back_up(&at.folder, &source.disk, source.epoch, how).unwrap();
            if at.is_behind_the_end() {
                break;
            }
            given_up += u32::from(made.notes.iter().any(|note| note.contains("this run began anew")));
            let context = format!("{end} {moment}: {:?}", made.notes);
            assert_same(
                &restored(&at.folder, made.manifest.point).unwrap(),
                &contents(&source.disk),
                &context,
            );
            let name = directory.names().into_iter().find(|name| name.ends_with(".vhdx")).unwrap();
            let file = at.folder.open(&name, false).unwrap();
            let disk = Disk::open(file, &VhdxOpenOptions::read_only(), Box::new(|| Guid::ZERO)).unwrap();
            assert!(!disk.log_in_use(), "the file was closed: {context}");
        }
    }
    assert!(given_up > 3, "{given_up}");
}

#[test]
fn a_draft_that_is_exchanged_for_an_older_point_is_given_up() {
    let mut source = source(8 * MIB);
    let mut given_up = 0;
    // An exchange at a flush beside the renames may come too late to be one: not each round has as many.
    for round in 0..3u64 {
        for moment in 1.. {
            let directory = Directory::default();
            let there: Arc<dyn Folder> = Arc::new(Crashing(directory.clone()));
            let how = How::new(source.unknown(), 1);
            let older = back_up(&there, &source.disk, source.epoch, how).unwrap().manifest;
            let older = directory.bytes(&format!("{}.vhdx", older.stem())).unwrap();
            source.change(&mut Random::new(round << 32 | moment), 64);
            let at = Moment::new(&directory, moment, ".vhdx.incomplete", move |_| older.clone());
            let how = How { full: true, ..How::new(source.unknown(), 2) };
            let made = back_up(&at.folder, &source.disk, source.epoch, how).unwrap();
            if at.is_behind_the_end() {
                break;
            }
            given_up += u32::from(made.notes.iter().any(|note| note.contains("another file than the one")));
            let context = format!("{moment}: {:?}", made.notes);
            assert_same(
                &restored(&at.folder, made.manifest.point).unwrap(),
                &contents(&source.disk),
                &context,
            );
        }
    }
    assert!(given_up > 3, "{given_up}");
}

#[test]
fn a_draft_that_is_set_back_between_two_runs_is_given_up() {
    // The first checkpoint comes after 16 MiB: what is before it is not read again.
    let mut source = source(40 * MIB);
    let mut given_up = 0;
    for end in [".vhdx.incomplete", ".leaves.incomplete"] {
        for state in [None, Some("the same")] {
            for moment in (24..).step_by(2) {
                let directory = Directory::default();
                let folder: Arc<dyn Folder> = Arc::new(Crashing(directory.clone()));
                let (mut older, mut calls) = (None, 0);
                let is_cancelled = AtomicBool::new(false);
                let mut watch = |_| {
                    calls += 1;
                    older = older.take().or_else(|| draft(&directory, end));
                    is_cancelled.store(calls == moment, Ordering::Relaxed);
                };
                let cancelled = || is_cancelled.load(Ordering::Relaxed);
                let mut how = How::new(source.unknown(), 1);
                (how.state, how.is_cancelled) = (state.map(str::to_owned), &cancelled);
                let stopped = back_up_telling(&folder, &source.disk, source.epoch, how, &mut watch);
                if stopped.is_ok() {
                    break;
                }
                assert!(matches!(stopped, Err(BackupError::Cancelled)), "{stopped:?}");
                let Some((name, bytes)) = older else { continue };
                put(&folder, &name, &bytes);
                let mut how = How::new(source.unknown(), 2);
                how.state = state.map(str::to_owned);
                let made = back_up(&folder, &source.disk, source.epoch, how).unwrap();
                given_up += u32::from(made.notes.iter().any(|note| note.contains("began anew")));
                let context = format!("{end}, stopped at {moment}: {:?}", made.notes);
                assert_same(
                    &restored(&folder, made.manifest.point).unwrap(),
                    &contents(&source.disk),
                    &context,
                );
            }
        }
    }
    assert!(given_up > 0, "{given_up}");
}

/// Stops a run of `source`, of 96 MiB, when at most 32 MiB of the first 80 are under way: the rest is recorded.
fn stop_a_run(folder: &Arc<dyn Folder>, source: &mut Source, state: Option<&str>, seed: u64) {
    let is_cancelled = AtomicBool::new(false);
    let mut watch = |at: Progress| is_cancelled.store(at.done >= 80 * MIB, Ordering::Relaxed);
    let cancelled = || is_cancelled.load(Ordering::Relaxed);
    let mut how = How::new(source.unknown(), seed);
    (how.state, how.is_cancelled) = (state.map(str::to_owned), &cancelled);
    let stopped = back_up_telling(folder, &source.disk, source.epoch, how, &mut watch);
    assert!(matches!(stopped, Err(BackupError::Cancelled)), "{stopped:?}");
}

#[test]
fn a_stopped_draft_that_has_lost_its_bytes_is_given_up() {
    let mut source = source(96 * MIB);
    for state in [None, Some("the same")] {
        for passes in 1..3 {
            let directory = Directory::default();
            let folder: Arc<dyn Folder> = Arc::new(Crashing(directory.clone()));
            (0..passes).for_each(|pass| stop_a_run(&folder, &mut source, state, pass));
            let (name, mut bytes) = draft(&directory, ".vhdx.incomplete").unwrap();
            // In the middle of what is recorded, and more than lies between two pieces of the sample.
            let hole = 16 * MIB as usize;
            bytes[hole..hole + 16 * MIB as usize].fill(0);
            put(&folder, &name, &bytes);
            let mut how = How::new(source.unknown(), 9);
            how.state = state.map(str::to_owned);
            let made = back_up(&folder, &source.disk, source.epoch, how).unwrap();
            let context = format!("{state:?}, {passes} passes: {:?}", made.notes);
            assert!(
                made.notes.iter().any(|note| note.contains("does not have what was written")),
                "{context}"
            );
            assert_same(&restored(&folder, made.manifest.point).unwrap(), &contents(&source.disk), &context);
        }
    }
}

#[test]
fn a_merge_whose_draft_is_exchanged_is_given_up_and_names_no_point_as_damaged() {
    let mut source = source(4 * MIB);
    let sound = Directory::default();
    let there: Arc<dyn Folder> = Arc::new(Crashing(sound.clone()));
    let mut newest = None;
    for seed in 1..4 {
        let how = How::new(source.unknown(), seed);
        newest = Some(back_up(&there, &source.disk, source.epoch, how).unwrap().manifest.point);
        if seed < 3 {
            source.change(&mut Random::new(seed), 32);
        }
    }
    let retention = Retention { last: 1, ..Retention::default() };
    let pruned = |folder: &Arc<dyn Folder>| {
        let lease = Lease::take(&**folder, holder(9), &|| false).unwrap();
        prune(&**folder, &lease, &guids(9), &retention, &mut |_, _, _| true)
    };
    let mut given_up = 0;
    for moment in 1.. {
        let directory = sound.at_rest();
        let at = Moment::new(&directory, moment, ".merged.vhdx.incomplete", |bytes| bytes);
        let done = pruned(&at.folder);
        match &done {
            Ok(_) => {}
            Err(BackupError::DraftExchanged { .. }) => given_up += 1,
            Err(error) => panic!("{moment}: {error}"),
        }
        if at.is_behind_the_end() {
            break;
        }
        pruned(&at.folder).unwrap();
        let context = format!("{moment}: {done:?}");
        assert_same(&restored(&at.folder, newest.unwrap()).unwrap(), &contents(&source.disk), &context);
    }
    assert!(given_up > 0, "{given_up}");
}
