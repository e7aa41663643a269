//! An initiator that sends any CDB: the protocol core on a blocking socket.

#![allow(dead_code, reason = "each test program uses its part of this")]

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
    /// The last command's.
    token: u64,
    /// Answers that came while another was waited for.
    completed: Vec<Completed>,
}

impl Initiator {
    /// Logs in.
    pub(crate) fn log_in(address: &str, target: &str) -> io::Result<Self> {
        Self::log_in_as(address, target, 1)
    }

    /// Logs in with this number in the ISID: another nexus.
    pub(crate) fn log_in_as(address: &str, target: &str, number: u8) -> io::Result<Self> {
        let login = InitiatorLoginConfig {
            initiator_name: "iqn.2026-11.com.example:host".to_owned(),
            initiator_alias: None,
            target_name: Some(target.to_owned()),
            isid: [0x80, 0, 0, 0, 0, number],
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
        let core = InitiatorConnection::new(config, Instant::now());
        let mut initiator = Self { stream, core, token: 0, completed: Vec::new() };
        match initiator.event()? {
            InitiatorEvent::LoggedIn(_) => Ok(initiator),
            other => Err(io::Error::other(format!("instead of a login: {other:?}"))),
        }
    }

    /// Logs in, and goes on behind the unit attentions of a new nexus.
    pub(crate) fn ready(address: &str, target: &str) -> Self {
        let mut initiator = Self::log_in(address, target).unwrap();
        while initiator.execute(0, &[0; 6], &[], 0).unwrap().status != 0 {}
        initiator
    }

    /// SYNCHRONIZE CACHE (10) of LUN 0.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let flushed = self.execute(0, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0)?;
        assert_eq!(flushed.status, 0, "{:?}", flushed.sense);
        Ok(())
    }

    /// Carries out a command on a logical unit.
    pub(crate) fn execute(
        &mut self,
        lun: u8,
        cdb: &[u8],
        data_out: &[u8],
        data_in: usize,
    ) -> io::Result<Completed> {
        let token = self.begin(lun, cdb, data_out, data_in)?.expect("the window is open");
        self.end(token)
    }

    /// Sends a command and does not wait for its answer; `None` where the target takes no more.
    pub(crate) fn begin(
        &mut self,
        lun: u8,
        cdb: &[u8],
        data_out: &[u8],
        data_in: usize,
    ) -> io::Result<Option<u64>> {
        self.token += 1;
        let submission = Submission {
            token: self.token,
            lun: [0, lun, 0, 0, 0, 0, 0, 0],
            cdb: Cdb::new(cdb),
            data_out: Buf::copy_of(data_out).freeze(),
            data_in: Buf::zeroed(data_in),
            attribute: TaskAttribute::SIMPLE,
        };
        let taken = self.core.submit(submission).is_ok();
        self.send()?;
        Ok(taken.then_some(self.token))
    }

    /// Waits for the answer to a command.
    pub(crate) fn end(&mut self, token: u64) -> io::Result<Completed> {
        loop {
            if let Some(index) = self.completed.iter().position(|completed| completed.token == token) {
                return Ok(self.completed.swap_remove(index));
            }
            let event = self.event()?;
            self.keep(event)?;
        }
    }

    /// How long a NOP-Out takes to be answered.
    pub(crate) fn ping(&mut self) -> io::Result<Duration> {
        let start = Instant::now();
        self.core.ping();
        self.send()?;
        while self.core.unanswered_ping().is_some() {
            while let Some(event) = self.core.poll_event() {
                self.keep(event)?;
            }
            self.receive()?;
        }
        Ok(start.elapsed())
    }

    fn keep(&mut self, event: InitiatorEvent) -> io::Result<()> {
        match event {
            InitiatorEvent::Completed(completed) => self.completed.push(completed),
            InitiatorEvent::Closing(reason) => return Err(io::Error::other(format!("{reason:?}"))),
            _ => {}
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        while self.core.unsent() > 0 {
            let mut slices = Vec::new();
            self.core.gather(&mut slices, 64);
            let sent = self.stream.write_vectored(&slices)?;
            self.core.sent(sent);
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let [mut space, _] = self.core.receive_space();
        match self.stream.read(&mut space)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => {
                self.core.received(bytes);
                Ok(())
            }
        }
    }

    fn event(&mut self) -> io::Result<InitiatorEvent> {
        loop {
            self.send()?;
            if let Some(event) = self.core.poll_event() {
                return Ok(event);
            }
            self.receive()?;
        }
    }
}
