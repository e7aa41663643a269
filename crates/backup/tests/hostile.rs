//! Destinations that nobody made in good faith.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fuzzed/folder.rs"]
mod fuzzed;
mod support;

use std::fs;

use fuzzed::Kind;
use lunway_backup::{Catalogue, Folder, HostFolder};
use std::sync::Arc;
use support::{MIB, Random, Source, amount, restored};

#[test]
fn files_with_any_part_replaced_never_panic() {
    let first = amount("LUNWAY_BACKUP_HOSTILE_FIRST_SEED", 0);
    for seed in first..first + amount("LUNWAY_BACKUP_HOSTILE_SEEDS", 150) {
        let mut random = Random::new(seed);
        let kind = [Kind::Manifest, Kind::Leaves, Kind::Journal][seed as usize % 3];
        let mut input = Vec::new();
        for _ in 0..1 + random.next() % 3 {
            let len = 1 + random.next() as u8 % 8;
            let place = random.next() as u16 % if random.next().is_multiple_of(2) { 128 } else { 4096 };
            let [low, high] = place.to_le_bytes();
            input.extend([random.next() as u8, low, high, len | random.next() as u8 & 0xC0]);
            let digits = b"0123456789\",:{}[]null-";
            input.extend((0..len).map(|_| match kind {
                Kind::Leaves => [0, 1, 0xFF, random.next() as u8][(random.next() % 4) as usize],
                Kind::Manifest | Kind::Journal => digits[random.next() as usize % digits.len()],
            }));
        }
        let result = std::panic::catch_unwind(|| fuzzed::run(kind, &input));
        assert!(result.is_ok(), "seed {seed}: {kind:?} {input:?}");
    }
}

#[test]
fn a_point_that_leads_out_of_the_folder_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let inside = place.path().join("dest");
    fs::create_dir(&inside).unwrap();
    let folder: Arc<dyn Folder> = Arc::new(HostFolder::open(&inside).unwrap());
    let mut source = Source::new(MIB);
    source.change(&mut Random::new(1), 5);
    let first = source.back_up(&folder, false, 1).unwrap().manifest;
    source.change(&mut Random::new(2), 5);
    let second = source.back_up(&folder, false, 2).unwrap().manifest;
    // The parent lies elsewhere, and a link leads there.
    let disk = format!("{:06}-{}.vhdx", first.generation, first.point);
    fs::rename(inside.join(&disk), place.path().join(&disk)).unwrap();
    let missing = restored(&folder, second.point).unwrap_err().to_string();
    assert!(missing.contains("is missing"), "{missing}");
    std::os::unix::fs::symlink(place.path().join(&disk), inside.join(&disk)).unwrap();
    let refused = restored(&folder, second.point).unwrap_err().to_string();
    assert!(refused.contains("not a regular file"), "{refused}");
    for name in ["../x", "/etc/passwd", "a/b", ".hidden", "", "a\\b"] {
        assert!(folder.open(name, false).is_err(), "{name}");
        assert!(folder.create(name).is_err(), "{name}");
    }
}

#[test]
fn points_that_lie_on_each_other_in_a_circle_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(HostFolder::open(place.path()).unwrap());
    let mut source = Source::new(MIB);
    source.write(0, &[1; 512]);
    let first = source.back_up(&folder, false, 1).unwrap().manifest;
    source.write(0, &[2; 512]);
    let second = source.back_up(&folder, false, 2).unwrap().manifest;
    for name in ["json", "copy.json"] {
        let path = place.path().join(format!("{:06}-{}.{name}", first.generation, first.point));
        let text = fs::read_to_string(&path).unwrap();
        let body = text.split_once('\n').unwrap().1;
        let body = body.replace("\"parent\": null", &format!("\"parent\": \"{}\"", second.point));
        let body = body.replace("\"kind\": \"full\"", "\"kind\": \"increment\"");
        let text = format!("{{\"blake3\":\"{}\",\n{body}", blake3::hash(body.as_bytes()).to_hex());
        fs::remove_file(&path).unwrap();
        fs::write(&path, text).unwrap();
    }
    let catalogue = Catalogue::load(&*folder).unwrap();
    assert_eq!(catalogue.points().len(), 2);
    let refused = catalogue.chain(second.point).unwrap_err().to_string();
    assert!(refused.contains("does not fit"), "{refused}");
    fuzzed::exercise(&folder);
}
