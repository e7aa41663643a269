//! RESERVE, RELEASE and PERSISTENT RESERVE: who may use the logical unit.

use lunway_block::Io;

use crate::command::{Answer, Command, parameter_data, stepwise};
use crate::data::field::{put, u8_at, u16_at, u32_at, u64_at};
use crate::data::opcode::service_action as sa;
use crate::data::persistent_reserve::flag;
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense};
use crate::data::status::Status;
use crate::data::transport_id::{self, TransportId};
use crate::model::gate;
use crate::model::nexus::PortPair;
use crate::model::reservation::{Move, Outcome, Persistent, Preempt, Refusal, Register, ReservationType};
use crate::model::unit_attention::UnitAttention;

impl From<Refusal> for Response {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Conflict => Self::status(Status::RESERVATION_CONFLICT),
            Refusal::Check(sense) => sense.into(),
        }
    }
}

pub(crate) fn reserve(command: Command) -> Answer {
    stepwise(async move {
        let (unit, nexus) = (command.unit(), command.itl.nexus());
        let _turn = unit.keeper().turn().await;
        unit.change_reservations(|reservations| reservations.reserve(nexus.id(), nexus.ports()))?;
        Ok(Response::good())
    })
}

pub(crate) fn release(command: Command) -> Answer {
    let nexus = command.itl.nexus();
    command.unit().change_reservations(|reservations| reservations.release(nexus.id(), nexus.ports()))?;
    Ok(Io::Ready(Response::good()))
}

/// PRGENERATION, ADDITIONAL LENGTH and what follows (SPC-4 §6.15.2).
fn reservation_data(command: &Command, generation: u32, body: &[u8]) -> Answer {
    let mut bytes = vec![0; 8];
    put(&mut bytes, 0, generation.to_be_bytes());
    put(&mut bytes, 4, (body.len() as u32).to_be_bytes());
    bytes.extend(body);
    Ok(Io::Ready(parameter_data(&bytes, usize::from(command.cdb.u16(7)))))
}

pub(crate) fn read_keys(command: Command) -> Answer {
    let reservations = command.unit().reservations();
    let persistent = reservations.persistent();
    let keys: Vec<u8> =
        persistent.registrations().iter().flat_map(|registration| registration.key.to_be_bytes()).collect();
    reservation_data(&command, persistent.generation(), &keys)
}

pub(crate) fn read_reservation(command: Command) -> Answer {
    let reservations = command.unit().reservations();
    let persistent = reservations.persistent();
    let descriptor = persistent.reservation().map_or_else(Vec::new, |(kind, key)| {
        let mut bytes = vec![0; 16];
        put(&mut bytes, 0, key.to_be_bytes());
        bytes[13] = kind.code(); // scope 0: the logical unit
        bytes
    });
    reservation_data(&command, persistent.generation(), &descriptor)
}

/// SPC-4 §6.15.4: everything but REPLACE LOST RESERVATION, because reservations that are lost are not served; PTPL_C
/// where there is a store to keep them.
pub(crate) fn report_capabilities(command: Command) -> Answer {
    const CRH: u8 = 0x10;
    const SIP_C: u8 = 0x08;
    const ATP_C: u8 = 0x04;
    const PTPL_C: u8 = 0x01;
    const TMV: u8 = 0x80;
    /// ALLOW COMMANDS 100b: all commands pass that may pass (table 208).
    const ALLOW_ALL: u8 = 0b100 << 4;
    const PTPL_A: u8 = 0x01;
    // PERSISTENT RESERVATION TYPE MASK: WR_EX_AR, EX_AC_RO, WR_EX_RO, EX_AC, WR_EX, and EX_AC_AR.
    const TYPES: [u8; 2] = [0xEA, 0x01];
    let unit = command.unit();
    let can_persist = if unit.state().is_some() { PTPL_C } else { 0 };
    let persists = if unit.reservations().persistent().aptpl() { PTPL_A } else { 0 };
    let data =
        [0, 8, CRH | SIP_C | ATP_C | can_persist, TMV | ALLOW_ALL | persists, TYPES[0], TYPES[1], 0, 0];
    Ok(Io::Ready(parameter_data(&data, usize::from(command.cdb.u16(7)))))
}

/// SPC-4 §6.15.5. ALL_TG_PT stays 0: a registration through all ports is one for each.
pub(crate) fn read_full_status(command: Command) -> Answer {
    const R_HOLDER: u8 = 0x01;
    let reservations = command.unit().reservations();
    let persistent = reservations.persistent();
    let mut body = Vec::new();
    for registration in persistent.registrations() {
        let id = transport_id::build(&registration.ports.initiator_port);
        let mut descriptor = [0; 24];
        put(&mut descriptor, 0, registration.key.to_be_bytes());
        if let Some(kind) = persistent.held_by(&registration.ports) {
            descriptor[12] = R_HOLDER;
            descriptor[13] = kind.code();
        }
        put(&mut descriptor, 18, registration.ports.relative_target_port.to_be_bytes());
        put(&mut descriptor, 20, (id.len() as u32).to_be_bytes());
        body.extend(descriptor);
        body.extend(id);
    }
    reservation_data(&command, persistent.generation(), &body)
}

/// The basic parameter list (SPC-4 §6.16.3), and what REGISTER AND MOVE has before the TransportID (6.16.4).
const PARAMETER_LIST: usize = 24;
/// More than 256 TransportIDs of the longest names.
const PARAMETER_LIST_MAX: usize = 64 << 10;

/// A PERSISTENT RESERVE OUT command with its parameter list.
struct Request {
    command: Command,
    action: u8,
    list: Vec<u8>,
}

impl Request {
    /// Checks the length of the list, which comes before all else, because the keys are in it.
    fn read(command: Command) -> Result<Self, Response> {
        let wrong_length = || Response::from(Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
        let len = command.cdb.u32(5) as usize;
        if !(PARAMETER_LIST..=PARAMETER_LIST_MAX).contains(&len) {
            return Err(wrong_length());
        }
        let list = command.parameter_list(len)?.to_vec();
        let request = Self { action: command.cdb.u8(1) & 0x1F, list, command };
        // Where TransportIDs follow, a length before them says how many bytes they are.
        let wanted = if request.action == sa::REGISTER_AND_MOVE {
            PARAMETER_LIST.saturating_add(request.u32(20) as usize)
        } else if request.spec_i_pt() {
            (PARAMETER_LIST + 4).saturating_add(request.u32(24) as usize)
        } else {
            PARAMETER_LIST
        };
        let exact = !request.spec_i_pt() && request.action != sa::REGISTER_AND_MOVE;
        if len < wanted || exact && len != wanted {
            return Err(wrong_length());
        }
        Ok(request)
    }

    fn u8(&self, at: usize) -> u8 {
        u8_at(&self.list, at).unwrap_or(0)
    }

    fn u32(&self, at: usize) -> u32 {
        u32_at(&self.list, at).unwrap_or(0)
    }

    fn key(&self) -> u64 {
        u64_at(&self.list, 0).unwrap_or(0)
    }

    /// SERVICE ACTION RESERVATION KEY.
    fn argument(&self) -> u64 {
        u64_at(&self.list, 8).unwrap_or(0)
    }

    fn sender(&self) -> &PortPair {
        self.command.itl.nexus().ports()
    }

    fn spec_i_pt(&self) -> bool {
        self.action != sa::REGISTER_AND_MOVE && self.u8(20) & flag::SPEC_I_PT != 0
    }

    /// APTPL in byte `at`, or that there is no store.
    fn aptpl(&self, at: usize) -> Result<bool, Sense> {
        let wanted = self.u8(at) & flag::APTPL != 0;
        if wanted && self.command.unit().state().is_none() {
            return Err(Sense::invalid_parameter(at as u16));
        }
        Ok(wanted)
    }

    /// SCOPE: the logical unit.
    fn scope(&self) -> Result<(), Sense> {
        if self.command.cdb.u8(2) >> 4 == 0 { Ok(()) } else { Err(Sense::invalid_cdb_field(2, 7)) }
    }

    fn kind(&self) -> Option<ReservationType> {
        ReservationType::from_code(self.command.cdb.u8(2) & 0xF)
    }

    fn scope_and_kind(&self) -> Result<ReservationType, Sense> {
        self.scope()?;
        self.kind().ok_or(Sense::invalid_cdb_field(2, 3))
    }

    /// The initiator ports that a TransportID names. A name alone stands for all ports of that initiator that are
    /// known: those of nexuses that are open. Where there are none, no nexus would be registered, so that is refused.
    fn initiator_ports(&self, id: TransportId, at: usize, port: Option<u16>) -> Result<Vec<String>, Sense> {
        match id {
            TransportId::Port(initiator_port) => Ok(vec![initiator_port]),
            TransportId::Initiator(name) => {
                let mut known: Vec<String> = self
                    .command
                    .unit()
                    .ports()
                    .into_iter()
                    .filter(|ports| transport_id::is_port_of(&ports.initiator_port, &name))
                    .filter(|ports| ports.principal == self.sender().principal)
                    .filter(|ports| port.is_none_or(|port| ports.relative_target_port == port))
                    .map(|ports| ports.initiator_port)
                    .collect();
                known.sort_unstable();
                known.dedup();
                if known.is_empty() { Err(Sense::invalid_parameter(at as u16)) } else { Ok(known) }
            }
        }
    }

    /// The initiator ports of SPEC_I_PT.
    fn specified(&self) -> Result<Vec<String>, Sense> {
        const AT: usize = PARAMETER_LIST + 4;
        let end = AT + self.u32(24) as usize;
        let mut ports = Vec::new();
        for id in transport_id::parse_list(&self.list[AT..end], AT)? {
            ports.extend(self.initiator_ports(id, AT, None)?);
        }
        Ok(ports)
    }

    /// APTPL of a registration. It concerns all registrations of the unit: a nexus that may only give up its own leaves
    /// it as it is.
    fn aptpl_of_registration(&self, in_force: bool) -> Result<bool, Sense> {
        if self.command.itl.may_change() { self.aptpl(20) } else { Ok(in_force) }
    }

    fn register<'a>(&'a self, key: Option<u64>, in_force: &Persistent) -> Register<'a> {
        let own = self.sender().relative_target_port;
        let mut target_ports = vec![own];
        if self.u8(20) & flag::ALL_TG_PT != 0 {
            let all = self.command.itl.nexus().target().ports();
            target_ports.extend(all.into_iter().filter(|&port| port != own));
        }
        Register {
            sender: self.sender(),
            key,
            new_key: self.argument(),
            aptpl: self.aptpl_of_registration(in_force.aptpl()),
            initiator_ports: self.spec_i_pt().then(|| self.specified()),
            target_ports,
        }
    }

    /// Returns the destination of REGISTER AND MOVE: one initiator port, not the sender's own, at a port of this
    /// target.
    fn destination(&self) -> Result<PortPair, Sense> {
        const AT: usize = PARAMETER_LIST;
        let relative_target_port = u16_at(&self.list, 18).unwrap_or(0);
        if !self.command.itl.nexus().target().ports().contains(&relative_target_port) {
            return Err(Sense::invalid_parameter(18));
        }
        let end = AT + self.u32(20) as usize;
        let (id, len) = transport_id::parse(&self.list[AT..end], AT)?;
        let ports = self.initiator_ports(id, AT, Some(relative_target_port))?;
        match ports.as_slice() {
            [one] if AT + len == end && *one != self.sender().initiator_port => {
                let principal = self.sender().principal.clone();
                Ok(PortPair { initiator_port: one.clone(), relative_target_port, principal })
            }
            _ => Err(Sense::invalid_parameter(AT as u16)),
        }
    }

    fn apply(&self, persistent: &mut Persistent) -> Outcome {
        let (sender, key) = (self.sender(), self.key());
        if self.spec_i_pt() && self.action != sa::REGISTER {
            if self.action != sa::REGISTER_AND_IGNORE_EXISTING_KEY {
                persistent.check_key(sender, key)?;
            }
            return Err(Sense::invalid_parameter(20).into());
        }
        match self.action {
            sa::REGISTER => persistent.register(self.register(Some(key), persistent)),
            sa::REGISTER_AND_IGNORE_EXISTING_KEY => persistent.register(self.register(None, persistent)),
            sa::REGISTER_AND_MOVE => persistent.register_and_move(Move {
                sender,
                key,
                new_key: self.argument(),
                aptpl: self.aptpl(17),
                unregister: self.u8(17) & flag::UNREG != 0,
                to: self.destination(),
            }),
            sa::RESERVE => persistent.reserve(sender, key, self.scope_and_kind()),
            sa::RELEASE => persistent.release(sender, key, self.scope(), self.kind()),
            sa::CLEAR => persistent.clear(sender, key),
            sa::PREEMPT | sa::PREEMPT_AND_ABORT => {
                let (victim, kind) = (self.argument(), self.scope_and_kind());
                persistent.preempt(Preempt { sender, key, victim, kind })
            }
            _ => Err(Sense::invalid_cdb_field(1, 4).into()),
        }
    }
}

pub(crate) fn persistent_reserve_out(command: Command) -> Answer {
    let request = Request::read(command)?;
    stepwise(async move {
        let unit = request.command.unit();
        // Asked again, as it may have waited for other changes.
        let denied = || Refusal::Check(Sense::illegal(AdditionalSense::NO_ACCESS_RIGHTS));
        let change = |persistent: &mut Persistent| match request.command.revoked() {
            Some(_) => Err(denied()),
            None => request.apply(persistent),
        };
        let notices = unit.change_persistent(change).await?;
        if request.action == sa::PREEMPT_AND_ABORT {
            let preempted: Vec<&PortPair> = notices
                .iter()
                .filter(|notice| notice.condition == UnitAttention::RegistrationsPreempted)
                .map(|notice| &notice.to)
                .collect();
            abort_preempted(&request.command, &preempted).await;
        }
        Ok(Response::took(request.list.len() as u64))
    })
}

/// Completes PREEMPT AND ABORT after PREEMPT (SPC-4 §5.13.11.2.6): the preempted nexuses may no longer prevent removal,
/// and none of their commands has an effect after this. The transports drop what they have; then all that is inside the
/// gate has to leave, which also waits for commands whose transport cannot drop them. Commands that arrive meanwhile
/// meet the new reservation.
async fn abort_preempted(command: &Command, preempted: &[&PortPair]) {
    let unit = command.unit();
    let itls = unit.itl_nexuses();
    let victims = itls.iter().filter(|itl| preempted.contains(&itl.nexus().ports()));
    let ends: Vec<Io<()>> = victims
        .map(|itl| {
            itl.set_prevents_removal(false);
            itl.abort_tasks()
        })
        .collect();
    for end in ends {
        end.await;
    }
    gate::drained(unit.clone()).await;
}
