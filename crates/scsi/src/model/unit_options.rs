//! Options of a logical unit.

use std::sync::Arc;

use crate::model::medium_operation::Background;
use crate::model::state_store::StateStore;

/// Options of a logical unit: its self-description, and what it lets initiators do.
#[derive(Clone, Debug)]
pub struct LogicalUnitOptions {
    /// Permanent identity of this volume among those of one daemon, such as the target's name and the LUN's number. Its
    /// stored state is found by this.
    pub identity: String,
    /// Distinction from volumes of the same `identity` elsewhere: the machine, the store behind it.
    pub distinction: String,
    /// Unit serial number, at most [`SERIAL_MAX`](Self::SERIAL_MAX) bytes of ASCII; empty: hashed from `identity` and
    /// `distinction`, so that the same texts give the same disk after every restart. The designators of VPD page 83h
    /// are hashed from the serial number: two disks must never share one.
    pub serial: String,
    /// T10 vendor identification, 8 bytes of ASCII.
    pub vendor: String,
    /// Product identification, 16 bytes of ASCII.
    pub product: String,
    /// Product revision level, 4 bytes of ASCII.
    pub revision: String,
    /// The medium can be ejected and loaded by START STOP UNIT.
    pub removable: bool,
    /// Writes are refused, whatever the device could do.
    pub read_only: bool,
    /// Most that one command may transfer, bytes. Bounds the memory that one command can take.
    pub max_transfer: u32,
    /// Offers WRITE ATOMIC (16). `None`: only on a device without a volatile cache, where what was written stays
    /// written; the atomic gate makes it indivisible for every other command, a power cut in the middle is the
    /// device's.
    pub atomic_writes: Option<bool>,
    /// Store for reservations with APTPL and saved mode pages. `None`: nothing is kept, and initiators are told so.
    pub state: Option<Arc<dyn StateStore>>,
    /// Bytes of a physical block to tell where that is larger than the device's: a whole multiple of its logical
    /// blocks. 512e is a device of 512-byte blocks that says 4096 here.
    pub physical_sector: Option<u32>,
    /// Thin provisioning soft threshold: initiators are told when the backing store is at least so full.
    pub threshold_percent: Option<u8>,
    /// Executor of sanitize and format operations. `None`: they run within their commands, which then answer only at
    /// the end, IMMED or not.
    pub background: Option<Arc<dyn Background>>,
}

impl LogicalUnitOptions {
    /// Longest serial number. Together with the vendor it must fit a designator.
    pub const SERIAL_MAX: usize = 64;

    /// Default limit of one command's transfer, bytes. The largest request seen in practice: 2,048 blocks of 4 KiB, as
    /// conformance tests and backup programs send. A transport must take as much data-out.
    pub const MAX_TRANSFER: u32 = 8 << 20;
}

impl Default for LogicalUnitOptions {
    fn default() -> Self {
        Self {
            identity: String::new(),
            distinction: String::new(),
            serial: String::new(),
            vendor: "LUNWAY".to_owned(),
            product: "VIRTUAL-DISK".to_owned(),
            revision: "0001".to_owned(),
            removable: false,
            read_only: false,
            max_transfer: Self::MAX_TRANSFER,
            atomic_writes: None,
            state: None,
            physical_sector: None,
            threshold_percent: None,
            background: None,
        }
    }
}
