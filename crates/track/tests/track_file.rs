//! The track file itself: every power cut of a short life exhaustively, every byte of it flipped, files that are none,
//! and doubt about the disk.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use lunway_crash::{MemoryStorage, Recorder};
use lunway_track::{
    Backing, Begun, Change, ChangeState, ChangedRange, Changes, Ended, EpochId, GRAIN, Tracker, Tuning,
};

const SIZE: u64 = 64 << 20;
const TUNING: Tuning = Tuning { hot_max: 2, ahead: 0, log: 64 << 10 };
/// 4 MiB.
const REGION: u64 = 64 * GRAIN;

fn backing(mtime: u8) -> Backing {
    Backing { lasting: vec![1], exact: vec![mtime] }
}

fn open(storage: &Recorder) -> Tracker {
    Tracker::open(Box::new(storage.clone()), SIZE, &backing(1), TUNING).unwrap()
}

fn write(tracker: &Tracker, offset: u64, length: u64) {
    let operation = match tracker.begin(Change::Written, offset, length) {
        Begun::Covered { operation, .. } => operation,
        Begun::Waiting { operation, ticket } => {
            let (done, committed) = tracker.commit();
            committed.unwrap();
            assert!(done >= ticket);
            operation
        }
        other => panic!("{other:?}"),
    };
    tracker.end(operation, Ended::Done);
}

fn close(tracker: &Tracker, id: EpochId) {
    tracker.shut();
    tracker.close_epoch(id).unwrap();
    tracker.reopen();
}

fn since(tracker: &Tracker, id: EpochId) -> Changes {
    tracker.changes(id, None, 0..u64::MAX)
}

fn ranges(changes: &Changes) -> Vec<(u64, u64)> {
    let Changes::Known { ranges, .. } = changes else { panic!("{changes:?}") };
    ranges.iter().map(|range| (range.offset, range.length)).collect()
}

const ONE: EpochId = EpochId([1; 16]);
const TWO: EpochId = EpochId([2; 16]);

#[test]
fn every_combination_of_sectors_that_a_power_cut_leaves_has_what_was_written() {
    let storage = Recorder::default();
    let tracker = open(&storage);
    write(&tracker, 0, 512);
    close(&tracker, ONE);
    let mut written = vec![(storage.count(), None)];
    for (number, offset) in
        [0, 2, 4, 0, 6, 8, 2, 10, 4].map(|n| n * REGION + n % 3 * GRAIN).into_iter().enumerate()
    {
        write(&tracker, offset, 512);
        written.push((storage.count(), Some(offset)));
        if number == 3 {
            close(&tracker, TWO);
        }
    }
    let (first, mut looked) = (written[0].0, 0);
    storage.each_crash(|crash| {
        let units = crash.units(512);
        // Before the first epoch is closed there is nothing to ask for.
        if crash.done < first {
            return;
        }
        assert!(units <= 12, "{units}");
        for kept in 0_u32..1 << units {
            let tracker = open(&Recorder::new(crash.image(512, |unit| kept & 1 << unit != 0)));
            let reported = ranges(&since(&tracker, ONE));
            let covers =
                |offset: u64| reported.iter().any(|&(start, len)| (start..start + len).contains(&offset));
            let there = written.iter().filter(|(count, _)| *count <= crash.done).filter_map(|&(_, at)| at);
            there.clone().for_each(|offset| assert!(covers(offset), "{offset} of {reported:?}"));
            let bytes: u64 = reported.iter().map(|range| range.1).sum();
            assert!(bytes <= there.count() as u64 * GRAIN + 2 * REGION, "{reported:?}");
            looked += 1;
        }
    });
    assert!(looked > 60, "{looked}");
}

/// A track file with two epochs and hot regions, as a kill leaves it.
fn killed() -> (Vec<u8>, Vec<(u64, u64)>) {
    let storage = Recorder::default();
    let tracker = open(&storage);
    close(&tracker, ONE);
    write(&tracker, 3 * REGION, 512);
    close(&tracker, TWO);
    write(&tracker, 7 * REGION, 512);
    let bytes = storage.now().to_bytes();
    let before = ranges(&since(&open(&Recorder::new(MemoryStorage::of_bytes(&bytes))), ONE));
    assert_eq!(before, [(3 * REGION, GRAIN), (7 * REGION, REGION)]);
    (bytes, before)
}

#[test]
fn a_flipped_byte_makes_nothing_unchanged() {
    let (bytes, before) = killed();
    let (mut same, mut unknown) = (0, 0);
    // Zeroes beyond the records are many: some of them.
    let places = (0..bytes.len()).filter(|&at| bytes[at] != 0 || at % 509 == 0);
    for at in places {
        let mut harmed = bytes.clone();
        harmed[at] ^= 0x41;
        let tracker = open(&Recorder::new(MemoryStorage::of_bytes(&harmed)));
        match since(&tracker, ONE) {
            Changes::Known { ranges, .. } => {
                let ranges: Vec<_> = ranges.iter().map(|range| (range.offset, range.length)).collect();
                assert_eq!(ranges, before, "byte {at}");
                same += 1;
            }
            Changes::Unknown { why, .. } => {
                assert!(why.contains("the track file is damaged"), "{why}");
                unknown += 1;
            }
        }
    }
    assert!(same > 0 && unknown > 0, "{same} {unknown}");
}

#[test]
fn a_file_that_is_shorter_or_is_none_begins_a_new_chain() {
    let (bytes, _) = killed();
    for length in (0..bytes.len()).step_by(977) {
        let tracker = open(&Recorder::new(MemoryStorage::of_bytes(&bytes[..length])));
        if let Changes::Known { ranges, .. } = since(&tracker, ONE) {
            panic!("{length}: {ranges:?}");
        }
        close(&tracker, ONE);
        assert_eq!(ranges(&since(&tracker, ONE)), []);
    }
    let noise: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert!(matches!(
        since(&open(&Recorder::new(MemoryStorage::of_bytes(&noise))), ONE),
        Changes::Unknown { why, .. } if why.contains("damaged")
    ));
}

#[test]
fn a_record_that_is_missing_between_others_is_damage() {
    let storage = Recorder::default();
    let tracker = open(&storage);
    close(&tracker, ONE);
    [1, 3, 5].into_iter().for_each(|region| write(&tracker, region * REGION, 512));
    let mut bytes = storage.now().to_bytes();
    let records: Vec<usize> =
        (0..bytes.len()).step_by(512).filter(|&at| &bytes[at..at + 4] == b"lwre").collect();
    assert_eq!(records.len(), 2 * 4, "two copies of each");
    for at in [records[2], records[6]] {
        bytes[at..at + 512].fill(0);
    }
    let tracker = open(&Recorder::new(MemoryStorage::of_bytes(&bytes)));
    let Changes::Unknown { why, .. } = since(&tracker, ONE) else { panic!() };
    assert!(why.contains("a record of its log is missing"), "{why}");
}

#[test]
fn a_disk_that_was_changed_or_replaced_meanwhile_is_not_known() {
    let begin = |lasting: &[u8]| {
        let storage = Recorder::default();
        let known = Backing { lasting: lasting.to_vec(), exact: vec![1] };
        let tracker = Tracker::open(Box::new(storage.clone()), SIZE, &known, TUNING).unwrap();
        close(&tracker, ONE);
        write(&tracker, 0, 512);
        (storage, tracker)
    };
    let again = |storage: &Recorder, found: &Backing| {
        Tracker::open(Box::new(storage.clone()), SIZE, found, TUNING).unwrap()
    };
    for (found, word) in [
        (backing(2), "was changed while"),
        (Backing { lasting: vec![2], exact: vec![1] }, "another disk"),
        (Backing::default(), "nothing shows"),
    ] {
        let (storage, tracker) = begin(&[1]);
        tracker.shut();
        tracker.close_disk(&backing(1)).unwrap();
        assert!(matches!(tracker.begin(Change::Written, 0, 1), Begun::Closed));
        let Changes::Unknown { why, .. } = since(&again(&storage, &found), ONE) else { panic!("{found:?}") };
        assert!(why.contains(word), "{why}");
        // And it stays so.
        let Changes::Unknown { why, .. } = since(&again(&storage, &found), ONE) else { panic!("{found:?}") };
        assert!(why.contains("tracking has begun again"), "{why}");
    }
    // Left in order and found so, it is exact; after a kill what every write changes says nothing.
    let (storage, tracker) = begin(&[1]);
    tracker.close_disk(&backing(1)).unwrap();
    assert_eq!(ranges(&since(&again(&storage, &backing(1)), ONE)), [(0, GRAIN)]);
    let (storage, _) = begin(&[1]);
    assert_eq!(ranges(&since(&again(&storage, &backing(7)), ONE)), [(0, REGION)]);
}

#[test]
fn a_full_host_ends_tracking_and_no_operation() {
    let storage = Recorder::default();
    let tracker = open(&storage);
    close(&tracker, ONE);
    storage.now().set_space(Some(0));
    for number in 0..1000 {
        write(&tracker, number % 16 * REGION, 512);
    }
    let Changes::Unknown { why, .. } = since(&tracker, ONE) else { panic!() };
    assert!(why.contains("could not be written"), "{why}");
    let killed = storage.now().clone();
    killed.set_space(None);
    assert!(matches!(since(&open(&Recorder::new(killed)), ONE), Changes::Unknown { .. }));
    // With space again, the next epoch begins a new chain.
    storage.now().set_space(None);
    close(&tracker, TWO);
    write(&tracker, 0, 512);
    assert_eq!(ranges(&since(&tracker, TWO)), [(0, GRAIN)]);
    assert!(matches!(since(&tracker, ONE), Changes::Unknown { .. }));
}

/// A LUN was offline because the file system of its track file was full.
#[test]
fn a_file_that_cannot_be_written_at_the_start_says_nothing_and_tracking_begins_with_the_next_epoch() {
    let storage = Recorder::default();
    let tracker = open(&storage);
    close(&tracker, ONE);
    drop(tracker);
    storage.now().set_space(Some(0));
    let opened = Tracker::open(Box::new(storage.clone()), SIZE, &backing(1), TUNING);
    let why = opened.err().unwrap().to_string();
    let lost = || Tracker::lost_from_start(Box::new(storage.clone()), SIZE, &backing(1), TUNING, &why);
    let tracker = lost();
    assert!(!tracker.is_stale() && tracker.lost_now().is_some());
    write(&tracker, 0, 512);
    let Changes::Unknown { why, .. } = since(&tracker, ONE) else { panic!() };
    assert!(why.contains("tracking ended"), "{why}");
    // What was there before is not found again, after a kill either.
    let killed = storage.now().clone();
    killed.set_space(None);
    assert!(matches!(since(&open(&Recorder::new(killed)), ONE), Changes::Unknown { .. }));
    storage.now().set_space(None);
    close(&tracker, TWO);
    assert_eq!(tracker.lost_now(), None);
    write(&tracker, REGION, 512);
    assert_eq!(ranges(&since(&tracker, TWO)), [(REGION, GRAIN)]);
}

#[test]
fn epochs_are_bounded_and_what_was_unmapped_last_is_said() {
    let tracker = open(&Recorder::default());
    let id = |number: u8| EpochId([number; 16]);
    for number in 1..=70 {
        close(&tracker, id(number));
    }
    let epochs = tracker.epochs();
    assert_eq!((epochs.len(), epochs[0].id, epochs[0].parent), (64, id(7), None));
    write(&tracker, 0, 3 * GRAIN);
    let Begun::Covered { operation, .. } = tracker.begin(Change::Zeroed, GRAIN, 2 * GRAIN - 512) else {
        panic!()
    };
    tracker.end(operation, Ended::Done);
    let Changes::Known { ranges, .. } = since(&tracker, id(70)) else { panic!() };
    let range =
        |offset, length, state| ChangedRange { offset: offset * GRAIN, length: length * GRAIN, state };
    let (written, unmapped) = (ChangeState::Written, ChangeState::Unmapped);
    assert_eq!(ranges, [range(0, 1, written), range(1, 1, unmapped), range(2, 1, written)]);
    let window = tracker.changes(id(70), None, 512..GRAIN);
    assert!(matches!(window, Changes::Known { ranges, .. } if ranges == [ChangedRange {
        offset: 512, length: GRAIN - 512, state: written
    }]));
    assert!(
        matches!(tracker.changes(id(70), Some(id(70)), 0..SIZE), Changes::Known { ranges, .. } if ranges.is_empty())
    );
    assert!(matches!(tracker.changes(id(70), Some(id(69)), 0..SIZE), Changes::Unknown { .. }));
}

#[test]
fn a_file_that_became_shorter_by_a_new_area_in_front_is_whole() {
    let storage = Recorder::default();
    let mut tracker = open(&storage);
    close(&tracker, ONE);
    let (mut lengths, mut shorter) = (vec![storage.now().size()], 0);
    for _ in 0..12 {
        tracker.close_disk(&backing(1)).unwrap();
        tracker = open(&storage);
        assert_eq!(ranges(&since(&tracker, ONE)), []);
        shorter += usize::from(storage.now().size() < *lengths.last().unwrap());
        lengths.push(storage.now().size());
    }
    assert!(shorter > 0 && lengths.iter().all(|&length| length < 1 << 20), "{lengths:?}");
}
