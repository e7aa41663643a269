//! The API of a running daemon, on a thread of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use lunway_socket::UnixSocket;
use lunway_target::{ApiConfig, Server};
use tokio::sync::oneshot;

use crate::answer::Applied;
use crate::api;
use crate::error::ErrorBody;
use crate::listen::{self, ListenError, TcpSocket};
use crate::manager::Manager;
use crate::route::router;
use crate::schedules::MakeBackupCommands;
use crate::source::ConfigSource;
use crate::token::{Token, TokenError};

/// The management interface of one server.
///
/// It has a thread and a runtime of its own, so that whatever is asked of it takes no time from the cores that serve;
/// what is shared with them are the server's own short locks. Bind the sockets with [`Sockets::bind`] before the server
/// is started, so that a second daemon is noticed before it touches anything; then [`start`](Self::start), and
/// [`stop`](Self::stop) before the server's shutdown: requests cannot change what ends.
pub struct Console {
    manager: Manager,
    socket: Option<PathBuf>,
    tcp: Option<SocketAddr>,
    /// The thread ends when this is dropped.
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// The sockets of an API, bound and not yet served.
#[derive(Debug)]
pub struct Sockets {
    unix: Option<UnixSocket>,
    tcp: Option<TcpSocket>,
}

impl Sockets {
    /// Binds what the configuration names. `socket` counts instead of its Unix socket if there is one.
    pub fn bind(socket: Option<&Path>, config: Option<&ApiConfig>) -> Result<Self, ListenError> {
        let configured = config.and_then(|config| config.socket.as_deref());
        let unix = socket.or(configured).map(listen::bind).transpose()?;
        let tcp = match config.and_then(|config| Some((config.listen?, config.token_file.as_deref()))) {
            Some((address, Some(file))) => Some(TcpSocket::bind(address, Token::in_file(file)?)?),
            Some((_, None)) => return Err(TokenError::Missing.into()),
            None => None,
        };
        Ok(Self { unix, tcp })
    }

    /// None: the daemon can only be told to reload.
    pub fn none() -> Self {
        Self { unix: None, tcp: None }
    }

    /// Path of the Unix socket.
    pub fn path(&self) -> Option<&Path> {
        self.unix.as_ref().map(UnixSocket::path)
    }
}

impl Console {
    /// Begins to answer.
    pub fn start(sockets: Sockets, server: Arc<Server>, source: ConfigSource) -> Result<Self, ListenError> {
        let manager = Manager::new(server, source);
        manager.keep_all_formats();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ListenError::Thread)?;
        let socket = sockets.path().map(Path::to_owned);
        let tcp = sockets.tcp.as_ref().and_then(|socket| socket.address().ok());
        let (stop, stopped) = oneshot::channel::<()>();
        let router = router(api::routes(), Arc::new(manager.clone()));
        let thread = thread::Builder::new().name("lunway-console".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                let Sockets { unix, tcp } = sockets;
                let (for_unix, for_tcp) = (router.clone(), router);
                if let Some(unix) = unix {
                    tokio::spawn(async { logged(listen::serve(unix, for_unix).await) });
                }
                if let Some(tcp) = tcp {
                    tokio::spawn(async { logged(tcp.serve(for_tcp).await) });
                }
                // Ends with an error, when the sender is dropped.
                let _ = stopped.await;
            });
            // What waits for a file system that does not answer is not waited for.
            runtime.shutdown_background();
        });
        Ok(Self { manager, socket, tcp, stop, thread: thread.map_err(ListenError::Thread)? })
    }

    /// TCP address of the listener, with the port that the kernel chose.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// The file that changes are written to.
    pub fn file(&self) -> Option<PathBuf> {
        self.manager.source.file().map(Path::to_owned)
    }

    /// Serves what the configuration file says now, unless that loses something that a parameter would have to allow.
    /// After an error everything is as it was.
    pub async fn reload(&self) -> Result<Applied, ErrorBody> {
        self.manager.reload(crate::extract::Ask::default()).await.map_err(ErrorBody::from)
    }

    /// Begins to make the backups that the configuration schedules, by these commands.
    pub fn begin_backups(&self, make: MakeBackupCommands) -> std::io::Result<()> {
        let server = Arc::downgrade(&self.manager.server);
        self.manager.schedules.begin(server, self.socket.clone(), make)
    }

    /// Ends the backups under way, and answers no request any longer. Changes under way are carried to their end first,
    /// unless they wait for a disk that does not answer.
    pub async fn stop(self) {
        // They ask this daemon while they end.
        self.manager.schedules.stop().await;
        self.manager.end().await;
        drop(self.stop);
        // Nothing on that thread waits for anything now.
        let _ = self.thread.join();
    }
}

fn logged(served: std::io::Result<()>) {
    if let Err(error) = served {
        tracing::error!("the API cannot be served: {error}");
    }
}
