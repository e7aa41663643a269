//! An initiator without manners: the protocol core on a socket that can be cut anywhere.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lunway_block::{Buf, SharedBuf};
use lunway_iscsi::Cdb;
use lunway_iscsi::initiator::{
    Completed, InitiatorConnection, InitiatorConnectionConfig, InitiatorEvent, Submission,
};
use lunway_iscsi::login::InitiatorLoginConfig;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::{TaskAttribute, TaskManagementCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::daemon::TARGET;

/// Nothing here takes longer unless it is broken, or was aborted.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Client {
    stream: TcpStream,
    core: InitiatorConnection,
    completed: HashMap<u64, Completed>,
    managed: u64,
    last_token: u64,
}

fn gone() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl Client {
    /// Logs in as initiator port `port`: an older session of that port is reinstated (RFC 7143 §6.3.5).
    pub(crate) async fn log_in(address: SocketAddr, port: u16) -> io::Result<Self> {
        let [high, low] = port.to_be_bytes();
        let login = InitiatorLoginConfig {
            initiator_name: format!("iqn.2026-11.com.example:rude-{port}"),
            initiator_alias: None,
            target_name: Some(TARGET.to_owned()),
            isid: [0x80, 0, 0, 0, high, low],
            tsih: 0,
            cid: 0,
            parameters: Parameters::default(),
            chap: None,
        };
        let config = InitiatorConnectionConfig {
            login,
            login_timeout: PATIENCE,
            nop_interval: Duration::ZERO,
            nop_timeout: Duration::ZERO,
        };
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let core = InitiatorConnection::new(config, Instant::now());
        let mut client = Self { stream, core, completed: HashMap::new(), managed: 0, last_token: 0 };
        match timeout(PATIENCE, client.event()).await {
            Ok(Ok(InitiatorEvent::LoggedIn(_))) => Ok(client),
            Ok(Ok(other)) => Err(io::Error::other(format!("instead of a login: {other:?}"))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Sends all that is queued, or the first `limit` bytes of it.
    pub(crate) async fn flush(&mut self, mut limit: usize) -> io::Result<()> {
        while self.core.unsent() > 0 && limit > 0 {
            let mut slices = Vec::new();
            self.core.gather(&mut slices, 1);
            let len = slices[0].len().min(limit);
            let sent = self.stream.write(&slices[0][..len]).await?;
            self.core.sent(sent);
            limit -= sent;
        }
        Ok(())
    }

    async fn event(&mut self) -> io::Result<InitiatorEvent> {
        loop {
            self.flush(usize::MAX).await?;
            if let Some(event) = self.core.poll_event() {
                return Ok(event);
            }
            let [mut first, _] = self.core.receive_space();
            match self.stream.read(&mut first).await? {
                0 => return Err(gone()),
                bytes => self.core.received(bytes),
            }
        }
    }

    /// Queues a command; [`flush`](Self::flush), or waiting for anything, sends it.
    pub(crate) fn submit(
        &mut self,
        lun: u8,
        cdb: &[u8],
        data_out: SharedBuf,
        data_in: usize,
    ) -> io::Result<u64> {
        self.last_token += 1;
        let submission = Submission {
            token: self.last_token,
            lun: [0, lun, 0, 0, 0, 0, 0, 0],
            cdb: Cdb::new(cdb),
            data_out,
            data_in: Buf::zeroed(data_in),
            attribute: TaskAttribute::SIMPLE,
        };
        match self.core.submit(submission) {
            Ok(()) => Ok(self.last_token),
            Err(_) => Err(io::Error::other("the window is closed")),
        }
    }

    async fn wait_until(&mut self, done: impl Fn(&Self) -> bool) -> io::Result<()> {
        while !done(self) {
            match self.event().await? {
                InitiatorEvent::Completed(completed) => {
                    self.completed.insert(completed.token, completed);
                }
                InitiatorEvent::TaskManagementDone { token, .. } => self.managed = token,
                InitiatorEvent::Closing(_) => return Err(gone()),
                _ => {}
            }
        }
        Ok(())
    }

    /// The answer to a command; an error where the connection ends, or nothing comes.
    pub(crate) async fn wait(&mut self, token: u64, patience: Duration) -> io::Result<Completed> {
        let waited = timeout(patience, self.wait_until(|client| client.completed.contains_key(&token))).await;
        waited.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        self.completed.remove(&token).ok_or_else(gone)
    }

    /// Sends a task management function and waits for its answer.
    pub(crate) async fn manage(
        &mut self,
        function: TaskManagementCode,
        lun: u8,
        referenced: Option<u64>,
    ) -> io::Result<()> {
        self.last_token += 1;
        let token = self.last_token;
        self.core.manage_task(token, function, [0, lun, 0, 0, 0, 0, 0, 0], referenced);
        let waited = timeout(PATIENCE, self.wait_until(|client| client.managed == token)).await;
        waited.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Ends the session as RFC 7143 §11.14 wants it.
    pub(crate) async fn log_out(mut self) {
        self.core.logout();
        let _ = timeout(PATIENCE, self.wait_until(|_| false)).await;
    }
}
