//! Listening, and the end.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunway_block::decorate::Openers;
use lunway_block::spec::{NbdEndpoint, NbdUri};
use lunway_block::{BlockError, MemoryBudget, MemoryLease, MemoryLimits, Owner, hand_out_time_slices};
use lunway_socket::{SocketName, UnixSocket};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::export::Export;
use crate::negotiation::{NegotiationError, negotiate};
use crate::stream::Stream;
use crate::transmission::{End, Transmission, Turn};

/// The port that is registered for the protocol.
pub const PORT: u16 = NbdUri::PORT;
/// Time that clients have at the end to take their last replies.
const LEAVE_TIME: Duration = Duration::from_secs(5);
/// Pause in accepting after a failure, for want of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listening address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// A Unix socket, which only the user who made it may open.
    Unix(PathBuf),
    /// TCP. NBD has no authentication: every program that reaches the port has the disk.
    Tcp(SocketAddr),
}

/// Reason why a text is no [`NbdAddress`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("“{0}” is not an address: write unix:PATH, or tcp:ADDRESS[:PORT]")]
pub struct NbdAddressError(String);

impl FromStr for NbdAddress {
    type Err = NbdAddressError;

    fn from_str(text: &str) -> Result<Self, NbdAddressError> {
        let wrong = || NbdAddressError(text.to_owned());
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", address)) => {
                let bare = address.trim_start_matches('[').trim_end_matches(']');
                let with_port = || bare.parse().map(|ip| SocketAddr::new(ip, PORT));
                address.parse().or_else(|_| with_port()).map(Self::Tcp).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }
}

impl NbdAddress {
    /// Returns the URI of an export here: `nbd+unix:///NAME?socket=PATH`, `nbd://HOST:PORT/NAME`.
    pub fn uri(&self, export: &str) -> String {
        let endpoint = match self {
            Self::Tcp(address) => NbdEndpoint::Tcp { host: address.ip().to_string(), port: address.port() },
            Self::Unix(socket) => NbdEndpoint::Unix(socket.clone()),
        };
        NbdUri { endpoint, export: export.to_owned() }.to_string()
    }
}

/// Reason why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum NbdBindError {
    /// The path or the port is taken, or may not be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// Somebody answers there.
    #[error("another program listens on {}: stop it, or choose another path", .0.display())]
    Taken(PathBuf),
    /// Something else is there, which is not ours to remove.
    #[error("{} exists and is not a socket: choose another path", .0.display())]
    NoSocket(PathBuf),
}

impl From<lunway_socket::BindError> for NbdBindError {
    fn from(error: lunway_socket::BindError) -> Self {
        match error {
            lunway_socket::BindError::Taken(path) => Self::Taken(path),
            lunway_socket::BindError::NoSocket(path) => Self::NoSocket(path),
            lunway_socket::BindError::Listen { path, source } => {
                Self::Listen { address: path.display().to_string(), source }
            }
        }
    }
}

/// Limits on the connections of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdLimits {
    /// Connections at the same time. Clients that use several take four or eight each.
    pub connections: usize,
    /// Of these, from one address over TCP, and never more than are free: no host alone keeps the others out, and of
    /// several each next one finds half of what the one before it left (dynamic thresholds, as switches share their
    /// buffers; Choudhury and Hahne, 1998).
    pub connections_per_source: usize,
    /// Timeout of a handshake. A client completes it in a few round trips.
    pub handshake: Duration,
    /// Time for which a TCP client may be silent: its kernel, which answers as long as it runs, acknowledges neither
    /// replies nor keep-alive probes. A client that takes no replies for as long, with its window closed, counts as
    /// silent too.
    pub silence: Duration,
    /// Memory that the requests of all clients may hold together, and those of one client: an address over TCP, a
    /// process over a Unix socket. A request that finds no room waits in its socket, see [`MemoryBudget`].
    pub memory: MemoryLimits,
}

impl Default for NbdLimits {
    fn default() -> Self {
        Self {
            connections: 64,
            connections_per_source: 32,
            handshake: Duration::from_secs(10),
            // Longer than a switch or a spanning tree takes to come back (30 to 50 s), which a client survives.
            silence: Duration::from_secs(60),
            // Four connections with as much as each may hold (64 MiB), two of one client: more than the bandwidth of
            // 100 Gbit/s in the 20 ms that a long request takes.
            memory: MemoryLimits { whole: 256 << 20, each: 128 << 20 },
        }
    }
}

impl NbdLimits {
    /// Has the kernel end the connection when its peer is silent. TCP_USER_TIMEOUT counts from the first byte or probe
    /// without an acknowledgement, and probes begin after half of the time without traffic.
    pub(crate) fn watch(&self, stream: &TcpStream) -> io::Result<()> {
        let least = Duration::from_secs(1); // what the kernel counts probes in
        let probes = TcpKeepalive::new()
            .with_time((self.silence / 2).max(least))
            .with_interval((self.silence / 6).max(least))
            .with_retries(3);
        let socket = SockRef::from(stream);
        socket.set_tcp_keepalive(&probes)?;
        socket.set_tcp_user_timeout(Some(self.silence))
    }
}

/// Servers of this process: devices know each as one principal.
static SERVERS: AtomicU64 = AtomicU64::new(0);

enum Listener {
    Unix(UnixListener, SocketName),
    Tcp(TcpListener),
}

impl Listener {
    /// The next connection, and over TCP where it comes from.
    async fn accept(&self) -> io::Result<(Stream, Option<IpAddr>)> {
        match self {
            Self::Unix(listener, _) => Ok((Stream::Unix(listener.accept().await?.0), None)),
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Replies are complete when they are written.
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), Some(peer.ip().to_canonical())))
            }
        }
    }
}

/// Connections of each address, which are no more than all of them.
#[derive(Default)]
struct Sources(Mutex<HashMap<IpAddr, usize>>);

/// One connection of an address; it is counted until this is dropped, as it is also where the connection's task panics.
struct Counted {
    sources: Arc<Sources>,
    source: IpAddr,
}

impl Sources {
    /// Counts a connection.
    ///
    /// # Errors
    ///
    /// A sentence, if there are as many as the address may have.
    fn count(self: &Arc<Self>, source: IpAddr, limits: &NbdLimits) -> Result<Counted, String> {
        let mut counts = self.counts();
        let free = limits.connections.saturating_sub(counts.values().sum());
        let has = counts.get(&source).copied().unwrap_or(0);
        if has >= limits.connections_per_source.min(free) {
            return Err(format!("{source} is refused: it has {has} connections, and {free} are free"));
        }
        counts.insert(source, has + 1);
        Ok(Counted { sources: Arc::clone(self), source })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.sources.counts().entry(self.source) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// An NBD server of one export.
///
/// [`bind`](Self::bind), tell people the [`address`](Self::address), [`serve`](Self::serve). All of it runs on the
/// caller's runtime; a `current_thread` one that carries the device too saves a change of threads for each request, and
/// has [time slices](lunway_block::TimeSlices) handed out: a short request waits for no long one of another client.
pub struct NbdServer {
    listener: Listener,
    export: Export,
    limits: NbdLimits,
    connections: watch::Sender<usize>,
}

impl NbdServer {
    /// Listens; no client is answered yet. A socket that a dead process has left behind is taken over.
    pub async fn bind(address: &NbdAddress, export: Export) -> Result<Self, NbdBindError> {
        let listener = match address {
            NbdAddress::Unix(path) => {
                let failed = |source| NbdBindError::Listen { address: path.display().to_string(), source };
                let (listener, name) = UnixSocket::bind(path)?.into_parts();
                Listener::Unix(UnixListener::from_std(listener).map_err(failed)?, name)
            }
            NbdAddress::Tcp(address) => {
                let failed = |source| NbdBindError::Listen { address: address.to_string(), source };
                Listener::Tcp(TcpListener::bind(address).await.map_err(failed)?)
            }
        };
        Ok(Self { listener, export, limits: NbdLimits::default(), connections: watch::Sender::new(0) })
    }

    /// With other limits than the default ones.
    #[must_use]
    pub fn with_limits(self, limits: NbdLimits) -> Self {
        Self { limits, ..self }
    }

    /// Returns the number of connections, as a receiver of its changes.
    pub fn connections(&self) -> watch::Receiver<usize> {
        self.connections.subscribe()
    }

    /// Returns the listening address, with the port that the system chose if any was requested.
    pub fn address(&self) -> io::Result<NbdAddress> {
        match &self.listener {
            Listener::Unix(_, name) => Ok(NbdAddress::Unix(name.path().to_owned())),
            Listener::Tcp(listener) => listener.local_addr().map(NbdAddress::Tcp),
        }
    }

    /// Serves until `stop`, then finishes what is under way, answers it, and flushes the device. What this returns is
    /// the last flush.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), BlockError> {
        let Self { listener, export, limits, connections: counted } = self;
        let openers = Openers::new(export.device.clone());
        let (stopping, _) = watch::channel(false);
        let mut slices = JoinSet::new();
        if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            slices.spawn(hand_out_time_slices(tokio::task::yield_now));
        }
        let mut connections = JoinSet::new();
        let sources = Arc::<Sources>::default();
        let memory = MemoryBudget::new(limits.memory);
        let server = format!("NBD server {}", SERVERS.fetch_add(1, Ordering::Relaxed));
        let mut accepted_before = 0_u64;
        let mut stop = std::pin::pin!(stop);
        loop {
            counted
                .send_if_modified(|count| std::mem::replace(count, connections.len()) != connections.len());
            tokio::select! {
                () = &mut stop => break,
                Some(ended) = connections.join_next(), if !connections.is_empty() => {
                    if let Err(error) = ended {
                        tracing::error!("a connection ended by a fault of lunway: {error}");
                    }
                }
                accepted = listener.accept(), if connections.len() < limits.connections => match accepted {
                    Ok((stream, source)) => {
                        let place = source.map(|source| sources.count(source, &limits));
                        let place = match place.transpose() {
                            Ok(place) => place,
                            Err(refused) => {
                                tracing::info!("{refused}");
                                continue;
                            }
                        };
                        // Each client hears of a failed flush, whichever asked for it.
                        let device = Arc::new(openers.open());
                        let export = Export { device, ..export.clone() };
                        // Devices give addresses their turns, over a Unix socket connections.
                        accepted_before += 1;
                        let client = match source {
                            Some(source) => source.to_string(),
                            None => format!("connection {accepted_before}"),
                        };
                        let owner = Owner::in_groups([&server, &client]);
                        // A process has its memory once, however many connections it opens.
                        let process = stream.process().map(|process| format!("process {process}"));
                        let lease = MemoryLease::new(&memory, &process.unwrap_or(client));
                        let stopping = stopping.subscribe();
                        let conversation = converse(stream, export, limits, owner, lease, stopping);
                        connections.spawn(async move {
                            let _place = place;
                            conversation.await;
                        });
                    }
                    Err(error) => {
                        tracing::warn!("cannot accept a connection: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        stopping.send_replace(true);
        let all = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(LEAVE_TIME, all).await.is_err() {
            tracing::warn!("{} connections did not end in time", connections.len());
        }
        if export.device.geometry().read_only {
            return Ok(());
        }
        export.device.flush().await
    }
}

/// Serves one connection to its end.
async fn converse(
    mut stream: Stream,
    export: Export,
    limits: NbdLimits,
    owner: Owner,
    lease: MemoryLease,
    mut stopping: watch::Receiver<bool>,
) {
    let name = export.name.clone();
    if let Stream::Tcp(stream) = &stream
        && let Err(error) = limits.watch(stream)
    {
        // It has gone already, as a rule.
        return tracing::info!(export = name, "no connection: {error}");
    }
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(limits.handshake, negotiate(&mut stream, &export)) => shaken,
        _ = stopping.wait_for(|stopping| *stopping) => return,
    };
    let agreed = match shaken {
        Ok(Ok(agreed)) => agreed,
        Ok(Err(NegotiationError::Aborted)) => return,
        Ok(Err(error)) => return tracing::info!(export = name, "no connection: {error}"),
        Err(_) => return tracing::info!(export = name, "no connection: the handshake took too long"),
    };
    tracing::info!(export = name, ?agreed, "connected");
    let mut transmission = Transmission::new(stream, export, agreed, owner, lease);
    let end = loop {
        let turn = tokio::select! {
            turn = poll_fn(|cx| transmission.poll(cx)) => Some(turn),
            _ = stopping.wait_for(|stopping| *stopping), if !transmission.is_leaving() => None,
        };
        match turn {
            Some(Turn::Ended(end)) => break end,
            // Goes on when the runtime has looked at the sockets of others.
            Some(Turn::Over) => tokio::task::yield_now().await,
            None => transmission.leave(End::Shutdown),
        }
    };
    match end {
        End::Disconnected | End::Shutdown => tracing::info!(export = name, "disconnected"),
        End::Protocol(what) => tracing::warn!(export = name, "the client violated the protocol: {what}"),
        End::Broken(error) => tracing::info!(export = name, "the connection broke: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_named_as_other_programs_do() {
        let uri = |text: &str, export: &str| text.parse::<NbdAddress>().map(|address| address.uri(export));
        assert_eq!(uri("unix:/run/a b.sock", "").unwrap(), "nbd+unix:///?socket=/run/a%20b.sock");
        assert_eq!(uri("tcp:127.0.0.1", "disk").unwrap(), "nbd://127.0.0.1:10809/disk");
        assert_eq!(uri("tcp:[::1]:7", "ü").unwrap(), "nbd://[::1]:7/%C3%BC");
        assert_eq!(uri("tcp:::1", "").unwrap(), "nbd://[::1]:10809/");
        for wrong in ["", "unix:", "tcp:", "tcp:host", "/run/x", "tcp:127.0.0.1:99999"] {
            assert!(wrong.parse::<NbdAddress>().is_err(), "{wrong}");
        }
    }
}
