//! Each path has a budget of instructions. What makes a path longer has to raise its budget, with a reason.

use std::process::Command;

use lunway_foreign::program;

/// Instructions for each operation in a build for tests: two percent above what valgrind 3.19 counted with Rust 1.95,
/// the same in each run. A path that takes less than [`LEAST`] of its budget fails as well: the budget no longer says
/// anything.
const BUDGETS: &[(&str, u64)] = &[
    ("target, read of 4 KiB, depth 32", 6320),
    ("target, write of 4 KiB, depth 32", 7120),
    ("target, read of 4 KiB, depth 32, digests", 10_820),
    ("target, write of 4 KiB, depth 32, digests", 11_460),
    ("target, read of 1024 KiB, depth 4", 212_130),
    ("target, write of 1024 KiB, depth 4", 280_600),
    ("initiator, read of 4 KiB, depth 32", 3020),
    ("initiator, write of 4 KiB, depth 32", 2870),
    ("initiator, read of 4 KiB, depth 32, digests", 7360),
    ("initiator, write of 4 KiB, depth 32, digests", 7360),
    ("initiator, read of 1024 KiB, depth 4", 4800),
    ("initiator, write of 1024 KiB, depth 4", 8700),
    ("layers of a tracked LUN, write of 4 KiB to what has changed before", 2410),
    ("raw file, read of 4 KiB from the page cache", 296),
    ("VHDX file, read of 4 KiB from the page cache", 1650),
    ("chain of 64 VHDX files, read of 4 KiB from the page cache", 900),
    ("the same, written to", 2860),
    ("scheduler of two lanes, read of 4 KiB", 1760),
];
const LEAST: f64 = 0.9;

/// The C library's copies are the same on all processors: neither `rep movsb`, each of whose steps valgrind counts, nor
/// wide vectors.
const SAME_COPIES: &str = "glibc.cpu.hwcaps=-AVX2_Usable,-AVX2,-AVX512F_Usable,-AVX512F,-AVX512VL,-ERMS,-FSRM,\
                           -AVX_Fast_Unaligned_Load";

#[test]
fn no_path_takes_more_instructions_than_its_budget() {
    let Some(valgrind) = program("valgrind") else { return };
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new(valgrind)
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=instructions::counted*"])
        .arg("--dump-after=instructions::end_of_path*")
        .arg(format!("--callgrind-out-file={}", folder.path().join("counts").display()))
        .arg(env!("CARGO_BIN_EXE_instructions"))
        .env("GLIBC_TUNABLES", SAME_COPIES)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));

    let mut counts = Vec::new();
    for (number, line) in said.lines().enumerate() {
        let (operations, name) = line.split_once('\t').unwrap();
        let dump = folder.path().join(format!("counts.{}", number + 1));
        let dump =
            std::fs::read_to_string(&dump).unwrap_or_else(|error| panic!("{}: {error}", dump.display()));
        let total: u64 = dump
            .lines()
            .find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")))
            .and_then(|total| total.trim().parse().ok())
            .unwrap_or_else(|| panic!("{name} was not counted"));
        counts.push((name.to_owned(), total / operations.parse::<u64>().unwrap()));
    }
    let table: String = counts.iter().map(|(name, count)| format!("    (\"{name}\", {count}),\n")).collect();
    println!("{table}");
    let names: Vec<&str> = counts.iter().map(|(name, _)| name.as_str()).collect();
    let budgeted: Vec<&str> = BUDGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, budgeted, "each path has a budget; counted:\n{table}");
    for ((name, count), (_, budget)) in counts.iter().zip(BUDGETS) {
        assert!(
            *count <= *budget,
            "{name}: {count} instructions, {budget} are its budget: find what makes it longer, or raise the budget and say why"
        );
        assert!(
            *count as f64 >= *budget as f64 * LEAST,
            "{name}: {count} instructions, far below the budget of {budget}: lower it"
        );
    }
}
