//! Sessions that abort, reset and cut, and come back as the same initiator port to see what became of their data.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::{Buf, SharedBuf};
use lunway_iscsi::pdu::TaskManagementCode as Function;
use lunway_scsi::{AdditionalSense, Sense, SenseKey, cdb};
use tokio::time::sleep;

use crate::client::{Client, PATIENCE};
use crate::region::{BLOCK, BLOCKS, Region};
use crate::tally::{Random, Tally};

/// How long an answer is waited for that somebody else's reset may have taken away.
const ABORTED_AFTER: Duration = Duration::from_secs(3);
/// Blocks of one command; writes under way at the same time never meet.
const CHUNK: u64 = 8;

/// What stands between a session and the end of its life.
enum End {
    /// Logged out.
    Polite,
    /// The socket was closed in the middle of something.
    Cut,
}

pub(crate) struct Rude {
    pub(crate) slot: u64,
    pub(crate) address: SocketAddr,
    /// On LUN 1, with task management; else on LUN 0, where nobody takes a command away.
    pub(crate) storms: bool,
    pub(crate) tally: Arc<Tally>,
}

impl Rude {
    /// Lives one session after the other until the task is dropped.
    pub(crate) async fn live(self) {
        let mut random = Random(self.slot);
        let mut region = Region::new(self.slot);
        loop {
            let client = match Client::log_in(self.address, self.slot as u16).await {
                Ok(client) => client,
                Err(error) => {
                    self.tally.fail(format!("rude session {}: login: {error}", self.slot));
                    sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            self.tally.logins.add(1);
            match self.one_life(client, &mut region, &mut random).await {
                Ok(End::Polite) => {}
                Ok(End::Cut) => self.tally.cut.add(1),
                Err(error) => {
                    self.tally.fail(format!("rude session {}: {error}", self.slot));
                    return;
                }
            }
            // Mostly at once, while the daemon still has the old session.
            if random.once_in(3) {
                sleep(Duration::from_millis(random.below(300))).await;
            }
        }
    }

    fn lun(&self) -> u8 {
        u8::from(self.storms)
    }

    /// Sends a command until it is carried out: unit attentions and other sessions' resets are in the way.
    async fn carried_out(&self, client: &mut Client, cdb: &[u8], data_in: usize) -> io::Result<Vec<u8>> {
        for _ in 0..20 {
            let token = client.submit(self.lun(), cdb, SharedBuf::default(), data_in)?;
            match client.wait(token, if self.storms { ABORTED_AFTER } else { PATIENCE }).await {
                Ok(answer) if answer.status == 0 => return Ok(answer.data_in[..answer.data_in_len].to_vec()),
                Ok(answer) => check_sense(&answer.sense)?,
                Err(error) if self.storms && error.kind() == io::ErrorKind::TimedOut => {
                    self.tally.unanswered.add(1);
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("a command is never carried out"))
    }

    async fn one_life(
        &self,
        mut client: Client,
        region: &mut Region,
        random: &mut Random,
    ) -> io::Result<End> {
        self.carried_out(&mut client, &cdb::test_unit_ready(), 0).await?;
        for block in (0..BLOCKS).step_by(CHUNK as usize) {
            let read = cdb::read10(region.lba(block) as u32, CHUNK as u16, cdb::TransferFlags::NONE);
            let data = self.carried_out(&mut client, &read, CHUNK as usize * BLOCK).await?;
            region.verify(block, &data).map_err(io::Error::other)?;
            self.tally.verified.add(CHUNK);
        }
        for _ in 0..1 + random.below(6) {
            sleep(Duration::from_millis(random.below(60))).await;
            let writes = submit_writes(&mut client, self.lun(), region, random)?;
            match random.below(if self.storms { 10 } else { 5 }) {
                0 => {
                    // Some of the bytes, then silence.
                    let bytes = writes.len() as u64 * (CHUNK * BLOCK as u64 + 48);
                    client.flush(random.below(bytes) as usize).await?;
                    return Ok(End::Cut);
                }
                1 => {
                    client.flush(usize::MAX).await?;
                    return Ok(End::Cut);
                }
                2..5 => self.wait_for(&mut client, &writes, region).await?,
                5..8 => {
                    self.tally.aborts.add(1);
                    client.manage(Function::ABORT_TASK, self.lun(), Some(writes[0].token)).await?;
                    self.wait_for(&mut client, &writes[1..], region).await?;
                }
                8 => {
                    let function =
                        if random.once_in(2) { Function::ABORT_TASK_SET } else { Function::CLEAR_TASK_SET };
                    self.tally.aborts.add(1);
                    client.manage(function, self.lun(), None).await?;
                    break;
                }
                _ => {
                    self.tally.resets.add(1);
                    client.manage(Function::LOGICAL_UNIT_RESET, self.lun(), None).await?;
                    break;
                }
            }
        }
        if random.once_in(2) {
            return Ok(End::Cut);
        }
        client.log_out().await;
        Ok(End::Polite)
    }

    async fn wait_for(&self, client: &mut Client, writes: &[Write], region: &mut Region) -> io::Result<()> {
        for write in writes {
            match client.wait(write.token, if self.storms { ABORTED_AFTER } else { PATIENCE }).await {
                Ok(answer) if answer.status == 0 => {
                    region.done(write.block, CHUNK, write.stamp);
                    self.tally.written.add(CHUNK);
                }
                Ok(answer) => check_sense(&answer.sense)?,
                Err(error) if self.storms && error.kind() == io::ErrorKind::TimedOut => {
                    self.tally.unanswered.add(1);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A write that is under way.
struct Write {
    token: u64,
    block: u64,
    stamp: u64,
}

fn submit_writes(
    client: &mut Client,
    lun: u8,
    region: &mut Region,
    random: &mut Random,
) -> io::Result<Vec<Write>> {
    let chunks = BLOCKS / CHUNK;
    let (first, count) = (random.below(chunks), 1 + random.below(6));
    (0..count)
        .map(|index| {
            let block = (first + index) % chunks * CHUNK;
            let (stamp, data) = region.fresh(block, CHUNK);
            region.sent(block, CHUNK, stamp);
            let cdb = cdb::write10(region.lba(block) as u32, CHUNK as u16, cdb::TransferFlags::NONE);
            let token = client.submit(lun, &cdb, Buf::copy_of(&data).freeze(), 0)?;
            Ok(Write { token, block, stamp })
        })
        .collect()
}

/// Unit attentions are what resets come with, and so is a write whose data was taken away; all else is a failure.
fn check_sense(sense: &[u8]) -> io::Result<()> {
    match Sense::parse(sense) {
        Some(sense) if sense.key == SenseKey::UNIT_ATTENTION => Ok(()),
        Some(sense) if sense.code == AdditionalSense::NONE && sense.key == SenseKey::ABORTED_COMMAND => {
            Ok(())
        }
        Some(sense) => Err(io::Error::other(sense.to_string())),
        None => Err(io::Error::other("a failure without sense data")),
    }
}
