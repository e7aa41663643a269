//! One LUN whose device hangs, and the others that it must not slow down: latency and pings before and while.
//!
//! The device is a file of a FUSE mount, which `lunway attach` serves: stopped by SIGSTOP it answers nothing, as a dead
//! NFS server or a drive that retries.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/attached.rs"]
mod attached;
#[path = "support/initiator.rs"]
mod initiator;
mod support;

use std::fs::File;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use attached::Attached;
use initiator::Initiator;
use rustix::fs::Advice;
use rustix::process::{Pid, Signal, kill_process};
use support::{IQN, Served};

const HUNG: u8 = 0;
/// LUN, operation, and the floor of its percentile: a `ram:` disk, and a file on a disk of this machine, whose reads,
/// writes and flushes go through threads, those of each kind for themselves.
const WELL: [(u8, u8, Duration); 4] = [
    (1, READ_10, FLOOR),
    (2, READ_10, THREAD_FLOOR),
    (2, WRITE_10, THREAD_FLOOR),
    (2, SYNCHRONIZE_CACHE_10, FLUSH_FLOOR),
];
const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2A;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
const BLOCK: usize = 4096;
const SIZE: u64 = 64 << 20;

/// What other LUNs may cost while one hangs: twice what they did, and pings of initiators that give up after 5 s a
/// tenth of a second.
const SLOWER_MAX: u32 = 2;
const PING_MAX: Duration = Duration::from_millis(100);
/// Below this a percentile tells of the scheduler of a busy machine: its time slice is 3 ms.
const FLOOR: Duration = Duration::from_millis(3);
/// The same where a thread has to be woken, on a machine with load 8.
const THREAD_FLOOR: Duration = Duration::from_millis(20);
/// The same for a flush, which a disk that others write to takes its time for. One that waits for the hung device takes
/// until that goes on.
const FLUSH_FLOOR: Duration = Duration::from_millis(500);
/// One look is several windows, of which the median counts, and one look that is good is enough: a neighbour that is
/// slowed down by a hung device is so in each.
const LOOKS: usize = 4;
const WINDOWS: usize = 5;
const WINDOW: Duration = Duration::from_millis(100);
/// How long the device hangs at most, which is more than a look takes where nobody waits for it.
const HANG_MAX: Duration = Duration::from_secs(30);

/// What one session found.
#[derive(Debug)]
struct Look {
    /// Of each of [`WELL`].
    p99: [Duration; WELL.len()],
    ping: Duration,
}

fn median(mut figures: Vec<Duration>) -> Duration {
    figures.sort();
    figures[figures.len() / 2]
}

/// 4 KiB after 4 KiB of each neighbour, and pings between windows. What is read of the file is not in memory.
fn look(session: &mut Initiator, file: &File) -> Look {
    let mut percentiles = WELL.map(|_| Vec::new());
    let mut pings = Vec::new();
    let mut block = 0_u32;
    for _ in 0..WINDOWS {
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed).expect("a file has a cache");
        for ((lun, operation, _), percentiles) in WELL.into_iter().zip(&mut percentiles) {
            let mut latencies = Vec::new();
            let start = Instant::now();
            while start.elapsed() < WINDOW {
                block = (block + 8 * 4099) % (SIZE / 512 - 8) as u32;
                let mut cdb = [operation, 0, 0, 0, 0, 0, 0, 0, 8, 0];
                cdb[2..6].copy_from_slice(&block.to_be_bytes());
                let (out, back) = match operation {
                    READ_10 => (&[][..], BLOCK),
                    WRITE_10 => (&[7; BLOCK][..], 0),
                    _ => (&[][..], 0),
                };
                let sent = Instant::now();
                let done = session.execute(lun, &cdb, out, back).expect("the session goes on");
                assert_eq!(done.status, 0);
                latencies.push(sent.elapsed());
            }
            latencies.sort();
            percentiles.push(latencies[latencies.len() * 99 / 100]);
        }
        pings.push(session.ping().expect("the session goes on"));
    }
    let p99 = percentiles.map(median);
    Look { p99, ping: median(pings) }
}

/// Everything that a host may have under way on a disk when it stops answering, twice as much as threads that might
/// wait for it.
fn leave_hanging(session: &mut Initiator) -> Vec<u64> {
    let mut tokens = Vec::new();
    let mut begin = |cdb: &[u8], data_out: &[u8], data_in| {
        tokens.extend(session.begin(HUNG, cdb, data_out, data_in).expect("the session goes on"));
    };
    for n in 0..32_u8 {
        begin(&[0x28, 0, 0, 0, n, 0, 0, 0, 8, 0], &[], 4096);
    }
    for n in 0..32_u8 {
        begin(&[0x2A, 0, 0, 0, n, 0, 0, 0, 8, 0], &[n; 4096], 0);
    }
    begin(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0);
    // What asks for size and space: READ CAPACITY (16), block limits, thin provisioning, LOG SENSE (0Ch), MODE SENSE
    // (10).
    begin(&[0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], &[], 32);
    for page in [0xB0, 0xB2] {
        begin(&[0x12, 1, page, 0, 252, 0], &[], 252);
    }
    begin(&[0x4D, 0, 0x4C, 0, 0, 0, 0, 1, 0, 0], &[], 256);
    begin(&[0x5A, 0, 0x3F, 0, 0, 0, 0, 1, 0, 0], &[], 256);
    begin(&[0x12, 0, 0, 0, 96, 0], &[], 96);
    begin(&[0; 6], &[], 0);
    tokens
}

fn neighbours_of_a_hung_device(cores: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk.img");
    std::fs::File::create(&disk).and_then(|file| file.set_len(SIZE)).expect("a disk");
    let far = Served::start(&["--no-api", "--lun", &format!("0={}", disk.display())]);
    let Some(attached) = Attached::start(&far.url(0), folder.path(), &[]) else { return };
    let hung = format!("{HUNG}={}", attached.file().display());
    let path = folder.path().join("neighbour.img");
    let neighbour = File::create_new(&path).expect("a disk");
    neighbour.set_len(SIZE).expect("a disk");
    let (ram, file) = (format!("1=ram:{SIZE}"), format!("2={}", path.display()));
    let served =
        Served::start(&["--no-api", "--cores", cores, "--lun", &hung, "--lun", &ram, "--lun", &file]);
    let log_in = |number| Initiator::log_in_as(&served.address, IQN, number).expect("it logs in");
    // With several cores one of these is on the core of the session that waits.
    let mut others: Vec<_> = (2..5).map(log_in).collect();
    let mut same = log_in(1);
    for session in others.iter_mut().chain([&mut same]) {
        // A new nexus is told that there was a power-on.
        for lun in [HUNG, 1, 2] {
            while session.execute(lun, &[0; 6], &[], 0).expect("it answers").status != 0 {}
        }
    }
    let mut seen = Vec::new();
    for _ in 0..LOOKS {
        let look = |session: &mut Initiator| look(session, &neighbour);
        let before = (look(&mut same), others.iter_mut().map(look).collect::<Vec<_>>());
        let (thawed, thaw) = mpsc::channel::<()>();
        attached.signal(Signal::STOP);
        let late = {
            let process = Pid::from_child(&attached.child);
            thread::spawn(move || {
                // A neighbour that waits for the hung device waits as long, and not for ever.
                let waits = thaw.recv_timeout(HANG_MAX) == Err(mpsc::RecvTimeoutError::Timeout);
                let _ = kill_process(process, Signal::CONT);
                waits
            })
        };
        let hanging = leave_hanging(&mut same);
        // What is answered without the device has been, and the rest has reached it.
        thread::sleep(Duration::from_millis(500));
        let during = (look(&mut same), others.iter_mut().map(look).collect::<Vec<_>>());
        drop(thawed);
        let waited = late.join().expect("it ends");
        for token in hanging {
            same.end(token).expect("it is answered when the device goes on");
        }
        let is_good = |(before, during): (&Look, &Look)| {
            let quick = WELL.iter().zip(before.p99.into_iter().zip(during.p99));
            let mut quick =
                quick.map(|((.., floor), (before, during))| during <= SLOWER_MAX * before.max(*floor));
            quick.all(|is_quick| is_quick) && during.ping <= PING_MAX
        };
        let good = !waited && is_good((&before.0, &during.0)) && before.1.iter().zip(&during.1).all(is_good);
        let waited = if waited { "; a session waited for the hung device" } else { "" };
        let figures = format!("before {before:?}, while it hangs {during:?}{waited}");
        println!("{cores} cores: {figures}");
        if good {
            assert!(served.terminate().success());
            attached.detach();
            return;
        }
        seen.push(figures);
    }
    panic!("in none of {LOOKS} looks were the neighbours left alone:\n{}", seen.join("\n"));
}

#[test]
fn with_one_core_a_hung_device_slows_no_other_lun_down_in_the_same_session_or_another() {
    neighbours_of_a_hung_device("1");
}

#[test]
fn with_two_cores_a_hung_device_slows_no_other_lun_down_in_the_same_session_or_another() {
    neighbours_of_a_hung_device("2");
}

#[test]
fn what_hangs_here_really_hangs() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk.img");
    std::fs::File::create(&disk).and_then(|file| file.set_len(SIZE)).expect("a disk");
    let Some(attached) = Attached::start(disk.to_str().expect("text"), folder.path(), &[]) else { return };
    let read = |path: &Path| {
        let path = path.to_owned();
        thread::spawn(move || std::fs::read(path).expect("it is read").len() as u64)
    };
    attached.signal(Signal::STOP);
    let reading = read(&attached.file());
    thread::sleep(Duration::from_millis(300));
    assert!(!reading.is_finished());
    attached.signal(Signal::CONT);
    assert_eq!(reading.join().expect("it ends"), SIZE);
    attached.detach();
}
