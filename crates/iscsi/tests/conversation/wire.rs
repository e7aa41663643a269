//! Two connection cores on a simulated wire that splits, coalesces and delays bytes, and a disk of a few KiB behind it.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lunway_block::{Buf, DeviceMemory, Lent, LockedBytes, SharedBuf};
use lunway_iscsi::initiator::*;
use lunway_iscsi::login::*;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::{
    LogoutResult, Opcode, Pdu, RejectReason, TaskAttribute, TaskManagementCode, TaskManagementResult,
};
use lunway_iscsi::target::*;
use lunway_iscsi::{Cdb, CloseReason, SendTargets, TargetRecord};

pub(crate) const WRITE: u8 = 0x2a;
pub(crate) const READ: u8 = 0x28;
pub(crate) const DISK_LEN: usize = 64 << 10;

/// Small, seeded, good enough to choose lengths.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// What a disk holds when it is read, lent in pieces. A writer has some of it now and then.
pub(crate) struct Memory {
    bytes: Vec<u8>,
    asked: AtomicUsize,
}

impl Memory {
    /// Bytes that lie together: no part of any segment length.
    const PIECE: usize = 1000;

    pub(crate) fn of(bytes: &[u8]) -> Arc<Self> {
        Arc::new(Self { bytes: bytes.to_vec(), asked: AtomicUsize::new(0) })
    }
}

impl DeviceMemory for Memory {
    fn try_lock(&self, offset: u64, len: usize) -> Option<LockedBytes<'_>> {
        let from = offset as usize;
        let end = (from + len).min((from / Self::PIECE + 1) * Self::PIECE);
        let is_free = self.asked.fetch_add(1, Ordering::Relaxed) % 7 != 6;
        is_free.then(|| Box::new(&self.bytes[from..end]) as LockedBytes<'_>)
    }

    fn copy_to(&self, offset: u64, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.bytes[offset as usize..][..bytes.len()]);
    }
}

/// Both ends and what is between them.
pub(crate) struct Pair {
    pub(crate) initiator: InitiatorConnection,
    pub(crate) target: TargetConnection,
    pub(crate) to_target: VecDeque<u8>,
    pub(crate) to_initiator: VecDeque<u8>,
    pub(crate) random: Random,
    /// Most bytes moved at a time.
    pub(crate) piece: usize,
    pub(crate) disk: Vec<u8>,
    pub(crate) now: Instant,
    pub(crate) targets: Vec<TargetRecord>,
    /// The target's driver keeps commands instead of executing them.
    pub(crate) hold: bool,
    pub(crate) held: Vec<Command>,
    /// Commands whose data the driver has not asked for.
    pub(crate) announced: Vec<TaskId>,
    pub(crate) completed: Vec<Completed>,
    pub(crate) rejected: Vec<(u64, RejectReason)>,
    pub(crate) managed: Vec<(u64, TaskManagementResult)>,
    pub(crate) found: Option<Vec<TargetRecord>>,
    pub(crate) messages: Vec<AsyncMessageInfo>,
    pub(crate) tolerated: Vec<String>,
    pub(crate) initiator_closed: Option<CloseReason>,
    pub(crate) target_closed: Option<CloseReason>,
    pub(crate) in_flight_most: usize,
}

pub(crate) struct Setup {
    pub(crate) initiator: Parameters,
    pub(crate) target: Parameters,
    pub(crate) discovery: bool,
    pub(crate) configure: fn(&mut TargetConnectionConfig),
    pub(crate) seed: u64,
    pub(crate) piece: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            initiator: Parameters::default(),
            target: Parameters::default(),
            discovery: false,
            configure: |_| {},
            seed: 1,
            piece: 1 << 20,
        }
    }
}

impl Setup {
    pub(crate) fn connect(self) -> Pair {
        let now = Instant::now();
        let mut config = TargetConnectionConfig { parameters: self.target, ..Default::default() };
        (self.configure)(&mut config);
        let login = InitiatorLoginConfig {
            initiator_name: "iqn.2026-11.test:initiator".into(),
            initiator_alias: None,
            target_name: (!self.discovery).then(|| "iqn.2026-11.test:target".into()),
            isid: [0x80, 1, 2, 3, 4, 5],
            tsih: 0,
            cid: 0,
            parameters: self.initiator,
            chap: None,
        };
        let initiator = InitiatorConnectionConfig {
            login,
            login_timeout: Duration::from_secs(10),
            nop_interval: Duration::from_secs(5),
            nop_timeout: Duration::from_secs(5),
        };
        Pair {
            initiator: InitiatorConnection::new(initiator, now),
            target: TargetConnection::new(config, now),
            to_target: VecDeque::new(),
            to_initiator: VecDeque::new(),
            random: Random::new(self.seed),
            piece: self.piece,
            disk: (0..DISK_LEN).map(|i| ((i * 7) >> 3) as u8).collect(),
            now,
            targets: Vec::new(),
            hold: false,
            held: Vec::new(),
            announced: Vec::new(),
            completed: Vec::new(),
            rejected: Vec::new(),
            managed: Vec::new(),
            found: None,
            messages: Vec::new(),
            tolerated: Vec::new(),
            initiator_closed: None,
            target_closed: None,
            in_flight_most: 0,
        }
    }

    /// Connects and logs in.
    pub(crate) fn log_in(self) -> Pair {
        let mut pair = self.connect();
        pair.run();
        assert!(pair.initiator.logged_in().is_some(), "{:?}", pair.initiator_closed);
        assert!(pair.target.logged_in().is_some(), "{:?}", pair.target_closed);
        pair
    }
}

fn take(slices: &[IoSlice<'_>], len: usize, pipe: &mut VecDeque<u8>) -> usize {
    let before = pipe.len();
    pipe.extend(slices.iter().flat_map(|slice| slice.iter()).take(len));
    pipe.len() - before
}

fn put(pipe: &mut VecDeque<u8>, mut len: usize, space: [IoSliceMut<'_>; 2]) -> usize {
    let mut moved = 0;
    for mut slice in space {
        let n = slice.len().min(len).min(pipe.len());
        for (to, from) in slice.iter_mut().zip(pipe.drain(..n)) {
            *to = from;
        }
        len -= n;
        moved += n;
    }
    moved
}

impl Pair {
    /// Lets bytes flow until neither side has anything to say.
    pub(crate) fn run(&mut self) {
        for _ in 0..4_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the two ends never stop talking");
    }

    fn step(&mut self) -> bool {
        let mut moved = 0;
        // Each of the four movements happens with a piece of its own length; now and then one pauses.
        for movement in 0..4 {
            let len = 1 + self.random.below(self.piece);
            if self.piece < 1 << 20 && self.random.below(4) == 0 {
                moved += 1;
                continue;
            }
            moved += match movement {
                0 => {
                    let mut slices = Vec::new();
                    self.initiator.gather(&mut slices, 1 + len);
                    let n = take(&slices, len, &mut self.to_target);
                    self.initiator.sent(n);
                    n
                }
                1 => {
                    let n = put(&mut self.to_target, len, self.target.receive_space());
                    if n > 0 {
                        self.target.received(n);
                    }
                    self.target_events();
                    n
                }
                2 if self.target.has_lent() && self.random.below(4) == 0 => {
                    self.target.settle_lent();
                    1
                }
                2 if self.target.has_lent() => {
                    let to_initiator = &mut self.to_initiator;
                    let mut write = |slices: &[IoSlice<'_>]| Ok(take(slices, len, to_initiator));
                    let sent = self.target.send_lent(1 + len, 1 + 2 * len, &mut write);
                    // Nothing, if a writer had it.
                    sent.expect("a wire of memory").max(1)
                }
                2 => {
                    let mut slices = Vec::new();
                    self.target.gather(&mut slices, 1 + len);
                    let n = take(&slices, len, &mut self.to_initiator);
                    self.target.sent(n);
                    n
                }
                _ => {
                    let n = put(&mut self.to_initiator, len, self.initiator.receive_space());
                    if n > 0 {
                        self.initiator.received(n);
                    }
                    self.initiator_events();
                    n
                }
            };
        }
        moved > 0
            && (self.initiator.unsent()
                + self.target.unsent()
                + self.to_target.len()
                + self.to_initiator.len())
                > 0
    }

    pub(crate) fn target_events(&mut self) {
        self.in_flight_most = self.in_flight_most.max(self.target.commands_in_flight());
        while let Some(event) = self.target.poll_event() {
            match event {
                TargetEvent::Login(_) => self.target.grant_login(LoginGrant {
                    tsih: 7,
                    target_portal_group_tag: 1,
                    target_alias: None,
                    auth: None,
                    refusal: None,
                }),
                TargetEvent::Proof { .. } => self.target.check_proof(),
                TargetEvent::LoggedIn(_) => {}
                TargetEvent::Command(command) if self.hold => self.held.push(command),
                TargetEvent::Command(command) => self.execute(command),
                TargetEvent::Announced(announcement) => self.announced.push(announcement.task),
                TargetEvent::TaskManagement { request, function, lun, .. }
                    if function == TaskManagementCode::LOGICAL_UNIT_RESET =>
                {
                    self.target.abort_tasks(Some(lun), Before::Request(request));
                    self.target.respond_task_management(request, TaskManagementResult::COMPLETE);
                }
                TargetEvent::TaskManagement { request, referenced_task_tag, .. } => {
                    let result = match self.target.abort_task(referenced_task_tag) {
                        Aborted::NotFound => TaskManagementResult::TASK_DOES_NOT_EXIST,
                        _ => TaskManagementResult::COMPLETE,
                    };
                    self.target.respond_task_management(request, result);
                }
                TargetEvent::SendTargets { request, which } => {
                    let found: Vec<TargetRecord> = self
                        .targets
                        .iter()
                        .filter(|target| match &which {
                            SendTargets::Named(name) => target.name == *name,
                            _ => true,
                        })
                        .cloned()
                        .collect();
                    self.target.respond_targets(request, &found);
                }
                TargetEvent::CloseConnection { request, .. } => {
                    self.target.respond_logout(request, LogoutResult::CID_NOT_FOUND);
                }
                TargetEvent::Wake(cid) => panic!("nobody waits, nor does connection {cid}"),
                TargetEvent::Closing(reason) => self.target_closed = Some(reason),
            }
        }
    }

    /// Offset in bytes 2–5 of the CDB, the length is the expected one.
    pub(crate) fn execute(&mut self, command: Command) {
        let at = u32::from_be_bytes(command.cdb[2..6].try_into().expect("four bytes")) as usize;
        let len = command.expected_length as usize;
        let mut completion = Completion { wanted_in: 0, wanted_out: 0, ..Default::default() };
        match command.cdb[0] {
            WRITE => {
                assert_eq!(command.data_out.len(), len);
                self.disk[at..at + len].copy_from_slice(&command.data_out);
                completion.wanted_out = len as u64;
            }
            READ => {
                let bytes = &self.disk[at..at + len];
                match self.random.below(2) {
                    0 => completion.data_in = Buf::copy_of(bytes).freeze(),
                    _ => completion.lent = Some(Box::new(Lent::new(Memory::of(bytes), 0, len))),
                }
                completion.wanted_in = len as u64;
            }
            _ => {}
        }
        self.target.complete(command.task, completion);
    }

    pub(crate) fn initiator_events(&mut self) {
        while let Some(event) = self.initiator.poll_event() {
            match event {
                InitiatorEvent::LoggedIn(_) => {}
                InitiatorEvent::Completed(completed) => self.completed.push(completed),
                InitiatorEvent::Rejected { token, reason, .. } => self.rejected.push((token, reason)),
                InitiatorEvent::TaskManagementDone { token, response } => {
                    self.managed.push((token, response));
                }
                InitiatorEvent::Targets(targets) => self.found = Some(targets),
                InitiatorEvent::AsyncMessage(message) => self.messages.push(message),
                InitiatorEvent::Tolerated(what) => self.tolerated.push(what),
                InitiatorEvent::Closing(reason) => self.initiator_closed = Some(reason),
            }
        }
    }

    pub(crate) fn submit(&mut self, submission: Submission) {
        if let Err(submission) = self.initiator.submit(submission) {
            panic!("the window is closed for {submission:?}");
        }
    }
}

pub(crate) fn write(token: u64, at: usize, data: &[u8]) -> Submission {
    command(token, WRITE, at, Buf::copy_of(data).freeze(), 0)
}

pub(crate) fn read(token: u64, at: usize, len: usize) -> Submission {
    command(token, READ, at, SharedBuf::default(), len)
}

pub(crate) fn command(token: u64, opcode: u8, at: usize, data_out: SharedBuf, len_in: usize) -> Submission {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&(at as u32).to_be_bytes());
    Submission {
        token,
        lun: [0; 8],
        cdb: Cdb::new(&cdb),
        data_out,
        data_in: Buf::for_overwrite(len_in),
        attribute: TaskAttribute::SIMPLE,
    }
}

/// Gives the target what is in the pipe, so that its answers can be looked at.
pub(crate) fn feed(pair: &mut Pair, len: usize) {
    let mut left = len;
    while left > 0 {
        let mut moved = 0;
        for mut slice in pair.target.receive_space() {
            let n = slice.len().min(left).min(pair.to_target.len());
            for (to, from) in slice.iter_mut().zip(pair.to_target.drain(..n)) {
                *to = from;
            }
            left -= n;
            moved += n;
        }
        if moved == 0 {
            return;
        }
        pair.target.received(moved);
        pair.target_events();
    }
}

/// Sends one PDU of the test's own making to the target and gives the opcodes of its answers.
pub(crate) fn answers_to<T: Pdu>(pair: &mut Pair, pdu: &T, data: &[u8]) -> Vec<(Opcode, Vec<u8>)> {
    let mut bytes = lunway_iscsi::pdu::to_bytes(pdu).to_vec();
    bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    answers_to_bytes(pair, &bytes)
}

/// Sends bytes to the target and gives its answers, which must be without digests.
pub(crate) fn answers_to_bytes(pair: &mut Pair, bytes: &[u8]) -> Vec<(Opcode, Vec<u8>)> {
    pair.to_target.extend(bytes);
    feed(pair, bytes.len());
    pair.target.settle_lent();
    let mut slices = Vec::new();
    pair.target.gather(&mut slices, 1000);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
    pair.target.sent(bytes.len());
    let mut answers = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let len = usize::from(rest[5]) << 16 | usize::from(rest[6]) << 8 | usize::from(rest[7]);
        let (pdu, after) = rest.split_at(48 + len.next_multiple_of(4));
        answers.push((Opcode(pdu[0] & 0x3f), pdu.to_vec()));
        rest = after;
    }
    answers
}
