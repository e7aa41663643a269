//! The retry rules against storage that remembers late writes: thousands of schedules, each from a seed.
//!
//! - `LUNWAY_SCHEDULES`: how many schedules, 2,000 if not said.
//! - `LUNWAY_SEED`: this one alone. A failure says which it was.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod client;
mod lane;
mod oracle;
mod random;
mod storage;
mod world;

use std::time::Duration;

use world::{Config, Late, SETTLE, World};

/// A schedule's seed decides what kind it is.
fn config_of(seed: u64) -> Config {
    let (kind, hurries) = (seed % 5, seed % 8 < 4);
    Config {
        long_outages: kind == 3,
        restarts: kind == 1 || kind == 2 || seed % 10 == 4,
        power_on_always: kind == 2,
        hurries,
        unproven: (kind == 4).then_some(IN_TIME),
        ..Config::default()
    }
}

/// What is under way at a loss arrives before the device goes on without proof; clocks count milliseconds.
const IN_TIME: Late = Late { most: SETTLE.saturating_sub(Duration::from_millis(5)) };

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[test]
fn nothing_is_lost_torn_stale_or_reordered_whatever_happens_to_lanes() {
    if let Some(seed) = setting("LUNWAY_SEED") {
        let outcome =
            World::run(seed, config_of(seed)).unwrap_or_else(|what| panic!("LUNWAY_SEED={seed}: {what}"));
        eprintln!("{outcome:?}");
        return;
    }
    let schedules = setting("LUNWAY_SCHEDULES").unwrap_or(2_000);
    let (mut late, mut failed, mut restarts, mut barriers) = (0, 0, 0, 0);
    for seed in 0..schedules {
        match World::run(seed, config_of(seed)) {
            Ok(outcome) => {
                late += outcome.late;
                failed += outcome.failed;
                restarts += outcome.restarts;
                barriers += outcome.barriers;
            }
            Err(what) => panic!("LUNWAY_SEED={seed}: {what}"),
        }
    }
    eprintln!(
        "{schedules} schedules, {late} late writes, {failed} operations refused, {restarts} restarts, {barriers} barriers"
    );
    // Where nothing comes late nothing is shown.
    if schedules >= 1000 {
        assert!(late > schedules / 2 && failed > 0 && restarts > schedules / 2, "{late} {failed} {restarts}");
        assert!(barriers > schedules / 10, "{barriers}");
    }
}

/// With writes retained nothing may be lost: whether the storage tells that its power was off, tells it always, or
/// never.
fn retaining_config_of(seed: u64) -> Config {
    Config {
        retains: true,
        restarts: true,
        long_outages: seed % 7 == 3,
        power_on_always: seed % 3 == 1,
        power_on_never: seed % 3 == 2,
        hurries: seed % 8 < 4,
        unproven: (seed % 5 == 4).then_some(IN_TIME),
        ..Config::default()
    }
}

#[test]
fn what_is_retained_lives_through_every_loss_of_power_and_no_flush_fails_for_one() {
    let seeds = match setting("LUNWAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("LUNWAY_SCHEDULES").unwrap_or(2_000),
    };
    let (mut schedules, mut restarts) = (0, 0);
    for seed in seeds {
        match World::run(seed, retaining_config_of(seed)) {
            Ok(outcome) => restarts += outcome.restarts,
            Err(what) => panic!("LUNWAY_SEED={seed}: {what}"),
        }
        schedules += 1;
    }
    eprintln!("{schedules} schedules, {restarts} restarts");
    if schedules >= 1000 {
        assert!(restarts > schedules / 2, "{restarts}");
    }
}

#[test]
fn a_seed_repeats_its_schedule() {
    for seed in 0..20 {
        for config in [config_of(seed), retaining_config_of(seed)] {
            assert_eq!(World::run(seed, config), World::run(seed, config), "seed {seed}");
        }
    }
}

/// How many schedules it takes to find something wrong.
fn schedules_until_found(config: Config) -> Option<u64> {
    let found = (0..500).find_map(|seed| World::run(seed, config).err().map(|what| (seed, what)));
    eprintln!("{found:?}");
    found.map(|(seed, _)| seed)
}

#[test]
fn a_lane_that_settles_too_early_is_found_out() {
    let config = Config { settles_too_early: true, ..Config::default() };
    assert!(schedules_until_found(config).is_some());
}

/// So that what the next two find is their own doing.
#[test]
fn without_proof_nothing_is_wrong_as_long_as_what_is_late_comes_in_time() {
    assert_eq!(schedules_until_found(Config { unproven: Some(IN_TIME), ..Config::default() }), None);
}

#[test]
fn what_comes_later_than_the_device_waits_is_found_out() {
    let config = Config { unproven: Some(Late { most: 4 * SETTLE }), ..Config::default() };
    assert!(schedules_until_found(config).is_some());
}

#[test]
fn a_barrier_that_does_not_wait_for_older_commands_is_found_out() {
    let config = Config { unproven: Some(IN_TIME), barriers_leak: true, ..Config::default() };
    assert!(schedules_until_found(config).is_some());
}

#[test]
fn storage_that_does_not_tell_that_its_power_was_off_is_found_out() {
    let config = Config { restarts: true, power_on_never: true, ..Config::default() };
    assert!(schedules_until_found(config).is_some());
}
