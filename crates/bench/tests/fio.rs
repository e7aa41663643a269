//! Our figures against fio's.
//!
//! A binary of its own: Cargo runs those one after the other, and what is compared here must not compete with other
//! tests.
//!
//! **Known times.** A device that takes milliseconds, measured here directly and by fio through NBD: both must find the
//! device's time, whatever the machine does beside it. Checks units, percentiles, means and rates.
//!
//! **Microseconds**, run by `script/bench` only, since no busy machine can tell them: the median response time on one
//! file, of shapes in which both programs ask the same of the kernel.
//!
//! - Buffered reads of cached data are answered inline here (`preadv2`), as by fio's `pvsync2`; a depth above 1 changes
//!   nothing for either. Buffered writes likewise, in tmpfs: on ext4 the kernel does not promise not to wait, so ours
//!   go to a thread, and fio's have nothing like it. Writes write the same zeroes, since our random data comes from 4
//!   MiB and not from one block in the innermost cache. I/Os per second would not agree: what fio does between two I/Os
//!   shows in them when the I/O itself takes a microsecond.
//! - With `O_DIRECT` both use `io_uring`, and each thread collects its own completions: fio by asking the ring, ours by
//!   waiting for it as for a socket, which costs two microseconds more for an I/O that no other comes with. So these
//!   shapes have a queue.
//!
//! **How.** Six rounds; in each, both run all shapes, and who goes first changes. From the six differences of each
//! figure (of logarithms, in per cent) comes an interval of at least 95 %, by signed ranks. Figures disagree when the
//! whole interval lies beyond the margin, and again when measured anew: then noise is no excuse. A shape with a known
//! difference must be seen to disagree.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use lunway_bench::{Cancel, Distribution, Fill, Job, Limit, Mix, Outcome, Pattern, run};
use lunway_block::decorate::Delay;
use lunway_block::{BlockDevice, Buf, Io};
use lunway_file::{FileDevice, FileOptions};
use lunway_memory::RamDisk;
use lunway_nbd::{Export, NbdAddress, NbdServer};
use lunway_stats::paired;
use serde_json::Value;

const ROUNDS: usize = 6;
/// What disagrees is measured again, up to this often in all: on a machine with more to do than it has cores, one
/// program can be left waiting six times in a row.
const ATTEMPTS: usize = 3;
/// How long each program runs each shape, milliseconds.
const RUN: u64 = 100;
const SIZE: u64 = 64 << 20;
/// The time of a device that takes its time: long beside what NBD, two processes and a busy machine add.
const SERVICE_TIME: Duration = Duration::from_millis(10);
/// Differences up to this do not matter, per cent. Inline, both are a system call and a clock, and the last nanoseconds
/// are fio's rounding to 64ths. With `O_DIRECT` there is an event loop (and in a test
/// one that is little optimised), and a disk that other machines share. Through NBD there is a socket, and a server to
/// be woken.
const MARGIN_BUFFERED: f64 = 10.0;
const MARGIN_DIRECT: f64 = 25.0;
const MARGIN_NBD: f64 = 30.0;

/// What is measured: a device, and how fio reaches the same one.
#[derive(Clone)]
struct Subject {
    device: Arc<dyn BlockDevice>,
    fio: Vec<String>,
}

/// An access that both make.
#[derive(Clone)]
struct Shape {
    subject: Subject,
    rw: &'static str,
    kib: u32,
    depth: u32,
    /// What fio takes in place of `kib`, for a known difference.
    fio_kib: u32,
    figure: Figure,
}

/// A figure that both have.
#[derive(Clone, Copy, Debug)]
enum Figure {
    /// The percentile of the time from submitted to completed, nanoseconds.
    Percentile(f64),
    /// The mean of the same.
    Mean,
    /// Operations per second.
    Iops,
    /// Bytes per second.
    Bandwidth,
}

impl Shape {
    fn new(subject: &Subject, rw: &'static str, kib: u32, depth: u32) -> Self {
        Self { subject: subject.clone(), rw, kib, depth, fio_kib: kib, figure: Figure::Percentile(50.0) }
    }

    fn of(self, figure: Figure) -> Self {
        Self { figure, ..self }
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
        let device = Arc::clone(&self.subject.device);
        let outcome: Outcome = run(device, &job, &mut |_| (), &Cancel::new()).await.unwrap();
        assert_eq!(outcome.errors(), 0);
        let figures = if self.reads() { &outcome.read } else { &outcome.write };
        match self.figure {
            Figure::Percentile(percent) => figures.response.percentile(percent) as f64,
            Figure::Mean => figures.response.mean(),
            Figure::Iops => figures.ios as f64 / outcome.elapsed.as_secs_f64(),
            Figure::Bandwidth => figures.bytes as f64 / outcome.elapsed.as_secs_f64(),
        }
    }

    fn fio_arguments(&self) -> Vec<String> {
        let own = [
            "--name=shape".into(),
            "--stonewall".into(),
            format!("--rw={}", self.rw),
            format!("--bs={}k", self.fio_kib),
            format!("--iodepth={}", self.depth),
        ];
        own.into_iter().chain(self.subject.fio.iter().cloned()).collect()
    }

    fn fio_figure(&self, job: &Value) -> f64 {
        let figures = &job[if self.reads() { "read" } else { "write" }];
        let figure = match self.figure {
            Figure::Percentile(percent) => &figures["clat_ns"]["percentile"][format!("{percent:.6}")],
            Figure::Mean => &figures["clat_ns"]["mean"],
            Figure::Iops => &figures["iops"],
            Figure::Bandwidth => &figures["bw_bytes"],
        };
        figure.as_f64().unwrap()
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
            let Shape { subject, rw, kib, depth, figure, .. } = &shape;
            let engine = &subject.fio[0];
            let line = format!(
                "{rw} {kib}K QD{depth} {engine} {figure:?}: {estimate:+.1} % ({low:+.1} to {high:+.1})"
            );
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

/// A device with a known time, served over NBD by a thread of its own until the test ends: fio is waited for without a
/// runtime.
struct Timed {
    subject: Subject,
    _folder: tempfile::TempDir,
}

impl Timed {
    fn new(time: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd");
        let ram = Arc::new(RamDisk::new(SIZE, 512).unwrap());
        let device: Arc<dyn BlockDevice> = Arc::new(Delay::new(ram, time));
        let export =
            Export { name: String::new(), description: String::new(), device: device.clone(), bitmaps: None };
        let (address, (bound, is_bound)) = (NbdAddress::Unix(path.clone()), mpsc::channel());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = NbdServer::bind(&address, export).await.unwrap();
                bound.send(()).unwrap();
                server.serve(std::future::pending()).await.unwrap();
            });
        });
        is_bound.recv().unwrap();
        let fio = vec!["--ioengine=nbd".into(), format!("--uri=nbd+unix:///?socket={}", path.display())];
        Self { subject: Subject { device, fio }, _folder: folder }
    }
}

#[tokio::test]
async fn both_find_the_time_that_a_device_takes() {
    let Some(program) = lunway_foreign::program("fio") else { return };
    let timed = Timed::new(SERVICE_TIME);
    let subject = &timed.subject;
    let shapes = vec![
        Shape::new(subject, "randread", 4, 1),
        Shape::new(subject, "randread", 4, 8).of(Figure::Iops),
        Shape::new(subject, "randread", 4, 8).of(Figure::Percentile(90.0)),
        Shape::new(subject, "read", 64, 4).of(Figure::Bandwidth),
        Shape::new(subject, "randwrite", 4, 4).of(Figure::Mean),
    ];
    agree(&program, shapes, MARGIN_NBD).await;

    // Twice the time: seen to differ, or the comparison sees nothing.
    let slower = Timed::new(2 * SERVICE_TIME);
    let fio = slower.subject.fio.clone();
    let other = Subject { device: subject.device.clone(), fio };
    let known = differences(&program, &[Shape::new(&other, "randread", 4, 1)]).await[0];
    assert!(disagree(known, MARGIN_NBD), "half of the time is told apart: {known:?}");
}

/// A file with data in it, removed with its folder at the end, as a device.
struct File {
    subject: Subject,
    ring: bool,
    _folder: tempfile::TempDir,
}

impl File {
    fn new(folder: &Path, direct: bool) -> Option<Self> {
        let folder = tempfile::tempdir_in(folder).ok()?;
        let path = folder.path().join("file");
        fs::write(&path, vec![7u8; usize::try_from(SIZE).unwrap()]).unwrap();
        // What the page cache still had to write would be in the way of direct I/O.
        fs::File::open(&path).unwrap().sync_all().unwrap();
        let device = FileDevice::open(&path, &FileOptions { direct, ..FileOptions::default() }).ok()?;
        let engine = if direct { "io_uring" } else { "pvsync2" };
        let fio = vec![
            format!("--ioengine={engine}"),
            format!("--filename={}", path.display()),
            format!("--direct={}", u8::from(direct)),
        ];
        let ring = device.uses_ring();
        Some(Self { subject: Subject { device: Arc::new(device), fio }, ring, _folder: folder })
    }
}

/// The folder for builds is on a disk, where the one for temporary files may be in memory.
fn disk() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

// One test: two would run side by side.
#[tokio::test]
#[ignore = "measures microseconds, which needs a machine with nothing else to do: script/bench runs it"]
async fn figures_agree_with_those_of_fio_to_the_microsecond() {
    let Some(program) = lunway_foreign::program("fio") else { return };
    buffered(&program).await;
    direct(&program).await;
}

async fn buffered(program: &Path) {
    let file = File::new(disk(), false).unwrap();
    if !matches!(file.subject.device.read(0, Buf::zeroed(4096)), Io::Ready(Ok(_))) {
        return lunway_foreign::not_run(
            "a file system that reads without waiting, for buffered I/O beside fio",
        );
    }
    let mut shapes = vec![
        Shape::new(&file.subject, "randread", 4, 1),
        Shape::new(&file.subject, "randread", 4, 16),
        Shape::new(&file.subject, "read", 128, 1),
    ];
    let in_memory = File::new(Path::new("/dev/shm"), false);
    match &in_memory {
        Some(file) => shapes.push(Shape::new(&file.subject, "randwrite", 4, 4)),
        None => lunway_foreign::not_run("/dev/shm, for buffered writes beside fio"),
    }
    agree(program, shapes, MARGIN_BUFFERED).await;

    // Half of what fio reads: seen to differ, or the comparison sees nothing.
    let half = Shape { fio_kib: 256, ..Shape::new(&file.subject, "read", 128, 1) };
    let known = differences(program, &[half]).await[0];
    assert!(disagree(known, MARGIN_BUFFERED), "half of the bytes are told apart: {known:?}");
}

async fn direct(program: &Path) {
    let Some(file) = File::new(disk(), true).filter(|file| file.ring) else {
        return lunway_foreign::not_run(
            "O_DIRECT and io_uring on the disk of the build, for direct I/O beside fio",
        );
    };
    let shapes = vec![
        Shape::new(&file.subject, "randread", 4, 16),
        Shape::new(&file.subject, "randread", 64, 16),
        Shape::new(&file.subject, "randread", 256, 4),
        Shape::new(&file.subject, "randwrite", 64, 4),
    ];
    agree(program, shapes, MARGIN_DIRECT).await;
}
