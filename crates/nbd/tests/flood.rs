//! One client that sends requests without end: the memory of the server, and another client's patience.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Buf, Durability};
use lunway_memory::RamDisk;
use lunway_nbd::{Export, NbdAddress, NbdServer};

const READ: u16 = 0;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;
const NO_HOLE: u16 = 2;

const SIZE: u64 = 64 << 20;
/// Requests of another client in each flood.
const SHORT_READS: usize = 40;
/// Longest time of the processor that the server may need before it has answered half of them. Time by the clock says
/// more of what else the machine does. With turns it is 1 ms; without, a second and more.
const PATIENCE: Duration = Duration::from_millis(50);
/// Time of a flood.
const TIME: Duration = Duration::from_secs(2);
/// Growth of a flood that is ended, as a failure of the test, MiB.
const GROWTH_MAX: u64 = 400;

/// A server on a thread of its own, which the process ends, and the thread's folder in `/proc`.
fn serve() -> (SocketAddr, PathBuf) {
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ram = RamDisk::new(SIZE, 512).unwrap();
            // Zeroing and telling what is there are work only where something is.
            for offset in (0..SIZE).step_by(128 << 10) {
                let mut data = Buf::zeroed(64 << 10);
                data.fill(7);
                ram.write(offset, data.freeze(), Durability::Volatile).await.unwrap();
            }
            let device: Arc<dyn BlockDevice> = Arc::new(ram);
            let export = Export { name: "disk".into(), description: String::new(), device, bitmaps: None };
            let server = NbdServer::bind(&"tcp:127.0.0.1:0".parse().unwrap(), export).await.unwrap();
            let NbdAddress::Tcp(address) = server.address().unwrap() else { panic!("it listens on TCP") };
            let thread = Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap());
            tell.send((address, thread)).unwrap();
            server.serve(std::future::pending()).await.unwrap();
        });
    });
    told.recv().unwrap()
}

fn option(stream: &mut TcpStream, option: u32, data: &[u8]) {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    stream.write_all(&bytes).unwrap();
}

/// Skips the replies to an option, up to its last.
fn acknowledged(stream: &mut TcpStream) {
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head).unwrap();
        let field = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        stream.read_exact(&mut vec![0; field(16) as usize]).unwrap();
        match field(12) {
            1 => return,
            kind => assert!(kind < 1 << 31, "{kind:#x}"),
        }
    }
}

/// A connection with structured replies and block status.
fn connect(server: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    option(&mut stream, 8, b"");
    acknowledged(&mut stream);
    let context = b"base:allocation";
    let context = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, context.len() as u8], &context[..]].concat();
    option(&mut stream, 10, &context);
    acknowledged(&mut stream);
    option(&mut stream, 7, &[0; 6]);
    acknowledged(&mut stream);
    stream
}

fn request(command: u16, flags: u16, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend([0; 16]);
    bytes.extend(length.to_be_bytes());
    bytes
}

/// Sends one request again and again until the connection is shut down.
fn flood(stream: TcpStream, request: &[u8], takes_replies: bool) {
    let requests = request.repeat(1000);
    let mut sender = stream.try_clone().unwrap();
    thread::spawn(move || while sender.write_all(&requests).is_ok() {});
    if takes_replies {
        thread::spawn(move || io::copy(&mut &stream, &mut io::sink()));
    }
}

/// Time of the processor that a thread has had.
fn processor_time(thread: &Path) -> Duration {
    let times = fs::read_to_string(thread.join("schedstat")).unwrap();
    Duration::from_nanos(times.split_whitespace().next().unwrap().parse().unwrap())
}

/// Memory of this process, MiB.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[test]
fn a_flood_of_requests_takes_bounded_memory_and_holds_up_no_other_client() {
    let (server, thread) = serve();
    let mut other = connect(server);
    let mut short_read = || {
        let (begun, before) = (Instant::now(), processor_time(&thread));
        other.write_all(&request(READ, 0, 4096)).unwrap();
        other.read_exact(&mut vec![0; 28 + 4096]).unwrap();
        (processor_time(&thread).saturating_sub(before), begun.elapsed())
    };
    short_read();
    let whole = SIZE as u32;
    for (name, one, takes_replies, growth_max) in [
        ("block status", request(BLOCK_STATUS, 0, 1 << 20), false, 24),
        ("block status of everything", request(BLOCK_STATUS, 0, whole), false, 24),
        ("block status, replies are taken", request(BLOCK_STATUS, 0, 1 << 20), true, 24),
        ("flush", request(FLUSH, 0, 0), false, 24),
        ("flush, replies are taken", request(FLUSH, 0, 0), true, 24),
        ("zeroing", request(WRITE_ZEROES, NO_HOLE, whole), false, 24),
        ("zeroing, replies are taken", request(WRITE_ZEROES, NO_HOLE, whole), true, 24),
        ("trim", request(TRIM, 0, 0), false, 24),
        ("what is refused", request(77, 0, 0), false, 24),
        // The documented 64 MiB, and what the thread's pool of buffers keeps.
        ("long reads", request(READ, 0, 32 << 20), false, 64 + 48),
        ("long reads, replies are taken", request(READ, 0, 32 << 20), true, 64 + 48),
    ] {
        let before = memory();
        let stream = connect(server);
        let end = stream.try_clone().unwrap();
        flood(stream, &one, takes_replies);
        let (begun, mut times, mut growth) = (Instant::now(), Vec::new(), 0);
        while begun.elapsed() < TIME && growth < GROWTH_MAX {
            if times.len() < SHORT_READS {
                times.push(short_read());
            }
            thread::sleep(TIME / SHORT_READS as u32 / 2);
            growth = growth.max(memory().saturating_sub(before));
        }
        end.shutdown(Shutdown::Both).unwrap();
        times.sort();
        let middle = times[times.len() / 2];
        let longest = times.iter().map(|time| time.1).max();
        println!("{name}: {growth} MiB; a read of 4 KiB: {middle:?}, the longest by the clock {longest:?}");
        assert!(growth <= growth_max, "{name}: {growth} MiB more");
        assert!(middle.0 < PATIENCE, "{name}: another client waited {times:?}");
    }
}
