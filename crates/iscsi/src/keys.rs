//! Every key of RFC 7143 §12 and §13 as a row of one table: the negotiation follows it, nothing else knows defaults or
//! ranges.
//!
//! Keys not in the table, private ones (`X-…`, §13.22) among them, are answered with NotUnderstood.

use crate::pdu::MAX_DATA_SEGMENT_LEN;

/// Type of the values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// A number within `min..=max`.
    Number {
        /// Smallest value.
        min: u32,
        /// Largest value.
        max: u32,
        /// The value without negotiation.
        default: u32,
    },
    /// `Yes` or `No`.
    Boolean {
        /// The value without negotiation.
        default: bool,
    },
    /// A choice among names, of which the first is in force without negotiation.
    Choice(&'static [&'static str]),
    /// Free text, or a form that the login itself reads.
    Text,
}

/// Result function that makes one value of those of both sides (RFC 7143 §6.2.1, §6.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultFunction {
    /// Both must say Yes.
    And,
    /// At least one must say Yes.
    Or,
    /// The smaller.
    Minimum,
    /// The larger.
    Maximum,
    /// The first of the offered values that the responder takes.
    FirstCommon,
    /// No result: the sender states a fact, and no answer is due.
    Declarative,
    /// Obsolete marker switches: always No (§13.25).
    No,
    /// Obsolete marker intervals: always Reject (§13.25).
    Reject,
}

/// Side that may send a key as an offer or declaration. Anybody may answer an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The initiator only.
    Initiator,
    /// The target only.
    Target,
    /// Both.
    Both,
}

/// Stage or phase in which a key may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// In the security stage (§12).
    Security,
    /// In any stage of the login ("IO", "ALL" keys that the security stage allows).
    Login,
    /// In the operational stage of any connection's login.
    Operational,
    /// In the operational stage of the session's first connection ("LO").
    LeadingOnly,
    /// In the full feature phase only ("FFPO").
    FullFeature,
    /// In the operational stage and the full feature phase.
    OperationalOrFullFeature,
}

/// Scope of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The session.
    Session,
    /// One connection.
    Connection,
}

/// Row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// The key.
    pub key: Key,
    /// Its name on the wire.
    pub name: &'static str,
    /// Its values, and the value without negotiation.
    pub value: ValueType,
    /// Result function of the values of both sides.
    pub function: ResultFunction,
    /// Side that may begin.
    pub sender: Sender,
    /// Stage or phase in which it may be sent.
    pub usage: Usage,
    /// For what.
    pub scope: Scope,
    /// `true` if it means nothing in a discovery session: it is not offered there. An offer is answered with a value
    /// all the same, as other targets do: some initiators give up on Irrelevant.
    pub irrelevant_in_discovery: bool,
    /// Section of the standard (RFC 7143).
    pub section: &'static str,
}

macro_rules! keys {
    ($( $key:ident $name:literal $section:literal: $value:expr, $function:ident, $sender:ident, $usage:ident, $scope:ident $(, $irrelevant:ident)?; )*) => {
        /// A key this crate knows; the index of its row in [`KEYS`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Key {
            $( #[doc = concat!("`", $name, "`, §", $section, ".")] $key, )*
        }

        /// Number of keys.
        pub const KEY_COUNT: usize = [$( Key::$key ),*].len();

        /// The table.
        pub static KEYS: [KeyRule; KEY_COUNT] = [
            $( KeyRule {
                key: Key::$key,
                name: $name,
                value: $value,
                function: ResultFunction::$function,
                sender: Sender::$sender,
                usage: Usage::$usage,
                scope: Scope::$scope,
                irrelevant_in_discovery: false $( || keys!(@$irrelevant) )?,
                section: $section,
            }, )*
        ];
    };
    (@not_in_discovery) => { true };
}

const TEXT: ValueType = ValueType::Text;
const DIGESTS: ValueType = ValueType::Choice(&["None", "CRC32C"]);
const YES: ValueType = ValueType::Boolean { default: true };
const NO: ValueType = ValueType::Boolean { default: false };

const fn number(min: u32, max: u32, default: u32) -> ValueType {
    ValueType::Number { min, max, default }
}

// RFC 7143 [6.2-8, 11.12.10-2]
keys! {
    AuthMethod "AuthMethod" "12.1": ValueType::Choice(&["None", "CHAP"]), FirstCommon, Both, Security, Connection;
    ChapA "CHAP_A" "12.1.3": TEXT, FirstCommon, Initiator, Security, Connection;
    ChapI "CHAP_I" "12.1.3": TEXT, Declarative, Both, Security, Connection;
    ChapC "CHAP_C" "12.1.3": TEXT, Declarative, Both, Security, Connection;
    ChapN "CHAP_N" "12.1.3": TEXT, Declarative, Both, Security, Connection;
    ChapR "CHAP_R" "12.1.3": TEXT, Declarative, Both, Security, Connection;
    HeaderDigest "HeaderDigest" "13.1": DIGESTS, FirstCommon, Both, Operational, Connection;
    DataDigest "DataDigest" "13.1": DIGESTS, FirstCommon, Both, Operational, Connection;
    MaxConnections "MaxConnections" "13.2": number(1, 65535, 1), Minimum, Both, LeadingOnly, Session, not_in_discovery;
    SendTargets "SendTargets" "13.3": TEXT, Declarative, Initiator, FullFeature, Session;
    TargetName "TargetName" "13.4": TEXT, Declarative, Both, Login, Session;
    InitiatorName "InitiatorName" "13.5": TEXT, Declarative, Initiator, Login, Session;
    TargetAlias "TargetAlias" "13.6": TEXT, Declarative, Target, Login, Session;
    InitiatorAlias "InitiatorAlias" "13.7": TEXT, Declarative, Initiator, Login, Session;
    TargetAddress "TargetAddress" "13.8": TEXT, Declarative, Target, Login, Session;
    TargetPortalGroupTag "TargetPortalGroupTag" "13.9": number(0, 65535, 0), Declarative, Target, Login, Session;
    InitialR2T "InitialR2T" "13.10": YES, Or, Both, LeadingOnly, Session, not_in_discovery;
    ImmediateData "ImmediateData" "13.11": YES, And, Both, LeadingOnly, Session, not_in_discovery;
    MaxRecvDataSegmentLength "MaxRecvDataSegmentLength" "13.12":
        number(512, MAX_DATA_SEGMENT_LEN, 8192), Declarative, Both, OperationalOrFullFeature, Connection;
    MaxBurstLength "MaxBurstLength" "13.13":
        number(512, MAX_DATA_SEGMENT_LEN, 262_144), Minimum, Both, LeadingOnly, Session, not_in_discovery;
    FirstBurstLength "FirstBurstLength" "13.14":
        number(512, MAX_DATA_SEGMENT_LEN, 65_536), Minimum, Both, LeadingOnly, Session, not_in_discovery;
    DefaultTime2Wait "DefaultTime2Wait" "13.15": number(0, 3600, 2), Maximum, Both, LeadingOnly, Session;
    DefaultTime2Retain "DefaultTime2Retain" "13.16": number(0, 3600, 20), Minimum, Both, LeadingOnly, Session;
    MaxOutstandingR2T "MaxOutstandingR2T" "13.17":
        number(1, 65535, 1), Minimum, Both, LeadingOnly, Session, not_in_discovery;
    DataPduInOrder "DataPDUInOrder" "13.18": YES, Or, Both, LeadingOnly, Session, not_in_discovery;
    DataSequenceInOrder "DataSequenceInOrder" "13.19": YES, Or, Both, LeadingOnly, Session, not_in_discovery;
    ErrorRecoveryLevel "ErrorRecoveryLevel" "13.20": number(0, 2, 0), Minimum, Both, LeadingOnly, Session;
    SessionType "SessionType" "13.21": TEXT, Declarative, Initiator, Login, Session;
    TaskReporting "TaskReporting" "13.23":
        ValueType::Choice(&["RFC3720", "ResponseFence", "FastAbort"]), FirstCommon, Both, LeadingOnly, Session, not_in_discovery;
    ProtocolLevel "iSCSIProtocolLevel" "13.24": number(0, 31, 1), Minimum, Both, LeadingOnly, Session, not_in_discovery;
    OfMarker "OFMarker" "13.25": NO, No, Both, Operational, Connection;
    IfMarker "IFMarker" "13.25": NO, No, Both, Operational, Connection;
    OfMarkInt "OFMarkInt" "13.25": TEXT, Reject, Both, Operational, Connection;
    IfMarkInt "IFMarkInt" "13.25": TEXT, Reject, Both, Operational, Connection;
}

impl Key {
    /// The key's row.
    pub fn rule(self) -> &'static KeyRule {
        &KEYS[self as usize]
    }

    /// The key with this name. Names are compared exactly (RFC 7143 §6.1).
    // RFC 7143 [6.1-5]
    pub fn find(name: &str) -> Option<Self> {
        KEYS.iter().find(|rule| rule.name == name).map(|rule| rule.key)
    }

    /// The key's bit in a [`KeySet`].
    const fn bit(self) -> u64 {
        1 << self as u32
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.rule().name)
    }
}

/// A set of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeySet(u64);

const _: () = assert!(KEY_COUNT <= 64);

impl KeySet {
    /// Returns `true` if the key is in the set.
    pub const fn contains(self, key: Key) -> bool {
        self.0 & key.bit() != 0
    }

    /// Adds a key; false if it was there.
    pub const fn insert(&mut self, key: Key) -> bool {
        let new = !self.contains(key);
        self.0 |= key.bit();
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows RFC 7143 [6.1-5, 6.2-8]
    #[test]
    fn every_row_is_found_by_its_name_and_stands_at_its_index() {
        for (index, rule) in KEYS.iter().enumerate() {
            assert_eq!(rule.key as usize, index);
            assert_eq!(Key::find(rule.name), Some(rule.key));
            assert_eq!(rule.key.rule(), rule);
        }
        assert_eq!(Key::find("initialr2t"), None);
        assert_eq!(Key::find("X-com.example.key"), None);
    }

    #[test]
    fn every_default_is_a_value_the_key_takes() {
        for rule in &KEYS {
            if let ValueType::Number { min, max, default } = rule.value {
                assert!(min <= default && default <= max, "{}", rule.name);
            }
        }
    }

    #[test]
    fn functions_fit_the_types_they_work_on() {
        for rule in &KEYS {
            let fits = match rule.function {
                ResultFunction::And | ResultFunction::Or | ResultFunction::No => {
                    matches!(rule.value, ValueType::Boolean { .. })
                }
                ResultFunction::Minimum | ResultFunction::Maximum => {
                    matches!(rule.value, ValueType::Number { .. })
                }
                ResultFunction::FirstCommon => matches!(rule.value, ValueType::Choice(_) | ValueType::Text),
                ResultFunction::Declarative | ResultFunction::Reject => true,
            };
            assert!(fits, "{}", rule.name);
        }
    }

    #[test]
    fn a_set_remembers_what_was_put_in() {
        let mut set = KeySet::default();
        assert!(set.insert(Key::IfMarkInt));
        assert!(!set.insert(Key::IfMarkInt));
        assert!(set.contains(Key::IfMarkInt) && !set.contains(Key::AuthMethod));
    }
}
