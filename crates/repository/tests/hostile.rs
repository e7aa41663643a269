//! Repositories that were not made in good faith.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fuzzed/repository.rs"]
mod fuzzed;
mod kit;

use fuzzed::Kind;
use kit::{Random, amount};

#[test]
fn files_with_any_part_replaced_never_panic() {
    let first = amount("LUNWAY_BACKUP_HOSTILE_FIRST_SEED", 0);
    for seed in first..first + amount("LUNWAY_BACKUP_HOSTILE_SEEDS", 60) {
        let mut random = Random::new(seed);
        let kind = [Kind::Pack, Kind::Index, Kind::Point, Kind::Tree][seed as usize % 4];
        let mut input = Vec::new();
        if kind == Kind::Tree {
            input.push(random.next() as u8 % 16);
            for _ in 0..2 + random.next() % 6 {
                let count = 1 + random.next() as u8 % 31;
                input.push(count | random.next() as u8 & 0xC0);
                input.extend((0..count).map(|_| random.next() as u8 % 8));
            }
        }
        for _ in 0..1 + random.next() % 3 {
            let len = 1 + random.next() as u8 % 8;
            let place = random.next() as u16 % if random.next().is_multiple_of(2) { 128 } else { 4096 };
            let [low, high] = place.to_le_bytes();
            input.extend([random.next() as u8, low, high, len | random.next() as u8 & 0xC0]);
            let digits = b"0123456789\",:{}[]null-";
            input.extend((0..len).map(|_| match kind {
                Kind::Pack | Kind::Index => [0, 1, 0xFF, random.next() as u8][(random.next() % 4) as usize],
                Kind::Point | Kind::Tree => digits[random.next() as usize % digits.len()],
            }));
        }
        let result = std::panic::catch_unwind(|| fuzzed::run(kind, &input));
        assert!(result.is_ok(), "seed {seed}: {kind:?} {input:?}");
    }
}
