//! RECEIVE COPY RESULTS: the third-party copy commands that ask (SPC-4 §6.20–6.24).

use lunway_block::Io;

use crate::command::{Answer, Command, parameter_data};
use crate::data::field::put;
use crate::data::response::Response;
use crate::data::sense::Sense;
use crate::model::copy_record::{
    COPIES_MAX, CopyRecord, CopyState, DESCRIPTORS_LEN_MAX, SEGMENT_LEN_MAX, SEGMENTS_MAX, TARGETS_MAX,
    descriptor,
};

fn allocation(command: &Command) -> usize {
    command.cdb.u32(10) as usize
}

/// The copy that the LIST IDENTIFIER names.
fn record(command: &Command) -> Result<CopyRecord, Response> {
    command.itl.copies().of(command.cdb.u8(2)).ok_or_else(|| Sense::invalid_cdb_field(2, 7).into())
}

/// TRANSFER COUNT UNITS and TRANSFER COUNT (SPC-4 table 223): the smallest power of 1,024 in which 32 bits can count.
fn transfer_count(bytes: u64) -> (u8, u32) {
    let mut units = 0;
    let mut count = bytes;
    while count > u32::MAX.into() {
        units += 1;
        count /= 1024;
    }
    (units, count as u32)
}

/// Tells how a copy is doing; what is over is forgotten once it was told.
pub(crate) fn copy_status(command: Command) -> Answer {
    let record = record(&command)?;
    let status = match record.state {
        CopyState::InProgress(_) => 0x00,
        CopyState::Done => 0x01,
        CopyState::Failed(_) => 0x02,
    };
    let (units, count) = transfer_count(record.bytes);
    let mut bytes = [0; 12];
    put(&mut bytes, 0, 8u32.to_be_bytes());
    bytes[4] = status;
    put(&mut bytes, 5, record.segments.to_be_bytes());
    bytes[7] = units;
    put(&mut bytes, 8, count.to_be_bytes());
    if record.state == CopyState::Done {
        command.itl.copies().forget(command.cdb.u8(2));
    }
    Ok(Io::Ready(parameter_data(&bytes, allocation(&command))))
}

/// No segment that is understood here holds data for the initiator.
pub(crate) fn receive_data(command: Command) -> Answer {
    record(&command)?;
    Ok(Io::Ready(parameter_data(&[0; 4], allocation(&command))))
}

pub(crate) fn operating_parameters(command: Command) -> Answer {
    const SNLID: u8 = 0x01;
    const FIXED: usize = 44;
    let mut bytes = vec![0; FIXED];
    bytes[4] = SNLID;
    put(&mut bytes, 8, (TARGETS_MAX as u16).to_be_bytes());
    put(&mut bytes, 10, (SEGMENTS_MAX as u16).to_be_bytes());
    put(&mut bytes, 12, (DESCRIPTORS_LEN_MAX as u32).to_be_bytes());
    put(&mut bytes, 16, (SEGMENT_LEN_MAX as u32).to_be_bytes());
    put(&mut bytes, 34, (COPIES_MAX as u16).to_be_bytes());
    bytes[36] = COPIES_MAX as u8;
    // DATA SEGMENT GRANULARITY: single bytes, 2 to the power of 0.
    bytes[43] = descriptor::ALL.len() as u8;
    bytes.extend(descriptor::ALL);
    let len = bytes.len() as u32 - 4;
    put(&mut bytes, 0, len.to_be_bytes());
    Ok(Io::Ready(parameter_data(&bytes, allocation(&command))))
}

/// The sense data of a copy that failed; told once.
pub(crate) fn failed_segment_details(command: Command) -> Answer {
    const FIXED: usize = 60;
    let CopyState::Failed(sense) = record(&command)?.state else {
        return Err(Sense::invalid_cdb_field(2, 7).into());
    };
    let sense = sense.to_bytes(false);
    let mut bytes = vec![0; FIXED];
    put(&mut bytes, 0, ((FIXED + sense.len() - 4) as u32).to_be_bytes());
    // EXTENDED COPY COMMAND STATUS: the status that the command ended with.
    bytes[56] = crate::data::status::Status::CHECK_CONDITION.0;
    put(&mut bytes, 58, (sense.len() as u16).to_be_bytes());
    bytes.extend(sense.iter());
    command.itl.copies().forget(command.cdb.u8(2));
    Ok(Io::Ready(parameter_data(&bytes, allocation(&command))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_counts_are_told_in_larger_units() {
        assert_eq!(transfer_count(0), (0, 0));
        assert_eq!(transfer_count(u32::MAX.into()), (0, u32::MAX));
        assert_eq!(transfer_count(1 << 32), (1, 1 << 22));
        assert_eq!(transfer_count(u64::MAX), (4, (1 << 24) - 1));
    }
}
