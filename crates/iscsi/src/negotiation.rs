//! Operational negotiation: what both sides want, and what they agree on (RFC 7143 §6.2).

mod error;
mod parameters;

use crate::keys::{KEY_COUNT, KEYS, Key, KeyRule, KeySet, ResultFunction, Usage, ValueType};
use crate::text::{Builder, answer, boolean, list, number, yes_no};

pub use self::error::NegotiationError;
use self::error::{expectation, shown};
pub use self::parameters::{DigestPolicy, Negotiated, Parameters, TaskReporting};
use self::parameters::{Ours, value_text};

/// The operational negotiation of one connection, for either role (RFC 7143 §6.2, §6.4).
///
/// Feed every operational pair of a text to [`Self::receive`] and call [`Self::end_of_text`]; what is to be sent back
/// stands in the builder. [`Self::offer`] makes the initiator's offers, [`Self::declare`] the one declaration both
/// make. [`Self::finish`] tells what was agreed.
///
/// A responder makes no offers of its own: the standard's defaults, which hold for what the initiator left out, are all
/// within what this crate can do, and some initiators cannot answer an offer.
#[derive(Clone, Debug)]
pub(crate) struct Negotiation {
    parameters: Parameters,
    discovery: bool,
    /// `true` if this connection makes the session; a joining one must not renegotiate it.
    leading: bool,
    /// Parameters of the session that this connection joins, as far as they are known.
    session: Option<Negotiated>,
    /// Values of the other side for digests.
    digests_said: Vec<(Key, String)>,
    received: KeySet,
    offered: KeySet,
    agreed: [u32; KEY_COUNT],
    declared: bool,
    /// The offered FirstBurstLength, answered when MaxBurstLength is known.
    first_burst: Option<u32>,
    /// The smaller MaxOutstandingR2T, answered when ErrorRecoveryLevel is known.
    outstanding_r2t: Option<u32>,
}

impl Negotiation {
    /// A negotiation in which nothing was said: the standard's defaults hold.
    pub(crate) fn new(mut parameters: Parameters, discovery: bool, leading: bool) -> Self {
        if discovery {
            // Nothing is moved that would need them, and common initiators offer no digests there at all.
            for digest in [&mut parameters.header_digest, &mut parameters.data_digest] {
                if *digest == DigestPolicy::Require {
                    *digest = DigestPolicy::Prefer;
                }
            }
            // RFC 7143 [7.4.1-1, 13.21-1]
            parameters.error_recovery_level = 0;
            parameters.max_connections = 1;
        }
        let agreed = std::array::from_fn(|index| match KEYS[index].value {
            ValueType::Number { default, .. } => default,
            ValueType::Boolean { default } => default.into(),
            ValueType::Choice(_) | ValueType::Text => 0,
        });
        Self {
            parameters,
            discovery,
            leading,
            session: None,
            digests_said: Vec::new(),
            received: KeySet::default(),
            offered: KeySet::default(),
            agreed,
            declared: false,
            first_burst: None,
            outstanding_r2t: None,
        }
    }

    /// The negotiation of a connection that joins a session which agreed on this.
    pub(crate) fn joining(parameters: Parameters, session: Negotiated) -> Self {
        Self { session: Some(session), ..Self::new(parameters, false, false) }
    }

    /// Returns `true` if the key has a place in this session.
    fn is_relevant(&self, rule: &KeyRule) -> bool {
        !(self.discovery && rule.irrelevant_in_discovery)
    }

    /// Offers every key that has a place here. Extensions of RFC 7144 go unsaid unless wanted: some targets know none.
    // RFC 7143 [13-1, 7.1.5-1]
    pub(crate) fn offer(&mut self, out: &mut Builder) {
        for rule in &KEYS {
            let ours = self.parameters.ours(rule.key);
            let unsaid = match rule.key {
                Key::TaskReporting => self.parameters.task_reporting == TaskReporting::Rfc3720,
                Key::ProtocolLevel => self.parameters.protocol_level == 1,
                _ => rule.function == ResultFunction::Declarative,
            };
            let leading_only = rule.usage == Usage::LeadingOnly && !self.leading;
            if unsaid || leading_only || !self.is_relevant(rule) {
                continue;
            }
            let Some(text) = ours.text(rule) else { continue };
            out.pair(rule.name, text);
            self.offered.insert(rule.key);
        }
    }

    /// Declares what we take, once.
    pub(crate) fn declare(&mut self, out: &mut Builder) {
        if !std::mem::replace(&mut self.declared, true) {
            out.pair(Key::MaxRecvDataSegmentLength.rule().name, self.parameters.max_recv());
        }
    }

    /// Takes one pair of the peer's: the answer to our offer, an offer, or a declaration.
    pub(crate) fn receive(
        &mut self,
        key: Key,
        value: &str,
        out: &mut Builder,
    ) -> Result<(), NegotiationError> {
        let rule = key.rule();
        if !self.received.insert(key) {
            // RFC 7143 [6.3-9, 6.3-10]
            return Err(NegotiationError::Repeated { key, value: shown(value) });
        }
        if matches!(key, Key::HeaderDigest | Key::DataDigest) {
            self.digests_said.push((key, shown(value)));
        }
        if self.offered.contains(key) {
            return self.answered(rule, value);
        }
        let refusal = match rule.function {
            ResultFunction::Declarative => {
                let bad = || NegotiationError::BadDeclaration {
                    key,
                    value: shown(value),
                    expected: expectation(rule),
                };
                self.agreed[key as usize] = parse_value(rule, value).ok_or_else(bad)?;
                return Ok(());
            }
            // RFC 7143 [13.25-2]
            ResultFunction::No => Some(yes_no(false).to_owned()),
            // RFC 7143 [13.25-3]
            ResultFunction::Reject => Some(answer::REJECT.to_owned()),
            // What holds already: initiators that offer everything again take a Reject for the end.
            _ if rule.usage == Usage::LeadingOnly && !self.leading => {
                let value = self.session.as_ref().and_then(|session| session.value(key));
                Some(value.map_or_else(|| answer::REJECT.to_owned(), |value| value_text(rule, value)))
            }
            _ => None,
        };
        if let Some(refusal) = refusal {
            out.pair(rule.name, refusal);
            return Ok(());
        }
        match (self.parameters.ours(key), rule.value) {
            (Ours::Choices(choices), ValueType::Choice(names)) => {
                // RFC 7143 [6.2.1-1, 6.2.1-3, 6.2.1-2]
                match list(value).find(|name| choices.contains(name)) {
                    Some(name) => {
                        self.agreed[key as usize] = index_of(names, name).unwrap_or_default();
                        out.pair(rule.name, name);
                    }
                    // RFC 7143 [6.2.2-2]
                    None => out.pair(rule.name, answer::REJECT),
                }
            }
            (Ours::Value(ours), _) => match parse_value(rule, value) {
                Some(theirs) if key == Key::FirstBurstLength => self.first_burst = Some(ours.min(theirs)),
                Some(theirs) if key == Key::MaxOutstandingR2T => {
                    self.outstanding_r2t = Some(ours.min(theirs));
                }
                Some(theirs) => {
                    // RFC 7143 [6.2.2-1, 6.2.2-4]
                    let result = combine(rule.function, ours, theirs);
                    self.agreed[key as usize] = result;
                    match rule.value {
                        ValueType::Boolean { .. } => out.pair(rule.name, yes_no(result != 0)),
                        _ => out.pair(rule.name, result),
                    }
                }
                None => out.pair(rule.name, answer::REJECT),
            },
            _ => out.pair(rule.name, answer::REJECT),
        }
        Ok(())
    }

    /// Takes the answer to our offer.
    fn answered(&mut self, rule: &KeyRule, value: &str) -> Result<(), NegotiationError> {
        // RFC 7143 [6.2-7]
        // An answer that is no value leaves the default in force (§6.2); `finish` judges whether we can live with it.
        if matches!(value, answer::NOT_UNDERSTOOD | answer::IRRELEVANT | answer::REJECT) {
            return Ok(());
        }
        let ours = self.parameters.ours(rule.key);
        let result = match (ours, rule.value) {
            // RFC 7143 [6.2.1-4]
            (Ours::Choices(choices), ValueType::Choice(names)) => {
                choices.iter().find(|&&name| name == value).and_then(|name| index_of(names, name))
            }
            // The result should be theirs already. Combining it again with ours can only move to the safe side, and is
            // how we get along with targets that answer with their own value instead of the result.
            (Ours::Value(ours), _) => {
                parse_value(rule, value).map(|theirs| combine(rule.function, ours, theirs))
            }
            _ => None,
        };
        self.agreed[rule.key as usize] = result.ok_or_else(|| NegotiationError::BadAnswer {
            key: rule.key,
            offered: ours.text(rule).unwrap_or_default(),
            answered: shown(value),
            expected: match ours {
                Ours::Choices(choices) => format!("one of {}", choices.join(", ")),
                Ours::Value(_) | Ours::Nothing => expectation(rule),
            },
        })?;
        Ok(())
    }

    /// Ends one text of the peer: answers what depended on other keys.
    pub(crate) fn end_of_text(&mut self, out: &mut Builder) {
        if let Some(first_burst) = self.first_burst.take() {
            let result = first_burst.min(self.agreed[Key::MaxBurstLength as usize]);
            self.agreed[Key::FirstBurstLength as usize] = result;
            out.pair(Key::FirstBurstLength.rule().name, result);
        }
        if let Some(outstanding) = self.outstanding_r2t.take() {
            let result = if self.allows_one_r2t() { 1 } else { outstanding };
            self.agreed[Key::MaxOutstandingR2T as usize] = result;
            out.pair(Key::MaxOutstandingR2T.rule().name, result);
        }
    }

    /// §13.19: with recovery and sequences in order there is one R2T at a time.
    // RFC 7143 [13.19-2]
    fn allows_one_r2t(&self) -> bool {
        self.agreed[Key::ErrorRecoveryLevel as usize] > 0
            && self.agreed[Key::DataSequenceInOrder as usize] != 0
    }

    /// Returns the agreed parameters, if both sides can live with them.
    // RFC 7143 [6.2-5, 6.2-11, 6.2-12, 7.1.5-2]
    pub(crate) fn finish(&self) -> Result<Negotiated, NegotiationError> {
        let agreed = |key: Key| self.agreed[key as usize];
        let short = |key: Key| agreed(key) as u16;
        let digest = |key: Key, policy: DigestPolicy| match (agreed(key) != 0, policy) {
            (false, DigestPolicy::Require) => {
                let said = self.digests_said.iter().find(|(said, _)| *said == key);
                Err(NegotiationError::Refused {
                    key,
                    required: policy.choices().join(","),
                    said: said.map_or_else(|| "nothing".to_owned(), |(_, value)| format!("{value:?}")),
                })
            }
            (on, _) => Ok(on),
        };
        Ok(Negotiated {
            header_digest: digest(Key::HeaderDigest, self.parameters.header_digest)?,
            data_digest: digest(Key::DataDigest, self.parameters.data_digest)?,
            max_connections: short(Key::MaxConnections),
            initial_r2t: agreed(Key::InitialR2T) != 0,
            immediate_data: agreed(Key::ImmediateData) != 0,
            max_burst_length: agreed(Key::MaxBurstLength),
            // RFC 7143 [13.14-1]
            // §13.14: never above MaxBurstLength, even if only one of the two was negotiated.
            first_burst_length: agreed(Key::FirstBurstLength).min(agreed(Key::MaxBurstLength)),
            // Even where one of them came in a later text than the other.
            max_outstanding_r2t: if self.allows_one_r2t() { 1 } else { short(Key::MaxOutstandingR2T) },
            default_time2wait: short(Key::DefaultTime2Wait),
            default_time2retain: short(Key::DefaultTime2Retain),
            data_pdu_in_order: agreed(Key::DataPduInOrder) != 0,
            data_sequence_in_order: agreed(Key::DataSequenceInOrder) != 0,
            error_recovery_level: agreed(Key::ErrorRecoveryLevel) as u8,
            max_recv_ours: if self.declared { self.parameters.max_recv() } else { DEFAULT_MAX_RECV },
            max_recv_peer: agreed(Key::MaxRecvDataSegmentLength),
            task_reporting: TaskReporting::ALL[agreed(Key::TaskReporting) as usize],
            protocol_level: agreed(Key::ProtocolLevel) as u8,
        })
    }
}

/// MaxRecvDataSegmentLength of a side that declared none (RFC 7143 §13.12).
const DEFAULT_MAX_RECV: u32 = 8192;

fn index_of(names: &[&str], name: &str) -> Option<u32> {
    names.iter().position(|&n| n == name).map(|index| index as u32)
}

/// A number within the key's range, or a boolean as 0 or 1.
fn parse_value(rule: &KeyRule, value: &str) -> Option<u32> {
    match rule.value {
        ValueType::Number { min, max, .. } => {
            u32::try_from(number(value).ok()?).ok().filter(|n| (min..=max).contains(n))
        }
        ValueType::Boolean { .. } => boolean(value).ok().map(u32::from),
        ValueType::Choice(_) | ValueType::Text => None,
    }
}

/// The result functions on numbers. Those that are not defined on numbers keep ours.
fn combine(function: ResultFunction, ours: u32, theirs: u32) -> u32 {
    match function {
        ResultFunction::And => ours & theirs,
        ResultFunction::Or => ours | theirs,
        ResultFunction::Minimum => ours.min(theirs),
        ResultFunction::Maximum => ours.max(theirs),
        ResultFunction::FirstCommon
        | ResultFunction::Declarative
        | ResultFunction::No
        | ResultFunction::Reject => ours,
    }
}

#[cfg(test)]
mod tests;
