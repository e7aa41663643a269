//! Crashes at the steps of a recording.

use lunway_crash::Directory;

use super::{Random, amount};

/// What a crash behind so many steps leaves; an odd `kind` is a kill, an even one a power cut.
pub(crate) fn crashed(directory: &Directory, steps: usize, kind: u64, random: &mut Random) -> Directory {
    if kind % 2 == 1 {
        return directory.after_kill(steps);
    }
    let choice = random.next();
    let mut bits = Random::new(random.next());
    // Everything, nothing, or any part of what was not durable.
    let share = random.next() % 3;
    directory.after_power_cut(
        steps,
        || match share {
            0 => false,
            1 => !bits.next().is_multiple_of(8),
            _ => bits.next().is_multiple_of(2),
        },
        |states| (choice % states as u64) as usize,
    )
}

/// Steps at which a recording is cut: all of them, or where there are many a part that another seed changes.
pub(crate) fn cuts(directory: &Directory, seed: u64) -> impl Iterator<Item = usize> + use<> {
    let all = directory.steps();
    let stride = (all / amount("LUNWAY_BACKUP_CUTS", 20) as usize).max(1);
    println!("{all} steps, each {stride}th");
    (0..=all).skip(seed as usize % stride).step_by(stride)
}
