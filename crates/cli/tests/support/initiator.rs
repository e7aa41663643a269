//! An initiator that sends any CDB: the protocol core on a blocking socket.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lunway_block::Buf;
use lunway_iscsi::Cdb;
use lunway_iscsi::initiator::{
    Completed, InitiatorConnection, InitiatorConnectionConfig, InitiatorEvent, Submission,
};
use lunway_iscsi::login::InitiatorLoginConfig;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::TaskAttribute;

use crate::support::PATIENCE;

/// One session. Every error says that the target is gone, which is what some tests are about.
pub(crate) struct Initiator {
    stream: TcpStream,
    core: InitiatorConnection,
}

impl Initiator {
    /// Logs in.
    pub(crate) fn log_in(address: &str, target: &str) -> io::Result<Self> {
        let login = InitiatorLoginConfig {
            initiator_name: "iqn.2026-11.com.example:host".to_owned(),
            initiator_alias: None,
            target_name: Some(target.to_owned()),
            isid: [0x80, 0, 0, 0, 0, 1],
            tsih: 0,
            cid: 0,
            parameters: Parameters::default(),
            chap: None,
        };
        let (login_timeout, never) = (PATIENCE, Duration::ZERO);
        let config =
            InitiatorConnectionConfig { login, login_timeout, nop_interval: never, nop_timeout: never };
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut initiator = Self { stream, core: InitiatorConnection::new(config, Instant::now()) };
        match initiator.event()? {
            InitiatorEvent::LoggedIn(_) => Ok(initiator),
            other => Err(io::Error::other(format!("instead of a login: {other:?}"))),
        }
    }

    /// Carries out a command on a logical unit.
    pub(crate) fn execute(
        &mut self,
        lun: u8,
        cdb: &[u8],
        data_out: &[u8],
        data_in: usize,
    ) -> io::Result<Completed> {
        let submission = Submission {
            token: 1,
            lun: [0, lun, 0, 0, 0, 0, 0, 0],
            cdb: Cdb::new(cdb),
            data_out: Buf::copy_of(data_out).freeze(),
            data_in: Buf::zeroed(data_in),
            attribute: TaskAttribute::SIMPLE,
        };
        assert!(self.core.submit(submission).is_ok(), "the window is open");
        loop {
            match self.event()? {
                InitiatorEvent::Completed(completed) => return Ok(completed),
                InitiatorEvent::Closing(reason) => return Err(io::Error::other(format!("{reason:?}"))),
                _ => {}
            }
        }
    }

    fn event(&mut self) -> io::Result<InitiatorEvent> {
        loop {
            while self.core.unsent() > 0 {
                let mut slices = Vec::new();
                self.core.gather(&mut slices, 64);
                let sent = self.stream.write_vectored(&slices)?;
                self.core.sent(sent);
            }
            if let Some(event) = self.core.poll_event() {
                return Ok(event);
            }
            let [mut space, _] = self.core.receive_space();
            match self.stream.read(&mut space)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => self.core.received(bytes),
            }
        }
    }
}
