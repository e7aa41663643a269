//! Whatever a peer sends, the device server answers: no panic, no allocation beyond its limits, no wait.

use crate::support::{Initiator, Rig};
use lunway_scsi::operations::OPERATIONS;
use lunway_scsi::{LogicalUnitOptions, Lun, Status};
use proptest::prelude::*;

fn rig() -> (Rig, Initiator) {
    let rig = Rig::with(LogicalUnitOptions { removable: true, ..Default::default() });
    let host = rig.login("host");
    (rig, host)
}

fn check(host: &Initiator, lun: Lun, cdb: &[u8], data_out: &[u8]) {
    let response = host.send_to(lun, cdb, data_out);
    let sense = response.sense_bytes();
    assert_eq!(sense.is_some(), response.status == Status::CHECK_CONDITION, "{cdb:02x?}");
    assert!(response.data_in.len() <= 8 << 20);
    assert_eq!(response.wanted_in, response.data_in.len() as u64);
}

#[test]
fn every_operation_survives_every_length_and_every_extreme() {
    let (_rig, host) = rig();
    for row in OPERATIONS {
        for fill in [0x00, 0xFF, 0x7F, 0x80, 0x01] {
            let mut cdb = vec![fill; 16];
            cdb[0] = row.opcode;
            // All bits that are evaluated, so that the checks before the handler let it through.
            for (byte, usage) in cdb.iter_mut().zip(row.usage).skip(1) {
                *byte &= usage;
            }
            if let Some(action) = row.service_action {
                cdb[1] = cdb[1] & !0x1F | action;
            }
            for data in [0, 1, 24, 512, 1024, 70_000] {
                check(&host, Lun::new(0), &cdb, &vec![fill; data]);
            }
            for len in 0..16 {
                check(&host, Lun::new(0), &cdb[..len], &[]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_conversation_is_answered(
        commands in proptest::collection::vec(
            (
                0..OPERATIONS.len() + 8,
                proptest::collection::vec(any::<u8>(), 0..=260),
                proptest::collection::vec(any::<u8>(), 0..2048),
                any::<bool>(),
                any::<[u8; 8]>(),
            ),
            1..64,
        )
    ) {
        let (_rig, host) = rig();
        for (row, mut cdb, data, masked, lun) in commands {
            if let (Some(row), [first, rest @ ..]) = (OPERATIONS.get(row), &mut cdb[..]) {
                *first = row.opcode;
                if masked {
                    for (byte, usage) in rest.iter_mut().zip(&row.usage[1..]) {
                        *byte &= usage;
                    }
                }
                if let (Some(action), Some(byte)) = (row.service_action, rest.first_mut()) {
                    *byte = *byte & !0x1F | action;
                }
            }
            let lun = if masked { Lun::new(0) } else { Lun(lun) };
            check(&host, lun, &cdb, &data);
        }
    }
}
