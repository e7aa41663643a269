//! An initiator and a target that pass bytes to each other without a socket, a RAM disk behind the target.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::{Buf, Io, SharedBuf};
use lunway_iscsi::Cdb;
use lunway_iscsi::initiator::{InitiatorConnection, InitiatorConnectionConfig, InitiatorEvent, Submission};
use lunway_iscsi::login::{InitiatorLoginConfig, LoginGrant};
use lunway_iscsi::negotiation::{DigestPolicy, Parameters};
use lunway_iscsi::pdu::TaskAttribute;
use lunway_iscsi::target::{Completion, TargetConnection, TargetConnectionConfig, TargetEvent};
use lunway_memory::RamDisk;
use lunway_scsi::{LogicalUnit, LogicalUnitOptions, LunView, Nexus, ScsiTarget, TaskOptions};

use crate::counted;
use crate::devices::fill;

/// READ(10) and WRITE(10) (SBC-4 §5.11, §5.40).
const READ: u8 = 0x28;
const WRITE: u8 = 0x2a;
const SECTOR: u32 = 512;
const DISK: u64 = 8 << 20;
/// More slices than the cores give for what waits at any time here.
const SLICES_MAX: usize = 1024;

/// Whose instructions count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Target,
    Initiator,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Target => "target",
            Self::Initiator => "initiator",
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// What is carried out again and again.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) direction: Direction,
    pub(crate) bytes: u32,
    /// Operations under way together.
    pub(crate) depth: u32,
    /// Digests of headers and data.
    pub(crate) digests: bool,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.direction == Direction::Read { "read" } else { "write" };
        let digests = if self.digests { ", digests" } else { "" };
        write!(f, "{direction} of {} KiB, depth {}{digests}", self.bytes >> 10, self.depth)
    }
}

/// Carries out `operations` of one shape, and counts one side's instructions.
pub(crate) fn carry_out(side: Side, shape: Shape, operations: u32) {
    let mut pair = Pair::log_in(shape.digests);
    // The pools of buffers fill, and the first command hears a unit attention.
    pair.run(shape, shape.depth * 4);
    pair.counts = Some(side);
    pair.run(shape, operations);
}

struct Pair {
    initiator: InitiatorConnection,
    target: TargetConnection,
    nexus: Arc<Nexus>,
    counts: Option<Side>,
    completed: u32,
}

impl Pair {
    fn log_in(digests: bool) -> Self {
        let digest = if digests { DigestPolicy::Require } else { DigestPolicy::Allow };
        let parameters = Parameters { header_digest: digest, data_digest: digest, ..Parameters::default() };
        let login = InitiatorLoginConfig {
            initiator_name: "iqn.2026-11.io.lunway:counting".into(),
            initiator_alias: None,
            target_name: Some("iqn.2026-11.io.lunway:counted".into()),
            isid: [0x80, 1, 2, 3, 4, 5],
            tsih: 0,
            cid: 0,
            parameters: parameters.clone(),
            chap: None,
        };
        // Time stands still: no ping is due, nothing is late.
        let (now, never) = (Instant::now(), Duration::from_secs(3600));
        let initiator = InitiatorConnectionConfig {
            login,
            login_timeout: never,
            nop_interval: never,
            nop_timeout: never,
        };
        let target = TargetConnectionConfig { parameters, ..TargetConnectionConfig::default() };

        let scsi = ScsiTarget::new("iqn.2026-11.io.lunway:counted");
        let disk = Arc::new(RamDisk::new(DISK, SECTOR).unwrap());
        fill(&*disk);
        let options = LogicalUnitOptions { identity: "counted/0".into(), ..LogicalUnitOptions::default() };
        scsi.attach(0, LogicalUnit::new(disk, options).unwrap()).unwrap();
        let mut pair = Self {
            initiator: InitiatorConnection::new(initiator, now),
            target: TargetConnection::new(target, now),
            nexus: scsi.open_nexus("iqn.2026-11.io.lunway:counting,i,0x1", 1, LunView::ALL),
            counts: None,
            completed: 0,
        };
        while pair.step() {}
        assert!(pair.initiator.logged_in().is_some() && pair.target.logged_in().is_some());
        pair
    }

    fn run(&mut self, shape: Shape, operations: u32) {
        let mut submitted = 0;
        self.completed = 0;
        while self.completed < operations {
            let mut wave = Vec::new();
            while submitted < operations && submitted - self.completed < shape.depth {
                wave.push(submission(shape, submitted));
                submitted += 1;
            }
            let initiator = &mut self.initiator;
            count(self.counts == Some(Side::Initiator), &mut || {
                for submission in wave.drain(..) {
                    assert!(initiator.submit(submission).is_ok(), "the window is larger than the depth");
                }
            });
            while self.step() {}
        }
    }

    /// Lets bytes pass once each way; `false`: there were none.
    fn step(&mut self) -> bool {
        let (of_target, of_initiator) =
            (self.counts == Some(Side::Target), self.counts == Some(Side::Initiator));
        let sent = gathered(of_initiator, |slices| self.initiator.gather(slices, SLICES_MAX));
        count(of_initiator, &mut || self.initiator.sent(sent.len()));
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let taken = put(&mut rest, self.target.receive_space());
            let Self { target, nexus, .. } = self;
            count(of_target, &mut || {
                target.received(taken);
                serve(target, nexus);
            });
        }

        let answered = gathered(of_target, |slices| self.target.gather(slices, SLICES_MAX));
        count(of_target, &mut || self.target.sent(answered.len()));
        let mut rest = &answered[..];
        while !rest.is_empty() {
            let taken = put(&mut rest, self.initiator.receive_space());
            let Self { initiator, completed, .. } = self;
            count(of_initiator, &mut || {
                initiator.received(taken);
                while let Some(event) = initiator.poll_event() {
                    *completed += u32::from(matches!(event, InitiatorEvent::Completed(_)));
                }
            });
        }
        !sent.is_empty() || !answered.is_empty()
    }
}

fn count(counts: bool, work: &mut dyn FnMut()) {
    if counts { counted(work) } else { work() }
}

/// What one side wants to send. The socket's copy does not count.
fn gathered<'a>(counts: bool, gather: impl FnOnce(&mut Vec<IoSlice<'a>>)) -> Vec<u8> {
    let mut slices = Vec::with_capacity(SLICES_MAX);
    let mut gather = Some(gather);
    count(counts, &mut || {
        if let Some(gather) = gather.take() {
            gather(&mut slices);
        }
    });
    slices.iter().map(|slice| &**slice).collect::<Vec<_>>().concat()
}

/// Moves bytes to where the other side wants them, as the socket does.
fn put(from: &mut &[u8], space: [IoSliceMut<'_>; 2]) -> usize {
    let before = from.len();
    for mut slice in space {
        let (now, later) = from.split_at(slice.len().min(from.len()));
        slice[..now.len()].copy_from_slice(now);
        *from = later;
    }
    before - from.len()
}

/// What the target's driver does with what the core says.
fn serve(target: &mut TargetConnection, nexus: &Nexus) {
    while let Some(event) = target.poll_event() {
        match event {
            TargetEvent::Login(_) => target.grant_login(LoginGrant {
                tsih: 7,
                target_portal_group_tag: 1,
                target_alias: None,
                auth: None,
                refusal: None,
            }),
            TargetEvent::Command(command) => {
                let options = TaskOptions {
                    data_in_max: command.data_in_max as usize,
                    number: Some(command.cmd_sn),
                    ..TaskOptions::default()
                };
                let begun = nexus.begin_task(command.lun, &command.cdb, command.data_out, options);
                let Io::Ready(response) = begun.answer else { panic!("a RAM disk answers at once") };
                let completion = Completion {
                    status: response.status.0,
                    sense: response.sense_bytes().map_or_else(Vec::new, |sense| sense.to_vec()),
                    data_in: response.data_in,
                    lent: response.lent,
                    wanted_in: response.wanted_in,
                    wanted_out: response.wanted_out,
                };
                target.complete(command.task, completion);
            }
            _ => {}
        }
    }
}

fn submission(shape: Shape, number: u32) -> Submission {
    let blocks = shape.bytes / SECTOR;
    // All over the disk, always the same way.
    let places = DISK as u32 / shape.bytes;
    let block = number.wrapping_mul(0x9e37_79b1) % places * blocks;
    let mut cdb = [0; 10];
    cdb[0] = if shape.direction == Direction::Read { READ } else { WRITE };
    cdb[2..6].copy_from_slice(&block.to_be_bytes());
    cdb[7..9].copy_from_slice(&(blocks as u16).to_be_bytes());
    let (data_out, data_in) = match shape.direction {
        Direction::Read => (SharedBuf::default(), Buf::for_overwrite(shape.bytes as usize)),
        Direction::Write => {
            (Buf::copy_of(&vec![number as u8 | 1; shape.bytes as usize]).freeze(), Buf::for_overwrite(0))
        }
    };
    Submission {
        token: u64::from(number),
        lun: [0; 8],
        cdb: Cdb::new(&cdb),
        data_out,
        data_in,
        attribute: TaskAttribute::SIMPLE,
    }
}
