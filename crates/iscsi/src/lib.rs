//! iSCSI (RFC 7143) without I/O: PDUs, login, CHAP, digests, sequencing, for both roles.

pub mod chap;
pub mod login;
pub mod negotiation;
pub mod pdu;
