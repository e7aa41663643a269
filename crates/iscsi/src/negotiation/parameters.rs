//! Parameters: what each side wants, and what both agreed on.

use super::DEFAULT_MAX_RECV;
use crate::keys::{Key, KeyRule, ValueType};
use crate::text::yes_no;

/// Policy of this side for a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestPolicy {
    /// No digest.
    Never,
    /// A digest if the other side asks for one.
    Allow,
    /// A digest if the other side can. As responder the same as [`Self::Allow`]: the offering side orders the list
    /// (§6.2.1).
    Prefer,
    /// No session without the digest.
    Require,
}

/// Reporting of the end of tasks (RFC 7143 §13.23).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskReporting {
    /// As RFC 3720 had it; the default.
    Rfc3720,
    /// In an order that no connection of the session can change (§4.2.2.3.3).
    ResponseFence,
    /// By asynchronous message, without waiting for acknowledgements (§4.2.3.4).
    FastAbort,
}

/// Parameters that this side wants, for either role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// HeaderDigest.
    pub header_digest: DigestPolicy,
    /// DataDigest.
    pub data_digest: DigestPolicy,
    /// MaxConnections.
    pub max_connections: u16,
    /// InitialR2T: whether even the first burst needs an R2T.
    pub initial_r2t: bool,
    /// ImmediateData: whether a command may carry data.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength we declare: the longest data segment we take, bytes.
    pub max_recv_data_segment_length: u32,
    /// MaxBurstLength, bytes.
    pub max_burst_length: u32,
    /// FirstBurstLength, bytes.
    pub first_burst_length: u32,
    /// MaxOutstandingR2T per command.
    pub max_outstanding_r2t: u16,
    /// DefaultTime2Wait, seconds.
    pub default_time2wait: u16,
    /// DefaultTime2Retain, seconds.
    pub default_time2retain: u16,
    /// DataPDUInOrder: whether the PDUs of a sequence must come in order.
    pub data_pdu_in_order: bool,
    /// DataSequenceInOrder: whether sequences must come in order.
    pub data_sequence_in_order: bool,
    /// ErrorRecoveryLevel.
    pub error_recovery_level: u8,
    /// TaskReporting.
    pub task_reporting: TaskReporting,
    /// iSCSIProtocolLevel (RFC 7144 §7).
    pub protocol_level: u8,
}

/// Parameters that both sides follow once the login is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Headers carry a CRC32C.
    pub header_digest: bool,
    /// Data segments carry a CRC32C.
    pub data_digest: bool,
    /// Most connections of the session.
    pub max_connections: u16,
    /// Even the first burst needs an R2T.
    pub initial_r2t: bool,
    /// A command may carry data.
    pub immediate_data: bool,
    /// Longest sequence, bytes.
    pub max_burst_length: u32,
    /// Most unsolicited data of a command, immediate data included, bytes; never above `max_burst_length`.
    pub first_burst_length: u32,
    /// Most R2Ts of one command at a time.
    pub max_outstanding_r2t: u16,
    /// Seconds to wait before reconnecting.
    pub default_time2wait: u16,
    /// Seconds after that in which tasks are kept.
    pub default_time2retain: u16,
    /// The PDUs of a sequence come in order.
    pub data_pdu_in_order: bool,
    /// Sequences come in order.
    pub data_sequence_in_order: bool,
    /// Level of recovery that both sides are able to.
    pub error_recovery_level: u8,
    /// Longest data segment we take, bytes: the MaxRecvDataSegmentLength we declared.
    pub max_recv_ours: u32,
    /// Longest data segment the peer takes, bytes: what it declared, or 8192.
    pub max_recv_peer: u32,
    /// Reporting of aborted tasks.
    pub task_reporting: TaskReporting,
    /// iSCSIProtocolLevel: 1 is RFC 7143, 2 adds RFC 7144.
    pub protocol_level: u8,
}

impl Negotiated {
    /// Returns the parameters of one connection, with the session's parameters from its leading connection.
    pub(crate) fn joining(self, session: &Self) -> Self {
        Self {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            max_recv_ours: self.max_recv_ours,
            max_recv_peer: self.max_recv_peer,
            ..session.clone()
        }
    }

    /// The value of a key that the leading connection fixes for the session: booleans are 0 and 1, a choice is its
    /// place in the list.
    pub(super) fn value(&self, key: Key) -> Option<u32> {
        Some(match key {
            Key::MaxConnections => self.max_connections.into(),
            Key::InitialR2T => self.initial_r2t.into(),
            Key::ImmediateData => self.immediate_data.into(),
            Key::MaxBurstLength => self.max_burst_length,
            Key::FirstBurstLength => self.first_burst_length,
            Key::DefaultTime2Wait => self.default_time2wait.into(),
            Key::DefaultTime2Retain => self.default_time2retain.into(),
            Key::MaxOutstandingR2T => self.max_outstanding_r2t.into(),
            Key::DataPduInOrder => self.data_pdu_in_order.into(),
            Key::DataSequenceInOrder => self.data_sequence_in_order.into(),
            Key::ErrorRecoveryLevel => self.error_recovery_level.into(),
            Key::TaskReporting => {
                TaskReporting::ALL.iter().position(|kind| *kind == self.task_reporting)? as u32
            }
            Key::ProtocolLevel => self.protocol_level.into(),
            _ => return None,
        })
    }
}

impl DigestPolicy {
    /// Values to offer, preferred first, or to accept.
    // RFC 7143 [13.1-1, 6.2.1-2]
    pub(super) const fn choices(self) -> &'static [&'static str] {
        match self {
            Self::Never => &["None"],
            Self::Allow => &["None", "CRC32C"],
            Self::Prefer => &["CRC32C", "None"],
            Self::Require => &["CRC32C"],
        }
    }
}

impl TaskReporting {
    /// All, in the order of the key table.
    pub(super) const ALL: [Self; 3] = [Self::Rfc3720, Self::ResponseFence, Self::FastAbort];

    /// Values to offer or to accept: what we want, and what everybody has.
    const fn choices(self) -> &'static [&'static str] {
        match self {
            Self::Rfc3720 => &["RFC3720"],
            // RFC 7143 [13.23-1]
            Self::ResponseFence => &["ResponseFence", "RFC3720"],
            Self::FastAbort => &["FastAbort", "ResponseFence", "RFC3720"],
        }
    }
}

impl Default for Parameters {
    /// Returns parameters that suit either role: large bursts, unsolicited data, digests on request, one
    /// connection, no recovery. As both sides want the same, the other's wish decides.
    fn default() -> Self {
        Self {
            header_digest: DigestPolicy::Allow,
            data_digest: DigestPolicy::Allow,
            max_connections: 1,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: 256 << 10,
            max_burst_length: 1 << 20,
            first_burst_length: 256 << 10,
            max_outstanding_r2t: 16,
            default_time2wait: 2,
            default_time2retain: 0,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            // RFC 7143 [13.23-2, 4.2.3.3-1]
            task_reporting: TaskReporting::Rfc3720,
            // RFC 7143 [13.24-1]
            protocol_level: 1,
        }
    }
}

impl Parameters {
    /// Our value of a negotiated key, brought into the key's range if it was set outside.
    pub(super) fn ours(&self, key: Key) -> Ours {
        match (self.wish(key), key.rule().value) {
            (Ours::Value(value), ValueType::Number { min, max, .. }) => Ours::Value(value.clamp(min, max)),
            (ours, _) => ours,
        }
    }

    /// The longest data segment we take, as declared.
    pub(super) fn max_recv(&self) -> u32 {
        match self.ours(Key::MaxRecvDataSegmentLength) {
            Ours::Value(value) => value,
            Ours::Choices(_) | Ours::Nothing => DEFAULT_MAX_RECV,
        }
    }

    fn wish(&self, key: Key) -> Ours {
        match key {
            Key::HeaderDigest => Ours::Choices(self.header_digest.choices()),
            // RFC 7143 [13.1-1]
            Key::DataDigest => Ours::Choices(self.data_digest.choices()),
            Key::MaxConnections => Ours::Value(self.max_connections.into()),
            Key::InitialR2T => Ours::Value(self.initial_r2t.into()),
            Key::ImmediateData => Ours::Value(self.immediate_data.into()),
            Key::MaxRecvDataSegmentLength => Ours::Value(self.max_recv_data_segment_length),
            Key::MaxBurstLength => Ours::Value(self.max_burst_length),
            Key::FirstBurstLength => Ours::Value(self.first_burst_length.min(self.max_burst_length)),
            Key::MaxOutstandingR2T => Ours::Value(self.max_outstanding_r2t.into()),
            Key::DefaultTime2Wait => Ours::Value(self.default_time2wait.into()),
            Key::DefaultTime2Retain => Ours::Value(self.default_time2retain.into()),
            Key::DataPduInOrder => Ours::Value(self.data_pdu_in_order.into()),
            Key::DataSequenceInOrder => Ours::Value(self.data_sequence_in_order.into()),
            Key::ErrorRecoveryLevel => Ours::Value(self.error_recovery_level.into()),
            Key::TaskReporting => Ours::Choices(self.task_reporting.choices()),
            Key::ProtocolLevel => Ours::Value(self.protocol_level.into()),
            _ => Ours::Nothing,
        }
    }
}

/// Contribution of this side to one key. Every value is a number: booleans are 0 and 1.
#[derive(Clone, Copy)]
pub(super) enum Ours {
    Value(u32),
    /// Names, preferred first.
    Choices(&'static [&'static str]),
    /// The key is not part of the operational negotiation.
    Nothing,
}

impl Ours {
    /// As it is offered.
    pub(super) fn text(self, rule: &KeyRule) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Choices(choices) => Some(choices.join(",")),
            Self::Value(value) => Some(value_text(rule, value)),
        }
    }
}

/// A value of a key as text, of a choice by its place in the list.
pub(super) fn value_text(rule: &KeyRule, value: u32) -> String {
    match rule.value {
        ValueType::Boolean { .. } => yes_no(value != 0).to_owned(),
        ValueType::Choice(names) => names.get(value as usize).copied().unwrap_or_default().to_owned(),
        ValueType::Number { .. } | ValueType::Text => value.to_string(),
    }
}
