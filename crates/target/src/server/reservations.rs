//! Reservations of initiators, for an administrator.

use lunway_scsi::ReservationType;
use schemars::JsonSchema;
use serde::Serialize;

use super::{ChangeError, Server, StartError};

/// The reservations of a logical unit that has any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LunReservations {
    /// The target's name.
    pub target: String,
    /// The number of the logical unit.
    pub lun: u16,
    /// Number of changes of registrations since the daemon was started (PRGENERATION).
    pub generation: u32,
    /// They survive a restart of the daemon (APTPL).
    pub persists: bool,
    /// The type of the persistent reservation, such as `write exclusive, registrants only`; null: there is none.
    pub reservation: Option<String>,
    /// The initiator port that used RESERVE (6) or (10).
    pub reserved_by: Option<String>,
    /// Registrations of initiators.
    pub registrations: Vec<LunRegistration>,
}

/// A registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LunRegistration {
    /// The initiator port's name.
    pub initiator_port: String,
    /// The portal group that it is for.
    pub portal_group: u16,
    /// The key, `0x` and 16 hexadecimal digits.
    pub key: String,
    /// Holds the persistent reservation.
    pub holder: bool,
}

impl Server {
    /// The reservations of all logical units that have any.
    pub fn reservations(&self) -> Vec<LunReservations> {
        let serving = self.changer.shared.serving();
        let units = serving.targets.iter().flat_map(|(name, target)| {
            target.scsi.luns().into_iter().map(move |(lun, unit)| (name, lun, unit.reservation_summary()))
        });
        let reserved =
            units.filter(|(.., summary)| !summary.registrations.is_empty() || summary.reserved_by.is_some());
        reserved
            .map(|(target, lun, summary)| LunReservations {
                target: target.clone(),
                lun,
                generation: summary.generation,
                persists: summary.persists,
                reservation: summary.reservation.map(|kind| kind_name(kind).to_owned()),
                reserved_by: summary.reserved_by,
                registrations: summary
                    .registrations
                    .into_iter()
                    .map(|registration| LunRegistration {
                        initiator_port: registration.initiator_port,
                        portal_group: registration.relative_target_port,
                        key: format!("{:#018x}", registration.key),
                        holder: registration.holder,
                    })
                    .collect(),
            })
            .collect()
    }

    /// Removes every reservation and registration of a logical unit, for whose cluster has lost the keys. Initiators
    /// are told.
    pub async fn clear_reservations(&self, target: &str, lun: u16) -> Result<(), ChangeError> {
        let units = self.changer.shared.serving().targets.get(target).map(|target| target.scsi.luns());
        let unit = units.into_iter().flatten().find(|(id, _)| *id == lun);
        let (_, unit) = unit.ok_or_else(|| self.not_served(target, lun))?;
        unit.clear_reservations().await.map_err(|error| StartError::from(error).into())
    }
}

/// The name in SPC-4 table 64.
fn kind_name(kind: ReservationType) -> &'static str {
    match kind {
        ReservationType::WriteExclusive => "write exclusive",
        ReservationType::ExclusiveAccess => "exclusive access",
        ReservationType::WriteExclusiveRegistrantsOnly => "write exclusive, registrants only",
        ReservationType::ExclusiveAccessRegistrantsOnly => "exclusive access, registrants only",
        ReservationType::WriteExclusiveAllRegistrants => "write exclusive, all registrants",
        ReservationType::ExclusiveAccessAllRegistrants => "exclusive access, all registrants",
    }
}
