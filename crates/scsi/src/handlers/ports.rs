//! REPORT and SET TARGET PORT GROUPS: which ports to use (SPC-4 §5.16).

use lunway_block::Io;

use crate::command::{Answer, Command, parameter_data, stepwise};
use crate::data::field::{u8_at, u16_at};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::model::port_group::{AccessState, PortGroups};
use crate::model::target::SetGroupsError;

/// PARAMETER DATA FORMAT of REPORT TARGET PORT GROUPS (SPC-4 table 303).
mod format {
    pub(super) const LENGTH_ONLY: u8 = 0b000;
    pub(super) const EXTENDED: u8 = 0b001;
}

/// Descriptors of the groups (SPC-4 table 306). One without ports is none.
fn descriptors(groups: &PortGroups) -> Vec<u8> {
    const PREF: u8 = 0x80;
    /// T_SUP, U_SUP, S_SUP, AN_SUP and AO_SUP.
    const SUPPORTED: u8 = 0x8F;
    const PORTS_MAX: usize = 255;
    let mut bytes = Vec::new();
    for (group, cause) in groups.now().filter(|(group, _)| !group.ports.is_empty()) {
        let ports = &group.ports[..group.ports.len().min(PORTS_MAX)];
        let [high, low] = group.tag.to_be_bytes();
        let preferred = if group.preferred { PREF } else { 0 };
        bytes.extend([preferred | group.state.code(), SUPPORTED, high, low]);
        bytes.extend([0, cause as u8, 0, ports.len() as u8]);
        for port in ports {
            bytes.extend(u32::from(*port).to_be_bytes());
        }
    }
    bytes
}

pub(crate) fn report_groups(command: Command) -> Answer {
    let cdb = &command.cdb;
    // Format type in byte 4; transitions are made at once, so there is no time to give for them.
    let header: &[u8] = match cdb.u8(1) >> 5 {
        format::LENGTH_ONLY => &[],
        format::EXTENDED => &[format::EXTENDED << 4, 0, 0, 0],
        _ => return Err(Sense::invalid_cdb_field(1, 7).into()),
    };
    let descriptors = descriptors(&command.itl.nexus().target().groups());
    let len = (header.len() + descriptors.len()) as u32;
    let bytes = [&len.to_be_bytes()[..], header, &descriptors].concat();
    Ok(Io::Ready(parameter_data(&bytes, cdb.u32(6) as usize)))
}

/// The parameter list of SET TARGET PORT GROUPS (SPC-4 §6.45): groups and states. All of it is read before anything is
/// done.
fn choices(list: &[u8]) -> Result<Vec<(u16, AccessState)>, Sense> {
    let descriptors = list.get(HEADER..).unwrap_or(&[]).chunks_exact(DESCRIPTOR);
    let choice = |(index, descriptor): (usize, &[u8])| {
        // Neither transitioning nor offline can be asked for, nor logical block dependent.
        match u8_at(descriptor, 0).map(|byte| byte & 0xF).and_then(AccessState::from_code) {
            Some(state) if state != AccessState::Transitioning => {
                Ok((u16_at(descriptor, 2).unwrap_or(0), state))
            }
            _ => Err(Sense::invalid_parameter((HEADER + DESCRIPTOR * index) as u16)),
        }
    };
    descriptors.enumerate().map(choice).collect()
}

const HEADER: usize = 4;
const DESCRIPTOR: usize = 4;
/// More descriptors than a target has groups.
const LIST_MAX: usize = 4096;

pub(crate) fn set_groups(command: Command) -> Answer {
    let len = command.cdb.u32(6) as usize;
    if len == 0 {
        return Ok(Io::Ready(Response::good()));
    }
    if len < HEADER || !len.is_multiple_of(DESCRIPTOR) || len > LIST_MAX {
        return Err(Sense::invalid_cdb_field(6, 7).into());
    }
    let choices = choices(&command.parameter_list(len)?)?;
    stepwise(async move {
        let nexus = command.itl.nexus();
        match nexus.target().choose_groups(nexus.id(), &choices).await {
            Ok(()) => Ok(Response::took(len as u64)),
            Err(SetGroupsError::Choice(index)) => {
                Err(Sense::invalid_parameter((HEADER + DESCRIPTOR * index + 2) as u16).into())
            }
            Err(SetGroupsError::State(_)) => {
                let code = AdditionalSense::SET_TARGET_PORT_GROUPS_COMMAND_FAILED;
                Err(Sense::new(SenseKey::HARDWARE_ERROR, code).into())
            }
        }
    })
}
