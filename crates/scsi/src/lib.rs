//! SCSI: CDBs, sense, VPD and mode pages as types, and the disk device server.
//!
//! ```text
//!   transport (crate `target`)                          initiator
//!        │ lun, CDB, data-out        ▲ Response             │ cdb::read16 …   ▲ Inquiry::parse …
//!        ▼                           │                      ▼                 │
//!      Nexus ── device server ── operations table        the same types, the other way round
//!        │            │
//!   ScsiTarget   LogicalUnit ── BlockDevice
//! ```
//!
//! The crate knows SAM-5, SPC-4, SBC-4 and `lunway-block`; it knows no sockets, sessions, runtimes or clocks. A command
//! goes in complete with its data and comes out as a [`Response`], at once on a device that answers at once: then a
//! READ or WRITE allocates nothing but its pooled buffer and takes no lock that another core could hold.
//!
//! # Parts
//!
//! | part | is |
//! |---|---|
//! | [`operations`] | **the table**: what is supported, and what drives dispatch, reports and documentation |
//! | [`ScsiTarget`], [`LogicalUnit`], [`Nexus`] | a target's map of LUNs; a disk as initiators see it; one initiator's connection to them |
//! | [`LunView`], [`PortGroup`] | what a nexus may see and do; through which ports it is welcome |
//! | [`StateStore`] | what outlives the process |
//! | `device_server` | one file per family of commands |
//! | `reservation`, `unit_attention`, `gate` | who may; what must be told first; atomic commands alone |
//! | [`Response`], [`Status`], [`Sense`] | answers |
//! | [`mod@cdb`], [`Inquiry`], [`vpd`], [`mode`], [`ReadCapacity`], [`LbaStatus`], [`LunList`] | types for both roles |
//! | [`block_error`] | the one place where device errors and sense data meet, in both directions |
//!
//! # What a peer cannot do
//!
//! No CDB of any length and no data-out makes this panic or allocate beyond
//! [`LogicalUnitOptions::max_transfer`]; counts of work, registrations and descriptors have limits, told in VPD page
//! B0h where it has a field.

pub mod block_error;
pub mod cdb;
pub mod mode;
pub mod opcode;
pub mod operations;
pub mod vpd;

mod authority;
mod capacity;
mod copy_record;
mod device_server;
mod fair_turn;
mod field;
mod gate;
mod identity;
mod inquiry;
mod lba_status;
mod limits;
mod logical_unit;
mod lun;
mod lun_view;
mod medium_operation;
mod nexus;
mod port_group;
mod reservation;
mod response;
mod sense;
mod space;
mod state_store;
mod status;
mod target;
mod task_management;
mod transport_id;
mod unit_attention;
mod unit_options;
mod working_memory;

pub use authority::Authority;
pub use capacity::ReadCapacity;
pub use cdb::Cdb;
pub use device_server::TaskOptions;
pub use identity::UnitIdentity;
pub use inquiry::{Inquiry, PeripheralType};
pub use lba_status::{LbaStatus, LbaStatusDescriptor, Provisioning};
pub use logical_unit::LogicalUnit;
pub use lun::{Lun, LunAddress, LunList};
pub use lun_view::LunView;
pub use medium_operation::Background;
pub use nexus::{Nexus, PortPair};
pub use port_group::{AccessState, PortGroup};
pub use reservation::{RegistrationSummary, ReservationSummary, ReservationType};
pub use response::Response;
pub use sense::{AdditionalSense, Sense, SenseBytes, SenseKey};
pub use state_store::{MemoryStore, StateError, StateStore, item as state_item};
pub use status::Status;
pub use target::{LunInUse, ScsiTarget};
pub use task_management::{
    FUNCTIONS, ManagementFunction, NexusTasks, Scope, TaskManagementFunction, TaskManagementOutcome,
    TaskManagementResponse,
};
pub use unit_attention::UnitAttention;
pub use unit_options::LogicalUnitOptions;
pub use working_memory::working_memory;
