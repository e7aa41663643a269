//! A client of the API, for Unix sockets and TCP.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::error::ErrorBody;
use crate::killed::{ENDING_TIME, KilledProcess};
use crate::running::{RunningDaemon, runtime_folder};
use crate::token::{TokenError, read_token};

/// Time limit for connecting to a daemon.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Time limit for the answer to a change: it may have to reach another machine for a device.
const ANSWER_TIME: Duration = Duration::from_secs(120);
/// Time limit for the answer to a question: none of them waits for a disk.
const GET_TIME: Duration = Duration::from_secs(30);
/// Longest answer, bytes.
const ANSWER_MAX: usize = 64 << 20;
/// Characters to escape within one part of a path.
const NOT_IN_PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'/')
    .add(b'%');

/// Address of a daemon's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// `HOST:PORT`, and the file with the token.
    Tcp {
        /// `HOST:PORT`.
        address: String,
        /// The file whose only line is the token.
        token_file: PathBuf,
    },
}

/// Reason why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not an address.
    #[error("{0:?} is not the address of an API: write it as http://192.0.2.10:3290")]
    Address(String),
    /// No process there.
    #[error("{}", unreachable(endpoint, source))]
    Connect {
        /// The socket or address.
        endpoint: String,
        /// Error from the kernel.
        source: io::Error,
    },
    /// No token for TCP.
    #[error("the token: {0}")]
    Token(#[from] TokenError),
    /// The connection broke, or the daemon took too long.
    #[error(
        "the daemon on {endpoint} did not answer: {why}; whether a change was made is unknown, asking again is safe"
    )]
    NoAnswer {
        /// The socket or address.
        endpoint: String,
        /// Description of the event.
        why: String,
    },
    /// The daemon was killed, and has not ended.
    #[error(
        "the daemon on {endpoint} answers nothing any more: {process}, and keeps its disks and this socket until that \
         answers; bring that disk back or detach it, or restart the machine"
    )]
    Killed {
        /// The socket.
        endpoint: String,
        /// Its process.
        process: KilledProcess,
    },
    /// A question was not answered in time.
    #[error(
        "the daemon on {endpoint} did not answer within {} s: ask again; if that is in vain, see its log, and restart it",
        GET_TIME.as_secs()
    )]
    Silent {
        /// The socket or address.
        endpoint: String,
    },
    /// The daemon says no; its sentence.
    #[error("{sentence}")]
    Refused {
        /// The status.
        status: u16,
        /// Reason.
        sentence: String,
        /// The parameter or member of the request that would decide otherwise.
        parameter: Option<String>,
        /// The method of a request for the same path that ends what is in the way.
        method: Option<String>,
    },
}

impl Endpoint {
    /// `http://HOST:PORT`.
    pub fn tcp(url: &str, token_file: &Path) -> Result<Self, ClientError> {
        let address = url.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let fits = |address: &&str| {
            let port =
                address.rsplit_once(':').map(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
            port == Some(true) && !address.contains(['/', '@', '?', '#', ' '])
        };
        let address = address.filter(fits).ok_or_else(|| ClientError::Address(url.to_owned()))?;
        Ok(Self::Tcp { address: address.to_owned(), token_file: token_file.to_owned() })
    }

    /// The usual socket of a daemon of this user.
    pub fn default_socket() -> PathBuf {
        runtime_folder().join("lunway.sock")
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp { address, .. } => address.fmt(f),
        }
    }
}

/// Returns the reason why a daemon cannot be asked, and what to do.
fn unreachable(endpoint: &str, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "{endpoint} does not admit this user: {source}; run the command as the daemon's user, or as root"
        ),
        _ => format!("no daemon answers on {endpoint}: {source}; start one with `lunway serve`"),
    }
}

/// A name as one part of a path.
pub fn path_part(name: &str) -> String {
    utf8_percent_encode(name, NOT_IN_PATH).to_string()
}

/// Asks a daemon, one connection for each request. Must run inside a tokio runtime.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
}

impl Client {
    /// A client of the daemon there. Nothing is connected yet.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// `GET`.
    pub async fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.call(Method::GET, path, None).await
    }

    /// Any method; `path` with its query, encoded. Every answer is JSON.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        let text = self.text(method, path, body).await?;
        serde_json::from_slice(&text).map_err(|error| self.no_answer(format!("it answered no JSON: {error}")))
    }

    /// The same, for answers of any kind.
    pub async fn text(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Bytes, ClientError> {
        let asks = method == Method::GET;
        let mut request = Request::builder().method(method).uri(path).header(HOST, "lunway");
        if let Endpoint::Tcp { token_file, .. } = &self.endpoint {
            request = request.header(AUTHORIZATION, format!("Bearer {}", read_token(token_file)?));
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(body.map_or_else(Bytes::new, |body| body.to_string().into()));
        let request = request.body(body).map_err(|error| self.no_answer(error.to_string()))?;
        let limit = if asks { GET_TIME } else { ANSWER_TIME };
        let (status, answer) = match timeout(limit, self.exchange(request)).await {
            Ok(answer) => answer?,
            Err(_) if let Some(killed) = self.killed() => return Err(killed),
            Err(_) if asks => return Err(ClientError::Silent { endpoint: self.endpoint.to_string() }),
            Err(_) => return Err(self.no_answer(format!("nothing came within {} s", limit.as_secs()))),
        };
        if status.is_success() {
            return Ok(answer);
        }
        let (sentence, parameter, method) = match serde_json::from_slice::<ErrorBody>(&answer) {
            Ok(body) => (body.error, body.parameter, body.method),
            Err(_) => (format!("the daemon on {} answered {status}", self.endpoint), None, None),
        };
        Err(ClientError::Refused { status: status.as_u16(), sentence, parameter, method })
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), ClientError> {
        match &self.endpoint {
            Endpoint::Unix(path) => {
                let stream = match self.connected(UnixStream::connect(path)).await {
                    // The kernel's queue of connections is full, and the daemon does not take them.
                    Err(ClientError::Connect { endpoint, source })
                        if source.kind() == io::ErrorKind::WouldBlock =>
                    {
                        return Err(self.killed().unwrap_or(ClientError::Connect { endpoint, source }));
                    }
                    connected => connected?,
                };
                // The process that listens, unless systemd does for it.
                let listener = stream.peer_cred().ok().and_then(|peer| peer.pid()?.try_into().ok());
                if let Some(process) = remains(listener).await {
                    return Err(ClientError::Killed { endpoint: self.endpoint.to_string(), process });
                }
                self.exchange_on(stream, request).await
            }
            Endpoint::Tcp { address, .. } => {
                let stream = self.connected(TcpStream::connect(address)).await?;
                self.exchange_on(stream, request).await
            }
        }
    }

    async fn connected<S>(&self, connecting: impl Future<Output = io::Result<S>>) -> Result<S, ClientError> {
        let connected = timeout(CONNECT_TIME, connecting).await;
        connected
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|source| ClientError::Connect { endpoint: self.endpoint.to_string(), source })
    }

    async fn exchange_on(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let broken = |error: hyper::Error| self.no_answer(error.to_string());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(broken)?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
            let body = body.map_err(|error| self.no_answer(error.to_string()))?;
            Ok((status, body.to_bytes()))
        };
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            // The connection may end right after the answer has come.
            _ = connection => exchange.await,
        }
    }

    /// Error that the daemon on this socket was killed, as it has recorded itself.
    fn killed(&self) -> Option<ClientError> {
        let Endpoint::Unix(socket) = &self.endpoint else { return None };
        let process = RunningDaemon::killed_on(socket)?;
        Some(ClientError::Killed { endpoint: self.endpoint.to_string(), process })
    }

    fn no_answer(&self, why: String) -> ClientError {
        ClientError::NoAnswer { endpoint: self.endpoint.to_string(), why }
    }
}

/// A killed process that does not end: one that waits for no disk is gone within [`ENDING_TIME`].
async fn remains(process: Option<u32>) -> Option<KilledProcess> {
    KilledProcess::find(process?)?;
    tokio::time::sleep(ENDING_TIME).await;
    KilledProcess::find(process?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_apis_are_told_from_others() {
        let file = Path::new("/t");
        for (url, address) in [
            ("http://192.0.2.10:3290", Some("192.0.2.10:3290")),
            ("http://[fd00::1]:3290/", Some("[fd00::1]:3290")),
            ("https://192.0.2.10:3290", None),
            ("http://host", None),
            ("http://host:80/v1", None),
            ("host:80", None),
        ] {
            let endpoint = Endpoint::tcp(url, file).ok().map(|endpoint| endpoint.to_string());
            assert_eq!(endpoint.as_deref(), address, "{url}");
        }
    }

    #[test]
    fn names_stay_one_part_of_a_path() {
        assert_eq!(path_part("iqn.2026-11.com.example:a"), "iqn.2026-11.com.example:a");
        assert_eq!(path_part("10.0.0.0/24:3261"), "10.0.0.0%2F24:3261");
        assert_eq!(path_part("50% ?"), "50%25%20%3F");
    }

    #[tokio::test]
    async fn where_nobody_listens_the_sentence_says_where_and_what_to_do() {
        let client = Client::new(Endpoint::Unix("/nonexistent/lunway.sock".into()));
        let sentence = client.get("/v1/health").await.unwrap_err().to_string();
        assert!(
            sentence.contains("/nonexistent/lunway.sock") && sentence.contains("lunway serve"),
            "{sentence}"
        );
    }
}
