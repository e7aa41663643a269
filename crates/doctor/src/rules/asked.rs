//! Rules that no program can check: asked once, and remembered.

use lunway_block::Severity;

use super::{Group, Rule};
use crate::facts::Facts;
use crate::verdict::{Outcome, Verdict};

macro_rules! question {
    ($id:literal, $title:literal, $severity:ident, $applies:literal, $why:literal, $source:literal, $thumbs:expr, $fix:literal) => {
        Rule {
            id: $id,
            group: Group::Asked,
            title: $title,
            severity: Severity::$severity,
            applies: $applies,
            why: $why,
            source: $source,
            thumbs: $thumbs,
            fix: $fix,
            undo: "",
            check: |facts| answered(facts, $id),
        }
    };
}

pub(super) const RULES: &[Rule] = &[
    question!(
        "asked-ups",
        "Storage and switches run on an uninterruptible power supply",
        Warning,
        "every set-up",
        "with write-back caches and without a UPS, a power cut loses acknowledged writes (no published figure)",
        "rules of thumb 16, 20 and 21",
        &[16, 20, 21],
        "install a UPS that shuts the storage down, or switch write-back caches off"
    ),
    question!(
        "asked-vendor",
        "The storage vendor's guide for this operating system was followed",
        Warning,
        "every set-up",
        "vendors contradict each other: fast_io_fail_tmo is 5 s for one and 25 s for another",
        "rule of thumb 1",
        &[1],
        "read the guide; mute the rules that it contradicts: lunway doctor --mute ID"
    ),
    question!(
        "asked-module",
        "The vendor's multipath module is installed and current, if there is one",
        Warning,
        "every set-up",
        "one vendor's module wrote 55 % faster and read 34 % slower than one path: choose it deliberately",
        "published tests of multipath topologies, test G; rule of thumb 2",
        &[2],
        "install the vendor's module, or none on purpose"
    ),
    question!(
        "asked-firmware",
        "Firmware of cards, switches and storage, and drivers, are current",
        Warning,
        "every set-up",
        "known faults remain (no published figure)",
        "rules of thumb 12 and 17",
        &[12, 17],
        "update, one side of a redundant pair at a time"
    ),
    question!(
        "asked-subnets",
        "The vendor's subnet guidance was followed: one subnet for each storage port, or one in all",
        Warning,
        "every set-up",
        "most vendors want a subnet for each port, EqualLogic wants one in all: the wrong one makes lanes unreachable (no \
         published figure)",
        "rule of thumb 3",
        &[3],
        "read the guide, and give ports their addresses by it"
    ),
    question!(
        "asked-edge",
        "The switches' storage ports are edge ports of the spanning tree",
        Warning,
        "every set-up",
        "a port that listens and learns is silent for 30 to 50 s after each link up: longer than multipath waits",
        "IEEE 802.1D §17; rule of thumb 22",
        &[22],
        "spanning-tree portfast on the switch's storage ports"
    ),
    question!(
        "asked-pull",
        "A cable was pulled under load, and nothing was lost",
        Warning,
        "every set-up",
        "redundancy that was never tested may not work (no published figure)",
        "rule of thumb 22",
        &[22],
        "pull a cable under load, and look: lunway paths DEVICE --watch"
    ),
    question!(
        "asked-blocks",
        "Block, cluster and sector sizes fit the work: 64 KiB and more for images of virtual machines",
        Note,
        "every set-up",
        "small clusters scatter large files over the disk (no published figure)",
        "rule of thumb 18",
        &[18],
        "format with 64 KiB clusters before first use"
    ),
];

/// A question that was not answered is unknown; "no" breaks the rule.
fn answered(facts: &Facts, id: &str) -> Vec<Outcome> {
    let Some(answers) = &facts.answers else { return Vec::new() };
    vec![match answers.get(id) {
        Some(yes) => {
            let what = if *yes { "answered: yes" } else { "answered: no" };
            Outcome::judged(*yes, Verdict::Warn, "answers", what)
        }
        None => {
            Outcome::unknown("answers", format!("no program can see it; answer with --answer {id}=yes or no"))
        }
    }]
}
