//! What is sent again after a kill: what was sent in the last seconds before it, and nothing once a point is sealed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;

use lunway_backup::{Folder, Progress};
use lunway_crash::Directory;
use support::crashing::Crashing;
use support::{How, LEAF, MIB, Random, Source, back_up, back_up_telling};

/// Units with a leaf of data each: three times as many as are under way at a time.
const UNITS: u64 = 110;
/// Bytes each second, so that a run takes 14 s.
const RATE: u64 = 500_000;
/// Seconds whose sending is lost at most: those between two checkpoints, and what a busy machine adds.
const LOST_SECONDS: f64 = 6.5;

fn folder(directory: &Directory) -> Arc<dyn Folder> {
    Arc::new(Crashing(directory.clone()))
}

fn source() -> Source {
    let mut source = Source::new(UNITS * MIB);
    let mut random = Random::new(1);
    for unit in 0..UNITS {
        let bytes: Vec<u8> = (0..LEAF / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        source.write(unit * MIB, &bytes);
    }
    source
}

fn sent_after_a_kill(recorded: &Directory, steps: usize, source: &Source) -> u64 {
    let killed = recorded.after_kill(steps);
    let how = How::new(lunway_backup::Changed::Unknown { why: "a test".into() }, 2);
    back_up(&folder(&killed), &source.disk, 1, how).unwrap().manifest.sent_bytes
}

#[test]
fn a_kill_costs_what_five_seconds_send_and_one_during_the_sealing_nothing() {
    let mut source = source();
    let directory = Directory::default();
    let mut moments: Vec<(usize, u64)> = Vec::new();
    let mut note = |progress: Progress| moments.push((directory.steps(), progress.sent));
    let how = How { bytes_per_second: Some(RATE), ..How::new(source.unknown(), 1) };
    let outcome = back_up_telling(&folder(&directory), &source.disk, 1, how, &mut note).unwrap();
    let all = outcome.manifest.sent_bytes;
    assert_eq!(all, UNITS * LEAF);

    let lost = (LOST_SECONDS * RATE as f64) as u64;
    assert!(moments.last().unwrap().1 > lost, "the run was long enough to tell");
    for (steps, sent) in moments.into_iter().step_by(10) {
        let again = sent_after_a_kill(&directory, steps, &source);
        assert!(again <= all - sent + lost, "{sent} of {all} were sent, and then {again}");
    }
    let is_sealing = |steps: &usize| {
        let step = directory.describe(*steps);
        step.starts_with("Rename") && step.contains(".vhdx\"")
    };
    let sealing = (0..directory.steps()).find(is_sealing).unwrap();
    assert_eq!(sent_after_a_kill(&directory, sealing, &source), 0);
}
