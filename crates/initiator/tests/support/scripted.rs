//! A target of one disk that does as it is told: answers late, never, wrongly, or hangs up.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lunway_block::Buf;
use lunway_iscsi::login::LoginGrant;
use lunway_iscsi::pdu::{TaskAttribute, TaskManagementCode, TaskManagementResult};
use lunway_iscsi::target::{
    Aborted, Command, Completion, TargetConnection, TargetConnectionConfig, TargetEvent,
};
use tokio::net::{TcpListener, TcpStream};

pub const SECTOR: usize = 512;
pub const NAME: &str = "iqn.2026-11.com.example:scripted";

/// What to do with a command.
pub enum Act {
    /// What a disk does.
    Execute,
    /// Execute it, and answer so much later.
    After(Duration),
    /// Nothing, not even if aborted.
    Ignore,
    /// This status.
    Status(u8),
    /// CHECK CONDITION with sense key, ASC, ASCQ.
    Sense(u8, u8, u8),
    /// CHECK CONDITION with a deferred error: sense key, ASC, ASCQ.
    Deferred(u8, u8, u8),
    /// GOOD, but half of the data was not wanted.
    TakeHalf,
    /// Execute it and hang up without an answer.
    ExecuteAndHangUp,
    /// Hang up without an answer so much later.
    HangUpAfter(Duration),
    /// Ask for a logout within a second, and execute.
    AskForLogout,
}

type Script = Box<dyn FnMut(&[u8]) -> Act + Send>;

pub struct Disk {
    pub data: Mutex<Vec<u8>>,
    pub script: Mutex<Script>,
    /// CDBs in the order of execution.
    pub seen: Mutex<Vec<Vec<u8>>>,
    pub in_flight: AtomicUsize,
    pub most_in_flight: AtomicUsize,
    pub logins: AtomicUsize,
    /// Of each login.
    pub isids: Mutex<Vec<lunway_iscsi::pdu::Isid>>,
    pub logouts: AtomicUsize,
    pub aborts: AtomicUsize,
    /// Commands that were answered with a status or sense data as told.
    pub refused: AtomicUsize,
    /// Commands that wait for all older ones.
    pub ordered: AtomicUsize,
    pub answers_aborts: Mutex<bool>,
    /// ABORT TASK is answered as if the command's answer were on its way.
    pub knows_no_tasks: std::sync::atomic::AtomicBool,
    pub identity: Mutex<[u8; 8]>,
    /// WCE, DPOFUA.
    pub cache: Mutex<(bool, bool)>,
    pub transfer_blocks_max: Mutex<u32>,
    /// TST = 001b.
    pub separate_task_sets: std::sync::atomic::AtomicBool,
    connection_config: TargetConnectionConfig,
}

impl Disk {
    pub fn new(sectors: usize, command_window: u16) -> Arc<Self> {
        Arc::new(Self {
            data: Mutex::new(vec![0; sectors * SECTOR]),
            script: Mutex::new(Box::new(|_| Act::Execute)),
            seen: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            most_in_flight: AtomicUsize::new(0),
            logins: AtomicUsize::new(0),
            isids: Mutex::default(),
            logouts: AtomicUsize::new(0),
            aborts: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            ordered: AtomicUsize::new(0),
            answers_aborts: Mutex::new(true),
            knows_no_tasks: Default::default(),
            identity: Mutex::new([0x60, 1, 2, 3, 4, 5, 6, 7]),
            cache: Mutex::new((true, true)),
            transfer_blocks_max: Mutex::new(0),
            separate_task_sets: Default::default(),
            connection_config: TargetConnectionConfig {
                command_window,
                nop_interval: Duration::ZERO,
                ..Default::default()
            },
        })
    }

    pub fn script(&self, script: impl FnMut(&[u8]) -> Act + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    /// The answer to the first command with this operation code after now is `act`; all others are executed.
    pub fn once(&self, opcode: u8, act: Act) {
        let mut act = Some(act);
        self.script(
            move |cdb| if cdb[0] == opcode { act.take().unwrap_or(Act::Execute) } else { Act::Execute },
        );
    }

    pub fn count(&self, opcode: u8) -> usize {
        self.seen.lock().unwrap().iter().filter(|cdb| cdb[0] == opcode).count()
    }

    pub async fn serve(self: &Arc<Self>) -> SocketAddr {
        self.serve_in(1).await
    }

    /// A portal of this portal group.
    pub async fn serve_in(self: &Arc<Self>, portal_group: u16) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let disk = self.clone();
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                tokio::spawn(converse(disk.clone(), stream, portal_group));
            }
        });
        address
    }

    fn execute(&self, command: &Command) -> Completion {
        let cdb = &command.cdb;
        self.seen.lock().unwrap().push(cdb[..16].to_vec());
        let (lba, blocks) = match cdb[0] {
            0x28 | 0x2A => (
                u32::from_be_bytes(cdb[2..6].try_into().unwrap()) as usize,
                usize::from(u16::from_be_bytes([cdb[7], cdb[8]])),
            ),
            _ => (
                u64::from_be_bytes(cdb[2..10].try_into().unwrap()) as usize,
                u32::from_be_bytes(cdb[10..14].try_into().unwrap()) as usize,
            ),
        };
        let mut data = self.data.lock().unwrap();
        let reply = |bytes: &[u8], room: usize| {
            let len = bytes.len().min(room);
            Completion {
                data_in: Buf::copy_of(&bytes[..len]).freeze(),
                wanted_in: len as u64,
                ..Default::default()
            }
        };
        let room = command.expected_length as usize;
        match cdb[0] {
            0x00 | 0x35 | 0x91 => Completion::default(),
            0x12 => match (cdb[1] & 1, cdb[2]) {
                (0, _) => {
                    let mut inquiry = vec![0, 0, 6, 2, 31, 0, 0, 2];
                    inquiry.extend(b"LUNWAY  SCRIPTED        0001");
                    reply(&inquiry, room)
                }
                (_, 0x00) => reply(&[0, 0x00, 0, 4, 0x00, 0x80, 0x83, 0xB0], room),
                (_, 0x80) => reply(b"\0\x80\0\x04S123", room),
                (_, 0x83) => {
                    let mut page = vec![0, 0x83, 0, 12, 0x01, 0x03, 0, 8];
                    page.extend(*self.identity.lock().unwrap());
                    reply(&page, room)
                }
                (_, 0xB0) => {
                    let mut page = vec![0; 64];
                    page[1] = 0xB0;
                    page[3] = 60;
                    page[8..12].copy_from_slice(&self.transfer_blocks_max.lock().unwrap().to_be_bytes());
                    reply(&page, room)
                }
                _ => sense(0x05, 0x24, 0x00),
            },
            0x9E if cdb[1] & 0x1F == 0x10 => {
                let mut bytes = [0; 32];
                bytes[..8].copy_from_slice(&((data.len() / SECTOR) as u64 - 1).to_be_bytes());
                bytes[8..12].copy_from_slice(&(SECTOR as u32).to_be_bytes());
                reply(&bytes, room)
            }
            // The control page, with TST.
            0x1A | 0x5A if cdb[2] & 0x3F == 0x0A => {
                let mut page = vec![0; 12];
                (page[0], page[1]) = (0x0A, 0x0A);
                page[2] = u8::from(self.separate_task_sets.load(Ordering::Relaxed)) << 5;
                let mut bytes =
                    if cdb[0] == 0x1A { vec![15, 0, 0, 0] } else { vec![0, 18, 0, 0, 0, 0, 0, 0] };
                bytes.extend(page);
                reply(&bytes, room)
            }
            0x1A | 0x5A => {
                let (write_cache, fua) = *self.cache.lock().unwrap();
                let mut page = vec![0; 20];
                page[0] = 0x08;
                page[1] = 0x12;
                page[2] = if write_cache { 0x04 } else { 0 };
                let specific = if fua { 0x10 } else { 0 };
                let mut bytes = match cdb[0] {
                    0x1A => vec![23, 0, specific, 0],
                    _ => vec![0, 26, 0, specific, 0, 0, 0, 0],
                };
                bytes.extend(page);
                reply(&bytes, room)
            }
            0x88 | 0x8A | 0x28 | 0x2A if (lba + blocks) * SECTOR > data.len() => sense(0x05, 0x21, 0x00),
            0x88 | 0x28 => reply(&data[lba * SECTOR..(lba + blocks) * SECTOR], room),
            0x8A | 0x2A => {
                data[lba * SECTOR..(lba + blocks) * SECTOR].copy_from_slice(&command.data_out);
                Completion { wanted_out: command.data_out.len() as u64, ..Default::default() }
            }
            _ => sense(0x05, 0x20, 0x00),
        }
    }
}

pub fn sense(key: u8, asc: u8, ascq: u8) -> Completion {
    let mut sense = vec![0; 18];
    (sense[0], sense[2], sense[7], sense[12], sense[13]) = (0x70, key, 10, asc, ascq);
    Completion { status: 0x02, sense, ..Default::default() }
}

async fn converse(disk: Arc<Disk>, stream: TcpStream, portal_group: u16) {
    stream.set_nodelay(true).unwrap();
    let mut core = TargetConnection::new(disk.connection_config.clone(), Instant::now());
    let mut late: Vec<(Instant, lunway_iscsi::target::TaskId, Completion)> = Vec::new();
    let mut mine = 0;
    let mut closing = false;
    let mut hangs_up = None;
    while !closing {
        while let Some(event) = core.poll_event() {
            match event {
                TargetEvent::Login(_) => core.grant_login(LoginGrant {
                    tsih: 1,
                    target_portal_group_tag: portal_group,
                    target_alias: None,
                    auth: None,
                    refusal: None,
                }),
                TargetEvent::LoggedIn(logged_in) => {
                    disk.isids.lock().unwrap().push(logged_in.isid);
                    disk.logins.fetch_add(1, Ordering::Relaxed);
                }
                TargetEvent::Command(command) => {
                    mine += 1;
                    let ordered = command.attribute == TaskAttribute::ORDERED;
                    disk.ordered.fetch_add(usize::from(ordered), Ordering::Relaxed);
                    let now = disk.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
                    disk.most_in_flight.fetch_max(now, Ordering::Relaxed);
                    let act = (disk.script.lock().unwrap())(&command.cdb);
                    let refused = matches!(act, Act::Status(_) | Act::Sense(..));
                    disk.refused.fetch_add(usize::from(refused), Ordering::Relaxed);
                    let completion = match act {
                        Act::Execute => disk.execute(&command),
                        Act::Ignore => continue,
                        Act::Status(status) => Completion { status, ..Default::default() },
                        Act::Sense(key, asc, ascq) => sense(key, asc, ascq),
                        Act::Deferred(key, asc, ascq) => {
                            let mut completion = sense(key, asc, ascq);
                            completion.sense[0] = 0x71;
                            completion
                        }
                        Act::After(time) => {
                            late.push((Instant::now() + time, command.task, disk.execute(&command)));
                            continue;
                        }
                        Act::ExecuteAndHangUp => {
                            disk.execute(&command);
                            disk.in_flight.fetch_sub(mine, Ordering::Relaxed);
                            return;
                        }
                        Act::HangUpAfter(time) => {
                            hangs_up.get_or_insert(Instant::now() + time);
                            continue;
                        }
                        Act::TakeHalf => Completion {
                            wanted_out: u64::from(command.expected_length) / 2,
                            ..Default::default()
                        },
                        Act::AskForLogout => {
                            core.request_logout(Duration::from_secs(1), Instant::now());
                            disk.execute(&command)
                        }
                    };
                    mine -= 1;
                    disk.in_flight.fetch_sub(1, Ordering::Relaxed);
                    core.complete(command.task, completion);
                }
                TargetEvent::TaskManagement { request, function, referenced_task_tag, .. } => {
                    disk.aborts.fetch_add(1, Ordering::Relaxed);
                    if !*disk.answers_aborts.lock().unwrap() {
                        continue;
                    }
                    assert_eq!(function, TaskManagementCode::ABORT_TASK);
                    let result = match core.abort_task(referenced_task_tag) {
                        _ if disk.knows_no_tasks.load(Ordering::Relaxed) => {
                            TaskManagementResult::TASK_DOES_NOT_EXIST
                        }
                        Aborted::NotFound => TaskManagementResult::TASK_DOES_NOT_EXIST,
                        Aborted::Dropped | Aborted::Executing(_) => TaskManagementResult::COMPLETE,
                    };
                    core.respond_task_management(request, result);
                }
                TargetEvent::Announced(announcement) => core.ask_for_data(announcement.task, true),
                TargetEvent::SendTargets { request, .. } => core.respond_targets(request, &[]),
                TargetEvent::CloseConnection { .. } | TargetEvent::Wake(_) | TargetEvent::Proof { .. } => {
                    unreachable!("sessions here have one connection")
                }
                TargetEvent::Closing(reason) => {
                    let logout = reason == lunway_iscsi::CloseReason::LoggedOut;
                    disk.logouts.fetch_add(usize::from(logout), Ordering::Relaxed);
                    closing = true;
                }
            }
        }
        let now = Instant::now();
        while let Some(at) = late.iter().position(|(at, ..)| *at <= now) {
            let (_, task, completion) = late.swap_remove(at);
            mine -= 1;
            disk.in_flight.fetch_sub(1, Ordering::Relaxed);
            core.complete(task, completion);
        }
        while core.unsent() > 0 {
            let mut slices = Vec::new();
            core.gather(&mut slices, 64);
            match stream.try_write_vectored(&slices) {
                Ok(bytes) => core.sent(bytes),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    disk.in_flight.fetch_sub(mine, Ordering::Relaxed);
                    return;
                }
            }
        }
        if closing || hangs_up.is_some_and(|at| at <= now) {
            break;
        }
        let next =
            late.iter().map(|(at, ..)| *at).chain(hangs_up).min().map(|at| at.saturating_duration_since(now));
        tokio::select! {
            _ = stream.readable() => {}
            _ = stream.writable(), if core.unsent() > 0 => {}
            () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => {}
        }
        let mut space = core.receive_space();
        match stream.try_read_vectored(&mut space) {
            Ok(0) => break,
            Ok(bytes) => core.received(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    disk.in_flight.fetch_sub(mine, Ordering::Relaxed);
}
