//! A target with one disk, and an initiator that talks to it without a transport.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use lunway_block::{BlockDevice, Buf, Io};
use lunway_memory::RamDisk;
use lunway_scsi::{
    LogicalUnit, LogicalUnitOptions, Lun, LunView, Nexus, Response, ScsiTarget, Sense, Status, UnitAttention,
};

pub(crate) const SECTOR: usize = 512;
pub(crate) const SECTORS: u64 = 4096;

/// A RAM disk of [`SECTORS`] behind LUN 0.
pub(crate) struct Rig {
    pub(crate) target: Arc<ScsiTarget>,
    pub(crate) disk: Arc<RamDisk>,
    pub(crate) unit: Arc<LogicalUnit>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(LogicalUnitOptions::default())
    }

    pub(crate) fn with(options: LogicalUnitOptions) -> Self {
        let disk = Arc::new(RamDisk::new(SECTORS * SECTOR as u64, SECTOR as u32).expect("a small disk"));
        let (target, unit) = serve(disk.clone(), options);
        Self { target, disk, unit }
    }

    /// A new nexus that has heard that it is new.
    pub(crate) fn login(&self, name: &str) -> Initiator {
        self.login_hearing(name, UnitAttention::PowerOn)
    }

    /// A new nexus between ports that have met before.
    pub(crate) fn login_again(&self, name: &str) -> Initiator {
        self.login_hearing(name, UnitAttention::NexusLoss)
    }

    fn login_hearing(&self, name: &str, condition: UnitAttention) -> Initiator {
        let initiator = Initiator(self.target.open_nexus(&format!("{name},i,0x1"), 1, LunView::ALL));
        initiator.hears(condition);
        initiator
    }
}

/// Any device behind LUN 0 of a new target.
pub(crate) fn serve(
    device: Arc<dyn BlockDevice>,
    options: LogicalUnitOptions,
) -> (Arc<ScsiTarget>, Arc<LogicalUnit>) {
    let target = ScsiTarget::new("iqn.2026-01.example:test");
    let unit = LogicalUnit::new(device, LogicalUnitOptions { identity: "test/0".to_owned(), ..options })
        .expect("no kept state is damaged");
    target.attach(0, unit.clone()).expect("a new target");
    (target, unit)
}

/// FORMAT UNIT, SANITIZE, EXTENDED COPY, and VERIFY, WRITE AND VERIFY, WRITE SAME and UNMAP of many blocks: they let
/// others go first between their steps.
const LONG: [u8; 12] = [0x04, 0x48, 0x83, 0x2e, 0x2f, 0x41, 0x42, 0x8e, 0x8f, 0x93, 0xae, 0xaf];

/// Runs a command to its end that waits for nobody else.
pub(crate) fn drive(mut future: Pin<Box<dyn Future<Output = Response> + Send>>) -> Response {
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        if let Poll::Ready(response) = future.as_mut().poll(&mut cx) {
            return response;
        }
    }
    panic!("the command does not come to its end")
}

pub(crate) struct Initiator(pub(crate) Arc<Nexus>);

impl Initiator {
    /// Sends a command to LUN 0; the device answers inline, so the response is there.
    pub(crate) fn send(&self, cdb: &[u8], data_out: &[u8]) -> Response {
        self.send_to(Lun::new(0), cdb, data_out)
    }

    pub(crate) fn send_to(&self, lun: Lun, cdb: &[u8], data_out: &[u8]) -> Response {
        match self.0.execute(lun.0, cdb, Buf::copy_of(data_out).freeze()) {
            Io::Ready(response) => response,
            Io::Pending(future) if LONG.contains(&cdb[0]) => drive(future),
            Io::Pending(_) => panic!("a RAM disk answers inline: {cdb:02x?}"),
        }
    }

    pub(crate) fn good(&self, cdb: &[u8], data_out: &[u8]) -> Response {
        let response = self.send(cdb, data_out);
        assert_eq!(response.status, Status::GOOD, "{cdb:02x?}: {:?}", response.sense);
        response
    }

    /// Sends a command that must end with CHECK CONDITION.
    pub(crate) fn refused(&self, cdb: &[u8], data_out: &[u8]) -> Sense {
        let response = self.send(cdb, data_out);
        assert_eq!(response.status, Status::CHECK_CONDITION, "{cdb:02x?}");
        assert_eq!(response.wanted_in, 0);
        *response.sense.expect("CHECK CONDITION has sense data")
    }

    pub(crate) fn conflicts(&self, cdb: &[u8], data_out: &[u8]) {
        assert_eq!(self.send(cdb, data_out).status, Status::RESERVATION_CONFLICT, "{cdb:02x?}");
    }

    /// The next command is answered with this unit attention, the one after it is not.
    pub(crate) fn hears(&self, condition: UnitAttention) {
        let tur = lunway_scsi::cdb::test_unit_ready();
        let heard = Sense { descriptor_format: false, ..self.refused(&tur, &[]) };
        assert_eq!(heard, condition.sense());
    }

    pub(crate) fn is_ready(&self) {
        self.good(&lunway_scsi::cdb::test_unit_ready(), &[]);
    }
}
