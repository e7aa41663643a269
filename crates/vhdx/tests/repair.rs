//! Headers that are numbered anew: what a power cut leaves at any step.

mod support;

use std::sync::Arc;

use lunway_vhdx::crash::Recorder;
use lunway_vhdx::format::Header;
use lunway_vhdx::{DiskKind, Storage};
use support::*;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

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
