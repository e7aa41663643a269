//! Changes of a logical unit's reservations: one service action at a time, stored before it takes effect.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lunway_block::{FairTurn, HeldTurn};

use super::{Notice, Outcome, Persistent, Refusal, ReservationType, Reservations};
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::model::logical_unit::{LogicalUnit, obstacle};
use crate::model::state_store::{StateError, StateStore, item};
use crate::model::unit_attention::UnitAttention;

/// The reservations of a logical unit and the order of their changes.
///
/// A change holds the turn from the question whether it is allowed until it is in force, because between the two what
/// is kept may have to be written, which takes time. Everybody else goes on with the reservations that are in force.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    in_force: Mutex<Reservations>,
    turn: Arc<FairTurn>,
    /// `true` if the store may differ from what is in force: a save failed, or was given up.
    in_doubt: AtomicBool,
}

impl Keeper {
    /// With what the store has.
    pub(crate) fn load(state: Option<(&Arc<dyn StateStore>, &str)>) -> Result<Self, StateError> {
        let Some((store, owner)) = state else { return Ok(Self::default()) };
        let Some(bytes) = store.load(owner, item::RESERVATIONS)? else { return Ok(Self::default()) };
        let persistent = Persistent::from_kept(&bytes).map_err(|why| StateError::Damaged {
            owner: owner.to_owned(),
            item: item::RESERVATIONS.to_owned(),
            why: why.to_owned(),
        })?;
        Ok(Self { in_force: Mutex::new(Reservations::with(persistent)), ..Self::default() })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Reservations> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other change is under way.
    pub(crate) async fn turn(&self) -> HeldTurn {
        self.turn.take().await
    }
}

/// A registration, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationSummary {
    /// SCSI initiator port name.
    pub initiator_port: String,
    /// The target port that it is for.
    pub relative_target_port: u16,
    /// Reservation key.
    pub key: u64,
    /// Holds the persistent reservation.
    pub holder: bool,
}

/// The reservations of a logical unit, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationSummary {
    /// PRGENERATION.
    pub generation: u32,
    /// APTPL is set: registrations and the persistent reservation outlive the process.
    pub persists: bool,
    /// In the order in which they were made.
    pub registrations: Vec<RegistrationSummary>,
    /// Type of the persistent reservation.
    pub reservation: Option<ReservationType>,
    /// Initiator port of the nexus that used RESERVE (6) or (10).
    pub reserved_by: Option<String>,
}

impl LogicalUnit {
    /// Its reservations now.
    pub fn reservation_summary(&self) -> ReservationSummary {
        let reservations = self.reservations();
        let persistent = reservations.persistent();
        let registrations = persistent.registrations().iter().map(|registration| RegistrationSummary {
            initiator_port: registration.ports.initiator_port.clone(),
            relative_target_port: registration.ports.relative_target_port,
            key: registration.key,
            holder: persistent.held_by(&registration.ports).is_some(),
        });
        ReservationSummary {
            generation: persistent.generation(),
            persists: persistent.aptpl(),
            registrations: registrations.collect(),
            reservation: persistent.kind(),
            reserved_by: reservations.reserved_by().map(|ports| ports.initiator_port.clone()),
        }
    }

    /// Removes every reservation and registration, for an administrator whose cluster has lost the keys. Registrants
    /// are told RESERVATIONS PREEMPTED, a nexus that had RESERVE likewise.
    pub async fn clear_reservations(&self) -> Result<(), StateError> {
        let _turn = self.keeper().turn().await;
        let before = self.reservations().persistent().clone();
        let mut after = before.clone();
        let notices = after.clear_all();
        self.put_in_force(&before, after).await?;
        let reserved_by = self.change_reservations(|reservations| {
            let ports = reservations.reserved_by().cloned();
            reservations.release_any();
            ports
        });
        let condition = UnitAttention::ReservationsPreempted;
        self.tell(&notices);
        self.tell(&reserved_by.map(|to| Notice { to, condition }).into_iter().collect::<Vec<_>>());
        Ok(())
    }

    /// Changes registrations and the persistent reservation, and tells whom it concerns. Where the change was made with
    /// APTPL it is kept when this returns; where it cannot be kept, nothing has changed.
    pub(crate) async fn change_persistent(&self, change: impl FnOnce(&mut Persistent) -> Outcome) -> Outcome {
        let _turn = self.keeper().turn().await;
        let before = self.reservations().persistent().clone();
        let mut after = before.clone();
        let notices = change(&mut after)?;
        self.put_in_force(&before, after).await.map_err(|_| {
            Refusal::Check(Sense::new(SenseKey::HARDWARE_ERROR, AdditionalSense::INTERNAL_TARGET_FAILURE))
        })?;
        self.tell(&notices);
        Ok(notices)
    }

    /// Keeps `after` where it or what was before it is to be kept, then puts it in force. The caller has the turn.
    async fn put_in_force(&self, before: &Persistent, after: Persistent) -> Result<(), StateError> {
        if let Some((store, owner)) = self.state() {
            let bytes = after.to_kept();
            let in_doubt = &self.keeper().in_doubt;
            if in_doubt.load(Ordering::Acquire) || bytes != before.to_kept() {
                in_doubt.store(true, Ordering::Release);
                store.save(owner, item::RESERVATIONS, bytes).await?;
                in_doubt.store(false, Ordering::Release);
            }
        }
        self.change_reservations(|reservations| reservations.set_persistent(after));
        Ok(())
    }

    /// Changes reservations and keeps the obstacle bits in step with them, under the same lock.
    pub(crate) fn change_reservations<T>(&self, change: impl FnOnce(&mut Reservations) -> T) -> T {
        let mut reservations = self.reservations();
        let result = change(&mut reservations);
        self.set_obstacle(obstacle::RESERVED, reservations.reserved_by().is_some());
        self.set_obstacle(obstacle::PERSISTENT, reservations.persistent().kind().is_some());
        result
    }

    fn tell(&self, notices: &[Notice]) {
        for notice in notices {
            self.establish_on(notice.condition, |itl| *itl.nexus().ports() == notice.to);
        }
    }
}
