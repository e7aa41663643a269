//! Which fixes are run, and why the others are not.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use lunway_doctor::RULES;

/// Where a fix is run: there its rule is broken, told, fixed by the command, and broken again by the undo.
enum Run {
    /// By a daemon that serves, where its capitals are filled in: `crates/cli/tests/doctor/daemon.rs`.
    Daemon,
    /// In the virtual machine, by the shell that starts doctor: `tests/kernel/doctor.test.sh`.
    Process,
    /// By systemctl on a folder with the unit: `crates/cli/tests/doctor/fixes.rs`.
    Units,
    /// It shows what to look at, and is run where its rule is broken: `crates/cli/tests/doctor/neighbours.rs`.
    Shown,
    /// In a network namespace: `crates/cli/tests/doctor/main.rs`.
    Namespace,
    /// By a virtual card in a network namespace: `crates/cli/tests/doctor/cards.rs`.
    VirtualCard,
    /// By no card that tests have. ethtool takes the command, and its kernel says that the card cannot do it: the same
    /// file.
    Parsed,
    /// On a file system on a loop device, which has no way back to its fault: `crates/cli/tests/doctor/ended.rs`.
    LoopDevice,
    /// On such a file system, by hand: it says what to do. `crates/cli/tests/doctor/owner_quota.rs`.
    LoopByHand,
    /// In the virtual machine: `tests/kernel/doctor.test.sh`.
    Guest,
    /// There as well, and by hand: it says what to do.
    ByHand,
    /// There as well, and both ends are judged together.
    BothEnds,
    /// By no Windows, but a model of what Microsoft's reference says of the cmdlets:
    /// `crates/doctor/tests/matrix/windows.rs`.
    Model,
    /// Nowhere: the fix …
    Not(&'static str),
}
use Run::{
    BothEnds, ByHand, Daemon, Guest, LoopByHand, LoopDevice, Model, Namespace, Not, Parsed, Process, Shown,
    Units, VirtualCard,
};

const HAND: &str = "is manual work on a cable, a card or a disk";
const DATA: &str = "moves, removes or restores data, or adds disks, as its administrator decides";
const NAMES: &str = "needs a name, an address or a device that its administrator chooses";
const ARRAY: &str = "changes an array of disks, and no machine of a test has one";
const ELSEWHERE: &str = "is done on another machine";
const QUESTION: &str =
    "is a question: the answer turns it, in `a_rule_is_muted_and_a_question_answered_once_is_remembered`";
const LOOK: &str = "says what to check, because the finding can have several causes";
const PLAN: &str = "follows the plan of lanes: an address, a portal or a cable";

const FIXES: &[(&str, Run)] = &[
    ("port-carrier", Namespace),
    ("port-mtu", Namespace),
    ("port-speed", VirtualCard),
    ("port-duplex", VirtualCard),
    ("port-pause", Parsed),
    ("port-energy", Parsed),
    ("port-coalesce", Parsed),
    ("port-negotiation", VirtualCard),
    ("port-ring", Parsed),
    ("port-offload", VirtualCard),
    ("port-errors", Not(HAND)),
    ("port-team", Not("needs the kernel's bonding driver")),
    ("port-shared-card", Not(HAND)),
    (
        "port-interrupts",
        Not("needs a card with several queues: a virtual one has no interrupts, and QEMU's has one queue"),
    ),
    ("subnet-overlap", Namespace),
    ("arp-ignore", Namespace),
    ("arp-announce", Namespace),
    ("reverse-path", Namespace),
    ("route-source", Namespace),
    ("route-router", Namespace),
    ("neighbour-answers", Shown),
    ("neighbour-owner", Shown),
    ("port-ipv6", Namespace),
    ("tcp-window", Namespace),
    (
        "tcp-limited",
        Not("needs a connection that waits for its window, on a link that is faster than this machine"),
    ),
    ("tcp-scaling", Namespace),
    ("tcp-sack", Namespace),
    (
        "session-state",
        Not("needs a session that the kernel has given up; map-paths tests the new login in the guest"),
    ),
    ("session-timeout", Guest),
    ("session-ping", Guest),
    ("session-record", Guest),
    ("session-segment", Guest),
    ("session-port", Not(NAMES)),
    ("initiator-depth", Guest),
    ("initiator-startup", Guest),
    ("initiator-sessions", Guest),
    ("initiator-name", Guest),
    ("chap-files", Guest),
    ("chap-length", ByHand),
    ("chap-mutual", ByHand),
    ("chap-algorithm", Guest),
    ("multipath-running", Units),
    ("multipath-policy", Guest),
    ("multipath-fast-fail", Guest),
    ("multipath-device-loss", Guest),
    ("multipath-all-lost", Guest),
    ("multipath-find", Guest),
    ("map-paths", Guest),
    ("map-disks", Not("needs a LUN number that was given to another disk while a host used it")),
    ("map-bare-path", Not(LOOK)),
    ("disk-scheduler", Guest),
    ("disk-random", Guest),
    ("disk-timeout", Guest),
    ("disk-request", Guest),
    ("disk-affinity", Guest),
    ("disk-queue", Guest),
    ("disk-read-ahead", Guest),
    ("disk-write-cache", Not("sets the cache of a real disk, and no disk of a test takes it")),
    ("disk-alignment", Not(DATA)),
    ("disk-smart", Not(DATA)),
    ("array-sectors", Not(ARRAY)),
    ("array-degraded", Not(ARRAY)),
    ("array-errors", Not(ARRAY)),
    ("array-superblock", Not(ARRAY)),
    ("array-busy", Not(ARRAY)),
    ("pool-full", Not(ARRAY)),
    ("mount-full", Not(DATA)),
    ("mount-inodes", Not(DATA)),
    ("mount-sync", Guest),
    ("mount-time", Guest),
    ("mount-read-only", LoopDevice),
    ("mount-errors", LoopDevice),
    ("mount-trim", Units),
    ("fstab-netdev", Guest),
    ("fstab-name", Guest),
    ("swap-iscsi", Guest),
    ("host-clock", Not("needs a bus to a systemd that keeps the clock of the whole machine")),
    ("host-io-uring", Not("applies to the whole machine; the guest's kernel 6.1 has no such setting")),
    ("host-open-files", Process),
    ("host-locked-memory", Process),
    ("host-stolen", Not(ELSEWHERE)),
    ("facts-whole", Not(LOOK)),
    ("host-quota", Not("sets the quota of a unit or a container that its administrator chooses")),
    ("host-governor", Not("needs a processor whose clock can be set")),
    ("kubernetes-module", Guest),
    ("kubernetes-initiator", Units),
    ("kubernetes-mounts", Namespace),
    ("kubernetes-multipath", Units),
    ("target-open", Daemon),
    ("target-closed", Daemon),
    ("target-secret", Daemon),
    ("target-name", Daemon),
    ("lun-offline", Not(DATA)),
    ("lun-lost-file", Daemon),
    ("lun-shrunk", Not(DATA)),
    ("portal-set", Not(NAMES)),
    ("portal-idle", Daemon),
    ("host-name-cloned", Not(ELSEWHERE)),
    ("host-lanes", Not(ELSEWHERE)),
    ("writers", Not("needs two hosts that write, and names that their administrator chooses")),
    ("digest-mixed", Not(ELSEWHERE)),
    ("session-keys", Not(ELSEWHERE)),
    ("session-alike", Not(ELSEWHERE)),
    ("session-aborts", Not(LOOK)),
    ("login-refused", Not(LOOK)),
    ("lun-serial", Not("takes two LUNs of one serial number, which the daemon refuses")),
    ("lun-store-twice", Not("takes two LUNs over one file, which the daemon refuses to open")),
    ("lun-sectors", Not("takes effect before a LUN is formatted")),
    ("store-full", Not(DATA)),
    ("store-quota", ByHand),
    ("store-owner-quota", LoopByHand),
    ("store-thin", Not(DATA)),
    ("store-forecast", Not(DATA)),
    ("backup-overdue", Not(LOOK)),
    ("backup-failing", Not(LOOK)),
    ("backup-destination", Not("mounts a share, or makes a folder, that its administrator chooses")),
    ("lun-unmap", Not(ELSEWHERE)),
    ("lun-failures", Not(LOOK)),
    ("lun-flush", Not(LOOK)),
    ("ends-login", BothEnds),
    ("ends-name", Not(ELSEWHERE)),
    ("ends-writers", Not(ELSEWHERE)),
    ("ends-digest", BothEnds),
    ("ends-timers", Not(ELSEWHERE)),
    ("ends-lanes", Not(ELSEWHERE)),
    ("ends-size", Not(ELSEWHERE)),
    ("lane-lun", Not(LOOK)),
    ("lane-subnet", Not(PLAN)),
    ("lane-balance", Not(PLAN)),
    ("lane-mesh", Not(PLAN)),
    ("lane-router", Not(PLAN)),
    ("lane-speed", Not(PLAN)),
    ("lane-overlap", Not(PLAN)),
    ("lane-mtu-ports", Not(PLAN)),
    ("lane-single", Not(PLAN)),
    ("lane-one-card", Not(PLAN)),
    ("lane-one-portal", Not(PLAN)),
    ("lane-address", Not(PLAN)),
    ("lane-carrier", Not(PLAN)),
    ("lane-answers", Not(LOOK)),
    ("lane-mtu", Not(LOOK)),
    (
        "lane-hops",
        Not(
            "is done at a cable, or on the machine between; a test has one: `crates/cli/tests/doctor/hops.rs`",
        ),
    ),
    ("lane-loss", Not(LOOK)),
    ("lane-mss", Not(LOOK)),
    ("lane-drops", Not(HAND)),
    ("lane-alike", Not(LOOK)),
    ("lane-slowest", Not(LOOK)),
    ("lane-owner", Not(ELSEWHERE)),
    ("lane-delayed", Not(LOOK)),
    ("lane-pull", Not(LOOK)),
    ("lane-return", Not(LOOK)),
    ("windows-verify", Model),
    ("windows-remove", Model),
    ("windows-retry", Model),
    ("windows-claim", Model),
    ("windows-policy", Model),
    ("windows-disk-timeout", Model),
    ("windows-initiator", Model),
    ("windows-ack", Model),
    ("windows-power", Model),
    ("windows-dns", Model),
    ("windows-bindings", Model),
    ("windows-mtu", Model),
    ("windows-sessions", Model),
    ("asked-ups", Not(QUESTION)),
    ("asked-vendor", Not(QUESTION)),
    ("asked-module", Not(QUESTION)),
    ("asked-firmware", Not(QUESTION)),
    ("asked-subnets", Not(QUESTION)),
    ("asked-edge", Not(QUESTION)),
    ("asked-pull", Not(QUESTION)),
    ("asked-blocks", Not(QUESTION)),
];

fn text(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

#[test]
fn every_fix_is_run_somewhere_or_the_table_says_why_not() {
    let listed: BTreeSet<_> = FIXES.iter().map(|(id, _)| *id).collect();
    let all: BTreeSet<_> = RULES.into_iter().flatten().map(|rule| rule.id).collect();
    assert_eq!(listed, all);
    assert_eq!(listed.len(), FIXES.len(), "a rule stands there twice");
    let namespace = text("crates/cli/tests/doctor/main.rs");
    let daemon = text("crates/cli/tests/doctor/daemon.rs");
    let cards = text("crates/cli/tests/doctor/cards.rs");
    let (taken, parsed) = cards.split_once("const PARSED").unwrap();
    let guest = text("tests/kernel/doctor.test.sh");
    let units = text("crates/cli/tests/doctor/fixes.rs");
    let neighbours = text("crates/cli/tests/doctor/neighbours.rs");
    let windows = text("crates/doctor/tests/matrix/windows.rs");
    let quotas = text("crates/cli/tests/doctor/owner_quota.rs");
    let ended = text("crates/cli/tests/doctor/ended.rs");
    for (id, run) in FIXES {
        let there = match run {
            Daemon => daemon.contains(&format!("\"{id}\",")),
            Process => guest.contains(&format!("\nlimit_of {id} ")),
            Units => units.contains(&format!("(\"{id}\", ")),
            Shown => neighbours.contains(&format!("&found, \"{id}\")")),
            LoopDevice => ended.contains(&format!("(\"{id} ")),
            LoopByHand => quotas.contains(&format!("\"{id}\"")),
            Namespace => namespace.contains(&format!("\"{id}\",")),
            VirtualCard => taken.contains(&format!("(\"{id}\", ")),
            Parsed => parsed.contains(&format!("(\"{id}\", ")),
            Guest => guest.contains(&format!("\nrule {id} ")),
            ByHand => ["\nby_hand {id} ", "check \"{id} is fixed by hand\""]
                .iter()
                .any(|words| guest.contains(&words.replace("{id}", id))),
            BothEnds => guest.contains(&format!("ends_fix {id}")),
            Model => windows.contains(&format!("(\"{id}\", ")),
            Not(why) => !why.is_empty(),
        };
        assert!(there, "{id} is not in the test that the table names");
    }
}

#[test]
fn the_page_of_fixes_is_what_the_table_says() {
    let mut page = "# Doctor: fixes that tests run\n\nFor each rule, a test breaks it, checks that [`lunway \
        doctor`](doctor.md) reports it and nothing else, runs the printed fix, checks the verdict, runs the \
        undo, and checks that the fault is reported again. A shell parses every fix and undo that is a command. Written by `LUNWAY_WRITE_DOCS=1 cargo test -p \
        lunway-doctor`.\n\n| rule | fix is run | undo |\n|---|---|---|\n"
        .to_owned();
    for rule in RULES.into_iter().flatten() {
        let Some((_, run)) = FIXES.iter().find(|(id, _)| *id == rule.id) else { continue };
        let how = match run {
            Daemon => "by a daemon that serves".to_owned(),
            Process => "in a virtual machine, by a shell with the limit".to_owned(),
            Units => "by systemctl, on a folder with the unit".to_owned(),
            Shown => "in a network namespace: it shows what to look at".to_owned(),
            Namespace => "in a network namespace".to_owned(),
            VirtualCard => "by a virtual card in a network namespace".to_owned(),
            Parsed => "not by a test: no card that tests have takes this setting. A test has ethtool parse the fix and the \
                undo, and the kernel answer that the card does not support them"
                .to_owned(),
            LoopDevice => "on a file system on a loop device".to_owned(),
            LoopByHand => "on a file system on a loop device, by hand: it is no command".to_owned(),
            Guest => "in a virtual machine with open-iscsi and dm-multipath".to_owned(),
            ByHand => "in a virtual machine with open-iscsi, by hand: it is no command".to_owned(),
            BothEnds => "in a virtual machine with open-iscsi, beside its target".to_owned(),
            Model => "not on Windows: a model changes the facts as Microsoft's reference says of the cmdlets".to_owned(),
            Not(why) => format!("not by a test: it {why}"),
        };
        let file = lunway_doctor::book::file_name(rule.group);
        let undo = match rule.undo.is_empty() {
            true => "none",
            false if matches!(run, Model) => "by the same model",
            false if matches!(run, Not(_) | Parsed | Shown | ByHand) => "not run",
            false if matches!(run, Not(_) | Parsed | Shown | ByHand | LoopByHand) => "not run",
            false => "run",
        };
        let _ = writeln!(page, "| [{id}]({file}#{id}) | {how} | {undo} |", id = rule.id);
    }
    lunway_foreign::written::says("docs/src/doctor-fixes.md", &page, "-p lunway-doctor --test matrix");
}
