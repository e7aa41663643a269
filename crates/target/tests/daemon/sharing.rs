//! A device that is slow to answer is shared out: floods of one session cost others turns, not queues, and go with it.

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Geometry, Io, SharedBuf, Zeroing};
use lunway_file::{FileDevice, FileOptions, Workers};
use lunway_target::{Config, OpenDevice, Server};
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use crate::support::*;

/// Sessions that ask for maps, and requests of each at a time.
const FLOODS: u8 = 12;
const DEPTH: usize = 100;
const FILE_LEN: u64 = 64 << 20;
/// How long reads are counted.
const MEASURE_TIME: Duration = Duration::from_secs(10);
/// For 64 descriptors of the 16,384 that the file has.
const ROOM: u16 = 8 + 16 * 64;

/// A file of which every other 4 KiB are a hole.
fn fragmented() -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(FILE_LEN).unwrap();
    for at in (0..FILE_LEN).step_by(8192) {
        file.as_file().write_all_at(&[7; 4096], at).unwrap();
    }
    file.as_file().sync_all().unwrap();
    file
}

fn serve(device: impl Fn() -> Arc<dyn BlockDevice> + Send + Sync + 'static) -> (Server, Runtime) {
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 2\n[[target]]\nname = \"{TARGET}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"ram:1M\"\n[[target.lun]]\nid = 1\ndevice = \"ram:1M\"\n"
    );
    let device = Arc::new(device);
    let open: OpenDevice = Arc::new(move |_, _| {
        let device = Arc::clone(&device);
        Box::pin(async move { Ok(device().into()) })
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server =
        runtime.block_on(Server::start(Config::from_toml(&text, "test.toml").unwrap(), open)).unwrap();
    (server, runtime)
}

fn lba_status(room: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x9e, 0x12);
    cdb[12..14].copy_from_slice(&room.to_be_bytes());
    cdb
}

/// Keeps requests for maps under way until it is over.
fn flood(client: &mut Client, answered: &AtomicUsize, over: &AtomicBool) {
    let mut sent = VecDeque::new();
    loop {
        while sent.len() < DEPTH && !over.load(Ordering::Relaxed) {
            sent.push_back(client.submit(0, &lba_status(ROOM), &[], usize::from(ROOM)));
        }
        let Some(token) = sent.pop_front() else { return };
        let completed = client.wait(token);
        assert_eq!(completed.status, 0);
        assert_eq!(completed.data_in_len, usize::from(ROOM));
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

fn p99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Judged by the commands that go first, as a loaded machine has no time of its own; the times are told.
#[test]
fn maps_of_a_fragmented_file_hold_up_no_reads_and_no_maps_of_another_session() {
    let file = fragmented();
    let device = Arc::new(FileDevice::open(file.path(), &FileOptions::default()).unwrap());
    let (server, _runtime) = serve(move || Arc::clone(&device) as Arc<dyn BlockDevice>);
    let log_in = |isid| Client::log_in(server.addresses()[0], login(isid)).unwrap().ready();
    let mut reader = log_in(100);
    let mut asker = log_in(101);
    let timed = |reader: &mut Client, block: u32| {
        let begun = Instant::now();
        reader.read(0, block * 8, 8);
        begun.elapsed()
    };
    let blocks = (FILE_LEN / 4096) as u32;
    let mut alone: Vec<_> = (0..2000).map(|turn| timed(&mut reader, turn * 977 % blocks)).collect();
    let (answered, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (mut beside, mut before_reads, mut before_maps) = (Vec::new(), Vec::new(), Vec::new());
    let clients: Vec<Client> = (1..=FLOODS).map(log_in).collect();
    thread::scope(|scope| {
        for mut client in clients {
            let (answered, over) = (&answered, &over);
            scope.spawn(move || flood(&mut client, answered, over));
        }
        until("the flood", || answered.load(Ordering::Relaxed) > DEPTH);
        let since = |earlier: usize| answered.load(Ordering::Relaxed) - earlier;
        // For a time, as without turns each takes seconds.
        let begun = Instant::now();
        for turn in (0..2000).take_while(|turn| *turn < 20 || begun.elapsed() < MEASURE_TIME) {
            let earlier = since(0);
            beside.push(timed(&mut reader, turn * 977 % blocks));
            before_reads.push(since(earlier));
        }
        for _ in (0..20).take_while(|turn| *turn < 4 || begun.elapsed() < 2 * MEASURE_TIME) {
            let earlier = since(0);
            assert_eq!(asker.execute(0, &lba_status(24), &[], 24).status, 0);
            before_maps.push(since(earlier));
        }
        over.store(true, Ordering::Relaxed);
    });
    let (alone, beside) = (p99(&mut alone), p99(&mut beside));
    println!("p99 of reads of 4 KiB: {alone:?} alone, {beside:?} beside {FLOODS} x {DEPTH} GET LBA STATUS");
    before_reads.sort_unstable();
    before_maps.sort_unstable();
    // The lower quartiles, as the flood goes on while this thread waits for a processor. In one queue with the flood it
    // is nearly all of what that has under way.
    let (reads, maps) = (before_reads[before_reads.len() / 4], before_maps[before_maps.len() / 4]);
    println!("maps of the flood before one read: {reads}, before one map: {maps}");
    let all = usize::from(FLOODS) * DEPTH;
    assert!(reads < all / 10, "maps that went before a read: {reads}");
    assert!(maps < all / 4, "maps of others that went before one: {maps}");
}

/// A device on threads whose reads wait until they are let go, and that counts those that were carried out.
struct Held {
    workers: Workers,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    held: bool,
    begun: usize,
    writes: usize,
}

impl Held {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    fn begin<T: Send + Unpin + 'static>(
        &self,
        note: fn(&mut State),
        answer: T,
    ) -> impl FnOnce() -> Result<T, BlockError> + Send + use<T> {
        let state = Arc::clone(&self.state);
        move || {
            let (state, go_on) = &*state;
            let mut state = state.lock().unwrap();
            note(&mut state);
            drop(go_on.wait_while(state, |state| state.held).unwrap());
            Ok(answer)
        }
    }
}

impl BlockDevice for Held {
    fn geometry(&self) -> Geometry {
        Geometry::plain(1 << 20)
    }

    fn read(&self, _: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        self.workers.reads.io(self.begin(|state| state.begun += 1, buf))
    }

    fn write(&self, _: u64, _: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
        self.workers.writes.io(self.begin(|state| state.writes += 1, ()))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }
}

#[test]
fn what_a_device_has_not_begun_goes_with_its_session_and_what_it_has_is_waited_for() {
    let device = Arc::new(Held { workers: Workers::new(), state: Arc::default() });
    let served = Arc::clone(&device);
    let (server, _runtime) = serve(move || Arc::clone(&served) as Arc<dyn BlockDevice>);
    let log_in = |isid| Client::log_in(server.addresses()[0], login(isid)).unwrap();
    let (mut gone, mut stays) = (log_in(1).ready(), log_in(2).ready());
    device.state().held = true;
    for block in 0..60 {
        gone.submit_read(0, block, 1);
        gone.submit_write(0, block, &pattern(1, 1));
    }
    until("the device to have begun", || {
        let state = device.state();
        state.begun == 16 && state.writes == 16
    });
    // Beside the blocks that are written: it waits for the device alone.
    let kept = stays.submit_read(0, 100, 1);
    drop(gone);
    // The same initiator again: it is let in when the old session begins nothing more.
    let mut again = log_in(1);
    let busy = again.execute(0, &[0; 6], &[], 0);
    assert_eq!(busy.status, 8, "what the device has begun of the old session is waited for");
    device.state().held = false;
    device.state.1.notify_all();
    let begun = Instant::now();
    while again.execute(0, &[0; 6], &[], 0).status != 0 {
        assert!(begun.elapsed() < PATIENCE, "what had begun has ended");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(stays.wait(kept).status, 0);
    let state = device.state();
    assert_eq!((state.begun, state.writes), (17, 16), "nothing of the old session begins");
    drop(state);
    again.read(0, 0, 1);
}
