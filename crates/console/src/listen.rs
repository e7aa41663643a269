//! The sockets of the API: who may connect, and what a connection may cost.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use lunway_socket::{BindError, UnixSocket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use crate::admission::{AdmissionGuard, CONNECTIONS_MAX, TokenAdmission};
use crate::error::ApiError;
use crate::killed::{ENDING_TIME, KilledProcess};
use crate::running::RunningDaemon;
use crate::token::Token;

/// Time limit for the head of a request, and so for an idle connection.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Size limit of the head, bytes. Names in paths have at most 223 bytes each, every byte written as three.
const HEAD_MAX: usize = 16 << 10;
/// Pause after an error of `accept`, such as too many open files: it would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Reason why the API cannot be reached where it should be.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A daemon is there already.
    #[error(
        "another daemon listens on {}: stop it, or give this one a socket of its own (socket in [api])",
        .0.display()
    )]
    Taken(PathBuf),
    /// A daemon that was killed has it still.
    #[error(
        "{process}, and keeps its disks and the socket {} until that answers: bring that disk back or detach it, or \
         restart the machine, and start the daemon then",
        path.display()
    )]
    Killed {
        /// The socket.
        path: PathBuf,
        /// The process.
        process: KilledProcess,
    },
    /// Something else is there.
    #[error("{} exists and is not a socket: remove it, or choose another path for the API's socket", .0.display())]
    NoSocket(PathBuf),
    /// The socket.
    #[error("cannot listen on {}: {source}; check that its folder exists and may be written", path.display())]
    Unix {
        /// Its path.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// The TCP port.
    #[error(
        "cannot listen on {address} for the API: {source}; choose another address or port for listen in [api]"
    )]
    Tcp {
        /// Its address.
        address: SocketAddr,
        /// Error from the kernel.
        source: io::Error,
    },
    /// TCP needs a token.
    #[error("[api]: token_file: {0}")]
    Token(#[from] crate::token::TokenError),
    /// No thread or no runtime.
    #[error("cannot start a thread for the API: {0}")]
    Thread(io::Error),
}

/// Listens on `path`, whose folder is made where only that is missing. For a daemon that was killed it waits until it
/// has ended, for 2 s.
pub(crate) fn bind(path: &Path) -> Result<UnixSocket, ListenError> {
    make_folder(path).map_err(|source| ListenError::Unix { path: path.to_owned(), source })?;
    // A supervisor starts a daemon again as soon as it has killed it.
    let until = Instant::now() + ENDING_TIME * 4;
    let bound = loop {
        let bound = UnixSocket::bind(path);
        let Err(BindError::Taken(taken)) = &bound else { break bound };
        match RunningDaemon::killed_on(taken) {
            Some(_) if Instant::now() < until => thread::sleep(ENDING_TIME / 10),
            Some(_) => break bound,
            // It may have ended between the two questions.
            None => break UnixSocket::bind(path),
        }
    };
    bound.map_err(|error| match error {
        BindError::Taken(path) => match RunningDaemon::killed_on(&path) {
            Some(process) => ListenError::Killed { path, process },
            None => ListenError::Taken(path),
        },
        BindError::NoSocket(path) => ListenError::NoSocket(path),
        BindError::Listen { path, source } => ListenError::Unix { path, source },
    })
}

/// Serves until the runtime ends.
pub(crate) async fn serve(socket: UnixSocket, router: Router) -> io::Result<()> {
    let (listener, _name) = socket.into_parts();
    let listener = UnixListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The kernel's queue holds those for which there is no place; the semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        let router = router.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| pass(router.clone(), request));
            note(serve_connection(stream, service).await);
            drop(place);
        });
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

    /// Address of the listener, with the port that the kernel chose.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the runtime ends.
    pub(crate) async fn serve(self, router: Router) -> io::Result<()> {
        let listener = TcpListener::from_std(self.listener)?;
        let admission = Arc::new(TokenAdmission::default());
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    pause_after(&error).await;
                    continue;
                }
            };
            let guard = Arc::new(admission.enter(peer.ip()));
            let (router, token) = (router.clone(), Arc::clone(&self.token));
            tokio::spawn(async move {
                let seen = Arc::clone(&guard);
                let service =
                    service_fn(move |request| answer(router.clone(), token.clone(), seen.clone(), request));
                tokio::select! {
                    served = serve_connection(stream, service) => note(served),
                    () = guard.must_close() => {}
                }
            });
        }
    }
}

async fn pause_after(error: &io::Error) {
    tracing::debug!("cannot accept a connection to the API: {error}");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Serves one connection to its end.
async fn serve_connection<S, H>(stream: S, service: H) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: HttpService<Incoming, ResBody = Body, Error = Infallible>,
{
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn note(served: hyper::Result<()>) {
    if let Err(error) = served {
        tracing::debug!("a connection to the API broke: {error}");
    }
}

/// Answers a request on TCP, where it has the token.
async fn answer(
    router: Router,
    token: Arc<Token>,
    guard: Arc<AdmissionGuard>,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    if let Err(refused) = admit(&token, request.headers()) {
        let mut response = refused.into_response();
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return Ok(response);
    }
    if !guard.admit() {
        let sentence = format!("{CONNECTIONS_MAX} connections are being answered: repeat");
        return Ok(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, sentence).into_response());
    }
    pass(router, request).await
}

async fn pass(mut router: Router, request: Request<Incoming>) -> Result<Response, Infallible> {
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
    fn a_missing_folder_is_made_and_what_is_there_already_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/api.sock");
        let socket = bind(&path).unwrap();
        assert!(matches!(bind(&path), Err(ListenError::Taken(taken)) if taken == path));
        drop(socket);
        fs::write(&path, "notes").unwrap();
        assert!(matches!(bind(&path), Err(ListenError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
        assert!(matches!(bind(&folder.path().join("not/there/api.sock")), Err(ListenError::Unix { .. })));
    }
}
