//! What both sides want, and what they agree on (RFC 7143 §6.2).

/// What this side thinks of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestPolicy {
    /// No digest.
    Never,
    /// A digest if the other side asks for one.
    Allow,
    /// A digest if the other side can. As responder the same as [`Self::Allow`]: the offering side orders the list (§6.2.1).
    Prefer,
    /// No session without the digest.
    Require,
}

/// How a task abort that touches other sessions is reported (RFC 7143 §13.23).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskReporting {
    /// As RFC 3720 had it; the default.
    Rfc3720,
    /// As the SCSI response of the aborted tasks.
    ResponseFence,
    /// By asynchronous message, without waiting for acknowledgements (§4.2.3.4).
    FastAbort,
}

/// What this side wants, for either role.
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

/// What both sides follow once the login is over.
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
    /// How much recovery both sides are able to.
    pub error_recovery_level: u8,
    /// Longest data segment we take, bytes: the MaxRecvDataSegmentLength we declared.
    pub max_recv_ours: u32,
    /// Longest data segment the peer takes, bytes: what it declared, or 8192.
    pub max_recv_peer: u32,
    /// How aborted tasks are reported.
    pub task_reporting: TaskReporting,
    /// iSCSIProtocolLevel: 1 is RFC 7143, 2 adds RFC 7144.
    pub protocol_level: u8,
}
