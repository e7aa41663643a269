//! RESERVE, RELEASE and PERSISTENT RESERVE: who may use the logical unit.

use lunway_block::Io;

use super::{Answer, Command, parameter_data};
use crate::field::{put, u8_at, u64_at};
use crate::opcode::service_action as sa;
use crate::reservation::{Refusal, ReservationType};
use crate::response::Response;
use crate::sense::{AdditionalSense, Sense};
use crate::status::Status;
use crate::transport_id;

impl From<Refusal> for Response {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Conflict => Self::status(Status::RESERVATION_CONFLICT),
            Refusal::Check(sense) => sense.into(),
        }
    }
}

pub(crate) fn reserve(command: Command) -> Answer {
    let nexus = command.itl.nexus();
    command
        .unit()
        .change_reservations(|reservations| reservations.reserve_unit(nexus.id(), nexus.ports()))?;
    Ok(Io::Ready(Response::good()))
}

pub(crate) fn release(command: Command) -> Answer {
    let nexus = command.itl.nexus();
    command
        .unit()
        .change_reservations(|reservations| reservations.release_unit(nexus.id(), nexus.ports()))?;
    Ok(Io::Ready(Response::good()))
}

/// PRGENERATION, ADDITIONAL LENGTH and what follows (SPC-4 6.15.2).
fn reservation_data(command: &Command, generation: u32, body: &[u8]) -> Answer {
    let mut bytes = vec![0; 8];
    put(&mut bytes, 0, generation.to_be_bytes());
    put(&mut bytes, 4, (body.len() as u32).to_be_bytes());
    bytes.extend(body);
    Ok(Io::Ready(parameter_data(&bytes, usize::from(command.cdb.u16(7)))))
}

pub(crate) fn read_keys(command: Command) -> Answer {
    let reservations = command.unit().reservations();
    let keys: Vec<u8> =
        reservations.registrations().iter().flat_map(|registration| registration.key.to_be_bytes()).collect();
    reservation_data(&command, reservations.generation(), &keys)
}

pub(crate) fn read_reservation(command: Command) -> Answer {
    let reservations = command.unit().reservations();
    let descriptor = reservations.reservation().map_or_else(Vec::new, |(kind, key)| {
        let mut bytes = vec![0; 16];
        put(&mut bytes, 0, key.to_be_bytes());
        bytes[13] = kind.code(); // scope 0: the logical unit
        bytes
    });
    reservation_data(&command, reservations.generation(), &descriptor)
}

/// Compatible reservation handling; no SPEC_I_PT, ALL_TG_PT or APTPL; all types.
pub(crate) fn report_capabilities(command: Command) -> Answer {
    const CRH: u8 = 0x10;
    const TMV: u8 = 0x80;
    // PERSISTENT RESERVATION TYPE MASK: WR_EX_AR, EX_AC_RO, WR_EX_RO, EX_AC, WR_EX, and EX_AC_AR.
    const TYPES: [u8; 2] = [0xEA, 0x01];
    let data = [0, 8, CRH, TMV, TYPES[0], TYPES[1], 0, 0];
    Ok(Io::Ready(parameter_data(&data, usize::from(command.cdb.u16(7)))))
}

pub(crate) fn read_full_status(command: Command) -> Answer {
    const R_HOLDER: u8 = 0x01;
    let reservations = command.unit().reservations();
    let mut body = Vec::new();
    for registration in reservations.registrations() {
        let id = transport_id::build(&registration.ports.initiator_port);
        let mut descriptor = [0; 24];
        put(&mut descriptor, 0, registration.key.to_be_bytes());
        if let Some(kind) = reservations.held_by(&registration.ports) {
            descriptor[12] = R_HOLDER;
            descriptor[13] = kind.code();
        }
        put(&mut descriptor, 18, registration.ports.relative_target_port.to_be_bytes());
        put(&mut descriptor, 20, (id.len() as u32).to_be_bytes());
        body.extend(descriptor);
        body.extend(id);
    }
    reservation_data(&command, reservations.generation(), &body)
}

/// The basic parameter list (SPC-4 6.16.3).
const PARAMETER_LIST: usize = 24;

pub(crate) fn persistent_reserve_out(command: Command) -> Answer {
    const SPEC_I_PT_ALL_TG_PT_APTPL: u8 = 0x0D;
    let cdb = &command.cdb;
    if cdb.u32(5) as usize != PARAMETER_LIST {
        return Err(Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    let list = command.parameter_list(PARAMETER_LIST)?;
    let (key, argument) = (u64_at(&list, 0).unwrap_or(0), u64_at(&list, 8).unwrap_or(0));
    if u8_at(&list, 20).unwrap_or(0) & SPEC_I_PT_ALL_TG_PT_APTPL != 0 {
        return Err(Sense::invalid_parameter(20).into());
    }
    let action = cdb.u8(1) & 0x1F;
    let kind = ReservationType::from_code(cdb.u8(2) & 0xF);
    let scoped = matches!(action, sa::RESERVE | sa::RELEASE | sa::PREEMPT | sa::PREEMPT_AND_ABORT);
    if scoped && cdb.u8(2) >> 4 != 0 {
        return Err(Sense::invalid_cdb_field(2, 7).into());
    }
    let ports = command.itl.nexus().ports();
    let notices = command.unit().change_reservations(|reservations| match action {
        sa::REGISTER => reservations.register(ports, key, argument, false),
        sa::REGISTER_AND_IGNORE_EXISTING_KEY => reservations.register(ports, key, argument, true),
        sa::RESERVE => match kind {
            Some(kind) => reservations.reserve(ports, key, kind),
            None => Err(Sense::invalid_cdb_field(2, 3).into()),
        },
        sa::RELEASE => reservations.release_persistent(ports, key, kind),
        sa::CLEAR => reservations.clear(ports, key),
        sa::PREEMPT | sa::PREEMPT_AND_ABORT => reservations.preempt(ports, key, argument, kind),
        _ => Err(Sense::invalid_cdb_field(1, 4).into()),
    })?;
    for notice in notices {
        command.unit().establish_on(notice.condition, |itl| *itl.nexus().ports() == notice.to);
    }
    Ok(Io::Ready(Response::took(PARAMETER_LIST as u64)))
}
