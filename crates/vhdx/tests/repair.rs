//! Repairs that are interrupted, and headers that are written anew: what a power cut leaves at any step.

use std::sync::Arc;

use crate::support::*;
use lunway_vhdx::crash::{MemoryStorage, Recorder};
use lunway_vhdx::format::Header;
use lunway_vhdx::{BeforeRepair, DiskKind, Storage, repair};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Before, an interrupted repair could be neither undone nor repeated.
#[test]
fn an_interrupted_repair_is_known_and_undone_at_every_step() {
    type Prepare = fn(&MemoryStorage);
    let cases: [(&str, Prepare); 3] = [
        ("a log and a header", |file| file.write_at(64 << 10, b"xxxx").expect("memory")),
        ("an entry", |file| {
            // The last one of a new file's table, at 3 MiB: an offset without data.
            file.write_at((3 << 20) + 7 * 8, &(42u64 << 20).to_le_bytes()).expect("memory");
        }),
        ("a file that is too short", |file| file.set_len(file.size() - 4096).expect("memory")),
    ];
    for (what, spoil) in cases {
        let shared = Arc::new(memory(&options(DiskKind::Dynamic, 8 * MIB, 1 << 20, 512), 1));
        let chain = alone(open(shared.clone(), true, 2));
        for block in 0..4 {
            chain.write_at(block * MIB, &vec![block as u8 + 1; MIB as usize]).expect("a write");
        }
        if what == "a log and a header" {
            // As a killed process leaves it.
            chain.flush().expect("a flush");
        } else {
            chain.close().expect("a close");
        }
        let before = (*shared).clone();
        spoil(&before);
        let kept = BeforeRepair::keep(&before, MemoryStorage::default(), guids(3).next()).expect("a save");
        assert!(kept.is_same(&before).expect("memory"));
        let recorder = Recorder::new(before.clone());
        let mut own = kept.guids().expect("its own");
        repair(&recorder, &mut own).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut rng = Random::new(3);
        recorder.each_crash(|crash| {
            for share in [0, 50, 100] {
                let image = crash.image(512, |_| rng.below(100) < share);
                let done = crash.done;
                assert!(kept.explains(&image).expect("memory"), "{what}, after {done} operations");
                let undo = Recorder::new(image);
                kept.write_back(&undo).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(undo.now().to_bytes() == before.to_bytes(), "{what}, after {done} operations");
                // Of a few steps, for time.
                if share == 50 && done % 5 == 0 {
                    undo.each_crash(|crash| {
                        let image = crash.image(512, |_| rng.below(2) == 0);
                        assert!(kept.explains(&image).expect("memory"), "{what}: an undo that is cut");
                        kept.write_back(&image).expect("memory");
                        assert!(image.to_bytes() == before.to_bytes(), "{what}: an undo that is cut");
                    });
                }
            }
        });
        // Another writer's first change is one of the headers.
        let written = Arc::new(recorder.now().clone());
        let chain = alone(open(written.clone(), true, 5));
        chain.write_at(0, &[9; 512]).expect("a write");
        chain.close().expect("a close");
        assert!(!kept.explains(&written).expect("memory"), "{what}");
    }
}

/// A file whose headers have the last sequence numbers; before, its first commit failed.
#[test]
fn headers_at_the_end_of_their_numbers_are_numbered_anew() {
    for number in [u64::MAX, u64::MAX - 1, u64::MAX - 2, u64::MAX - 3] {
        let file = memory(&options(DiskKind::Dynamic, 4 * MIB, 1 << 20, 512), 1);
        let mut page = [0; 4096];
        let mut header = Header::new_zeroed();
        for (slot, offset) in [64 << 10, 128 << 10].into_iter().enumerate() {
            file.read_at(offset, &mut page).expect("memory");
            header = Header::read_from_bytes(&page).expect("4 KiB");
            header.sequence = (number - slot as u64).into();
            header.seal();
            file.write_at(offset, header.as_bytes()).expect("memory");
        }
        let data_write = header.data_write;
        let recorder = Recorder::new(file);
        let chain = alone(open(recorder.clone(), true, 2));
        chain.write_at(0, &[9; 4096]).expect("a write");
        chain.flush().unwrap_or_else(|error| panic!("{number}: {error}"));
        let flushed = recorder.count();
        chain.close().expect("a close");
        let mut rng = Random::new(3);
        recorder.each_crash(|crash| {
            for share in [0, 50, 100] {
                let image = Arc::new(crash.image(512, |_| rng.below(100) < share));
                assert_sound(&image, "a power cut");
                let mut bytes = [0; 4096];
                alone(open(image.clone(), false, 3)).read_at(0, &mut bytes).expect("a read");
                assert!(crash.done < flushed || bytes == [9; 4096], "{number} {}", crash.done);
            }
        });
        assert_ne!(open(Arc::new(recorder.now().clone()), false, 3).data_write_guid(), data_write);
    }
}
