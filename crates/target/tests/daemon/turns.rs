//! Turns: sessions that keep a core busy leave their neighbours time on it.

use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Scope;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Geometry, Io, SharedBuf, Zeroing};
use lunway_iscsi::login::InitiatorLoginConfig;
use lunway_iscsi::pdu::HEADER_LEN;

use lunway_memory::RamDisk;
use lunway_target::{Config, OpenDevice, Server};

use crate::support::*;

/// Sessions that flood, more than there are cores, so that each core has one.
const FLOODS: u8 = 4;
const DEPTH: usize = 100;

/// Not measured in time, which a loaded machine has none of, but in commands that go first.
#[test]
fn a_read_does_not_wait_for_a_window_of_long_commands_of_another_session() {
    // VERIFY (16) of 8 MiB without byte check.
    let verify = [0x8f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0];
    let daemon = Daemon::start("");
    let mut neighbour = daemon.log_in_as(100).ready();
    let floods: Vec<Client> = (1..=FLOODS).map(|isid| daemon.log_in_as(isid).ready()).collect();
    let (verified, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut before = Vec::new();
    std::thread::scope(|scope| {
        for mut client in floods {
            let (verified, over) = (&verified, &over);
            scope.spawn(move || {
                let mut sent = VecDeque::new();
                loop {
                    while sent.len() < DEPTH && !over.load(Ordering::Relaxed) {
                        sent.push_back(client.submit(0, &verify, &[], 0));
                        client.flush();
                    }
                    let Some(token) = sent.pop_front() else { return };
                    assert_eq!(client.wait(token).status, 0);
                    verified.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("the flood", || verified.load(Ordering::Relaxed) > DEPTH);
        for block in 0..60 {
            let earlier = verified.load(Ordering::Relaxed);
            neighbour.read(0, block, 8);
            before.push(verified.load(Ordering::Relaxed) - earlier);
        }
        over.store(true, Ordering::Relaxed);
    });
    before.sort_unstable();
    // The lower quartile, as the flood goes on while this thread waits for a processor.
    assert!(before[before.len() / 4] < DEPTH / 4, "commands that went first: {before:?}");
}

/// As many sessions as an initiator may have, each with a window of long commands, leave a neighbour's reads and writes
/// the time slices in between: not one of each session's commands goes first, but one of all.
#[test]
fn a_read_waits_for_one_slice_of_the_long_work_of_many_sessions() {
    const SESSIONS: u8 = 24;
    // VERIFY (16) of 8 MiB, WRITE SAME (16) of 4 MiB of zeroes.
    let long = |opcode: u8, flags: u8, mebibytes: u8| {
        [opcode, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, mebibytes << 3, 0, 0, 0]
    };
    let daemon = Daemon::start("");
    let mut neighbour = daemon.log_in_as(100).ready();
    let floods: Vec<Client> = (1..=SESSIONS).map(|isid| daemon.log_in_as(isid).ready()).collect();
    let (done, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut before = Vec::new();
    std::thread::scope(|scope| {
        for mut client in floods {
            let (done, over) = (&done, &over);
            scope.spawn(move || {
                let mut sent = VecDeque::new();
                loop {
                    while sent.len() < 8 && !over.load(Ordering::Relaxed) {
                        let cdb = if sent.len() % 2 == 0 { long(0x8f, 0, 8) } else { long(0x93, 1, 4) };
                        sent.push_back(client.submit(0, &cdb, &[], 0));
                        client.flush();
                    }
                    let Some(token) = sent.pop_front() else { return };
                    assert_eq!(client.wait(token).status, 0);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("the flood", || done.load(Ordering::Relaxed) > usize::from(SESSIONS));
        for block in 0..60 {
            let earlier = done.load(Ordering::Relaxed);
            neighbour.read(0, block, 8);
            before.push(done.load(Ordering::Relaxed) - earlier);
        }
        over.store(true, Ordering::Relaxed);
    });
    before.sort_unstable();
    // A slice is a sixteenth of a VERIFY.
    assert!(before[before.len() / 4] <= 2, "commands that went first: {before:?}");
}

/// Each was carried out at once, 10 to 30 µs of it, so that a window of them took milliseconds: 256 were a turn.
#[test]
fn a_read_does_not_wait_for_a_window_of_maps_of_a_disk_in_memory() {
    const CHUNK: u32 = 128;
    /// For 255 descriptors, of as many pieces.
    const ROOM: u16 = 8 + 16 * 255;
    let daemon = Daemon::start("");
    let mut neighbour = daemon.log_in_as(100).ready();
    // Every other 64 KiB are there.
    (0..1024).step_by(2).for_each(|chunk| neighbour.write(0, chunk * CHUNK, &[7; BLOCK]));
    let mut map = [0; 16];
    (map[0], map[1]) = (0x9e, 0x12);
    map[12..14].copy_from_slice(&ROOM.to_be_bytes());
    let floods: Vec<Client> = (1..=FLOODS).map(|isid| daemon.log_in_as(isid).ready()).collect();
    let (answered, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut before = Vec::new();
    std::thread::scope(|scope| {
        for mut client in floods {
            let (answered, over) = (&answered, &over);
            scope.spawn(move || {
                let mut sent = VecDeque::new();
                loop {
                    while sent.len() < DEPTH && !over.load(Ordering::Relaxed) {
                        sent.push_back(client.submit(0, &map, &[], usize::from(ROOM)));
                        client.flush();
                    }
                    let Some(token) = sent.pop_front() else { return };
                    assert_eq!(client.wait(token).data_in_len, usize::from(ROOM));
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("the flood", || answered.load(Ordering::Relaxed) > DEPTH);
        for block in 0..60 {
            let earlier = answered.load(Ordering::Relaxed);
            neighbour.read(0, block, 8);
            before.push(answered.load(Ordering::Relaxed) - earlier);
        }
        over.store(true, Ordering::Relaxed);
    });
    before.sort_unstable();
    println!("maps that went before a read: {} at the lower quartile", before[before.len() / 4]);
    assert!(before[before.len() / 4] < DEPTH / 4, "maps that went first: {before:?}");
}

/// Not as above: these move their data, so that the socket of each session takes megabytes at a time.
#[test]
fn a_read_waits_for_a_turn_of_each_session_that_moves_megabytes() {
    const SESSIONS: u8 = 12;
    const BLOCKS: u16 = 16384;
    const TRANSFER: usize = BLOCKS as usize * 512;
    let daemon = Daemon::start("");
    let mut neighbour = daemon.log_in_as(100).ready();
    let alone: Vec<Duration> = (0..60).map(|block| timed(|| drop(neighbour.read(0, block, 8)))).collect();
    let floods: Vec<Client> = (1..=SESSIONS).map(|isid| daemon.log_in_as(isid).ready()).collect();
    let (moved, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut before = Vec::new();
    std::thread::scope(|scope| {
        for (number, mut client) in floods.into_iter().enumerate() {
            let (moved, over) = (&moved, &over);
            scope.spawn(move || {
                let data = vec![7; TRANSFER];
                let mut sent = VecDeque::new();
                loop {
                    while sent.len() < 3 && !over.load(Ordering::Relaxed) {
                        sent.push_back(match number % 2 {
                            0 => client.submit_read(0, 0, BLOCKS),
                            _ => client.submit_write(0, 0, &data),
                        });
                        client.flush();
                    }
                    let Some(token) = sent.pop_front() else { return };
                    assert_eq!(client.wait(token).status, 0);
                    moved.fetch_add(TRANSFER, Ordering::Relaxed);
                }
            });
        }
        until("the flood", || moved.load(Ordering::Relaxed) > usize::from(SESSIONS) * TRANSFER);
        for block in 0..60 {
            let earlier = moved.load(Ordering::Relaxed);
            let took = timed(|| drop(neighbour.read(0, block, 8)));
            before.push((moved.load(Ordering::Relaxed) - earlier, took));
        }
        over.store(true, Ordering::Relaxed);
    });
    before.sort_unstable();
    let mut times: Vec<Duration> = before.iter().map(|(_, took)| *took).collect();
    times.sort_unstable();
    let median = |times: &[Duration]| times[times.len() / 2];
    println!(
        "4 KiB reads beside {SESSIONS} sessions of 8 MiB transfers: {} MiB moved meanwhile at the lower quartile, {} at the \
         median; {:?} at the median, {:?} at most; alone {:?}",
        before[before.len() / 4].0 >> 20,
        before[before.len() / 2].0 >> 20,
        median(&times),
        times[times.len() - 1],
        median(&alone),
    );
    // A turn is a mebibyte either way: of all sessions, a transfer and a half.
    assert!(
        before[before.len() / 4].0 <= (2 * usize::from(SESSIONS)) << 20,
        "bytes that went first: {before:?}"
    );
}

/// Requests that the protocol answers itself: thousands of them came in one read, and were answered before the
/// neighbour had its turn. Measured as above: a turn is 256 requests.
#[test]
fn a_read_waits_for_a_turn_of_each_session_that_floods_short_requests() {
    const SESSIONS: u8 = 12;
    const TURN: usize = 256;
    const MANY: usize = 4096;
    let daemon = Daemon::start("");
    let mut neighbour = daemon.log_in_as(100).ready();
    let floods: Vec<Client> = (1..=SESSIONS).map(|isid| daemon.log_in_as(isid).ready()).collect();
    let (answered, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut before = Vec::new();
    std::thread::scope(|scope| {
        for (number, client) in floods.into_iter().enumerate() {
            // One that is rejected, with its header sent back, or a ping.
            let opcode = if number % 2 == 0 { 0x1e } else { 0x40 };
            flood(scope, client, &request(opcode, &[]), &answered, &over);
        }
        until("the flood", || answered.load(Ordering::Relaxed) > usize::from(SESSIONS) * MANY);
        for block in 0..60 {
            let earlier = answered.load(Ordering::Relaxed);
            let took = timed(|| drop(neighbour.read(0, block, 8)));
            before.push((answered.load(Ordering::Relaxed) - earlier, took));
        }
        over.store(true, Ordering::Relaxed);
    });
    before.sort_unstable();
    let mut times: Vec<Duration> = before.iter().map(|(_, took)| *took).collect();
    times.sort_unstable();
    println!(
        "4 KiB reads beside {SESSIONS} sessions of short requests: {} answered meanwhile at the lower quartile, {} at the \
         median; {:?} at the median, {:?} at most",
        before[before.len() / 4].0,
        before[before.len() / 2].0,
        times[times.len() / 2],
        times[times.len() - 1],
    );
    // The turn that has begun, and one of each session before the read is seen and before its answer is.
    assert!(
        before[before.len() / 4].0 <= 3 * usize::from(SESSIONS) * TURN,
        "requests that went first: {before:?}"
    );
}

/// A text of 8 KiB takes as long as 45 pings, and 128 of them were a turn; each of a host's sessions had one. Now a
/// text is half a turn, and one turn goes first, not one of each session.
#[test]
fn a_read_waits_for_one_turn_of_all_the_sessions_that_flood_texts() {
    const SESSIONS: u8 = 24;
    let daemon = Daemon::start("");
    let mut neighbour = daemon.log_in_as(100).ready();
    let floods: Vec<Client> = (1..=SESSIONS).map(|isid| daemon.log_in_as(isid).ready()).collect();
    let (answered, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut before = Vec::new();
    std::thread::scope(|scope| {
        for client in floods {
            flood(scope, client, &request(TEXT_REQUEST, &text()), &answered, &over);
        }
        until("the flood", || answered.load(Ordering::Relaxed) > usize::from(SESSIONS) * 64);
        for block in 0..60 {
            let earlier = answered.load(Ordering::Relaxed);
            let took = timed(|| drop(neighbour.read(0, block, 8)));
            before.push((answered.load(Ordering::Relaxed) - earlier, took));
        }
        over.store(true, Ordering::Relaxed);
    });
    before.sort_unstable();
    let mut times: Vec<Duration> = before.iter().map(|(_, took)| *took).collect();
    times.sort_unstable();
    println!(
        "4 KiB reads beside {SESSIONS} sessions of texts: {} answered meanwhile at the lower quartile, {} at the median; \
         {:?} at the median, {:?} at most",
        before[before.len() / 4].0,
        before[before.len() / 2].0,
        times[times.len() / 2],
        times[times.len() - 1],
    );
    // A turn of each core is 4; with a turn of each session 20 were measured.
    assert!(before[before.len() / 4].0 <= 8, "texts that went first: {before:?}");
}

/// The turns of a core are those of principals: a host with many sessions has no more of them.
#[test]
fn a_session_has_the_turns_of_a_core_as_often_as_all_those_of_another_principal() {
    const SESSIONS: u8 = 24;
    let rule =
        |name: &str| format!("[[target.acl]]\nname = \"{name}\"\ninitiators = [\"{INITIATOR}-{name}\"]\n");
    let rules = rule("many") + &rule("one");
    let daemon = Daemon::start_with(&format!("[[target]]\nname = \"{TARGET}\"\n{rules}{}", luns()));
    let log_in = |name: &str, isid: u8| {
        let login = InitiatorLoginConfig { initiator_name: format!("{INITIATOR}-{name}"), ..login(isid) };
        Client::log_in(daemon.address, login).unwrap().ready()
    };
    let many: Vec<Client> = (1..=SESSIONS).map(|isid| log_in("many", isid)).collect();
    let one = log_in("one", 1);
    let (of_many, of_one, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let (of_many, of_one) = std::thread::scope(|scope| {
        let texts = request(TEXT_REQUEST, &text());
        many.into_iter().for_each(|client| flood(scope, client, &texts, &of_many, &over));
        flood(scope, one, &texts, &of_one, &over);
        let both = || (of_many.load(Ordering::Relaxed), of_one.load(Ordering::Relaxed));
        until("the flood", || both().0 > usize::from(SESSIONS) * 64);
        let earlier = both();
        until("texts", || both().0 > earlier.0 + 8000);
        over.store(true, Ordering::Relaxed);
        let later = both();
        (later.0 - earlier.0, later.1 - earlier.1)
    });
    println!("texts answered: {of_many} of {SESSIONS} sessions, {of_one} of one of another principal");
    // It has half of its core, and of the other one nothing: a third of what the others have. A part for each session
    // would be a 24th.
    assert!(of_one > of_many / 8, "{of_one} beside {of_many}");
}

/// A disk that writes down where it is read, and whose first block stops the core that reads it until it is let go.
struct Recorder {
    disk: RamDisk,
    reads: Mutex<Vec<u64>>,
    /// The core is stopped.
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Recorder {
    fn stop_here(&self) {
        let mut stopped = self.stopped.lock().unwrap();
        *stopped = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(stopped, |stopped| *stopped).unwrap());
    }

    fn await_stop(&self) {
        let stopped = self.stopped.lock().unwrap();
        let (stopped, late) =
            self.changed.wait_timeout_while(stopped, PATIENCE, |stopped| !*stopped).unwrap();
        assert!(*stopped && !late.timed_out());
    }

    fn go_on(&self) {
        *self.stopped.lock().unwrap() = false;
        self.changed.notify_all();
    }

    /// Blocks that were read since the last time, in the order in which they were.
    fn taken(&self) -> Vec<u64> {
        std::mem::take(&mut *self.reads.lock().unwrap())
    }
}

impl BlockDevice for Recorder {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        if offset == 0 {
            self.stop_here();
        }
        self.reads.lock().unwrap().push(offset / BLOCK as u64);
        self.disk.read(offset, buf)
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        self.disk.write(offset, data, durability)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.disk.write_zeroes(offset, len, zeroing)
    }
}

/// Not measured in time: the one core is stopped while two sessions send, the one as much as it likes, and the disk
/// says in which order they are served when it goes on.
#[test]
fn a_session_that_floods_does_one_turn_before_another_on_its_core_whatever_it_has_sent() {
    /// Reads of half a block's worth of a turn: a turn of 1 MiB is sixteen of them.
    const BLOCKS: u16 = 128;
    const TURN: usize = 16;
    const FLOOD: u32 = 1 << 10;
    const NEIGHBOUR: u32 = 1 << 14;
    let recorder = Arc::new(Recorder {
        disk: RamDisk::new(64 << 20, 512).unwrap(),
        reads: Mutex::default(),
        stopped: Mutex::default(),
        changed: Condvar::new(),
    });
    let device = Arc::clone(&recorder);
    let open: OpenDevice = Arc::new(move |_, _| {
        let device = Arc::clone(&device) as Arc<dyn BlockDevice>;
        Box::pin(async move { Ok(device.into()) })
    });
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{TARGET}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"recorder\"\n[[target.lun]]\nid = 1\ndevice = \"recorder\"\n"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = Config::from_toml(&text, "test.toml").unwrap();
    let server = runtime.block_on(Server::start(config, open)).unwrap();
    let session = |isid: u8| Client::log_in(server.addresses()[0], login(isid)).unwrap().ready();
    let [mut stopper, mut flood, mut neighbour] = [1, 2, 3].map(session);
    for _ in 0..8 {
        let stop = stopper.submit_read(0, 0, 1);
        recorder.await_stop();
        let sent: Vec<u64> = (0..DEPTH).map(|_| flood.submit_read(0, FLOOD, BLOCKS)).collect();
        let read = neighbour.submit_read(1, NEIGHBOUR, 8);
        recorder.taken();
        recorder.go_on();
        neighbour.wait(read);
        sent.into_iter().for_each(|token| assert_eq!(flood.wait(token).status, 0));
        stopper.wait(stop);
        let order = recorder.taken();
        let before = order.iter().position(|block| *block == u64::from(NEIGHBOUR)).unwrap();
        let flooded = order[..before].iter().filter(|block| **block == u64::from(FLOOD)).count();
        assert_eq!(order.len(), DEPTH + 2, "all are served: {order:?}");
        assert!(flooded <= TURN, "of the flood {flooded} went first: {order:?}");
    }
    runtime.block_on(server.shutdown(Duration::ZERO)).unwrap();
}

const TEXT_REQUEST: u8 = 0x44;

/// The longest list of pairs for 8 KiB.
fn text() -> Vec<u8> {
    b"a=b\0".repeat(2048)
}

/// An immediate request with such an opcode byte.
fn request(opcode: u8, data: &[u8]) -> Vec<u8> {
    let mut header = [0; HEADER_LEN];
    (header[0], header[1], header[19]) = (opcode, 0x80, 1);
    header[4..8].copy_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
    header[20..24].fill(0xff);
    [&header, data].concat()
}

/// Sends a request as often as the connection takes it, until it is over, and counts the answers.
fn flood<'scope>(
    scope: &'scope Scope<'scope, '_>,
    client: Client,
    request: &[u8],
    answered: &'scope AtomicUsize,
    over: &'scope AtomicBool,
) {
    let requests = request.repeat((192 << 10) / request.len());
    let mut reader = BufReader::with_capacity(192 << 10, client.stream.try_clone().unwrap());
    let mut writer = client.stream;
    scope.spawn(move || {
        while !over.load(Ordering::Relaxed) && writer.write_all(&requests).is_ok() {}
        // What is on its way is still answered.
        let _ = writer.shutdown(Shutdown::Both);
    });
    scope.spawn(move || {
        let (mut header, mut data) = ([0; HEADER_LEN], Vec::new());
        while reader.read_exact(&mut header).is_ok() {
            let len = u32::from_be_bytes([0, header[5], header[6], header[7]]);
            data.resize((len as usize).next_multiple_of(4), 0);
            if reader.read_exact(&mut data).is_err() {
                return;
            }
            answered.fetch_add(1, Ordering::Relaxed);
        }
    });
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}
