//! Our figures against fio's, on the same file.
//!
//! A binary of its own: Cargo runs those one after the other, and what is compared here must not compete with other tests.
//!
//! **What is compared.** The median response time, which stays what it is when other processes take the processor or the
//! disk for a while, of shapes in which both programs ask the same of the kernel: two that ask different things have no
//! reason to agree.
//!
//! - Buffered reads of cached data are answered inline here (`preadv2`), as by fio's `pvsync2`; a depth above 1 changes
//!   nothing for either. Buffered writes likewise, in tmpfs: on ext4 the kernel does not promise not to wait, so ours go to
//!   a thread, and fio's have nothing like it. Writes write the same zeroes, since our random data comes from 4 MiB and not
//!   from one block in the innermost cache. I/Os per second would not agree: what fio does between two I/Os shows in
//!   them when the I/O itself takes a microsecond.
//! - With `O_DIRECT` both use `io_uring`, and each thread collects its own completions: fio by asking the ring, ours by waiting for
//!   it as for a socket, which costs two microseconds more for an I/O that no other comes with. So these shapes have a queue.
//!
//! **How.** Six rounds; in each, both run all shapes, and who goes first changes. From the six differences of each shape
//! (of logarithms, in per cent) comes an interval of at least 95 %, by signed ranks. The figures disagree when the whole interval
//! lies beyond the margin, and again when measured anew: then noise is no excuse. A shape with a known difference must be seen to disagree.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lunway_bench::{Cancel, Distribution, Fill, Job, Limit, Mix, Outcome, Pattern, run};
use lunway_block::{BlockDevice, Buf, Io};
use lunway_file::{FileDevice, FileOptions};
use lunway_stats::paired;
use serde_json::Value;

const ROUNDS: usize = 6;
/// What disagrees is measured again, up to this often in all: on a machine with more to do than it has cores, one program can be
/// left waiting six times in a row.
const ATTEMPTS: usize = 3;
/// How long each program runs each shape, milliseconds.
const RUN: u64 = 100;
const SIZE: usize = 64 << 20;
/// Differences up to this do not matter, per cent. Inline, both are a system call and a clock, and the last nanoseconds
/// are fio's rounding to 64ths. With `O_DIRECT` there is an event loop (and in a test
/// one that is little optimised), and a disk that other machines share.
const MARGIN_BUFFERED: f64 = 10.0;
const MARGIN_DIRECT: f64 = 25.0;

/// An access that both make, on one file.
struct Shape {
    path: PathBuf,
    device: Arc<FileDevice>,
    direct: bool,
    rw: &'static str,
    kib: u32,
    depth: u32,
    /// What fio takes in place of `kib`, for a known difference.
    fio_kib: u32,
}

impl Shape {
    fn new(file: &File, rw: &'static str, kib: u32, depth: u32) -> Self {
        let File { path, device, direct, .. } = file;
        Self { path: path.clone(), device: Arc::clone(device), direct: *direct, rw, kib, depth, fio_kib: kib }
    }

    fn reads(&self) -> bool {
        self.rw.ends_with("read")
    }

    async fn ours(&self) -> f64 {
        let random = self.rw.starts_with("rand");
        let mut job = Job::new(self.rw);
        job.pattern = if random { Pattern::Random(Distribution::Once) } else { Pattern::Sequential };
        job.mix = if self.reads() { Mix::READ } else { Mix::WRITE };
        job.block_sizes = (self.kib << 10).into();
        job.queue_depth = self.depth;
        job.limit = Limit::Time(Duration::from_millis(RUN));
        job.fill = Fill::Zero;
        job.destroy = true;
        let outcome: Outcome = run(self.device.clone(), &job, &mut |_| (), &Cancel::new()).await.unwrap();
        assert_eq!(outcome.errors(), 0);
        let figures = if self.reads() { &outcome.read } else { &outcome.write };
        figures.response.percentile(50.0) as f64
    }

    fn fio_arguments(&self) -> Vec<String> {
        let engine = if self.direct { "io_uring" } else { "pvsync2" };
        vec![
            "--name=shape".into(),
            "--stonewall".into(),
            format!("--filename={}", self.path.display()),
            format!("--direct={}", u8::from(self.direct)),
            format!("--ioengine={engine}"),
            format!("--rw={}", self.rw),
            format!("--bs={}k", self.fio_kib),
            format!("--iodepth={}", self.depth),
        ]
    }

    fn fio_figure(&self, job: &Value) -> f64 {
        let figures = &job[if self.reads() { "read" } else { "write" }];
        figures["clat_ns"]["percentile"]["50.000000"].as_f64().unwrap()
    }
}

/// All shapes, one after the other, by one fio.
fn fio(program: &Path, shapes: &[Shape]) -> Vec<f64> {
    let output = Command::new(program)
        .args(["--output-format=json", "--thread", "--time_based", "--invalidate=0", "--zero_buffers"])
        .arg(format!("--runtime={RUN}ms"))
        .arg(format!("--size={SIZE}"))
        .args(shapes.iter().flat_map(Shape::fio_arguments))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json: Value = serde_json::from_str(&text[text.find('{').expect("fio ran")..]).unwrap();
    shapes.iter().zip(json["jobs"].as_array().unwrap()).map(|(shape, job)| shape.fio_figure(job)).collect()
}

/// For each shape what ours is above fio's, per cent: the estimate, and the ends of the interval.
async fn differences(program: &Path, shapes: &[Shape]) -> Vec<[f64; 3]> {
    let mut logs = vec![Vec::new(); shapes.len()];
    for round in 0..ROUNDS {
        let mut theirs = Vec::new();
        if round % 2 == 0 {
            theirs = fio(program, shapes);
        }
        let mut ours = Vec::new();
        for shape in shapes {
            ours.push(shape.ours().await);
        }
        if theirs.is_empty() {
            theirs = fio(program, shapes);
        }
        for (logs, (ours, theirs)) in logs.iter_mut().zip(ours.iter().zip(&theirs)) {
            logs.push((ours / theirs).ln());
        }
    }
    let percent = |log: f64| log.exp_m1() * 100.0;
    let shift = |logs: &Vec<f64>| {
        let shift = paired::shift(logs, 0.95).unwrap();
        let interval = shift.interval.expect("six pairs are enough for 95 %");
        [shift.estimate, interval.low, interval.high].map(percent)
    };
    logs.iter().map(shift).collect()
}

/// No doubt is left that they differ by more than `margin` per cent.
fn disagree([_, low, high]: [f64; 3], margin: f64) -> bool {
    low > margin || high < -margin
}

/// Compares until no shape is left that disagreed each time.
async fn agree(program: &Path, shapes: Vec<Shape>, margin: f64) {
    let (mut left, mut told) = (shapes, Vec::new());
    for _ in 0..ATTEMPTS {
        let mut again = Vec::new();
        told.clear();
        let differences = differences(program, &left).await;
        for (shape, difference) in left.into_iter().zip(differences) {
            let [estimate, low, high] = difference;
            let Shape { rw, kib, depth, direct, .. } = &shape;
            let line =
                format!("{rw} {kib}K QD{depth} direct={direct}: {estimate:+.1} % ({low:+.1} to {high:+.1})");
            println!("{line}");
            if disagree(difference, margin) {
                told.push(line);
                again.push(shape);
            }
        }
        if again.is_empty() {
            return;
        }
        left = again;
    }
    panic!("ours against fio's, beyond ±{margin} % {ATTEMPTS} times: {told:#?}");
}

/// A file with data in it, removed with its folder at the end, as a device.
struct File {
    path: PathBuf,
    device: Arc<FileDevice>,
    direct: bool,
    _folder: tempfile::TempDir,
}

impl File {
    fn new(folder: &Path, direct: bool) -> Option<Self> {
        let folder = tempfile::tempdir_in(folder).ok()?;
        let path = folder.path().join("file");
        fs::write(&path, vec![7u8; SIZE]).unwrap();
        // What the page cache still had to write would be in the way of direct I/O.
        fs::File::open(&path).unwrap().sync_all().unwrap();
        let device = FileDevice::open(&path, &FileOptions { direct, ..FileOptions::default() }).ok()?;
        Some(Self { path, device: Arc::new(device), direct, _folder: folder })
    }
}

/// The folder for builds is on a disk, where the one for temporary files may be in memory.
fn disk() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

// One test: two would run side by side.
#[tokio::test]
async fn figures_agree_with_those_of_fio() {
    let Some(program) = lunway_foreign::program("fio") else { return };
    buffered(&program).await;
    direct(&program).await;
}

async fn buffered(program: &Path) {
    let file = File::new(disk(), false).unwrap();
    if !matches!(file.device.read(0, Buf::zeroed(4096)), Io::Ready(Ok(_))) {
        return lunway_foreign::not_run(
            "a file system that reads without waiting, for buffered I/O beside fio",
        );
    }
    let mut shapes = vec![
        Shape::new(&file, "randread", 4, 1),
        Shape::new(&file, "randread", 4, 16),
        Shape::new(&file, "read", 128, 1),
    ];
    let in_memory = File::new(Path::new("/dev/shm"), false);
    match &in_memory {
        Some(file) => shapes.push(Shape::new(file, "randwrite", 4, 4)),
        None => lunway_foreign::not_run("/dev/shm, for buffered writes beside fio"),
    }
    agree(program, shapes, MARGIN_BUFFERED).await;

    // Half of what fio reads: seen to differ, or the comparison sees nothing.
    let half = Shape { fio_kib: 256, ..Shape::new(&file, "read", 128, 1) };
    let known = differences(program, &[half]).await[0];
    assert!(disagree(known, MARGIN_BUFFERED), "half of the bytes are told apart: {known:?}");
}

async fn direct(program: &Path) {
    let Some(file) = File::new(disk(), true).filter(|file| file.device.uses_ring()) else {
        return lunway_foreign::not_run(
            "O_DIRECT and io_uring on the disk of the build, for direct I/O beside fio",
        );
    };
    let shapes = vec![
        Shape::new(&file, "randread", 4, 16),
        Shape::new(&file, "randread", 64, 16),
        Shape::new(&file, "randread", 256, 4),
        Shape::new(&file, "randwrite", 64, 4),
    ];
    agree(program, shapes, MARGIN_DIRECT).await;
}
