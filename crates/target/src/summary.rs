//! Summaries of what is served, for people and programs that ask.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use lunway_block::{Pull, Space};
use lunway_iscsi::login::LoggedIn;
use lunway_iscsi::negotiation::Negotiated;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A target as it is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TargetSummary {
    /// Its name.
    pub name: String,
    /// Its name for people.
    pub alias: Option<String>,
    /// Initiators may log in.
    pub enabled: bool,
    /// Initiators that match no access rule may log in.
    pub open: bool,
    /// Initiators must authenticate.
    pub authenticated: bool,
    /// Sessions now.
    pub sessions: usize,
    /// Its logical units.
    pub luns: Vec<LunSummary>,
}

/// A logical unit as it is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LunSummary {
    /// Its number.
    pub id: u16,
    /// The device behind it, as configured, without secrets.
    pub device: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical sector.
    pub sector: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// The unit serial number (VPD page 80h).
    pub serial: String,
    /// Its backing store, as it was at most 30 seconds ago; null: unknown.
    pub space: Option<SpaceReading>,
    /// What its disk still lacks, and takes from a point of a backup in the background; null: nothing.
    pub pull: Option<PullReading>,
    /// Fault of the file behind it: its name leads elsewhere, or another program has cut it. Null: nothing is known to
    /// be.
    pub lost_file: Option<String>,
    /// Bytes that the raw image behind it had when it was served last, if it was made shorter since then; null: it was
    /// not, or nothing is known of it.
    pub shrunk_from: Option<u64>,
    /// Reason why it is not served; null: it is served. The device of one that is offline cannot be opened.
    pub offline: Option<String>,
}

/// Space of a backing store, bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpaceReading {
    /// Space that the logical unit takes.
    pub allocated: u64,
    /// Space in use, by everything in it.
    pub used: u64,
    /// Space that is left for the logical unit.
    pub available: u64,
}

impl From<Space> for SpaceReading {
    fn from(Space { allocated, used, available }: Space) -> Self {
        Self { allocated, used, available }
    }
}

/// Progress of a disk that takes what it lacks from elsewhere, in the background.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PullReading {
    /// Bytes that were copied since the device was opened.
    pub copied: u64,
    /// Bytes that are still to be copied, about.
    pub left: u64,
    /// Time that the rest takes at the rate so far, seconds; null: not known yet.
    pub seconds_left: Option<u64>,
    /// Reason why it does not get on: it is tried again every few seconds; null: it does.
    pub error: Option<String>,
}

impl From<Pull> for PullReading {
    fn from(pull: Pull) -> Self {
        let seconds_left = pull.time_left().map(|time| time.as_secs());
        Self { copied: pull.copied, left: pull.left, seconds_left, error: pull.error }
    }
}

/// A session as it is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionSummary {
    /// Its handle at the target (TSIH), unique during its lifetime.
    pub tsih: u16,
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's alias (InitiatorAlias).
    pub initiator_alias: Option<String>,
    /// The initiator's part of the session's identity, in hexadecimal.
    pub isid: String,
    /// The target's name.
    pub target: String,
    /// The CHAP user as which the initiator authenticated.
    pub user: Option<String>,
    /// Address of the initiator.
    #[schemars(with = "String")]
    pub peer: SocketAddr,
    /// The portal that it came by.
    #[schemars(with = "String")]
    pub portal: SocketAddr,
    /// The portal group of that.
    pub portal_group: u16,
    /// CRC32C over headers, over data.
    pub digests: [bool; 2],
    /// Other keys that were negotiated.
    pub keys: SessionKeys,
    /// Time of login, seconds of Unix time.
    pub since: u64,
}

/// Operational keys of a session (RFC 7143 §13), of the leading connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionKeys {
    /// InitialR2T: even the first burst of a write needs an R2T.
    pub initial_r2t: bool,
    /// ImmediateData: a write may carry data with its command.
    pub immediate_data: bool,
    /// FirstBurstLength: most data of a write without an R2T, bytes.
    pub first_burst_length: u32,
    /// MaxBurstLength: longest sequence of data, bytes.
    pub max_burst_length: u32,
    /// MaxRecvDataSegmentLength of the target: longest data segment of a write, bytes.
    pub max_recv_target: u32,
    /// MaxRecvDataSegmentLength of the initiator: longest data segment of a read, bytes.
    pub max_recv_initiator: u32,
    /// MaxOutstandingR2T: R2Ts of one write at a time.
    pub max_outstanding_r2t: u16,
    /// MaxConnections of the session.
    pub max_connections: u16,
    /// ErrorRecoveryLevel.
    pub error_recovery_level: u8,
}

impl From<&Negotiated> for SessionKeys {
    fn from(negotiated: &Negotiated) -> Self {
        Self {
            initial_r2t: negotiated.initial_r2t,
            immediate_data: negotiated.immediate_data,
            first_burst_length: negotiated.first_burst_length,
            max_burst_length: negotiated.max_burst_length,
            max_recv_target: negotiated.max_recv_ours,
            max_recv_initiator: negotiated.max_recv_peer,
            max_outstanding_r2t: negotiated.max_outstanding_r2t,
            max_connections: negotiated.max_connections,
            error_recovery_level: negotiated.error_recovery_level,
        }
    }
}

impl SessionSummary {
    pub(crate) fn new(logged_in: &LoggedIn, peer: SocketAddr, portal: SocketAddr) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            tsih: logged_in.tsih,
            initiator: logged_in.initiator_name.clone(),
            initiator_alias: logged_in.initiator_alias.clone(),
            isid: logged_in.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
            target: logged_in.target_name.clone().unwrap_or_default(),
            user: logged_in.user.clone(),
            peer,
            portal,
            portal_group: logged_in.target_portal_group_tag.unwrap_or_default(),
            digests: [logged_in.negotiated.header_digest, logged_in.negotiated.data_digest],
            keys: (&logged_in.negotiated).into(),
            since,
        }
    }
}
