//! Exchange of one command and its answer: what reading a logical unit's properties needs of a connection.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::duration::HumanTime;
use lunway_block::{BlockError, Buf, SharedBuf};
use lunway_iscsi::Cdb;
use lunway_scsi::{AdditionalSense, Sense, SenseKey, Status};

use crate::IscsiOpenError;
use crate::session::Session;
use crate::session::schedule::what;
use crate::session::slots::{Command, Effect, Outcome};

/// Most repetitions of a command because of unit attentions.
pub(crate) const ATTENTIONS_MAX: usize = 32;

/// The answer to a command.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) sense: Option<Sense>,
    /// Data received.
    pub(crate) data: Buf,
}

impl Answer {
    /// The status and sense data, for people.
    pub(crate) fn describe(&self) -> String {
        match &self.sense {
            Some(sense) => sense.to_string(),
            None => self.status.to_string(),
        }
    }

    /// The unit attention that it tells instead of an answer.
    pub(crate) fn attention(&self) -> Option<AdditionalSense> {
        self.sense.as_ref().filter(|_| self.is(SenseKey::UNIT_ATTENTION)).map(|sense| sense.code)
    }

    /// Returns `true` if the command had its turn among those of the unit's task set: see [`had_its_turn`].
    pub(crate) fn is_of_the_task_set(&self) -> bool {
        had_its_turn(self.status, self.sense.as_ref())
    }

    fn is(&self, key: SenseKey) -> bool {
        self.status == Status::CHECK_CONDITION && self.sense.as_ref().is_some_and(|sense| sense.key == key)
    }

    /// The unit does not know what was asked for.
    pub(crate) fn is_illegal_request(&self) -> bool {
        self.is(SenseKey::ILLEGAL_REQUEST)
    }

    fn is_not_ready_for(&self, reasons: [AdditionalSense; 2]) -> bool {
        self.is(SenseKey::NOT_READY) && self.sense.as_ref().is_some_and(|sense| reasons.contains(&sense.code))
    }

    /// Returns `true` if the command may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self.status, Status::BUSY | Status::TASK_SET_FULL)
            || self.status == Status::CHECK_CONDITION
                && self.sense.as_ref().is_some_and(|sense| {
                    let transition = AdditionalSense::ASYMMETRIC_ACCESS_TRANSITION;
                    sense.becomes_ready() || sense.key == SenseKey::NOT_READY && sense.code == transition
                })
    }

    /// Returns `true` if the only obstacle is the port that was asked.
    pub(crate) fn is_inactive(&self) -> bool {
        self.is_not_ready_for([
            AdditionalSense::TARGET_PORT_STANDBY,
            AdditionalSense::TARGET_PORT_UNAVAILABLE,
        ])
    }
}

/// Returns `true` if a status is given by a command that had its turn in the task set, so that the answer to an ORDERED
/// one shows that all older ones have ended (SAM-5 §8.6.3). BUSY, TASK SET FULL and RESERVATION CONFLICT are given
/// instead of a place in the task set, a unit attention or ACA ACTIVE before the turn, and an abort at any time
/// (SAM-5 §5.3).
pub(crate) fn had_its_turn(status: Status, sense: Option<&Sense>) -> bool {
    match status {
        Status::GOOD => true,
        Status::CHECK_CONDITION => sense.is_some_and(|sense| {
            !sense.deferred && ![SenseKey::UNIT_ATTENTION, SenseKey::ABORTED_COMMAND].contains(&sense.key)
        }),
        _ => false,
    }
}

/// A connection that answers one command at a time.
pub(crate) trait Exchange: Send {
    /// Sends a command that expects up to `data_in` bytes.
    fn exchange(
        &mut self,
        cdb: &[u8],
        data_in: usize,
    ) -> impl Future<Output = Result<Answer, IscsiOpenError>> + Send;

    /// Portal of the connection, for errors.
    fn portal(&self) -> String;

    /// Time that a unit may take to become ready.
    fn patience(&self) -> Duration;
}

/// Time for which a target may put off a command before that is said: longer than a queue takes to have room again, and
/// shorter than people wait before they take a command for hung.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// Asks until neither a unit attention nor a busy target stands in the way, or patience ends. Collects the attentions.
/// A warning says what is waited for, and how long at most.
pub(crate) async fn ask<E: Exchange>(
    exchange: &mut E,
    cdb: &[u8],
    data_in: usize,
    attentions: &mut Vec<AdditionalSense>,
) -> Result<Answer, IscsiOpenError> {
    let begun = Instant::now();
    let mut wait = Duration::from_millis(5);
    let (mut attended, mut told) = (0, false);
    loop {
        let answer = exchange.exchange(cdb, data_in).await?;
        if attended < ATTENTIONS_MAX
            && let Some(code) = answer.attention()
        {
            attentions.push(code);
            attended += 1;
            continue;
        }
        let left = exchange.patience().saturating_sub(begun.elapsed());
        if !answer.is_transient() || left.is_zero() {
            return Ok(answer);
        }
        if begun.elapsed() >= TOLD_AFTER && !told {
            told = true;
            tracing::warn!(
                "{} answers {} with {}: waiting for up to {} more",
                exchange.portal(),
                what(&Cdb::new(cdb)),
                answer.describe(),
                HumanTime::millis(left.as_millis() as u64)
            );
        }
        tokio::time::sleep(wait.min(left)).await;
        wait = (wait * 2).min(Duration::from_secs(1));
    }
}

/// A session that others use at the same time.
pub(crate) struct OverSession {
    pub(crate) session: Arc<Session>,
    pub(crate) portal: String,
    pub(crate) patience: Duration,
}

impl Exchange for OverSession {
    async fn exchange(&mut self, cdb: &[u8], data_in: usize) -> Result<Answer, IscsiOpenError> {
        let lost =
            |error: BlockError| IscsiOpenError::Lost { portal: self.portal.clone(), why: error.to_string() };
        let command = Command {
            cdb: Cdb::new(cdb),
            data_out: SharedBuf::default(),
            data_in: Buf::zeroed(data_in),
            effect: Effect::Inspect,
        };
        match self.session.submit(command).map_err(lost)?.await {
            Outcome::Failed(error) => Err(lost(error)),
            Outcome::Executed { status, sense, data_in: mut data, received } => {
                data.truncate(received);
                Ok(Answer { status, sense: Sense::parse(&sense), data })
            }
        }
    }

    fn portal(&self) -> String {
        self.portal.clone()
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}
