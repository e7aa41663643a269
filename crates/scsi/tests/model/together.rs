//! Commands of several nexuses in flight at the same time, on a device that takes its time.

use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use lunway_block::{Buf, Io};
use lunway_scsi::{LogicalUnit, LogicalUnitOptions, Lun, LunView, Nexus, Response, ScsiTarget, Status, cdb};

use crate::history::{BLOCKS, Effect, Event, Values, is_explained};
use crate::later::{BLOCK, Later};
use crate::random::Random;

/// Commands at the same time: all orders of more would take too long to try.
const IN_FLIGHT: usize = 4;
/// Commands of one burst, after which the disk is at rest.
const BURST: usize = 10;
const NEXUSES: usize = 3;

type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

/// A command that has no answer yet; its effect is what was asked for.
struct Running {
    first: usize,
    asked: Effect,
    since: u64,
    answer: Answer,
}

pub(crate) struct Together {
    device: Later,
    nexuses: Vec<Arc<Nexus>>,
    random: Random,
    now: u64,
}

fn values_of(bytes: &[u8]) -> Vec<u64> {
    // A block that is torn within itself is no number at all.
    let value = |block: &[u8]| {
        let first: [u8; 8] = block[..8].try_into().expect("8 bytes");
        assert!(block.chunks(8).all(|word| word == first), "a torn block");
        u64::from_le_bytes(first)
    };
    bytes.chunks(BLOCK).map(value).collect()
}

fn bytes_of(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes().repeat(BLOCK / 8)).collect()
}

/// A CDB of 16 bytes for a transfer.
fn cdb16(opcode: u8, first: usize, count: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[9] = first as u8;
    cdb[13] = count as u8;
    cdb
}

impl Together {
    pub(crate) fn new(seed: u64) -> Self {
        let device = Later::new(BLOCKS);
        let target = ScsiTarget::new("iqn.2026-11.com.example:together");
        let options = LogicalUnitOptions {
            identity: "together".to_owned(),
            atomic_writes: Some(true),
            ..LogicalUnitOptions::default()
        };
        let unit = LogicalUnit::new(Arc::new(device.clone()), options).expect("no kept state");
        target.attach(0, unit).expect("a new target");
        let open = |index| target.open_nexus(&format!("initiator-{index},i,0x1"), 1, LunView::ALL);
        let nexuses: Vec<Arc<Nexus>> = (0..NEXUSES).map(open).collect();
        for nexus in &nexuses {
            // POWER ON OCCURRED.
            let _ = nexus.execute(Lun::new(0).0, &cdb::test_unit_ready(), Buf::empty().freeze());
        }
        Self { device, nexuses, random: Random::new(seed), now: 0 }
    }

    fn values(&self) -> Values {
        values_of(&self.device.bytes()).try_into().expect("as many as there are")
    }

    fn send(&mut self) -> Running {
        let first = self.random.below(BLOCKS as u64) as usize;
        let count = 1 + self.random.below((BLOCKS - first).min(3) as u64) as usize;
        let nexus = self.random.below(NEXUSES as u64) as usize;
        let new: Vec<u64> = (0..count).map(|_| self.random.next()).collect();
        let kind = self.random.below(9);
        let (cdb, data, asked) = match kind {
            0..2 => (cdb16(0x88, first, count), Vec::new(), Effect::Read(Vec::new())),
            2 => (cdb16(0x8A, first, count), bytes_of(&new), Effect::Write(new)),
            3 => {
                let same = vec![new[0]; count];
                (cdb16(0x93, first, count), bytes_of(&new[..1]), Effect::Write(same))
            }
            4 => (cdb16(0x9C, first, count), bytes_of(&new), Effect::WriteAlone(new)),
            5 => {
                let mut cdb = cdb16(0x8E, first, count);
                cdb[1] = 0x02;
                (cdb, bytes_of(&new), Effect::WriteAlone(new))
            }
            6 => {
                let bits: Vec<u64> = new.iter().map(|value| 1 << (value % 64)).collect();
                (cdb16(0x8B, first, count), bytes_of(&bits), Effect::Or(bits))
            }
            _ => {
                // What the medium holds now: others that expect the same are under way.
                let old = self.values()[first..first + count].to_vec();
                let data = [bytes_of(&old), bytes_of(&new)].concat();
                (cdb16(0x89, first, count), data, Effect::Exchange { old, new, differs: None })
            }
        };
        let io = self.nexuses[nexus].execute(Lun::new(0).0, &cdb, Buf::copy_of(&data).freeze());
        let answer: Answer = match io {
            Io::Ready(response) => Box::pin(std::future::ready(response)),
            Io::Pending(answer) => answer,
        };
        Running { first, asked, since: self.now, answer }
    }

    /// One burst of commands in some interleaving; what cannot be explained is the error.
    pub(crate) fn burst(&mut self) -> Result<(), String> {
        let start = self.values();
        let (mut running, mut events, mut sent, mut idle) = (Vec::new(), Vec::new(), 0, 0);
        while sent < BURST || !running.is_empty() {
            self.now += 1;
            idle += 1;
            match self.random.below(3) {
                0 if sent < BURST && running.len() < IN_FLIGHT => {
                    running.push(self.send());
                    sent += 1;
                    idle = 0;
                }
                1 if self.device.step(&mut self.random) => idle = 0,
                _ if running.is_empty() => {}
                _ => {
                    let index = self.random.below(running.len() as u64) as usize;
                    let polled = running[index].answer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    if let Poll::Ready(response) = polled {
                        events.push(event(running.swap_remove(index), &response, self.now)?);
                        idle = 0;
                    }
                }
            }
            if idle > 10_000 {
                return Err(format!("{} commands wait for ever", running.len()));
            }
        }
        let end = self.values();
        if is_explained(&events, start, end) {
            return Ok(());
        }
        let mut what = format!("no order explains these, from {start:x?} to {end:x?}:\n");
        events.sort_by_key(|event| event.time.start);
        for event in events {
            let _ = writeln!(what, "  {event:x?}");
        }
        Err(what)
    }
}

/// What a command did, from what was asked and what was answered.
fn event(running: Running, response: &Response, now: u64) -> Result<Event, String> {
    let miscompare = response.sense.as_ref().filter(|sense| (sense.key.0, sense.code.0) == (0xE, 0x1D00));
    let effect = match (running.asked, miscompare) {
        (Effect::Read(_), _) if response.status == Status::GOOD => Effect::Read(values_of(&response.data_in)),
        (Effect::Exchange { old, new, .. }, Some(sense)) => {
            let differs = sense.information.map(|offset| offset as usize / BLOCK);
            Effect::Exchange { old, new, differs }
        }
        (asked, _) if response.status == Status::GOOD => asked,
        (asked, _) => return Err(format!("{asked:x?}: {} {:?}", response.status, response.sense)),
    };
    Ok(Event { first: running.first, effect, time: running.since..now })
}
