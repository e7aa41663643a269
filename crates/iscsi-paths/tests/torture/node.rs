//! Another node of the cluster: it takes the disk away from the first one by its reservation key, and looks what is
//! written afterwards.

use std::net::SocketAddr;
use std::time::Duration;

use lunway_block::{BlockDevice, Buf};
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};
use lunway_scsi::{SenseKey, Status};

/// PERSISTENT RESERVE OUT and its service actions (SPC-4 6.16, table 210).
const OPERATION_CODE: u8 = 0x5F;
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
/// Write exclusive, registrants only (SPC-4 6.15.3.3): what clusters use.
const REGISTRANTS_ONLY: u8 = 5;
/// Commands that may be answered by a unit attention each.
const ATTENTIONS_MAX: usize = 16;

/// Longer than a command takes whose data is there.
const SETTLED: Duration = Duration::from_millis(500);

const KEY: u64 = 0x0B;

/// Address of the disk.
pub(crate) struct DiskAddress(IscsiUrl);

impl DiskAddress {
    pub(crate) fn new(target: SocketAddr, name: &str, lun: u16) -> Self {
        Self(IscsiUrl::parse(&format!("iscsi://{target}/{name}/{lun}")).unwrap())
    }

    /// A node that has registered its key.
    pub(crate) async fn join(self) -> Result<Node, String> {
        let device = IscsiDevice::open(self.0, SessionOptions::default()).await.map_err(|e| e.to_string())?;
        let node = Node { device };
        node.reserve_out(REGISTER, 0, 0, KEY).await?;
        Ok(node)
    }
}

pub(crate) struct Node {
    device: IscsiDevice,
}

impl Node {
    /// From here on the other node may not write, and what it had sent is done or will never be.
    pub(crate) async fn preempt(&self, other: u64) -> Result<(), String> {
        self.reserve_out(RESERVE, REGISTRANTS_ONLY, KEY, 0).await?;
        if self.reserve_out(PREEMPT_AND_ABORT, REGISTRANTS_ONLY, KEY, other).await.is_err() {
            // tgt knows no other; what it has begun it ends within moments.
            self.reserve_out(PREEMPT, REGISTRANTS_ONLY, KEY, other).await?;
            tokio::time::sleep(SETTLED).await;
        }
        Ok(())
    }

    /// Takes back everything.
    pub(crate) async fn leave(self) -> Result<(), String> {
        let left = self.reserve_out(CLEAR, 0, KEY, 0).await;
        self.device.close().await;
        left
    }

    pub(crate) async fn read_all(&self, len: u64) -> Result<Vec<u8>, String> {
        let mut all = Vec::with_capacity(len as usize);
        while (all.len() as u64) < len {
            let read = self.device.read(all.len() as u64, Buf::for_overwrite(1 << 20)).await;
            all.extend_from_slice(&read.map_err(|error| format!("READ: {error}"))?);
        }
        Ok(all)
    }

    async fn reserve_out(&self, action: u8, kind: u8, key: u64, other: u64) -> Result<(), String> {
        let mut cdb = [0; 10];
        (cdb[0], cdb[1], cdb[2], cdb[8]) = (OPERATION_CODE, action, kind, 24);
        let mut list = [0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&other.to_be_bytes());
        for _ in 0..ATTENTIONS_MAX {
            let list = Buf::copy_of(&list).freeze();
            match self.device.execute(&cdb, list, Buf::empty(), true).await {
                Ok((Status::GOOD, ..)) => return Ok(()),
                Ok((Status::CHECK_CONDITION, Some(sense), _)) if sense.key == SenseKey::UNIT_ATTENTION => {}
                Ok((Status::BUSY, ..)) => tokio::time::sleep(Duration::from_millis(50)).await,
                other => return Err(format!("PERSISTENT RESERVE OUT {action}: {other:?}")),
            }
        }
        Err(format!("PERSISTENT RESERVE OUT {action}: nothing but unit attentions"))
    }
}
