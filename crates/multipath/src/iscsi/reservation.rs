//! One reservation key on every lane.

use lunway_block::Buf;
use lunway_initiator::IscsiDevice;
use lunway_scsi::{SenseKey, Status};

/// PERSISTENT RESERVE OUT, service action REGISTER AND IGNORE EXISTING KEY (SPC-4 6.16, table 210).
const OPERATION_CODE: u8 = 0x5F;
const REGISTER_AND_IGNORE: u8 = 0x06;
/// Its parameter list (SPC-4 6.16.3).
const LIST_LEN: u8 = 24;
/// A new session brings unit attentions, each of which answers one command.
const ATTENTIONS_MAX: usize = 8;

/// Registers `key` for the session of `device`, whatever was registered for it before.
///
/// A reservation holds for the registrants of all lanes only with a type for registrants (SPC-4 5.13.10); which is the business of whoever
/// reserves. The registration is not kept over a loss of the target's power (APTPL = 0): it is made anew with each session.
pub(super) async fn register(device: &IscsiDevice, key: u64) -> Result<(), String> {
    let mut cdb = [0; 10];
    (cdb[0], cdb[1], cdb[8]) = (OPERATION_CODE, REGISTER_AND_IGNORE, LIST_LEN);
    let mut list = [0; LIST_LEN as usize];
    list[8..16].copy_from_slice(&key.to_be_bytes());
    for _ in 0..ATTENTIONS_MAX {
        let list = Buf::copy_of(&list).freeze();
        let (status, sense, _) =
            device.execute(&cdb, list, Buf::empty(), true).await.map_err(|error| error.to_string())?;
        match (status, sense) {
            (Status::GOOD, _) => return Ok(()),
            (Status::CHECK_CONDITION, Some(sense)) if sense.key == SenseKey::UNIT_ATTENTION => {}
            (status, Some(sense)) => return Err(format!("{status}: {sense}")),
            (status, None) => return Err(status.to_string()),
        }
    }
    Err("the unit answers every command with a unit attention".to_owned())
}
