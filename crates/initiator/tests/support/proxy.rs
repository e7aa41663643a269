//! A TCP proxy that breaks what goes through it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::Random;

/// What the proxy does to connections, changed while it runs.
#[derive(Default)]
pub struct Faults {
    /// After about that many bytes in one direction the connection ends, in one of several ways; 0: never.
    pub cut_after: AtomicU64,
    /// Nothing goes through, nothing is closed.
    pub frozen: AtomicBool,
    /// New connections are closed at once.
    pub refused: AtomicBool,
    /// Connections taken so far.
    pub connections: AtomicUsize,
    /// Connections cut so far.
    pub cuts: AtomicUsize,
    target: std::sync::Mutex<Option<SocketAddr>>,
}

impl Faults {
    /// Sends later connections elsewhere.
    pub fn redirect(&self, target: SocketAddr) {
        *self.target.lock().unwrap() = Some(target);
    }

    async fn thaw(&self) {
        while self.frozen.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Starts a proxy before `target`.
pub async fn start(target: SocketAddr) -> (SocketAddr, Arc<Faults>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let faults = Arc::new(Faults::default());
    faults.redirect(target);
    let shared = faults.clone();
    tokio::spawn(async move {
        let mut random = Random(42);
        loop {
            let Ok((client, _)) = listener.accept().await else { return };
            if shared.refused.load(Ordering::Relaxed) {
                continue;
            }
            let number = shared.connections.fetch_add(1, Ordering::Relaxed);
            let target = shared.target.lock().unwrap().unwrap();
            let Ok(server) = TcpStream::connect(target).await else { continue };
            tokio::spawn(carry(client, server, shared.clone(), Random(random.next() ^ number as u64)));
        }
    });
    (address, faults)
}

async fn carry(client: TcpStream, server: TcpStream, faults: Arc<Faults>, mut random: Random) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let budget = match faults.cut_after.load(Ordering::Relaxed) {
        0 => u64::MAX,
        bytes => bytes / 2 + random.below(bytes),
    };
    let cut_upward = random.below(2) == 0;
    let half_close = random.below(3) == 0;
    let reset = random.below(3) == 0;
    if reset {
        // A close that throws away what was not delivered, and says RST.
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    let up = pump(
        client_in,
        server_out,
        faults.clone(),
        if cut_upward { budget } else { u64::MAX },
        random.next(),
    );
    let down = pump(
        server_in,
        client_out,
        faults.clone(),
        if cut_upward { u64::MAX } else { budget },
        random.next(),
    );
    if half_close {
        // One direction ends, the other stays open for a moment.
        let up = tokio::spawn(up);
        let down = tokio::spawn(down);
        let (abort_up, abort_down) = (up.abort_handle(), down.abort_handle());
        tokio::select! {
            _ = up => {},
            _ = down => {},
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        abort_up.abort();
        abort_down.abort();
    } else {
        tokio::select! {
            () = up => {},
            () = down => {},
        }
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    faults: Arc<Faults>,
    mut budget: u64,
    seed: u64,
) {
    let mut random = Random(seed);
    let mut buf = vec![0; 64 << 10];
    loop {
        let Ok(len @ 1..) = from.read(&mut buf).await else { return };
        faults.thaw().await;
        let pass = (len as u64).min(budget) as usize;
        if budget < u64::MAX && random.below(64) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if to.write_all(&buf[..pass]).await.is_err() {
            return;
        }
        if budget < u64::MAX {
            budget -= pass as u64;
        }
        if pass < len || budget == 0 {
            faults.cuts.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}
