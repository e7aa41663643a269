//! The asymmetric access state of the port that a session goes to (ALUA, SPC-4 §5.16).

use lunway_scsi::vpd::DeviceIdentification;
use lunway_scsi::{AccessState, AdditionalSense, PortGroup, Status, cdb};

use crate::IscsiOpenError;
use crate::unit::exchange::{Exchange, ask};

/// Room for some hundred groups.
const GROUPS_LEN: u32 = 4096;

/// The port that a session goes to, as the unit's identification names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Port {
    group: Option<u16>,
    relative: Option<u16>,
}

impl Port {
    pub(crate) fn of(identification: &DeviceIdentification) -> Self {
        Self { group: identification.target_port_group(), relative: identification.relative_target_port() }
    }

    /// Its state, by its own number or else by its group's.
    fn state_in(self, groups: &[PortGroup]) -> Option<AccessState> {
        let by_port = self.relative.and_then(|port| groups.iter().find(|group| group.ports.contains(&port)));
        let by_group = || self.group.and_then(|tag| groups.iter().find(|group| group.tag == tag));
        by_port.or_else(by_group).map(|group| group.state)
    }

    /// Asks the unit for its state; `None` where it does not tell.
    pub(crate) async fn read<E: Exchange>(
        self,
        exchange: &mut E,
        attentions: &mut Vec<AdditionalSense>,
    ) -> Result<Option<AccessState>, IscsiOpenError> {
        let cdb = cdb::report_target_port_groups(GROUPS_LEN);
        let answer = ask(exchange, &cdb, GROUPS_LEN as usize, attentions).await?;
        if answer.status != Status::GOOD {
            return Ok(None);
        }
        Ok(PortGroup::parse_list(&answer.data).and_then(|groups| self.state_in(&groups)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_by_its_number_and_else_by_its_group() {
        let group =
            |tag, state, ports: &[u16]| PortGroup { tag, state, preferred: false, ports: ports.to_vec() };
        let groups = [
            group(1, AccessState::ActiveOptimized, &[1, 2]),
            group(2, AccessState::Standby, &[3]),
            group(3, AccessState::Unavailable, &[]),
        ];
        let state = |group, relative| Port { group, relative }.state_in(&groups);
        assert_eq!(state(Some(1), Some(3)), Some(AccessState::Standby));
        assert_eq!(state(Some(3), None), Some(AccessState::Unavailable));
        assert_eq!(state(Some(2), Some(9)), Some(AccessState::Standby));
        assert_eq!(state(None, None), None);
    }
}
