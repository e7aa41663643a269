//! The objects of SAM-5: targets, logical units, nexuses, and what each of them owes the others.
//!
//! They know each other as the standard's do: a unit finds its nexuses to tell them of a change, a nexus its units to
//! serve them. None of them knows a command: that is the device server's.
//!
//! | file | room of |
//! |---|---|
//! | `authority.rs` | authority: what a nexus must be allowed to do before something is carried out for it |
//! | `copy_record.rs` | records of EXTENDED COPY commands, for RECEIVE COPY RESULTS (SPC-4 §5.16.4) |
//! | `gate/` | the atomic gate of a logical unit |
//! | `given_up.rs` | commands that were given up while the device had them, and the blocks that these may still change |
//! | `identity.rs` | names of a logical unit that survive every restart |
//! | `itl_nexuses.rs` | the I_T_L nexuses of a logical unit |
//! | `logical_unit.rs` | a logical unit: a device with identity, mode parameters, reservations and the nexuses that see it |
//! | `lun_view.rs` | LUN masking: what a nexus may see of its target |
//! | `medium_operation.rs` | operations that have the whole medium for themselves and outlive their command: sanitize and format |
//! | `nexus.rs` | I_T nexuses: who is talking to which target port, and what each logical unit owes them |
//! | `port_group.rs` | target port groups and their asymmetric access states (SPC-4 §5.16) |
//! | `reservation/` | reservations of a logical unit: RESERVE/RELEASE (SPC-2) and persistent ones (SPC-4 §5.13) |
//! | `space.rs` | thin provisioning as initiators see it: what is left of the backing store |
//! | `state_store.rs` | store for state that must outlive the process |
//! | `target.rs` | a SCSI target device: a name and a map of logical units |
//! | `task_management.rs` | task management functions and what they come to (SAM-5 §7) |
//! | `unit_attention.rs` | unit attention conditions: what a nexus must hear before it goes on (SAM-5 §5.14) |
//! | `unit_options.rs` | options of a logical unit |

pub(crate) mod authority;
pub(crate) mod copy_record;
pub(crate) mod gate;
pub(crate) mod given_up;
pub(crate) mod identity;
pub(crate) mod itl_nexuses;
pub(crate) mod logical_unit;
pub(crate) mod lun_view;
pub(crate) mod medium_operation;
pub(crate) mod nexus;
pub(crate) mod port_group;
pub(crate) mod reservation;
pub(crate) mod space;
pub(crate) mod state_store;
pub(crate) mod target;
pub(crate) mod task_management;
pub(crate) mod unit_attention;
pub(crate) mod unit_options;
