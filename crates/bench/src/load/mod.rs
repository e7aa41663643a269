//! Load: which I/Os a job issues, when, and with what content.
//!
//! Functions of the job's seed: nothing here knows a device.
//!
//! | file | room of |
//! |---|---|
//! | `access.rs` | access patterns: which blocks are read or written, and in which order |
//! | `job.rs`, `job_error.rs` | job description: the I/Os to issue; faults in it |
//! | `pace.rs` | due times of I/Os |
//! | `pass.rs` | each block once, then each block once again |
//! | `payload.rs` | contents of unverified writes |
//! | `permutation.rs` | every number once, in random order, without a list of them |
//! | `random.rs` | random numbers for addresses and data |
//! | `sizes.rs` | block sizes of the I/Os |
//! | `skew.rs` | distributions in which few blocks take most I/Os |
//! | `source.rs` | source of I/Os: where the next one goes |
//! | `stamp.rs` | sectors that say who they are |

pub(crate) mod access;
pub(crate) mod job;
pub(crate) mod job_error;
pub(crate) mod pace;
pub(crate) mod pass;
pub(crate) mod payload;
pub(crate) mod permutation;
pub(crate) mod random;
pub(crate) mod sizes;
pub(crate) mod skew;
pub(crate) mod source;
pub(crate) mod stamp;
