//! Unit attention conditions: what a nexus must hear before it goes on (SAM-5 §5.14).

use std::sync::atomic::{AtomicU32, Ordering};

use crate::data::sense::{AdditionalSense, Sense, SenseKey};

/// A condition. In the order in which pending ones are told: resets first, because they explain all the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum UnitAttention {
    /// The nexus is new, and as far as its ports know the logical unit has just been switched on.
    PowerOn,
    /// A task management function reset the logical unit or the target.
    Reset,
    /// The nexus is new, its ports are not: they met before on this logical unit, which has not been off since.
    NexusLoss,
    /// CLEAR TASK SET of another nexus took commands of this one away.
    CommandsCleared,
    /// The transport ended the connection over which commands of this nexus had come (RFC 7143 §11.14.5).
    CommandsLost,
    /// A removable medium was loaded.
    MediumChanged,
    /// The size changed.
    CapacityChanged,
    /// Another nexus changed mode parameters.
    ModeParametersChanged,
    /// The backing store is nearly full.
    SoftThresholdReached,
    /// PREEMPT took the reservation that this nexus took part in.
    ReservationsPreempted,
    /// A reservation that this nexus took part in was released.
    ReservationsReleased,
    /// PREEMPT removed the registration of this nexus.
    RegistrationsPreempted,
    /// A target port group changed its asymmetric access state, or its preference.
    AsymmetricAccessChanged,
    /// Logical units were added or removed.
    LunsChanged,
}

/// All, by bit number of [`Pending`].
const ALL: [(UnitAttention, AdditionalSense); 14] = [
    (UnitAttention::PowerOn, AdditionalSense::POWER_ON_OCCURRED),
    (UnitAttention::Reset, AdditionalSense::BUS_DEVICE_RESET_OCCURRED),
    (UnitAttention::NexusLoss, AdditionalSense::I_T_NEXUS_LOSS_OCCURRED),
    (UnitAttention::CommandsCleared, AdditionalSense::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR),
    (UnitAttention::CommandsLost, AdditionalSense::SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT),
    (UnitAttention::MediumChanged, AdditionalSense::MEDIUM_MAY_HAVE_CHANGED),
    (UnitAttention::CapacityChanged, AdditionalSense::CAPACITY_DATA_HAS_CHANGED),
    (UnitAttention::ModeParametersChanged, AdditionalSense::MODE_PARAMETERS_CHANGED),
    (UnitAttention::SoftThresholdReached, AdditionalSense::SOFT_THRESHOLD_REACHED),
    (UnitAttention::ReservationsPreempted, AdditionalSense::RESERVATIONS_PREEMPTED),
    (UnitAttention::ReservationsReleased, AdditionalSense::RESERVATIONS_RELEASED),
    (UnitAttention::RegistrationsPreempted, AdditionalSense::REGISTRATIONS_PREEMPTED),
    (UnitAttention::AsymmetricAccessChanged, AdditionalSense::ASYMMETRIC_ACCESS_STATE_CHANGED),
    (UnitAttention::LunsChanged, AdditionalSense::REPORTED_LUNS_DATA_HAS_CHANGED),
];

impl UnitAttention {
    /// The sense data that tells it.
    pub fn sense(self) -> Sense {
        Sense::new(SenseKey::UNIT_ATTENTION, ALL[self as usize].1)
    }
}

/// The conditions pending for one I_T_L nexus: one bit each, because a condition established twice is told once. A set
/// instead of a queue costs no allocation, cannot overflow, and is one load to find empty.
#[derive(Debug, Default)]
pub(crate) struct Pending(AtomicU32);

impl Pending {
    /// Establishes a condition. A reset makes earlier ones pointless (SAM-5 §5.14.4): they go.
    pub(crate) fn establish(&self, condition: UnitAttention) {
        let bit = 1 << condition as u8;
        match condition {
            UnitAttention::PowerOn | UnitAttention::Reset => self.0.store(bit, Ordering::Release),
            _ => {
                self.0.fetch_or(bit, Ordering::AcqRel);
            }
        }
    }

    /// Nothing pending. The fast path's only question.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Returns `true` if this condition has not been reported yet.
    pub(crate) fn has(&self, condition: UnitAttention) -> bool {
        self.0.load(Ordering::Acquire) & 1 << condition as u8 != 0
    }

    /// The most important one, which is no longer pending.
    pub(crate) fn take(&self) -> Option<UnitAttention> {
        self.take_of(u32::MAX)
    }

    /// A reset, or what is like one. Only these are told before a reservation conflict (SAM-5 §5.3.3).
    pub(crate) fn take_reset(&self) -> Option<UnitAttention> {
        const RESETS: u32 = 1 << UnitAttention::PowerOn as u8
            | 1 << UnitAttention::Reset as u8
            | 1 << UnitAttention::NexusLoss as u8;
        self.take_of(RESETS)
    }

    fn take_of(&self, kinds: u32) -> Option<UnitAttention> {
        let mut bits = self.0.load(Ordering::Acquire);
        while bits & kinds != 0 {
            let first = (bits & kinds).trailing_zeros();
            match self.0.compare_exchange_weak(
                bits,
                bits & !(1 << first),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return ALL.get(first as usize).map(|&(condition, _)| condition),
                Err(now) => bits = now,
            }
        }
        None
    }

    /// Takes one back that was told in another way.
    pub(crate) fn clear(&self, condition: UnitAttention) {
        self.0.fetch_and(!(1 << condition as u8), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_conditions() {
        for (index, (condition, _)) in ALL.iter().enumerate() {
            assert_eq!(*condition as usize, index);
        }
    }

    #[test]
    fn conditions_are_told_once_and_in_order() {
        let pending = Pending::default();
        pending.establish(UnitAttention::LunsChanged);
        pending.establish(UnitAttention::CapacityChanged);
        pending.establish(UnitAttention::CapacityChanged);
        assert_eq!(pending.take(), Some(UnitAttention::CapacityChanged));
        assert_eq!(pending.take(), Some(UnitAttention::LunsChanged));
        assert_eq!(pending.take(), None);
        assert!(pending.is_empty());
    }

    #[test]
    fn a_reset_wipes_what_was_pending() {
        let pending = Pending::default();
        pending.establish(UnitAttention::CapacityChanged);
        pending.establish(UnitAttention::Reset);
        assert_eq!(pending.take(), Some(UnitAttention::Reset));
        assert!(pending.is_empty());
    }
}
