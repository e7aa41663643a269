//! A daemon with memory behind it, and an initiator: the sans-io core on a blocking socket.

#![expect(clippy::unwrap_used, reason = "this is all test")]

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::spec::DeviceSpec;
use lunway_block::{BlockDevice, BlockError, Buf, Durability, Geometry, Io, Permit, SharedBuf, Zeroing};
use lunway_iscsi::initiator::{
    Completed, InitiatorConnection, InitiatorConnectionConfig, InitiatorEvent, Submission,
};
use lunway_iscsi::login::InitiatorLoginConfig;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::TaskAttribute;
use lunway_iscsi::{Cdb, CloseReason};
use lunway_memory::RamDisk;
use lunway_target::{ChangeError, ChangeOptions, Changed, Config, OpenDevice, Server, ShutdownError};
use tokio::runtime::Runtime;
use tokio::sync::watch;

pub(crate) const TARGET: &str = "iqn.2026-11.com.example:disks";
pub(crate) const INITIATOR: &str = "iqn.2026-11.com.example:host";
pub(crate) const BLOCK: usize = 512;
/// Nothing here takes longer unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A RAM disk whose reads and writes wait while it is held, and that counts them and its flushes.
pub(crate) struct Slow {
    disk: RamDisk,
    /// While it is held: the bytes at which operations go on nevertheless.
    held: watch::Sender<Option<Vec<u64>>>,
    /// Operations that wait.
    pub(crate) waiting: Arc<AtomicUsize>,
    pub(crate) flushes: AtomicUsize,
    pub(crate) flush_fails: AtomicBool,
    /// Writes that are under way, or come, meet with a storage that has shut this client out.
    pub(crate) fenced: Arc<AtomicBool>,
}

impl Slow {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            disk: RamDisk::new(16 << 20, 512).unwrap(),
            held: watch::Sender::new(None),
            waiting: Arc::default(),
            flushes: AtomicUsize::new(0),
            flush_fails: AtomicBool::new(false),
            fenced: Arc::default(),
        })
    }

    pub(crate) fn hold(&self) {
        self.held.send_replace(Some(Vec::new()));
    }

    pub(crate) fn release(&self) {
        self.held.send_replace(None);
    }

    /// Releases the operations at a block.
    pub(crate) fn release_at(&self, block: u64) {
        self.held.send_modify(|held| held.iter_mut().for_each(|goes_on| goes_on.push(block * BLOCK as u64)));
    }

    /// Waits until `count` operations wait.
    pub(crate) fn await_waiting(&self, count: usize) {
        until("the device has the commands", || self.waiting.load(Ordering::SeqCst) == count);
    }

    pub(crate) fn later<T: Send + Unpin + 'static>(&self, at: Option<u64>, ready: Io<T>) -> Io<T> {
        let mut held = self.held.subscribe();
        let goes_on = move |held: &Option<Vec<u64>>| match held {
            Some(released) => at.is_some_and(|at| released.contains(&at)),
            None => true,
        };
        if goes_on(&held.borrow()) {
            return ready;
        }
        let waiting = Arc::clone(&self.waiting);
        waiting.fetch_add(1, Ordering::SeqCst);
        Io::pending(async move {
            let _ = held.wait_for(goes_on).await;
            waiting.fetch_sub(1, Ordering::SeqCst);
            ready.await
        })
    }
}

impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..self.disk.geometry() }
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        if self.held.borrow().is_some() {
            // As a device that has begun: the memory is there.
            buf.fill(0);
        }
        self.later(Some(offset), self.disk.read(offset, buf))
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let fenced = Arc::clone(&self.fenced);
        self.later(Some(offset), self.disk.write(offset, data, durability)).then(move |done| {
            match fenced.load(Ordering::SeqCst) {
                true => Io::err(BlockError::Fenced { why: "by another".to_owned() }),
                false => Io::Ready(done),
            }
        })
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        match self.flush_fails.load(Ordering::SeqCst) {
            true => Io::err(BlockError::NoSpace),
            false => Io::ok(()),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.disk.write_zeroes(offset, len, zeroing)
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        self.later(None, self.disk.resize(size, permit))
    }
}

/// Waits for something that happens on another thread.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "never came: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A running daemon: LUN 0 is a RAM disk, LUN 1 a [`Slow`] one.
pub(crate) struct Daemon {
    pub(crate) server: Option<Server>,
    pub(crate) runtime: Runtime,
    pub(crate) address: SocketAddr,
    pub(crate) slow: Arc<Slow>,
}

impl Daemon {
    /// One target on two cores, and `more` lines of configuration before it.
    pub(crate) fn start(more: &str) -> Self {
        let text = format!("{more}\n[[target]]\nname = \"{TARGET}\"\nopen = true\n{}", luns());
        Self::start_with(&text)
    }

    /// Any configuration, with portal and cores added.
    pub(crate) fn start_with(text: &str) -> Self {
        let text = format!("listen = [\"127.0.0.1:0\"]\ncores = 2\n{text}");
        let config = Config::from_toml(&text, "test.toml").unwrap();
        let slow = Slow::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(Server::start(config, opener(&slow))).unwrap();
        let address = server.addresses()[0];
        Self { server: Some(server), runtime, address, slow }
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// A session with the target.
    pub(crate) fn log_in(&self) -> Client {
        self.log_in_as(1)
    }

    /// A session of the initiator port with this ISID.
    pub(crate) fn log_in_as(&self, isid: u8) -> Client {
        Client::log_in(self.address, login(isid)).unwrap()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    pub(crate) fn shutdown(&mut self, grace: Duration) -> Result<(), ShutdownError> {
        let server = self.server.take().unwrap();
        self.runtime.block_on(server.shutdown(grace))
    }

    /// Serves what `edit` makes of the configuration.
    pub(crate) fn change(&self, edit: impl FnOnce(&mut Config)) -> Result<Changed, ChangeError> {
        let mut new = Config::clone(&self.server().config());
        edit(&mut new);
        self.runtime.block_on(self.changing(|config| *config = new.clone()))
    }

    /// The same, to be waited for on the daemon's runtime, beside others.
    pub(crate) async fn changing(
        &self,
        mut edit: impl FnMut(&mut Config) + Send,
    ) -> Result<Changed, ChangeError> {
        let edit = |config: &mut Config| {
            edit(config);
            Ok(())
        };
        self.server().change(edit, ChangeOptions { force: true, ..ChangeOptions::default() }).await
    }

    pub(crate) fn await_sessions(&self, count: usize) {
        until("the number of sessions", || self.server().sessions() == count);
    }
}

pub(crate) fn luns() -> &'static str {
    "[[target.lun]]\nid = 0\ndevice = \"ram:64M\"\n[[target.lun]]\nid = 1\ndevice = \"slow\"\n"
}

pub(crate) fn opener(slow: &Arc<Slow>) -> OpenDevice {
    let slow = Arc::clone(slow);
    Arc::new(move |name, options| {
        let slow = Arc::clone(&slow);
        let ram = move |size| {
            let disk = RamDisk::new(size, options.sector.unwrap_or(512)).unwrap();
            Ok((Arc::new(disk) as Arc<dyn BlockDevice>).into())
        };
        Box::pin(async move {
            match (name.as_written().trim_start_matches("raw:"), name.spec()) {
                (_, DeviceSpec::Ram { size }) => ram(*size),
                ("slow", _) => Ok((slow as Arc<dyn BlockDevice>).into()),
                // Not open before the slow one is let go.
                ("later", _) => {
                    slow.later(None, Io::Ready(())).await;
                    ram(1 << 20)
                }
                _ => Err("no such device here".into()),
            }
        })
    })
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let start = Instant::now();
    let stream = loop {
        match TcpStream::connect(address) {
            // The kernel makes the route to a new address a moment after the address.
            Err(error)
                if error.kind() == ErrorKind::HostUnreachable && start.elapsed() < Duration::from_secs(3) =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            stream => break stream.unwrap(),
        }
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A login of [`INITIATOR`] to [`TARGET`].
pub(crate) fn login(isid: u8) -> InitiatorLoginConfig {
    InitiatorLoginConfig {
        initiator_name: INITIATOR.to_owned(),
        initiator_alias: None,
        target_name: Some(TARGET.to_owned()),
        isid: [0x80, 0, 0, 0, 0, isid],
        tsih: 0,
        cid: 0,
        parameters: Parameters::default(),
        chap: None,
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) core: InitiatorConnection,
    completed: HashMap<u64, Completed>,
    others: VecDeque<InitiatorEvent>,
    last_token: u64,
}

impl Client {
    pub(crate) fn log_in(address: SocketAddr, login: InitiatorLoginConfig) -> Result<Self, CloseReason> {
        Self::log_in_over(connect(address), login)
    }

    pub(crate) fn log_in_over(stream: TcpStream, login: InitiatorLoginConfig) -> Result<Self, CloseReason> {
        let config = InitiatorConnectionConfig {
            login,
            login_timeout: PATIENCE,
            nop_interval: Duration::ZERO,
            nop_timeout: Duration::ZERO,
        };
        let core = InitiatorConnection::new(config, Instant::now());
        let mut client =
            Self { stream, core, completed: HashMap::new(), others: VecDeque::new(), last_token: 0 };
        match client.event() {
            Some(InitiatorEvent::LoggedIn(_)) => Ok(client),
            Some(InitiatorEvent::Closing(reason)) => Err(reason),
            other => panic!("instead of a login: {other:?}"),
        }
    }

    /// Sends everything that is queued.
    pub(crate) fn flush(&mut self) {
        while self.core.unsent() > 0 {
            let mut slices = Vec::new();
            self.core.gather(&mut slices, 64);
            let sent = self.stream.write_vectored(&slices).unwrap();
            self.core.sent(sent);
        }
    }

    /// The next event; `None` when the target has closed the connection.
    pub(crate) fn event(&mut self) -> Option<InitiatorEvent> {
        loop {
            self.flush();
            if let Some(event) = self.core.poll_event() {
                return Some(event);
            }
            if !self.receive() {
                return None;
            }
        }
    }

    /// Answers a ping if one comes within the socket's timeout.
    pub(crate) fn answer_pings(&mut self) {
        let [mut first, _] = self.core.receive_space();
        match self.stream.read(&mut first) {
            Ok(bytes) => self.core.received(bytes),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("waiting for the target: {error}"),
        }
        self.flush();
    }

    /// One read from the socket; `false` when the target has closed the connection.
    pub(crate) fn receive(&mut self) -> bool {
        let [mut first, _] = self.core.receive_space();
        match self.stream.read(&mut first) {
            Ok(0) => return false,
            Ok(bytes) => self.core.received(bytes),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
            Err(error) => panic!("waiting for the target: {error}"),
        }
        true
    }

    /// The next event that is no completion.
    pub(crate) fn other_event(&mut self) -> Option<InitiatorEvent> {
        if let Some(event) = self.others.pop_front() {
            return Some(event);
        }
        loop {
            match self.event()? {
                InitiatorEvent::Completed(completed) => {
                    self.completed.insert(completed.token, completed);
                }
                event => return Some(event),
            }
        }
    }

    /// A command was answered, and the answer not waited for.
    pub(crate) fn has_answer(&self, token: u64) -> bool {
        self.completed.contains_key(&token)
    }

    /// An event has come that is no completion.
    pub(crate) fn was_told_anything(&self) -> bool {
        !self.others.is_empty()
    }

    pub(crate) fn submit(&mut self, lun: u8, cdb: &[u8], data_out: &[u8], data_in: usize) -> u64 {
        self.submit_as(TaskAttribute::SIMPLE, lun, cdb, data_out, data_in)
    }

    pub(crate) fn submit_as(
        &mut self,
        attribute: TaskAttribute,
        lun: u8,
        cdb: &[u8],
        data_out: &[u8],
        data_in: usize,
    ) -> u64 {
        self.last_token += 1;
        let submission = Submission {
            token: self.last_token,
            lun: [0, lun, 0, 0, 0, 0, 0, 0],
            cdb: Cdb::new(cdb),
            data_out: Buf::copy_of(data_out).freeze(),
            data_in: Buf::zeroed(data_in),
            attribute,
        };
        self.core.submit(submission).expect("the window is open");
        self.flush();
        self.last_token
    }

    /// The answer to a command; `None` when the target closes the connection instead.
    pub(crate) fn try_wait(&mut self, token: u64) -> Option<Completed> {
        loop {
            if let Some(completed) = self.completed.remove(&token) {
                return Some(completed);
            }
            match self.event()? {
                InitiatorEvent::Completed(completed) => {
                    self.completed.insert(completed.token, completed);
                }
                event => self.others.push_back(event),
            }
        }
    }

    pub(crate) fn wait(&mut self, token: u64) -> Completed {
        self.try_wait(token).expect("an answer before the connection ends")
    }

    pub(crate) fn execute(&mut self, lun: u8, cdb: &[u8], data_out: &[u8], data_in: usize) -> Completed {
        let token = self.submit(lun, cdb, data_out, data_in);
        self.wait(token)
    }

    /// Takes the unit attention that every new nexus has (SAM-5 5.14), so that the next command is carried out.
    pub(crate) fn ready(mut self) -> Self {
        for lun in [0, 1] {
            let ready = (0..4).any(|_| self.execute(lun, &[0; 6], &[], 0).status == 0);
            assert!(ready, "LUN {lun} does not become ready");
        }
        self
    }

    pub(crate) fn submit_read(&mut self, lun: u8, block: u32, blocks: u16) -> u64 {
        self.submit(lun, &cdb10(0x28, block, blocks), &[], usize::from(blocks) * BLOCK)
    }

    pub(crate) fn submit_write(&mut self, lun: u8, block: u32, data: &[u8]) -> u64 {
        let blocks = u16::try_from(data.len() / BLOCK).unwrap();
        self.submit(lun, &cdb10(0x2a, block, blocks), data, 0)
    }

    pub(crate) fn read(&mut self, lun: u8, block: u32, blocks: u16) -> Vec<u8> {
        let token = self.submit_read(lun, block, blocks);
        let completed = self.wait(token);
        assert_eq!((completed.status, completed.sense), (0, Vec::new()));
        assert_eq!(completed.data_in_len, usize::from(blocks) * BLOCK);
        completed.data_in.to_vec()
    }

    pub(crate) fn write(&mut self, lun: u8, block: u32, data: &[u8]) {
        let token = self.submit_write(lun, block, data);
        let completed = self.wait(token);
        assert_eq!((completed.status, completed.sense), (0, Vec::new()));
    }

    /// Asserts that the target has closed or reset the connection.
    pub(crate) fn assert_closed(&mut self) {
        while let Some(event) = self.event() {
            assert!(
                !matches!(event, InitiatorEvent::Completed(_)),
                "an answer on a connection that must end: {event:?}"
            );
        }
    }
}

/// READ (10), WRITE (10).
pub(crate) fn cdb10(opcode: u8, block: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&block.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// Bytes that differ from block to block.
pub(crate) fn pattern(blocks: usize, seed: u8) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at / BLOCK) as u8 ^ (at as u8).wrapping_mul(31) ^ seed).collect()
}
