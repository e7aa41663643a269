//! From an address to a TCP connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_block::duration::HumanTime;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;

use crate::{IscsiOpenError, IscsiUrl, SessionOptions};

/// Delay after which, where there is hope, another connection is attempted beside the pending one. TCP itself would try
/// again after a second: a machine that comes back is found sooner.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Most connections tried for at a time.
const TRIES_MAX: usize = 6;

/// Connects to an address. Every connection is [abortive](abort_on_close) until [`close_in_order`].
///
/// With `hope` it tries again and again beside the first try, which may have met a machine or a network that was not
/// there; the first connection counts. Each notification of `hope` is a try more, at once.
pub(crate) struct Dialling<'a> {
    pub(crate) url: &'a IscsiUrl,
    pub(crate) options: &'a SessionOptions,
    pub(crate) hope: Option<&'a Notify>,
}

impl Dialling<'_> {
    /// Connects to the first of the host's addresses that answers.
    pub(crate) async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, IscsiOpenError> {
        let (url, patience) = (self.url, self.options.connect_timeout);
        let portal = IscsiUrl::portal_text(host, port);
        let found = tokio::time::timeout(patience, tokio::net::lookup_host((host, port))).await;
        let addresses: Vec<SocketAddr> = match found {
            Ok(Ok(addresses)) => addresses.collect(),
            Ok(Err(error)) => return Err(IscsiOpenError::Resolve { portal, why: error.to_string() }),
            Err(_) => {
                return Err(IscsiOpenError::Resolve {
                    portal,
                    why: format!("the resolver did not answer within {}", HumanTime(patience)),
                });
            }
        };
        let mut why = match url.from {
            Some(from) => format!("it has no address that can be reached from {from}"),
            None => "it has no address".to_owned(),
        };
        for address in addresses {
            if url.from.is_some_and(|from| from.is_ipv4() != address.is_ipv4()) {
                continue;
            }
            match tokio::time::timeout(patience, self.try_for(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => why = error.to_string(),
                Err(_) => {
                    why = format!("no answer to the TCP connection request within {}", HumanTime(patience));
                }
            }
        }
        Err(IscsiOpenError::Connect { portal, why })
    }

    async fn try_for(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let mut tries = FuturesUnordered::new();
        tries.push(self.try_once(address));
        loop {
            tokio::select! {
                Some(result) = tries.next() => match result {
                    Err(_) if !tries.is_empty() => {}
                    result => return result,
                },
                () = self.again(), if tries.len() < TRIES_MAX => tries.push(self.try_once(address)),
            }
        }
    }

    async fn again(&self) {
        match self.hope {
            None => std::future::pending().await,
            Some(hope) => {
                // Whichever comes first.
                let _ = tokio::time::timeout(AGAIN_AFTER, hope.notified()).await;
            }
        }
    }

    // RFC 7143 [11.12-1]
    async fn try_once(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(from) = self.url.from {
            socket.bind(SocketAddr::new(from, 0))?;
        }
        if self.options.user_timeout.is_some() {
            socket2::SockRef::from(&socket).set_tcp_user_timeout(self.options.user_timeout)?;
        }
        abort_on_close(&socket)?;
        let stream = socket.connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Abortive close (SO_LINGER of zero): when the last handle of the socket goes, the kernel throws away what was not
/// delivered and resets the connection; no byte of it is sent, or sent again, after that. Without this the kernel goes
/// on sending what is queued, for minutes, though no process has the socket any more. It is set before `connect`, so
/// that it holds from the first byte, however the process ends: by its own will, by SIGKILL, or for want of memory.
fn abort_on_close<S: std::os::fd::AsFd>(socket: &S) -> io::Result<()> {
    socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

/// Orderly close, for a session that was logged out: nothing of it is left to be sent.
pub(crate) fn close_in_order<S: std::os::fd::AsFd>(socket: &S) {
    // It cannot fail on a socket.
    let _ = socket2::SockRef::from(socket).set_linger(None);
}

/// From now on what the kernel has to send for a connection goes nowhere. Through a dead port nothing comes anyway, and
/// what is sent into one costs it a second when it is back: see
/// [`IscsiDevice::set_port_down`](crate::IscsiDevice::set_port_down).
pub(crate) fn keep_off_the_port<S: std::os::fd::AsFd>(socket: &S) {
    // Bound to the loopback, where no interface has the peer's address. A kernel older than 5.7 lets only root do this;
    // then it costs the second.
    if let Err(error) = socket2::SockRef::from(socket).bind_device(Some(b"lo")) {
        tracing::debug!(%error, "a lost connection cannot be kept off its port");
    }
}
