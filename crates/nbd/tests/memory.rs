//! Many clients with the longest requests: the memory that a server gives to them together.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Buf, Io, Layer};
use lunway_memory::RamDisk;
use lunway_nbd::{Export, NbdAddress, NbdLimits, NbdServer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::sync::watch;

/// The longest request, bytes, and in MiB.
const LONG: u32 = 32 << 20;
const LONG_MIB: usize = 32;
const READ: u16 = 0;
/// Connections of each test, which is what a server takes.
const CONNECTIONS: usize = 64;
/// Time in which every connection has a turn many times over.
const A_WHILE: Duration = Duration::from_millis(200);
/// Time that 2 GiB take over a socket on a busy machine, with room to spare.
const PATIENCE: Duration = Duration::from_secs(60);

/// A disk whose long reads wait until it is let go, and are counted.
struct Stalled {
    inner: RamDisk,
    begun: Arc<AtomicUsize>,
    go_on: watch::Receiver<bool>,
}

impl Layer for Stalled {
    fn inner(&self) -> &dyn BlockDevice {
        &self.inner
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        if buf.len() < LONG as usize {
            return self.inner.read(offset, buf);
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut go_on = self.go_on.clone();
        Io::pending(async move {
            let _ = go_on.wait_for(|go_on| *go_on).await;
            Ok(buf)
        })
    }
}

/// A server on such a disk.
struct Served {
    address: NbdAddress,
    begun: Arc<AtomicUsize>,
    let_go: watch::Sender<bool>,
}

impl Served {
    async fn start(address: &NbdAddress) -> Self {
        let (begun, (let_go, go_on)) = (Arc::<AtomicUsize>::default(), watch::channel(false));
        let inner = RamDisk::new(LONG.into(), 512).unwrap();
        let device = Arc::new(Stalled { inner, begun: Arc::clone(&begun), go_on });
        let export = Export { name: "disk".into(), description: String::new(), device, bitmaps: None };
        let limits = NbdLimits { connections: 2 * CONNECTIONS, ..NbdLimits::default() };
        let server = NbdServer::bind(address, export).await.unwrap().with_limits(limits);
        let address = server.address().unwrap();
        tokio::spawn(server.serve(std::future::pending()));
        Self { address, begun, let_go }
    }

    /// Long reads that the disk has, after a time in which it could have got all of them.
    async fn begun(&self) -> usize {
        tokio::time::sleep(A_WHILE).await;
        self.begun.load(Ordering::Relaxed)
    }

    async fn connect_from(&self, host: u8) -> TcpStream {
        let NbdAddress::Tcp(server) = self.address else { panic!("it listens on TCP") };
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)), 0)).unwrap();
        let mut stream = socket.connect(server).await.unwrap();
        handshake(&mut stream).await;
        stream
    }
}

/// Gets a connection into the transmission phase, by the oldest way, so that replies are simple.
async fn handshake(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    stream.read_exact(&mut [0; 18]).await.unwrap();
    let option = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat();
    stream.write_all(&option).await.unwrap();
    stream.read_exact(&mut [0; 10]).await.unwrap();
}

async fn ask(stream: &mut (impl AsyncWrite + Unpin), length: u32) {
    let head = [&0x2560_9513u32.to_be_bytes()[..], &0u16.to_be_bytes(), &READ.to_be_bytes()].concat();
    stream.write_all(&[&head[..], &[0; 16], &length.to_be_bytes()].concat()).await.unwrap();
}

/// Takes the reply to a read, whose data is not looked at.
async fn answered(stream: &mut (impl AsyncRead + Unpin), length: u32) {
    assert_eq!(stream.read_u32().await.unwrap(), 0x6744_6698);
    assert_eq!(stream.read_u32().await.unwrap(), 0, "it is an error");
    stream.read_u64().await.unwrap();
    let mut data = stream.take(length.into());
    assert_eq!(tokio::io::copy(&mut data, &mut tokio::io::sink()).await.unwrap(), u64::from(length));
}

#[tokio::test]
async fn long_reads_of_one_process_wait_for_memory_and_are_all_answered_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd");
    let served = Served::start(&NbdAddress::Unix(path.clone())).await;
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        handshake(&mut stream).await;
        ask(&mut stream, LONG).await;
        streams.push(stream);
    }
    // Of the 128 MiB, and beyond them one.
    let begun = served.begun().await;
    assert!((2..=128 / LONG_MIB + 1).contains(&begun), "{begun} reads are held at once");
    let mut small = UnixStream::connect(&path).await.unwrap();
    handshake(&mut small).await;
    for _ in 0..10 {
        ask(&mut small, 4096).await;
        answered(&mut small, 4096).await;
    }
    served.let_go.send_replace(true);
    let all = streams.into_iter().map(|mut stream| async move { answered(&mut stream, LONG).await });
    tokio::time::timeout(PATIENCE, futures_util::future::join_all(all)).await.expect("all are answered");
    assert_eq!(served.begun.load(Ordering::Relaxed), CONNECTIONS);
}

#[tokio::test]
async fn each_address_gets_memory_and_all_together_no_more_than_the_limit() {
    const HOSTS: usize = 4;
    let served = Served::start(&"tcp:127.0.0.1:0".parse().unwrap()).await;
    let (mut streams, mut before) = (Vec::new(), 0);
    for host in 0..HOSTS {
        for _ in 0..CONNECTIONS / HOSTS {
            let mut stream = served.connect_from(2 + host as u8).await;
            ask(&mut stream, LONG).await;
            streams.push(stream);
        }
        let begun = served.begun().await;
        let of_host = (begun - before) * LONG_MIB;
        assert!((1..=128 + LONG_MIB).contains(&of_host), "host {host} has {of_host} MiB");
        before = begun;
    }
    // The limit, and one request of each.
    let all = before * LONG_MIB;
    assert!(all <= 256 + HOSTS * LONG_MIB, "{all} MiB");
    // A connection that goes gives its memory to others.
    drop(streams.drain(..CONNECTIONS / HOSTS));
    served.let_go.send_replace(true);
    let all = streams.iter_mut().map(|stream| answered(stream, LONG));
    tokio::time::timeout(PATIENCE, futures_util::future::join_all(all)).await.expect("all are answered");
}
