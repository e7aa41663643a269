//! Bytes of commands and answers as types, for both roles: what the device server builds, the initiator reads.
//!
//! | file | room of |
//! |---|---|
//! | `capacity.rs` | parameter data of READ CAPACITY (SBC-4) |
//! | `cdb.rs` | CDBs as the initiator builds them (SPC-4, SBC-4) |
//! | `field.rs` | big-endian fields at fixed places of CDBs and parameter data |
//! | `inquiry.rs` | standard INQUIRY data (SPC-4 §6.6.2) |
//! | `lba_status.rs` | parameter data of GET LBA STATUS (SBC-4) |
//! | `lun.rs` | logical unit numbers as eight bytes (SAM-5 §4.7), and the parameter data of REPORT LUNS |
//! | `mode.rs` | mode parameters: headers, block descriptors and pages (SPC-4 §7.5, SBC-4) |
//! | `opcode.rs` | operation codes and service actions of a disk (SPC-4 annex F, SBC-4 annex A) |
//! | `persistent_reserve.rs` | parameter list of PERSISTENT RESERVE OUT (SPC-4 §6.16.3) |
//! | `response.rs` | the answer to one command |
//! | `sense.rs` | sense data: what went wrong, in both formats of SPC-4 §4.5 |
//! | `status.rs` | SCSI status codes |
//! | `transport_id.rs` | TransportIDs: initiator ports as persistent reservations name them (SPC-4 §7.6.4) |
//! | `vpd.rs` | vital product data pages (SPC-4 §7.8 and SBC-4): types for both roles, the device server and the initiator |

pub(crate) mod capacity;
pub mod cdb;
pub(crate) mod field;
pub(crate) mod inquiry;
pub(crate) mod lba_status;
pub(crate) mod lun;
pub mod mode;
pub mod opcode;
pub(crate) mod persistent_reserve;
pub(crate) mod response;
pub(crate) mod sense;
pub(crate) mod status;
pub(crate) mod transport_id;
pub mod vpd;
