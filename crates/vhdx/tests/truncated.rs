//! Files that another program has cut. Before, the next write made the file longer again, what was lost read as zeroes,
//! and a check found nothing.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::support::*;
use lunway_vhdx::check::check;
use lunway_vhdx::crash::MemoryStorage;
use lunway_vhdx::{
    AnomalySeverity, Chain, DiscardMode, Disk, DiskError, DiskKind, EditError, Measured, Resize, Storage,
    Structure, VhdxOpenError, VhdxOpenOptions, pack, repair, resize, set_identity,
};

const BLOCKS: u64 = 8;
const BLOCK: usize = MIB as usize;

type File = Arc<MemoryStorage>;

fn file(kind: DiskKind) -> File {
    Arc::new(memory(&options(kind, BLOCKS * MIB, 1 << 20, 512), 1))
}

/// What block `number` of a filled disk holds.
fn data(number: u64) -> Vec<u8> {
    vec![number as u8 + 1; BLOCK]
}

fn fill(chain: &Chain<File>) {
    for number in 0..BLOCKS {
        chain.write_at(number * MIB, &data(number)).expect("a write");
    }
    chain.flush().expect("a flush");
}

/// A filled file, closed.
fn filled(kind: DiskKind) -> File {
    let file = file(kind);
    let chain = alone(open(file.clone(), true, 2));
    fill(&chain);
    chain.close().expect("a close");
    file
}

/// Cuts `cut` bytes off, and says what is left.
fn cut(file: &MemoryStorage, cut: u64) -> u64 {
    file.resize(file.size() - cut);
    file.size()
}

fn read(chain: &Chain<File>, number: u64) -> Result<Vec<u8>, DiskError> {
    let mut bytes = vec![0xEE; BLOCK];
    chain.read_at(number * MIB, &mut bytes).map(|()| bytes)
}

/// Each block is what it was or an error, and how many are errors.
fn lost_blocks(chain: &Chain<File>) -> u64 {
    let mut lost = 0;
    for number in 0..BLOCKS {
        match read(chain, number) {
            Ok(bytes) => assert!(bytes == data(number), "block {number} reads as something else"),
            Err(DiskError::Lost(at)) => {
                assert_eq!(at / MIB, number);
                lost += 1;
            }
            Err(error) => panic!("block {number}: {error}"),
        }
    }
    lost
}

#[test]
fn nothing_that_an_open_disk_does_brings_back_what_was_cut_as_zeroes() {
    for kind in [DiskKind::Dynamic, DiskKind::Fixed] {
        let file = file(kind);
        let chain = alone(open(file.clone(), true, 2));
        fill(&chain);
        // The file has some megabytes more than its blocks, for those to come.
        let end = chain.disks()[0].taken();
        file.resize(end - 2 * MIB - MIB / 2);
        let left = file.size();
        assert_eq!(lost_blocks(&chain), 3);
        let first = (0..BLOCKS).find(|number| read(&chain, *number).is_err()).expect("a lost one");
        assert_eq!(read(&chain, first), Err(DiskError::Lost(first * MIB + MIB / 2)), "to the byte");
        for number in first..BLOCKS {
            let at = number * MIB + MIB - 512;
            assert_eq!(chain.write_at(at, &[9; 512]), Err(DiskError::Lost(at)), "{kind:?} {number}");
            for mode in [DiscardMode::Unmap, DiscardMode::Zero, DiscardMode::ZeroKeepSpace] {
                if kind == DiskKind::Fixed && mode == DiscardMode::Unmap {
                    continue;
                }
                let discarded = chain.discard(number * MIB + 512, MIB - 512, mode);
                assert_eq!(discarded, Err(DiskError::Lost(number * MIB + 512)), "{kind:?} {number} {mode:?}");
            }
            assert_eq!(file.size(), left);
        }
        // What is there goes on, but nobody vouches for what was written before.
        chain.write_at(0, &data(0)).expect("a write");
        let error = chain.flush().expect_err("a flush").to_string();
        assert!(error.contains("another program has cut it"), "{error}");
        let refused = chain.write_at(0, &data(0)).expect_err("after a failed flush").to_string();
        assert!(refused.contains("another program has cut it"), "{refused}");
        assert_eq!(lost_blocks(&chain), 3);
        chain.close().expect_err("a close");
        assert_eq!(file.size(), left, "{kind:?}");
        let report = check(&file);
        assert_eq!(report.worst(), Some(AnomalySeverity::Loss), "{kind:?}: {:?}", report.findings);
    }
}

#[test]
fn a_disk_that_needs_space_does_not_lengthen_a_file_that_was_cut() {
    let file = Arc::new(memory(&options(DiskKind::Dynamic, 80 * MIB, 1 << 20, 512), 1));
    let chain = alone(open(file.clone(), true, 2));
    let mut blocks = 0;
    // Until the file has no room for another one.
    while blocks == 0 || chain.disks()[0].free() > 0 {
        chain.write_at(blocks * MIB, &data(blocks)).expect("a write");
        blocks += 1;
    }
    let left = cut(&file, 4096);
    let at = blocks * MIB;
    assert_eq!(chain.write_at(at, &data(0)), Err(DiskError::Lost(at)));
    assert_eq!(file.size(), left);
    chain.flush().expect_err("a flush");
    assert_eq!(file.size(), left);
}

#[test]
fn a_disk_that_nobody_has_changed_says_at_its_flush_and_its_end_what_it_has_lost() {
    let file = filled(DiskKind::Dynamic);
    let chain = alone(open(file.clone(), true, 3));
    chain.flush().expect("a flush");
    let left = cut(&file, 1);
    chain.flush().expect_err("a flush");
    chain.close().expect_err("a close");
    assert_eq!(file.size(), left);
}

#[test]
fn packing_moves_no_block_that_is_not_there() {
    let file = file(DiskKind::Dynamic);
    let chain = alone(open(file.clone(), true, 2));
    fill(&chain);
    chain.discard(0, 3 * MIB, DiscardMode::Unmap).expect("a discard");
    chain.flush().expect("a flush");
    let end = chain.disks()[0].taken() + 3 * MIB;
    file.resize(end - 4096);
    let left = file.size();
    let packed = pack::pack(&chain.disks()[0], &mut |_| ControlFlow::Continue(()));
    assert!(
        matches!(packed, Err(DiskError::Storage { kind: std::io::ErrorKind::UnexpectedEof, .. })),
        "{packed:?}"
    );
    let last = read(&chain, BLOCKS - 1);
    assert!(matches!(last, Err(DiskError::Lost(_))), "{last:?}");
    assert_eq!(file.size(), left);
}

#[test]
fn a_file_that_was_cut_opens_for_reading_alone_until_it_is_repaired() {
    for kind in [DiskKind::Dynamic, DiskKind::Fixed] {
        let file = filled(kind);
        let left = cut(&file, MIB + 4096);
        let refused = match Disk::open(file.clone(), &VhdxOpenOptions::writable(), guids(3)) {
            Err(VhdxOpenError::Lost { problem, .. }) => problem,
            other => panic!("{:?}", other.err()),
        };
        assert!(refused.contains("1052672 bytes of data are lost in all"), "{refused}");
        for error in [
            resize(&file, &Resize { size: MIB, parent_size: None, data_write: None }, guids(4).as_mut()),
            set_identity(&file, &lunway_vhdx::IdentityChange::default(), guids(4).as_mut()),
        ] {
            assert!(matches!(error, Err(EditError::Open(VhdxOpenError::Lost { .. }))), "{error:?}");
        }
        assert_eq!(file.size(), left);
        let report = check(&file);
        assert_eq!((report.worst(), report.counts.lost), (Some(AnomalySeverity::Loss), MIB + 4096));
        let places: Vec<Structure> = report.findings.iter().map(|finding| finding.place).collect();
        assert_eq!(places, [Structure::Block(BLOCKS - 2), Structure::Block(BLOCKS - 1)]);
        let chain = alone(open(file.clone(), false, 5));
        assert_eq!((chain.disks()[0].lost(), lost_blocks(&chain)), (MIB + 4096, 2));

        let repairs = repair(&file, guids(6).as_mut()).expect("a repair");
        assert_eq!((repairs.lengthened, repairs.lost), (MIB + 4096, MIB + 4096));
        assert_eq!(file.size(), left + MIB + 4096);
        assert_eq!(check(&file).findings, []);
        let chain = alone(open(file.clone(), true, 7));
        let whole = read(&chain, BLOCKS - 2).expect("a read");
        assert!(whole[..BLOCK - 4096] == data(BLOCKS - 2)[4096..] && whole[BLOCK - 4096..] == [0; 4096]);
        assert!(read(&chain, BLOCKS - 1).expect("a read") == vec![0; BLOCK]);
        chain.write_at(7 * MIB, &data(7)).expect("a write");
        chain.close().expect("a close");
    }
}

/// A file as a kill leaves it: with a log.
fn killed() -> (File, u64) {
    let file = file(DiskKind::Dynamic);
    let chain = alone(open(file.clone(), true, 2));
    fill(&chain);
    let end = chain.disks()[0].taken();
    let left = Arc::new((*file).clone());
    (left, end)
}

#[test]
fn a_log_of_a_file_that_was_cut_is_not_replayed_until_it_is_repaired() {
    let (file, end) = killed();
    let had = file.size();
    file.resize(end - MIB);
    for options in [VhdxOpenOptions::read_only(), VhdxOpenOptions::writable()] {
        let error = Disk::open(file.clone(), &options, guids(3)).err();
        assert!(matches!(error, Some(VhdxOpenError::Lost { place: Structure::Log, .. })), "{error:?}");
    }
    assert_eq!(file.size(), end - MIB);
    assert_eq!(check(&file).worst(), Some(AnomalySeverity::Loss));
    let repairs = repair(&file, guids(4).as_mut()).expect("a repair");
    assert_eq!((repairs.log_replayed, repairs.lost, repairs.lengthened), (true, MIB, had - (end - MIB)));
    let chain = alone(open(file, true, 5));
    let zeroes = (0..BLOCKS).filter(|number| read(&chain, *number) == Ok(vec![0; BLOCK])).count();
    let kept = (0..BLOCKS).filter(|number| read(&chain, *number) == Ok(data(*number))).count();
    assert_eq!((zeroes, kept), (1, BLOCKS as usize - 1));
}

#[test]
fn a_replay_in_memory_shows_no_zeroes_where_the_file_was_cut_since() {
    let (file, end) = killed();
    let chain = alone(open(file.clone(), false, 3));
    assert_eq!(lost_blocks(&chain), 0);
    file.resize(end - 2 * MIB);
    assert_eq!(lost_blocks(&chain), 2);
    // The table itself.
    let chain = alone(open(killed().0, false, 3));
    chain.disks()[0].storage().resize(3 * MIB);
    assert_eq!(read(&chain, 0), Err(DiskError::Lost(0)));
}

#[test]
fn structures_and_bitmaps_that_are_lost_are_not_made_of_zeroes() {
    let parent = filled(DiskKind::Dynamic);
    let child = Arc::new(memory(&child_options(&open(parent.clone(), false, 2), BLOCKS * MIB, 1 << 20), 3));
    let chain =
        Chain::new(vec![open(child.clone(), true, 4), open(parent.clone(), false, 5)]).expect("a chain");
    chain.write_at(4096, &[99; 4096]).expect("a write");
    chain.close().expect("a close");
    // The bitmap block lies before its payload block, or behind it: both are cut.
    child.resize(child.size() - 2 * MIB);
    let report = check(&child);
    assert!(
        report.findings.iter().any(|finding| finding.place == Structure::Bitmap(0)),
        "{:?}",
        report.findings
    );
    let left = child.size();
    let opened = Disk::open(child.clone(), &VhdxOpenOptions::writable(), guids(6));
    let error = opened.err().expect("it is refused").to_string();
    assert!(error.contains("lunway disk repair cannot"), "no advice that is refused: {error}");
    let error = repair(&child, guids(6).as_mut()).expect_err("a repair").to_string();
    assert!(error.contains("zeroes cannot stand for it"), "{error}");
    assert_eq!(child.size(), left);
    // What does not need it is still there.
    let chain = Chain::new(vec![open(child, false, 7), open(parent, false, 8)]).expect("a chain");
    assert!(matches!(read(&chain, 0), Err(DiskError::Lost(_))));
    assert_eq!(read(&chain, 1), Ok(data(1)));

    // The table, of a file with a log and of one without.
    let (killed, closed) = (killed().0, filled(DiskKind::Dynamic));
    for file in [killed, closed] {
        file.resize(3 * MIB + 4096);
        let error = repair(&file, guids(6).as_mut()).expect_err("a repair");
        assert!(
            matches!(error, EditError::Open(VhdxOpenError::Lost { place: Structure::Bat, .. })),
            "{error}"
        );
        assert_eq!((file.size(), check(&file).worst()), (3 * MIB + 4096, Some(AnomalySeverity::Loss)));
    }
}

#[test]
fn a_parent_that_was_cut_fails_what_only_it_has() {
    let parent = filled(DiskKind::Dynamic);
    let child = Arc::new(memory(&child_options(&open(parent.clone(), false, 2), BLOCKS * MIB, 1 << 20), 3));
    let chain = Chain::new(vec![open(child, true, 4), open(parent.clone(), false, 5)]).expect("a chain");
    chain.write_at(7 * MIB, &data(7)).expect("a write");
    cut(&parent, 2 * MIB);
    assert_eq!(read(&chain, 7), Ok(data(7)));
    assert_eq!(read(&chain, 6), Err(DiskError::Lost(6 * MIB)));
    assert_eq!(read(&chain, 5), Ok(data(5)));
    chain.close().expect("the child is whole");
}

/// A change of a closed file, during which the file is cut.
#[test]
fn a_transaction_does_not_lengthen_a_file_that_is_cut_meanwhile() {
    let file = filled(DiskKind::Dynamic);
    let measured = Measured::new(file.clone()).expect("memory");
    let left = cut(&file, MIB);
    let to = Resize { size: 4096 * BLOCKS * MIB, parent_size: None, data_write: None };
    resize(&measured, &to, guids(3).as_mut()).expect_err("a resize");
    assert!(measured.set_len(64 * MIB).is_err());
    assert_eq!(file.size(), left);
}
