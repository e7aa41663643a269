//! The sockets of the API: who may connect, and what a connection may cost.

use std::convert::Infallible;
use std::fs;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use crate::error::ApiError;
use crate::token::Token;

/// Connections at a time, for each socket on its own: strangers on TCP must not lock out who is on this machine.
const CONNECTIONS_MAX: usize = 64;
/// How long a client has for the head of a request, and so how long a connection may idle.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// How large the head may be. Names in paths have at most 223 bytes each, every byte written as three.
const HEAD_MAX: usize = 16 << 10;
/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 64;
/// Pause after an error of `accept`, such as too many open files: it would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why the API cannot be reached where it should be.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A daemon is there already.
    #[error(
        "another daemon listens on {}: stop it, or give this one a socket of its own (--api-socket, or socket in [api])",
        .0.display()
    )]
    Taken(PathBuf),
    /// Something else is there.
    #[error("{} is there and is no socket: remove it, or choose another path for the API's socket", .0.display())]
    NoSocket(PathBuf),
    /// The socket.
    #[error("cannot listen on {}: {source}; check that its folder exists and may be written", path.display())]
    Unix {
        /// Its path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The TCP port.
    #[error(
        "cannot listen on {address} for the API: {source}; choose another address or port for listen in [api]"
    )]
    Tcp {
        /// Its address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// TCP needs a token.
    #[error("[api]: token_file: {0}")]
    Token(#[from] crate::token::TokenError),
    /// No thread or no runtime.
    #[error("cannot start a thread for the API: {0}")]
    Thread(io::Error),
}

/// A listening Unix socket that only this user may connect to; its name goes when this does.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: std::os::unix::net::UnixListener,
    name: Name,
}

/// The name of a socket, removed when dropped unless somebody else has taken it.
#[derive(Debug)]
struct Name {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for Name {
    fn drop(&mut self) {
        let still_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.inode);
        if still_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl UnixSocket {
    /// Listens on `path`. A socket that a dead daemon left is removed, one that answers is not.
    pub(crate) fn bind(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Unix { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ListenError::NoSocket(path.to_owned()));
            }
            Ok(_) => match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(failed)?;
                }
                // It answers, or is so busy that it does not.
                _ => return Err(ListenError::Taken(path.to_owned())),
            },
            Err(_) => make_folder(path).map_err(failed)?,
        }
        Self::bind_new(path).map_err(failed)
    }

    fn bind_new(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Before it has a name: Linux makes the name with the mode of the socket, so nobody else can ever connect.
        rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        let metadata = fs::symlink_metadata(path)?;
        let name = Name { path: path.to_owned(), inode: (metadata.dev(), metadata.ino()) };
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(io::Error::other("its mode cannot be set"));
        }
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self { listener: socket.into(), name })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.name.path
    }

    /// Serves until the runtime ends.
    pub(crate) async fn serve(self, router: Router) -> io::Result<()> {
        let Self { listener, name: _name } = self;
        let listener = UnixListener::from_std(listener)?;
        accept(|| async { Ok(listener.accept().await?.0) }, router, None).await;
        Ok(())
    }
}

/// `/run/lunway` is gone after each boot.
fn make_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.exists() => fs::create_dir(folder),
        _ => Ok(()),
    }
}

/// A listening TCP socket and what opens it.
#[derive(Debug)]
pub(crate) struct TcpSocket {
    listener: std::net::TcpListener,
    token: Arc<Token>,
}

impl TcpSocket {
    pub(crate) fn bind(address: SocketAddr, token: Token) -> Result<Self, ListenError> {
        let bound = std::net::TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = bound.map_err(|source| ListenError::Tcp { address, source })?;
        Ok(Self { listener, token: Arc::new(token) })
    }

    /// Where it listens, with the port that the kernel chose.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the runtime ends.
    pub(crate) async fn serve(self, router: Router) -> io::Result<()> {
        let listener = TcpListener::from_std(self.listener)?;
        accept(|| async { Ok(listener.accept().await?.0) }, router, Some(self.token)).await;
        Ok(())
    }
}

async fn accept<S, F>(mut next: impl FnMut() -> F, router: Router, token: Option<Arc<Token>>)
where
    F: Future<Output = io::Result<S>>,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The kernel's queue holds those for which there is no place; the semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match next().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!("cannot accept a connection to the API: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (router, token) = (router.clone(), token.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(router.clone(), token.clone(), request));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_MAX)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!("a connection to the API broke: {error}");
            }
            drop(place);
        });
    }
}

async fn answer(
    router: Router,
    token: Option<Arc<Token>>,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    if let Some(token) = token
        && let Err(refused) = admit(&token, request.headers())
    {
        let mut response = refused.into_response();
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return Ok(response);
    }
    let mut router = router;
    // A router is always ready and never fails.
    tower_service::Service::call(&mut router, request.map(Body::new)).await
}

fn admit(token: &Token, headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let given = given.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    let is_it = given.is_some_and(|(_, given)| token.is(given));
    is_it.then_some(()).ok_or_else(ApiError::unauthorized)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_user_may_connect_and_the_name_goes_with_the_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/api.sock");
        let socket = UnixSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn the_socket_of_a_dead_daemon_is_replaced_and_that_of_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        // Dropped without its name, as a kill does.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let living = UnixSocket::bind(&path).unwrap();
        assert!(matches!(UnixSocket::bind(&path), Err(ListenError::Taken(_))));
        UnixStream::connect(&path).unwrap();
        drop(living);
        fs::write(&path, "notes").unwrap();
        assert!(matches!(UnixSocket::bind(&path), Err(ListenError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
    }

    #[test]
    fn a_name_that_somebody_else_took_is_left_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let socket = UnixSocket::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }
}
