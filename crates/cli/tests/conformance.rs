//! libiscsi's conformance suite against each kind of logical unit. What it skips and why is in
//! `docs/src/conformance.md`.

mod support;

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Command;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use lunway_foreign::ceph::{Ceph, Store};
use support::{IQN, Served, finish};

/// The longest run sleeps for 60 seconds and is done after 70 here; more than this is a hang, which ends with SIGKILL.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// What became of one test of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Skipped,
    Failed,
}

/// Reads the suite's output. It counts what it skips as passed: a `[SKIPPED]` line within a test says otherwise. The
/// verdict stands behind the test's name, or at the start of a line after what the test had to say.
fn verdicts(output: &str) -> Vec<(String, Verdict)> {
    let mut suite = "";
    let mut tests: Vec<(String, String)> = Vec::new();
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("Suite: ") {
            suite = name.trim();
        } else if let Some((name, rest)) =
            line.strip_prefix("  Test: ").and_then(|line| line.split_once(" ..."))
        {
            tests.push((format!("{suite}.{name}"), rest.to_owned()));
        } else if let Some((_, said)) = tests.last_mut() {
            said.push('\n');
            said.push_str(line);
        }
    }
    let verdict = |said: &str| match said {
        said if said.contains("[SKIPPED]") => Verdict::Skipped,
        said if said.lines().any(|line| line.starts_with("passed")) => Verdict::Passed,
        _ => Verdict::Failed,
    };
    tests.into_iter().map(|(name, said)| (name, verdict(&said))).collect()
}

#[test]
fn skipped_tests_are_not_counted_as_passed() {
    let output = "Suite: A\n  Test: One ...passed\n  Test: Two ...    [SKIPPED] not here\npassed\n\
                  Suite: B\n  Test: One ...    [FAILED] x\nFAILED\n    1. x.c:1\n  Test: Two ...FAILED\n  Test: Three ...    \
                  [FAILED] noise\npassed    [FAILED] more\n";
    let expected = [
        ("A.One", Verdict::Passed),
        ("A.Two", Verdict::Skipped),
        ("B.One", Verdict::Failed),
        ("B.Two", Verdict::Failed),
        ("B.Three", Verdict::Passed),
    ];
    assert_eq!(verdicts(output), expected.map(|(name, verdict)| (name.to_owned(), verdict)));
}

/// Tests by suite, as in `docs/src/conformance.md`.
type Tests = &'static [(&'static str, &'static str)];

/// For a medium that can be taken out.
const REMOVABLE: Tests = &[
    ("NoMedia", "NoMediaSBC"),
    ("PreventAllow", "Simple Eject ITNexusLoss Logout WarmReset ColdReset LUNReset 2ITNexuses"),
    ("StartStopUnit", "Simple PwrCnd NoLoej"),
];
/// For a medium that is write-protected.
const PROTECTED: Tests = &[("ReadOnly", "ReadOnlySBC")];
/// For physical blocks of several logical ones.
const LARGE_PHYSICAL_BLOCKS: Tests = &[
    ("CompareAndWrite", "InvalidDataOutSize"),
    ("WriteSame10", "UnmapUnaligned InvalidDataOutSize"),
    ("WriteSame16", "UnmapUnaligned InvalidDataOutSize"),
];
/// For devices that write atomically also through a power cut.
const ATOMIC: Tests = &[("WriteAtomic16", "Simple BeyondEol ZeroBlocks WriteProtect DpoFua")];
/// Run, but for a part that cannot apply: cryptographic erase, alignment of atomic writes, WRITE SAME without a count.
const IN_PART: Tests = &[
    ("Sanitize", "CryptoErase Readonly Reservations"),
    ("WriteAtomic16", "VPD"),
    ("WriteSame10", "ZeroBlocks"),
    ("WriteSame16", "ZeroBlocks"),
];
/// Cannot pass on any target that does what the test before it demands; passes when it is run alone.
const LEAKED_RESERVATION: Tests = &[("Sanitize", "Reset")];
/// Expects another first descriptor than the LBA that it asked for, where physical blocks are larger.
const WRONG_DESCRIPTOR: Tests = &[("GetLBAStatus", "UnmapSingle")];
/// Begin by writing to the medium, and can therefore not apply where that is protected.
const WRITING: Tests = &[
    ("CompareAndWrite", "Simple DpoFua Miscompare Unwritten"),
    ("ExtendedCopy", "Simple ValidTgtDescr"),
    ("GetLBAStatus", "UnmapSingle"),
    ("OrWrite", "Simple BeyondEol ZeroBlocks DpoFua Verify"),
    ("ProutReserve", "AccessEA AccessWE AccessEARO AccessWERO AccessEAAR AccessWEAR"),
    ("ReceiveCopyResults", "CopyStatus"),
    ("Sanitize", "BlockErase Overwrite Reset"),
    ("Unmap", "Simple VPD ZeroBlocks"),
    ("Write10", "Simple BeyondEol ZeroBlocks DpoFua Async"),
    ("Write12", "Simple BeyondEol ZeroBlocks DpoFua"),
    ("Write16", "Simple BeyondEol ZeroBlocks DpoFua"),
    ("WriteAtomic16", "Simple BeyondEol ZeroBlocks WriteProtect DpoFua"),
    ("WriteSame10", "Simple BeyondEol Unmap UnmapUntilEnd UnmapVPD Check"),
    ("WriteSame16", "Simple BeyondEol Unmap UnmapUntilEnd UnmapVPD Check"),
    ("WriteVerify10", "Simple BeyondEol ZeroBlocks Flags Dpo"),
    ("WriteVerify12", "Simple BeyondEol ZeroBlocks Flags Dpo"),
    ("WriteVerify16", "Simple BeyondEol ZeroBlocks Flags Dpo"),
    (
        "iSCSIResiduals",
        "Write10Residuals Write12Residuals Write16Residuals WriteVerify10Residuals WriteVerify12Residuals \
         WriteVerify16Residuals",
    ),
    ("iSCSITMF", "AbortTaskSimpleAsync"),
    ("MultipathIO", "Simple CompareAndWrite CompareAndWriteAsync"),
];

fn names(lists: &[Tests]) -> BTreeSet<String> {
    let of_suite = |&(suite, tests): &(&str, &'static str)| {
        let suite = suite.to_owned();
        tests.split_whitespace().map(move |test| format!("{suite}.{test}")).collect::<Vec<_>>()
    };
    lists.iter().flat_map(|tests| tests.iter()).flat_map(of_suite).collect()
}

/// One run of the suite.
struct Plan {
    /// The logical unit; `FILE` stands for a sparse file of 100 MiB.
    lun: &'static str,
    /// What `-t` says.
    tests: &'static str,
    passed_min: usize,
    skipped: &'static [Tests],
    /// Cannot pass here.
    inapplicable: &'static [Tests],
}

/// SANITIZE: OVERWRITE of these takes eight seconds: the test looks after three and after five.
const SLOW: [&str; 3] = ["rate:8M:ram:64M", "rate:13M:FILE,sector=4096", "rate:8M:ram:64M,removable"];

const THIN: Plan = Plan {
    lun: "ram:100M",
    tests: "ALL",
    passed_min: 205,
    skipped: &[REMOVABLE, PROTECTED, LARGE_PHYSICAL_BLOCKS, IN_PART],
    inapplicable: &[LEAKED_RESERVATION],
};
const FILE_4KN: Plan = Plan {
    lun: "FILE,sector=4096",
    passed_min: 200,
    skipped: &[REMOVABLE, PROTECTED, LARGE_PHYSICAL_BLOCKS, ATOMIC, IN_PART],
    ..THIN
};
const REMOVABLE_UNIT: Plan = Plan {
    lun: "ram:100M,removable",
    passed_min: 217,
    skipped: &[PROTECTED, LARGE_PHYSICAL_BLOCKS, IN_PART],
    ..THIN
};
const READ_ONLY: Plan = Plan {
    lun: "ram:100M,read-only",
    passed_min: 127,
    skipped: &[REMOVABLE, LARGE_PHYSICAL_BLOCKS, IN_PART],
    inapplicable: &[WRITING],
    ..THIN
};
const EMULATING_512: Plan = Plan {
    lun: "ram:100M,physical-sector=4096",
    passed_min: 209,
    skipped: &[REMOVABLE, PROTECTED, IN_PART],
    inapplicable: &[LEAKED_RESERVATION, WRONG_DESCRIPTOR],
    ..THIN
};
const SCSI: Plan = Plan { tests: "SCSI", passed_min: 190, ..THIN };
const ISCSI: Plan = Plan { tests: "iSCSI", passed_min: 15, skipped: &[], inapplicable: &[], ..THIN };

/// Starts a daemon with one logical unit behind two portals, and runs the suite over both.
fn run(lun: &str, tests: &str) -> Option<String> {
    let program = lunway_foreign::program("iscsi-test-cu")?;
    let folder = tempfile::tempdir().expect("a folder for the file");
    let path = folder.path().join("disk");
    File::create(&path).and_then(|file| file.set_len(100 << 20)).expect("a sparse file");
    let lun = format!("0={}", lun.replace("FILE", path.to_str().expect("a path in UTF-8")));
    let mut served = Served::start(&["--listen", "127.0.0.1:0", "--lun", &lun]);
    let addresses = served.ready.iter().filter_map(|line| line.strip_prefix("listening on "));
    let urls: Vec<String> = addresses.map(|address| format!("iscsi://{address}/{IQN}/0")).collect();
    assert_eq!(urls.len(), 2, "{:?}", served.ready);
    let mut command = Command::new(program);
    command.args(["--dataloss", "--allow-sanitize", "-V", "-t", tests]).args(&urls);
    let output = finish(command, PATIENCE);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code().is_some(), "{lun}: the suite crashed: {}", output.status);
    assert!(text.contains("Tests completed with return value"), "{lun}: the suite did not come to its end");
    assert!(served.is_running(), "{lun}: the daemon ended");
    Some(text)
}

fn check(plan: &Plan, output: &str) {
    let verdicts = verdicts(output);
    let of = |wanted: Verdict| -> BTreeSet<String> {
        let names = verdicts.iter().filter(|(_, verdict)| *verdict == wanted);
        names.map(|(name, _)| name.clone()).collect()
    };
    let (passed, skipped, failed) = (of(Verdict::Passed), of(Verdict::Skipped), of(Verdict::Failed));
    println!("{} {}: {} pass of {}", plan.lun, plan.tests, passed.len(), verdicts.len());
    let inapplicable = names(plan.inapplicable);
    let wrong: Vec<_> = failed.difference(&inapplicable).collect();
    assert!(wrong.is_empty(), "{} {}: {wrong:?} failed", plan.lun, plan.tests);
    let pass_now: Vec<_> = inapplicable.intersection(&passed).collect();
    assert!(pass_now.is_empty(), "{} {}: {pass_now:?} pass and are listed", plan.lun, plan.tests);
    let unlisted: Vec<_> = skipped.difference(&names(plan.skipped)).cloned().collect();
    assert!(unlisted.is_empty(), "{} {}: {unlisted:?} were skipped", plan.lun, plan.tests);
    assert!(passed.len() >= plan.passed_min, "{} {}: {} passed", plan.lun, plan.tests, passed.len());
}

/// All runs at once: most of their time they sleep.
static RUNS: LazyLock<Vec<Option<String>>> = LazyLock::new(|| {
    let plans = [THIN, FILE_4KN, REMOVABLE_UNIT, READ_ONLY, EMULATING_512, SCSI, ISCSI];
    let runs = plans.iter().map(|plan| (plan.lun, plan.tests));
    let runs = runs.chain(SLOW.map(|lun| (lun, "ALL.Sanitize.Reset")));
    let running: Vec<_> = runs.map(|(lun, tests)| thread::spawn(move || run(lun, tests))).collect();
    running.into_iter().map(|run| run.join().expect("the run says above what went wrong")).collect()
});

fn check_run(index: usize, plan: &Plan) {
    if let Some(output) = &RUNS[index] {
        check(plan, output);
    }
}

#[test]
fn a_thin_disk_passes() {
    check_run(0, &THIN);
}

/// With sectors of 512 bytes in physical blocks of 4 KiB. Beside the others it would take their cores.
const CEPH: Plan = Plan { lun: "rbd:", passed_min: 209, ..EMULATING_512 };

#[test]
fn an_image_of_ceph_passes() {
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    LazyLock::force(&RUNS);
    ceph.run("rbd", &["create", "--size", "100M", "disk"]);
    if let Some(output) = run(&ceph.device("disk"), CEPH.tests) {
        check(&CEPH, &output);
    }
}

#[test]
fn a_file_with_blocks_of_4096_bytes_passes() {
    check_run(1, &FILE_4KN);
}

#[test]
fn a_removable_disk_passes() {
    check_run(2, &REMOVABLE_UNIT);
}

#[test]
fn a_read_only_disk_passes_what_does_not_write() {
    check_run(3, &READ_ONLY);
}

#[test]
fn a_disk_with_larger_physical_blocks_passes() {
    check_run(4, &EMULATING_512);
}

#[test]
fn the_families_scsi_and_iscsi_pass() {
    check_run(5, &SCSI);
    check_run(6, &ISCSI);
}

#[test]
fn sanitize_survives_every_reset_and_the_loss_of_the_session() {
    for (index, lun) in SLOW.into_iter().enumerate() {
        check_run(7 + index, &Plan { lun, passed_min: 1, skipped: &[], inapplicable: &[], ..THIN });
    }
}
