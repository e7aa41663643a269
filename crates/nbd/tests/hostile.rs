//! Clients that do not keep to the protocol, byte by byte.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../memory/tests/support/fails_one_flush.rs"]
mod fails_one_flush;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fails_one_flush::FailsOneFlush;
use lunway_block::decorate::Delay;
use lunway_block::{BlockDevice, BlockError, Buf, Durability, Io, Layer, SharedBuf, Zeroing};
use lunway_memory::RamDisk;
use lunway_nbd::{Export, NbdAddress, NbdLimits, NbdServer};
use socket2::{SockFilter, SockRef};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const OPTION: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;
const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

struct Served {
    path: PathBuf,
    device: Arc<dyn BlockDevice>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Served {
    async fn start(device: Arc<dyn BlockDevice>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd");
        let export =
            Export { name: "disk".into(), description: String::new(), device: device.clone(), bitmaps: None };
        let server = NbdServer::bind(&NbdAddress::Unix(path.clone()), export).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async {
            let stopped = async {
                let _ = stopped.await;
            };
            server.serve(stopped).await.unwrap();
        });
        Self { path, device, stop, task, _folder: folder }
    }

    async fn ram() -> Self {
        Self::start(Arc::new(RamDisk::new(64 << 20, 512).unwrap())).await
    }

    /// A connection that has read the greeting.
    async fn greet(&self) -> UnixStream {
        let mut stream = UnixStream::connect(&self.path).await.unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream
    }

    /// A connection in the transmission phase, by the oldest way, so that replies are simple.
    async fn connect(&self) -> UnixStream {
        let mut stream = self.greet().await;
        stream.write_u32(3).await.unwrap();
        stream.write_all(&option(1, b"disk")).await.unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).await.unwrap();
        assert_eq!(export[..8], (64u64 << 20).to_be_bytes());
        stream
    }

    async fn still_serves(&self) {
        let mut stream = self.connect().await;
        stream.write_all(&request(READ, 0, 7, 0, 512)).await.unwrap();
        assert_eq!(reply(&mut stream).await, (0, 7));
        let mut data = [1; 512];
        stream.read_exact(&mut data).await.unwrap();
        assert_eq!(data, [0; 512]);
    }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [&OPTION.to_be_bytes()[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// Error and cookie of a simple reply.
async fn reply(stream: &mut UnixStream) -> (u32, u64) {
    assert_eq!(stream.read_u32().await.unwrap(), 0x6744_6698);
    (stream.read_u32().await.unwrap(), stream.read_u64().await.unwrap())
}

/// The type of the next reply to an option, whose data is skipped.
async fn option_reply(stream: &mut UnixStream) -> u32 {
    assert_eq!(stream.read_u64().await.unwrap(), 0x0003_e889_0455_65a9);
    stream.read_u32().await.unwrap();
    let kind = stream.read_u32().await.unwrap();
    let mut data = vec![0; stream.read_u32().await.unwrap() as usize];
    stream.read_exact(&mut data).await.unwrap();
    kind
}

async fn closes(mut stream: UnixStream) {
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
    // A reset is an end too: the server left bytes of ours unread.
    let _ = closed.expect("the server closes the connection");
}

#[tokio::test]
async fn garbage_in_the_handshake_ends_that_connection_and_no_other() {
    let served = Served::ram().await;
    let long = [&OPTION.to_be_bytes()[..], &7u32.to_be_bytes(), &u32::MAX.to_be_bytes()].concat();
    for garbage in [
        0xffff_ffff_u32.to_be_bytes().to_vec(),
        [&3u32.to_be_bytes()[..], b"GARBAGEGARBAGEGA"].concat(),
        [&3u32.to_be_bytes()[..], &long].concat(),
        [&3u32.to_be_bytes()[..], &option(1, b"another disk")].concat(),
    ] {
        let mut stream = served.greet().await;
        stream.write_all(&garbage).await.unwrap();
        closes(stream).await;
    }
    served.still_serves().await;
}

#[tokio::test]
async fn options_that_do_not_add_up_are_refused_and_the_handshake_goes_on() {
    let served = Served::ram().await;
    let mut stream = served.greet().await;
    stream.write_u32(3).await.unwrap();
    let (unsupported, policy, invalid, unknown) = (0x8000_0001, 0x8000_0002, 0x8000_0003, 0x8000_0006);
    let huge_count = [&0u32.to_be_bytes()[..], &u32::MAX.to_be_bytes()].concat();
    for (number, data, expected) in [
        (99, &b"x"[..], unsupported),
        (5, b"", policy),
        (3, b"x", invalid),
        (8, b"x", invalid),
        (6, b"", invalid),
        (6, &[0, 0, 0, 9, b'd'], invalid),
        (7, &[0, 0, 0, 0, 0xff, 0xff], invalid),
        (7, &[0, 0, 0, 1, b'x', 0, 0], unknown),
        (10, &huge_count, invalid),
    ] {
        stream.write_all(&option(number, data)).await.unwrap();
        assert_eq!(option_reply(&mut stream).await, expected, "option {number} with {data:?}");
    }
    // Contexts need structured replies first.
    let context = [&0u32.to_be_bytes()[..], &0u32.to_be_bytes()].concat();
    stream.write_all(&option(10, &context)).await.unwrap();
    assert_eq!(option_reply(&mut stream).await, invalid);
    stream.write_all(&option(2, b"")).await.unwrap();
    assert_eq!(option_reply(&mut stream).await, 1, "an abort is acknowledged");
    closes(stream).await;
}

#[tokio::test]
async fn requests_that_cannot_be_met_are_refused_and_the_next_one_is_understood() {
    let served = Served::ram().await;
    let mut stream = served.connect().await;
    let size = 64u64 << 20;
    for (command, flags, offset, length, error) in [
        (READ, 0, 1, 512, EINVAL),
        (READ, 0, size, 512, EINVAL),
        (READ, 0, u64::MAX - 511, 512, EINVAL),
        (READ, 0, 0, (32 << 20) + 512, EINVAL),
        (READ, 0x80, 0, 512, EINVAL),
        (BLOCK_STATUS, 0, 0, 512, EINVAL),
        (77, 0, 0, 0, EINVAL),
        (READ, 0, size - 512, 1024, EINVAL),
        (BLOCK_STATUS, 0, size, 512, EINVAL),
        (TRIM, 0, size, 512, EINVAL),
        (TRIM, 0, u64::MAX, u32::MAX, EINVAL),
        (WRITE_ZEROES, 0, size - 512, 1024, ENOSPC),
        (WRITE_ZEROES, 0, u64::MAX, u32::MAX, ENOSPC),
    ] {
        stream.write_all(&request(command, flags, 1, offset, length)).await.unwrap();
        assert_eq!(reply(&mut stream).await, (error, 1), "{command} {flags:#x} {offset} {length}");
    }
    // The data of a write that is refused is skipped.
    stream.write_all(&request(WRITE, 0, 2, size, 512)).await.unwrap();
    stream.write_all(&[9; 512]).await.unwrap();
    assert_eq!(reply(&mut stream).await, (ENOSPC, 2));
    stream.write_all(&request(READ, 0, 3, 0, 0)).await.unwrap();
    assert_eq!(reply(&mut stream).await, (0, 3));
}

#[tokio::test]
async fn a_write_longer_than_the_limit_or_a_wrong_magic_number_ends_the_connection() {
    let served = Served::ram().await;
    for bytes in [request(WRITE, 0, 1, 0, (32 << 20) + 512), vec![0xee; 28]] {
        let mut stream = served.connect().await;
        stream.write_all(&bytes).await.unwrap();
        closes(stream).await;
    }
    served.still_serves().await;
}

#[tokio::test]
async fn a_client_that_takes_no_replies_is_not_read_from_for_ever() {
    let served = Served::ram().await;
    let mut stream = served.connect().await;
    let mut sent = 0;
    let flood = async {
        loop {
            stream.write_all(&request(READ, 0, sent, 0, 1 << 20)).await.unwrap();
            sent += 1;
        }
    };
    assert!(tokio::time::timeout(Duration::from_millis(500), flood).await.is_err());
    // 64 MiB of replies, and what fits into the buffers of requests of 28 bytes.
    assert!(sent < 64 + 30_000, "{sent} requests were taken without a reply");
    served.still_serves().await;
}

/// Counts panics of this test's thread, on which its server runs.
fn count_panics() -> Arc<AtomicUsize> {
    let (count, test) = (Arc::new(AtomicUsize::new(0)), std::thread::current().id());
    let (counted, before) = (Arc::clone(&count), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().id() == test {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        before(panic);
    }));
    count
}

/// A reply of 1 MiB was sent in part, more than a reply that came later is long: its rest was sought in that one.
#[tokio::test]
async fn a_client_that_goes_in_the_middle_of_a_long_reply_ends_its_connection_alone() {
    let panics = count_panics();
    let ram: Arc<dyn BlockDevice> = Arc::new(RamDisk::new(64 << 20, 512).unwrap());
    let served = Served::start(Arc::new(Delay::new(ram, Duration::from_millis(200)))).await;
    let mut stream = served.connect().await;
    stream.write_all(&request(READ, 0, 1, 0, 1 << 20)).await.unwrap();
    assert_eq!(reply(&mut stream).await, (0, 1));
    stream.write_all(&request(READ, 0, 2, 0, 512)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(stream);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(panics.load(Ordering::Relaxed), 0);
    served.still_serves().await;
}

/// A device with a fault: reading it panics.
struct Panicking(RamDisk);

impl Layer for Panicking {
    fn inner(&self) -> &dyn BlockDevice {
        &self.0
    }

    fn read(&self, _: u64, _: Buf) -> Io<Result<Buf, BlockError>> {
        panic!("a fault, on purpose");
    }
}

#[tokio::test]
async fn connections_that_end_by_a_panic_make_room() {
    let limits = NbdLimits { connections_per_source: 2, ..NbdLimits::default() };
    let server = on_tcp_with(Arc::new(Panicking(RamDisk::new(64 << 20, 512).unwrap())), limits).await;
    for _ in 0..2 {
        let mut stream = from_host(2, server).await.unwrap();
        stream.write_all(&request(READ, 0, 1, 0, 512)).await.unwrap();
        let ended = tokio::time::timeout(LONG, stream.read(&mut [0])).await.expect("the connection ends");
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }
    let again = async { while from_host(2, server).await.is_err() {} };
    tokio::time::timeout(LONG, again).await.expect("there is room again");
}

#[tokio::test]
async fn a_flush_that_failed_for_one_client_fails_once_for_every_other() {
    let ram = RamDisk::new(64 << 20, 512).unwrap();
    let served = Served::start(Arc::new(FailsOneFlush::new(ram))).await;
    let mut clients = [served.connect().await, served.connect().await];
    for cookie in 0..2 {
        for client in &mut clients {
            client.write_all(&request(FLUSH, 0, cookie, 0, 0)).await.unwrap();
            let (error, answered) = reply(client).await;
            assert_eq!((error != 0, answered), (cookie == 0, cookie));
        }
    }
}

/// A device on which everything that changes it fails with the same error.
struct Failing(RamDisk, BlockError);

impl Layer for Failing {
    fn inner(&self) -> &dyn BlockDevice {
        &self.0
    }

    fn write(&self, _: u64, _: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
        Io::err(self.1.clone())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        Io::err(self.1.clone())
    }

    fn unmap(&self, _: u64, _: u64) -> Io<Result<(), BlockError>> {
        Io::err(self.1.clone())
    }
}

/// The specification's table of errors (`doc/proto.md`, “Error values”).
#[tokio::test]
async fn each_error_of_the_device_has_the_number_that_the_specification_wants() {
    let io = |kind: std::io::ErrorKind| BlockError::Io { kind, message: String::new() };
    let shrunk = BlockError::OutOfRange { offset: 0, len: 512, size: 0 };
    for (error, of_writes, of_trim) in [
        (BlockError::NoSpace, ENOSPC, ENOSPC),
        (std::io::Error::from_raw_os_error(122).into(), ENOSPC, ENOSPC),
        (std::io::Error::from_raw_os_error(27).into(), ENOSPC, ENOSPC),
        (shrunk, ENOSPC, EINVAL),
        (BlockError::ReadOnly, EPERM, EPERM),
        (BlockError::ReservationConflict, EPERM, EPERM),
        (io(std::io::ErrorKind::PermissionDenied), EPERM, EPERM),
        (BlockError::Medium { offset: 0 }, EIO, EIO),
        (BlockError::gone("it is away"), EIO, EIO),
        (io(std::io::ErrorKind::Other), EIO, EIO),
    ] {
        let ram = RamDisk::new(64 << 20, 512).unwrap();
        let served = Served::start(Arc::new(Failing(ram, error.clone()))).await;
        let mut stream = served.connect().await;
        for (command, errno) in [(WRITE, of_writes), (WRITE_ZEROES, of_writes), (TRIM, of_trim)] {
            stream.write_all(&request(command, 0, 1, 0, 512)).await.unwrap();
            if command == WRITE {
                stream.write_all(&[9; 512]).await.unwrap();
            }
            assert_eq!(reply(&mut stream).await, (errno, 1), "{command}: {error}");
        }
    }
}

#[tokio::test]
async fn half_a_write_is_no_write() {
    let served = Served::ram().await;
    let mut stream = served.connect().await;
    stream.write_all(&request(WRITE, 0, 1, 0, 1 << 20)).await.unwrap();
    stream.write_all(&vec![7; 1 << 19]).await.unwrap();
    stream.shutdown().await.unwrap();
    closes(stream).await;
    served.still_serves().await;
}

#[tokio::test]
async fn what_is_under_way_when_the_server_ends_is_finished_and_answered() {
    let ram: Arc<dyn BlockDevice> = Arc::new(RamDisk::new(64 << 20, 512).unwrap());
    let served = Served::start(Arc::new(Delay::new(ram, Duration::from_millis(300)))).await;
    let mut stream = served.connect().await;
    stream.write_all(&request(WRITE, 0, 5, 0, 512)).await.unwrap();
    stream.write_all(&[5; 512]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    served.stop.send(()).unwrap();
    assert_eq!(reply(&mut stream).await, (0, 5));
    closes(stream).await;
    served.task.await.unwrap();
    let read = served.device.read(0, lunway_block::Buf::zeroed(512)).await.unwrap();
    assert_eq!(read[..], [5; 512]);
    assert!(!served.path.exists(), "the socket goes with the server");
}

#[tokio::test]
async fn a_socket_is_taken_over_from_the_dead_and_left_to_the_living() {
    let served = Served::ram().await;
    let export = || Export {
        name: String::new(),
        description: String::new(),
        device: served.device.clone(),
        bitmaps: None,
    };
    let address = NbdAddress::Unix(served.path.clone());
    let error = NbdServer::bind(&address, export()).await.err().unwrap().to_string();
    assert!(error.contains("another program listens"), "{error}");
    served.still_serves().await;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    NbdServer::bind(&NbdAddress::Unix(path), export()).await.unwrap();

    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = NbdServer::bind(&NbdAddress::Unix(file.clone()), export()).await.err().unwrap().to_string();
    assert!(error.contains("is not a socket"), "{error}");
    assert_eq!(std::fs::read(file).unwrap(), b"precious");
}

#[tokio::test]
async fn a_socket_is_its_users_alone_and_a_name_that_somebody_else_took_is_left_to_them() {
    let served = Served::ram().await;
    assert_eq!(std::fs::metadata(&served.path).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::remove_file(&served.path).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&served.path).unwrap();
    served.stop.send(()).unwrap();
    served.task.await.unwrap();
    assert!(served.path.exists());
}

/// A server on TCP, which ends with the test.
async fn on_tcp(limits: NbdLimits) -> std::net::SocketAddr {
    on_tcp_with(Arc::new(RamDisk::new(64 << 20, 512).unwrap()), limits).await
}

async fn on_tcp_with(device: Arc<dyn BlockDevice>, limits: NbdLimits) -> std::net::SocketAddr {
    let export = Export { name: "disk".into(), description: String::new(), device, bitmaps: None };
    let server =
        NbdServer::bind(&"tcp:127.0.0.1:0".parse().unwrap(), export).await.unwrap().with_limits(limits);
    let NbdAddress::Tcp(address) = server.address().unwrap() else { panic!("it listens on TCP") };
    tokio::spawn(async { server.serve(std::future::pending()).await.unwrap() });
    address
}

/// A connection from `127.0.0.HOST` in the transmission phase; an error where the server closes it instead.
async fn from_host(host: u8, server: std::net::SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(([127, 0, 0, host], 0).into())?;
    let mut stream = socket.connect(server).await?;
    stream.read_exact(&mut [0; 18]).await?;
    stream.write_u32(3).await?;
    stream.write_all(&option(1, b"disk")).await?;
    stream.read_exact(&mut [0; 10]).await?;
    Ok(stream)
}

/// The host behind a client is gone: its kernel drops all that comes for it, by a packet filter that takes 0 bytes of
/// each packet, and acknowledges nothing.
fn die(stream: &TcpStream) {
    SockRef::from(stream).attach_filter(&[SockFilter::new(0x06, 0, 0, 0)]).unwrap();
}

/// A machine whose time is taken must not fail this; for ever does.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn clients_that_died_without_a_word_make_room_whether_they_were_idle_or_owed_an_acknowledgement() {
    let limits = NbdLimits { silence: Duration::from_secs(2), ..NbdLimits::default() };
    let server = on_tcp(limits).await;
    let mut dead = Vec::new();
    for number in 0..limits.connections {
        let mut stream = from_host(2 + number as u8, server).await.unwrap();
        die(&stream);
        if number % 4 < 2 {
            stream.write_all(&request(READ, 0, 1, 0, 4096)).await.unwrap();
        }
        dead.push(stream);
    }
    let living = tokio::time::timeout(LONG, from_host(100, server));
    living.await.expect("there is room again").unwrap();
}

#[tokio::test]
async fn one_host_cannot_take_all_connections() {
    let limits = NbdLimits::default();
    let server = on_tcp(limits).await;
    let mut taken = Vec::new();
    for _ in 0..limits.connections_per_source {
        taken.push(from_host(2, server).await.unwrap());
    }
    let refused = tokio::time::timeout(LONG, from_host(2, server)).await.expect("it is told at once");
    assert!(refused.is_err());
    tokio::time::timeout(LONG, from_host(3, server)).await.expect("another host is served").unwrap();
    // One that leaves makes room for the next.
    drop(taken.pop());
    let again = async { while from_host(2, server).await.is_err() {} };
    tokio::time::timeout(LONG, again).await.expect("there is room again");
}

/// Two addresses took all 64, and a third one waited in the queue of the kernel without an answer.
#[tokio::test]
async fn several_hosts_leave_room_for_the_next() {
    let limits = NbdLimits::default();
    let server = on_tcp(limits).await;
    let mut taken = Vec::new();
    for (host, share) in [(2, 32), (3, 16), (4, 8), (5, 4), (6, 2), (7, 1)] {
        let mut has = 0;
        while let Ok(client) =
            tokio::time::timeout(LONG, from_host(host, server)).await.expect("it is told at once")
        {
            taken.push(client);
            has += 1;
        }
        assert_eq!(has, share, "host {host}");
    }
    tokio::time::timeout(LONG, from_host(8, server)).await.expect("there is room").unwrap();
}

#[tokio::test]
async fn clients_that_do_not_finish_the_handshake_make_room() {
    let limits = NbdLimits { handshake: Duration::from_millis(500), ..NbdLimits::default() };
    let server = on_tcp(limits).await;
    let mut idle = Vec::new();
    for number in 0..limits.connections {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 2 + number as u8], 0).into()).unwrap();
        let mut stream = socket.connect(server).await.unwrap();
        if number % 2 == 0 {
            stream.write_all(&[0, 0]).await.unwrap();
        }
        idle.push(stream);
    }
    tokio::time::timeout(LONG, from_host(4, server)).await.expect("there is room again").unwrap();
}
