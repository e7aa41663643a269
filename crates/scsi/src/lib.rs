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
//! | `device_server` | the way of a command: its row, the gate, what stands in the way, its handler |
//! | `handlers` | one file per family of commands |
//! | `command` | a command on its way, and the type of the table's rows |
//! | `model` | the objects of SAM-5: units, nexuses, targets; reservations, unit attentions, the gate of atomic commands |
//! | `data` | bytes of commands and answers as types, for both roles |
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
pub mod operations;

mod command;
mod data;
mod device_server;
mod handlers;
mod limits;
mod medium_work;
mod model;
mod working_memory;

pub use data::capacity::ReadCapacity;
pub use data::cdb::Cdb;
pub use data::inquiry::{Inquiry, PeripheralType};
pub use data::lba_status::{LbaStatus, LbaStatusDescriptor, Provisioning};
pub use data::lun::{Lun, LunAddress, LunList};
pub use data::response::Response;
pub use data::sense::{AdditionalSense, Sense, SenseBytes, SenseKey};
pub use data::status::Status;
pub use data::{cdb, mode, opcode, vpd};
pub use device_server::{Begun, TaskOptions};
pub use medium_work::MediumWork;
pub use model::authority::Authority;
pub use model::given_up::{GivenUp, MediumEffect};
pub use model::identity::UnitIdentity;
pub use model::logical_unit::LogicalUnit;
pub use model::lun_view::LunView;
pub use model::medium_operation::Background;
pub use model::nexus::{Nexus, PortPair};
pub use model::port_group::{AccessState, PortGroup};
pub use model::reservation::{RegistrationSummary, ReservationSummary, ReservationType};
pub use model::state_store::{MemoryStore, StateError, StateStore, item as state_item};
pub use model::target::{LunInUse, ScsiTarget};
pub use model::task_management::{
    FUNCTIONS, ManagementFunction, NexusTasks, Scope, TaskManagementFunction, TaskManagementOutcome,
    TaskManagementServiceResponse,
};
pub use model::unit_attention::UnitAttention;
pub use model::unit_options::LogicalUnitOptions;
pub use working_memory::working_memory;
