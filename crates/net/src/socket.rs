//! Sockets as they are asked for: windows, segment sizes, source addresses; and what the kernel made of it.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use crate::NetError;
use crate::option::clamp_window;

/// A TCP header without options.
const TCP_HEADER: u32 = 20;

/// The TCP window of both ends of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Window {
    /// The kernels size it as the connection goes (autotuning).
    #[default]
    Auto,
    /// `SO_SNDBUF` and `SO_RCVBUF` of this many bytes, set before the connection is made, and a receive window that
    /// never grows beyond it. Linux grants twice the bytes, for its own bookkeeping, up to `net.core.{w,r}mem_max`.
    Bytes(u32),
}

impl Window {
    /// The bytes, if they are set.
    pub fn bytes(self) -> Option<u32> {
        match self {
            Self::Auto => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Bytes(bytes) if bytes.is_multiple_of(1 << 20) => f.pad(&format!("{} MiB", bytes >> 20)),
            Self::Bytes(bytes) if bytes.is_multiple_of(1 << 10) => f.pad(&format!("{} KiB", bytes >> 10)),
            Self::Bytes(bytes) => f.pad(&format!("{bytes} B")),
        }
    }
}

/// The socket buffers of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffers {
    /// `SO_SNDBUF` as granted, bytes.
    pub send: u32,
    /// `SO_RCVBUF` as granted, bytes.
    pub receive: u32,
}

impl Buffers {
    pub(crate) fn of(stream: &TcpStream) -> io::Result<Self> {
        let socket = SockRef::from(stream);
        let small = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        Ok(Self { send: small(socket.send_buffer_size()?), receive: small(socket.recv_buffer_size()?) })
    }

    /// Returns `true` if the kernel granted less than was requested: `net.core.wmem_max` or `rmem_max` clipped it.
    pub fn clipped(&self, window: Window) -> bool {
        window.bytes().is_some_and(|bytes| u64::from(self.send.min(self.receive)) < 2 * u64::from(bytes))
    }
}

/// Sets the window of a socket. Of one that is connected already only buffers and the window's limit can be set, not
/// the scale, which was agreed on in the handshake and which Linux derives from the largest buffer that it allows.
pub(crate) fn set_window(socket: SockRef<'_>, bytes: u32) -> Result<(), (&'static str, io::Error)> {
    socket.set_send_buffer_size(bytes as usize).map_err(|error| ("SO_SNDBUF", error))?;
    socket.set_recv_buffer_size(bytes as usize).map_err(|error| ("SO_RCVBUF", error))?;
    // A window that is open at the default size does not grow with the buffer by itself: the limit lets it, and keeps
    // it.
    clamp_window(&*socket, bytes).map_err(|error| ("TCP_WINDOW_CLAMP", error))
}

/// A connection with everything set before the handshake.
pub(crate) fn connect(
    peer: SocketAddr,
    from: Option<IpAddr>,
    window: Window,
    mtu: Option<u32>,
    patience: Duration,
) -> Result<TcpStream, NetError> {
    let refused = |source| NetError::Connect { peer, source };
    let socket = Socket::new(Domain::for_address(peer), Type::STREAM, None).map_err(refused)?;
    let option = |(option, source)| NetError::Option { option, peer, source };
    if let Some(bytes) = window.bytes() {
        set_window(SockRef::from(&socket), bytes).map_err(option)?;
    }
    if let Some(mtu) = mtu {
        let segment = mtu.saturating_sub(TCP_HEADER + internet_header(peer.ip()));
        socket.set_tcp_mss(segment).map_err(|source| option(("TCP_MAXSEG", source)))?;
    }
    if let Some(from) = from {
        socket
            .bind(&SocketAddr::new(from, 0).into())
            .map_err(|source| option(("the source address", source)))?;
    }
    socket.connect_timeout(&peer.into(), patience).map_err(refused)?;
    Ok(socket.into())
}

/// The header that carries an address of this kind, bytes.
pub(crate) fn internet_header(address: IpAddr) -> u32 {
    if address.is_ipv4() { 20 } else { 40 }
}

/// The name of a connection's congestion control.
pub(crate) fn congestion(stream: &TcpStream) -> String {
    let name = SockRef::from(stream).tcp_congestion().unwrap_or_default();
    name.iter().take_while(|&&byte| byte != 0).map(|&byte| char::from(byte)).collect()
}
