//! A socket that listens: how it is bound, and what can be wrong with that.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::inherited;

/// Connections that the kernel holds until they are accepted: a whole cluster of initiators coming back at once.
const BACKLOG: i32 = 1024;

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; {}", self.advice())]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// Error that the kernel returned.
    pub source: io::Error,
}

impl BindError {
    /// The machine does not have the address, now.
    pub(crate) fn is_for_now(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrNotAvailable
    }

    /// Returns the remedy.
    pub fn advice(&self) -> String {
        match self.source.kind() {
            io::ErrorKind::AddrInUse => format!(
                "another program listens there (`ss -ltnp 'sport = :{}'` names it): stop it, or choose another port",
                self.address.port()
            ),
            io::ErrorKind::AddrNotAvailable => {
                "this machine does not have that address (`ip addr` lists those it has)".to_owned()
            }
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher one".to_owned()
            }
            _ => "check the address".to_owned(),
        }
    }
}

/// A socket that listens.
pub(super) struct Bound {
    pub(super) listener: TcpListener,
    /// Passed to this process: the one that passed it has it as well.
    pub(super) inherited: bool,
}

/// Listens on `address`, on a socket that was passed to this process if there is one. IPv6 sockets take IPv6 only, so
/// that `0.0.0.0` and `[::]` can stand side by side.
///
/// `ours` are the sockets of this process that listen already. The kernel does not allow listening on an address and on
/// every address with the same port, unless both say SO_REUSEPORT. So ours say so for the moment of binding, and only
/// then: between two processes it would hand each a part of the connections, where people need the error.
pub(super) fn bind_beside(address: SocketAddr, ours: &[impl AsFd]) -> io::Result<Bound> {
    if let Some(listener) = inherited::take(address) {
        listener.set_nonblocking(true)?;
        return Ok(Bound { listener, inherited: true });
    }
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restarted daemon gets its port back although old connections are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    match listen(&socket, address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => listen_with_reuse(&socket, address, ours)?,
        result => result?,
    }
    socket.set_nonblocking(true)?;
    Ok(Bound { listener: socket.into(), inherited: false })
}

fn listen(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)
}

fn listen_with_reuse(socket: &Socket, address: SocketAddr, ours: &[impl AsFd]) -> io::Result<()> {
    let same_port = |other: &&_| {
        let local = SockRef::from(*other).local_addr().ok().and_then(|local| local.as_socket());
        local.is_some_and(|local| local.port() == address.port() && local.is_ipv4() == address.is_ipv4())
    };
    let beside: Vec<_> = ours.iter().filter(same_port).map(SockRef::from).collect();
    if beside.is_empty() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let allow = |on: bool| {
        beside.iter().try_for_each(|other| other.set_reuse_port(on))?;
        socket.set_reuse_port(on)
    };
    allow(true)?;
    // The kernel looks at it again when listening begins.
    let listening = listen(socket, address);
    allow(false)?;
    listening
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        bind_beside(address, &[] as &[TcpListener]).map(|bound| bound.listener)
    }

    #[test]
    fn an_address_in_use_names_what_to_do() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let error = BindError { address, source: bind(address).unwrap_err() };
        assert!(error.to_string().contains("another program listens there"));
        assert!(!error.is_for_now());
    }

    #[test]
    fn a_socket_for_every_address_can_take_over_from_one_of_ours_but_not_from_others() {
        let ours = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = ours.local_addr().unwrap().port();
        let everything = SocketAddr::from(([0, 0, 0, 0], port));
        assert_eq!(bind(everything).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let next = bind_beside(everything, &[&ours]).unwrap().listener;
        // While both are there the particular one has the connections.
        let waits = |listener: &TcpListener| listener.accept().is_ok();
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert!(waits(&ours) && !waits(&next));
        drop((client, ours));
        let _client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert!(waits(&next));
        // No other socket gets in beside it.
        assert!(bind(everything).is_err());
        // The other way round as well.
        let particular = bind_beside(SocketAddr::from(([127, 0, 0, 1], port)), &[&next]).unwrap().listener;
        assert_eq!(particular.local_addr().unwrap().port(), port);
    }
}
