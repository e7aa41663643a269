//! A cable that breaks in every way a cable can: a TCP proxy between an initiator and a target.

#![allow(dead_code, unreachable_pub, reason = "several test programs use it, of which each needs a part")]

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use socket2::{SockFilter, SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Bytes at a time.
const CHUNK: usize = 64 << 10;

/// The shortest time that TCP's keep-alive can be told: whole seconds.
const PROBE_TIME: Duration = Duration::from_secs(1);

/// A way to a target, on a port of its own.
pub struct Line {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: Mutex<SocketAddr>,
    listener: TcpListener,
    connections: Mutex<Vec<Weak<Connection>>>,
    taken: AtomicUsize,
    /// Packets of the initiator vanish, and nothing comes back.
    swallows: AtomicBool,
    /// Bytes vanish that TCP has acknowledged.
    eats: AtomicBool,
    /// No byte is taken.
    frozen: AtomicBool,
    /// No byte is taken, and those that wait will be delivered late.
    holds: AtomicBool,
    /// New connections are reset.
    refuses: AtomicBool,
    /// Whether the initiator still knows a connection is found out by keep-alive.
    probes: AtomicBool,
    delay_us: AtomicU64,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    cut: Notify,
    /// Told to be late by so many milliseconds.
    late: Notify,
    late_ms: AtomicU64,
}

impl Line {
    pub async fn start(target: SocketAddr) -> Self {
        Self::start_at([127, 0, 0, 1], target).await
    }

    /// At that address.
    pub async fn start_at(ip: [u8; 4], target: SocketAddr) -> Self {
        let listener = TcpListener::bind(SocketAddr::from((ip, 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            listener,
            connections: Mutex::default(),
            taken: AtomicUsize::new(0),
            swallows: AtomicBool::new(false),
            eats: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            holds: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            probes: AtomicBool::new(false),
            delay_us: AtomicU64::new(0),
        });
        tokio::spawn(shared.clone().take());
        Self { address, shared }
    }

    /// Later connections go elsewhere.
    pub fn redirect(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap() = target;
    }

    /// How many connections were taken so far.
    pub fn taken(&self) -> usize {
        self.shared.taken.load(Ordering::Relaxed)
    }

    /// Resets every connection.
    pub fn cut(&self) {
        for connection in self.shared.living() {
            let _ = SockRef::from(&connection.client).set_linger(Some(Duration::ZERO));
            let _ = SockRef::from(&connection.server).set_linger(Some(Duration::ZERO));
            connection.cut.notify_waiters();
        }
    }

    /// Half-open: the target hears that the initiator is gone, the initiator hears nothing.
    pub fn cut_far_end(&self) {
        for connection in self.shared.living() {
            let _ = SockRef::from(&connection.server).shutdown(std::net::Shutdown::Both);
        }
    }

    /// The initiator's end is reset, and what it has sent within the last `hold` reaches the target that much later.
    pub async fn cut_and_deliver_late(&self, hold: Duration, late: Duration) {
        self.shared.holds.store(true, Ordering::SeqCst);
        tokio::time::sleep(hold).await;
        for connection in self.shared.living() {
            connection.late_ms.store(late.as_millis() as u64, Ordering::SeqCst);
            connection.late.notify_waiters();
        }
        self.shared.holds.store(false, Ordering::SeqCst);
    }

    /// A black hole: the kernel of this end drops every packet of the initiator, the first of a connection too, and
    /// acknowledges nothing.
    pub fn swallow(&self, on: bool) {
        self.shared.swallows.store(on, Ordering::SeqCst);
        let _ = make_deaf(SockRef::from(&self.shared.listener), on);
        for connection in self.shared.living() {
            let _ = make_deaf(SockRef::from(&connection.client), on);
        }
    }

    /// A black hole behind a middle box: TCP's acknowledgements come, what was sent never arrives.
    pub fn eat(&self, on: bool) {
        self.shared.eats.store(on, Ordering::SeqCst);
    }

    /// Nothing is taken from either side, until windows are closed.
    pub fn freeze(&self, on: bool) {
        self.shared.frozen.store(on, Ordering::SeqCst);
    }

    /// New connections are reset.
    pub fn refuse(&self, on: bool) {
        self.shared.refuses.store(on, Ordering::SeqCst);
    }

    /// Ends later connections whose initiator is gone or does not answer for three times [`PROBE_TIME`], in a black
    /// hole, too; otherwise the target has them for as long as the black hole lasts, or for good.
    pub fn probe(&self) {
        self.shared.probes.store(true, Ordering::SeqCst);
    }

    /// Every chunk of bytes takes that much longer.
    pub fn delay(&self, time: Duration) {
        self.shared.delay_us.store(time.as_micros() as u64, Ordering::SeqCst);
    }
}

async fn deliver_late(connection: Arc<Connection>) {
    let mut held = Vec::new();
    let mut chunk = vec![0; CHUNK];
    while let Ok(len @ 1..) = connection.client.try_read(&mut chunk) {
        held.extend_from_slice(&chunk[..len]);
    }
    let late = Duration::from_millis(connection.late_ms.load(Ordering::SeqCst));
    let server: std::net::TcpStream = SockRef::from(&connection.server).try_clone().unwrap().into();
    let mut server = TcpStream::from_std(server).unwrap();
    let _ = SockRef::from(&connection.client).set_linger(Some(Duration::ZERO));
    drop(connection);
    tokio::time::sleep(late).await;
    let _ = server.write_all(&held).await;
    // So that the target has time to take it before it hears that the initiator is gone.
    let _ = tokio::time::timeout(Duration::from_millis(200), server.read(&mut chunk)).await;
}

/// With a packet filter that takes 0 bytes of each packet.
fn make_deaf(socket: SockRef<'_>, on: bool) -> io::Result<()> {
    let nothing = [SockFilter::new(0x06, 0, 0, 0)];
    if on { socket.attach_filter(&nothing) } else { socket.detach_filter() }
}

impl Shared {
    fn living(&self) -> Vec<Arc<Connection>> {
        let mut connections = self.connections.lock().unwrap();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.iter().filter_map(Weak::upgrade).collect()
    }

    async fn take(self: Arc<Self>) {
        while let Ok((client, _)) = self.listener.accept().await {
            if self.refuses.load(Ordering::SeqCst) {
                let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
                continue;
            }
            self.taken.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(self.clone().carry(client));
        }
    }

    async fn carry(self: Arc<Self>, client: TcpStream) {
        let target = *self.target.lock().unwrap();
        let Ok(server) = TcpStream::connect(target).await else {
            let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
            return;
        };
        if self.probes.load(Ordering::SeqCst) {
            let often = TcpKeepalive::new().with_time(PROBE_TIME).with_interval(PROBE_TIME).with_retries(2);
            SockRef::from(&client).set_tcp_keepalive(&often).unwrap();
        }
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let connection = Arc::new(Connection {
            client,
            server,
            cut: Notify::new(),
            late: Notify::new(),
            late_ms: AtomicU64::new(0),
        });
        self.connections.lock().unwrap().push(Arc::downgrade(&connection));
        if self.swallows.load(Ordering::SeqCst) {
            let _ = make_deaf(SockRef::from(&connection.client), true);
        }
        tokio::select! {
            () = connection.cut.notified() => {}
            () = connection.late.notified() => deliver_late(connection).await,
            () = self.forgotten(&connection.client) => {}
            () = self.pump(&connection.client, &connection.server) => {}
            () = self.pump(&connection.server, &connection.client) => {}
        }
    }

    /// Until keep-alive has found out that nobody is there.
    async fn forgotten(&self, client: &TcpStream) {
        while !self.probes.load(Ordering::SeqCst) || matches!(client.take_error(), Ok(None)) {
            tokio::time::sleep(PROBE_TIME / 10).await;
        }
    }

    /// Until `from` ends or either breaks; both are closed then.
    async fn pump(&self, from: &TcpStream, to: &TcpStream) {
        let mut chunk = vec![0; CHUNK];
        loop {
            self.thaw().await;
            if from.readable().await.is_err() {
                return;
            }
            if self.is_still() {
                continue;
            }
            if self.holds.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            let len = match from.try_read(&mut chunk) {
                Ok(0) => return,
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return,
            };
            let delay = self.delay_us.load(Ordering::SeqCst);
            if delay > 0 {
                tokio::time::sleep(Duration::from_micros(delay)).await;
            }
            if self.eats.load(Ordering::SeqCst) {
                continue;
            }
            let mut rest = &chunk[..len];
            while !rest.is_empty() {
                self.thaw().await;
                match to.try_write(rest) {
                    Ok(taken) => rest = &rest[taken..],
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if to.writable().await.is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                }
            }
        }
    }

    fn is_still(&self) -> bool {
        self.frozen.load(Ordering::SeqCst) || self.swallows.load(Ordering::SeqCst)
    }

    async fn thaw(&self) {
        while self.is_still() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
