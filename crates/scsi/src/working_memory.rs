//! The memory that a command takes while it is carried out, beside the data that it is given and gives back.

use crate::data::opcode as op;
use crate::handlers::{extended_copy, thin, verify};

/// Upper bound of the buffers that the device server allocates for a command of its own accord, bytes: a chunk of the
/// medium that VERIFY compares, the pattern of WRITE SAME, what COMPARE AND WRITE reads. READ and parameter data are
/// not in it: they are bounded by what [`Nexus::execute_task`](crate::Nexus::execute_task) is told.
///
/// A transport that promises a bound for a session adds this to the data of each command before it begins.
pub fn working_memory(cdb: &[u8], data_out: usize) -> usize {
    match cdb.first().copied() {
        Some(
            op::VERIFY_10
            | op::VERIFY_12
            | op::VERIFY_16
            | op::WRITE_AND_VERIFY_10
            | op::WRITE_AND_VERIFY_12
            | op::WRITE_AND_VERIFY_16,
        ) => verify::CHUNK,
        Some(op::WRITE_SAME_10 | op::WRITE_SAME_16) => thin::PATTERN_CHUNK,
        // What is on the medium where the data goes.
        Some(op::COMPARE_AND_WRITE | op::ORWRITE_16) => data_out,
        // What is copied, what is around it in the destination, and both merged.
        Some(op::THIRD_PARTY_COPY_OUT) => 3 * extended_copy::CHUNK as usize,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_or_a_write_takes_nothing_beside_its_data() {
        for opcode in [op::READ_10, op::READ_16, op::WRITE_10, op::WRITE_16, op::TEST_UNIT_READY] {
            assert_eq!(working_memory(&[opcode; 16], 8 << 20), 0);
        }
        assert_eq!(working_memory(&[], 0), 0);
    }

    #[test]
    fn a_command_that_looks_at_the_medium_takes_what_it_reads() {
        assert_eq!(working_memory(&[op::ORWRITE_16], 4096), 4096);
        assert!(
            working_memory(&[op::VERIFY_16], 0) > 0 && working_memory(&[op::THIRD_PARTY_COPY_OUT], 0) > 0
        );
    }
}
