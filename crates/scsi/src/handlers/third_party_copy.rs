//! Third-party copy, page 8Fh (SPC-4 §7.8.17): which of its commands and descriptors the copy manager understands.

use crate::command::operation::OperationTable;
use crate::data::field::put;
use crate::data::opcode;
use crate::model::copy_record::{
    COPIES_MAX, DESCRIPTORS_LEN_MAX, SEGMENT_LEN_MAX, SEGMENTS_MAX, TARGETS_MAX, descriptor,
};

/// Third-party copy descriptor types (SPC-4 table 661).
mod kind {
    pub(super) const SUPPORTED_COMMANDS: u16 = 0x0001;
    pub(super) const PARAMETER_DATA: u16 = 0x0004;
    pub(super) const SUPPORTED_DESCRIPTORS: u16 = 0x0008;
    pub(super) const SUPPORTED_CSCD_IDS: u16 = 0x000C;
    pub(super) const GENERAL_COPY_OPERATIONS: u16 = 0x8001;
}

/// Appends a descriptor, padded to a multiple of four bytes.
fn push(body: &mut Vec<u8>, kind: u16, mut content: Vec<u8>) {
    content.resize(content.len().next_multiple_of(4), 0);
    body.extend(kind.to_be_bytes());
    body.extend((content.len() as u16).to_be_bytes());
    body.extend(content);
}

pub(crate) fn build_body(operations: &OperationTable) -> Vec<u8> {
    let mut body = Vec::new();
    let mut commands = vec![0];
    for opcode in [opcode::THIRD_PARTY_COPY_OUT, opcode::THIRD_PARTY_COPY_IN] {
        let actions: Vec<u8> =
            operations.with_opcode(opcode).iter().filter_map(|row| row.service_action).collect();
        commands.extend([opcode, actions.len() as u8]);
        commands.extend(actions);
    }
    commands[0] = commands.len() as u8 - 1;
    push(&mut body, kind::SUPPORTED_COMMANDS, commands);

    let mut parameters = vec![0; 28];
    put(&mut parameters, 4, (TARGETS_MAX as u16).to_be_bytes());
    put(&mut parameters, 6, (SEGMENTS_MAX as u16).to_be_bytes());
    put(&mut parameters, 8, (DESCRIPTORS_LEN_MAX as u32).to_be_bytes());
    push(&mut body, kind::PARAMETER_DATA, parameters);

    let mut descriptors = vec![descriptor::ALL.len() as u8];
    descriptors.extend(descriptor::ALL);
    push(&mut body, kind::SUPPORTED_DESCRIPTORS, descriptors);
    // No CSCD descriptor identifier but those of the list.
    push(&mut body, kind::SUPPORTED_CSCD_IDS, vec![0, 0]);

    let mut general = vec![0; 32];
    put(&mut general, 0, (COPIES_MAX as u32).to_be_bytes());
    put(&mut general, 4, (COPIES_MAX as u32).to_be_bytes());
    put(&mut general, 8, (SEGMENT_LEN_MAX as u32).to_be_bytes());
    // Granularities: single bytes, 2 to the power of 0.
    push(&mut body, kind::GENERAL_COPY_OPERATIONS, general);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_fill_the_page_exactly_and_name_the_commands() {
        let body = build_body(&crate::operations::TABLE);
        let mut kinds = Vec::new();
        let mut rest = &body[..];
        while let [a, b, c, d, ..] = *rest {
            kinds.push(u16::from_be_bytes([a, b]));
            let len = 4 + usize::from(u16::from_be_bytes([c, d]));
            assert!(len.is_multiple_of(4));
            rest = &rest[len..];
        }
        assert_eq!(kinds, [0x0001, 0x0004, 0x0008, 0x000C, 0x8001]);
        assert_eq!(body[4..14], [9, 0x83, 1, 0, 0x84, 4, 0, 1, 3, 4]);
    }
}
