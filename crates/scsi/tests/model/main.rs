//! The device server against a simple model of a disk: random commands from several nexuses, every answer compared.
//!
//! A run is a number of episodes, each with new disks and a seed of its own. The first difference is reported as its
//! seed and the shortest sequence of steps that still shows it.
//!
//! - `LUNWAY_MODEL_STEPS`: how many steps, 60,000 if not said.
//! - `LUNWAY_MODEL_SEED`: where the seeds begin; a reported seed alone repeats its episode.

mod answer;
mod attention;
mod copy;
mod device;
mod disk;
mod episode;
mod generator;
mod history;
mod later;
mod layout;
mod mode;
mod random;
mod reservation;
mod step;
mod tally;
mod together;
mod unit;
mod world;

use std::time::Instant;

use crate::episode::Episode;
use crate::layout::LAYOUTS;
use crate::tally::Tally;
use crate::together::Together;

/// Where seeds begin when nobody says so: a failure in CI shall be seen again by whoever looks for it.
const SEED: u64 = 1;

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

#[test]
fn a_disk_answers_random_commands_of_several_nexuses_as_the_model_says() {
    let steps = setting("LUNWAY_MODEL_STEPS", 60_000);
    let start = Instant::now();
    let (mut seed, mut done) = (setting("LUNWAY_MODEL_SEED", SEED), 0);
    let mut tally = Tally::default();
    while done < steps {
        let count = Episode::STEPS.min(steps - done);
        match Episode::new(seed).run(count) {
            Ok(ends) => tally.add(&ends),
            Err(difference) => panic!("{difference}"),
        }
        done += count;
        seed += 1;
    }
    // Commands that are always refused would agree with any model.
    if done >= 60_000 {
        for layout in LAYOUTS {
            let ends = tally.0.get(&(layout.fields[0], layout.action));
            assert!(ends.is_some_and(|&(well, _)| well > 0), "{layout:?}: {ends:?}");
        }
    }
    eprintln!("{done} steps, no difference, {:.1} s", start.elapsed().as_secs_f64());
}

/// COMPARE AND WRITE, ORWRITE, WRITE ATOMIC and WRITE AND VERIFY happen at one moment for all others; the rest block by
/// block.
#[test]
fn commands_at_the_same_time_are_answered_as_if_they_came_in_some_order() {
    // A burst is ten commands, and their orders take their time.
    let bursts = setting("LUNWAY_MODEL_STEPS", 60_000) / 40;
    let start = Instant::now();
    let seed = setting("LUNWAY_MODEL_SEED", SEED);
    for seed in seed..seed + bursts.div_ceil(10) {
        let mut together = Together::new(seed);
        for _ in 0..10 {
            together.burst().unwrap_or_else(|what| panic!("LUNWAY_MODEL_SEED={seed}: {what}"));
        }
    }
    eprintln!("{bursts} bursts explained, {:.1} s", start.elapsed().as_secs_f64());
}
