//! Carrying an experiment out, on a network that is built for it.
//!
//! | file | room of |
//! |---|---|
//! | `backup/` | a disk that is backed up into a share |
//! | `comparing.rs` | logical units against each other, over a network that runs |
//! | `cost.rs` | expected duration of an experiment and its parts |
//! | `incidents.rs` | events during a measurement |
//! | `options.rs` | options of the command line, and the experiment that they make of a file's |
//! | `pace.rs` | progress of an experiment |
//! | `run_error.rs` | why an experiment could not be run |
//! | `runner.rs` | running an experiment |
//! | `sampler.rs` | sampler of the throughput and the losses of paths during a measurement |
//! | `silence.rs` | silences: times in which no I/O completed |
//! | `stolen.rs` | measurements during which the hypervisor gave the processor to somebody else |
//! | `storage.rs` | I/O over a network that runs: one job, with what happens meanwhile |
//! | `tally.rs` | measurements as rows and cells of the results |
//! | `target.rs` | targets: the program itself, as a child on the host that serves |
//! | `team.rs` | cards as one team: a hash chooses the card |
//! | `wire.rs` | bare TCP over a network that runs |

pub(crate) mod backup;
pub(crate) mod comparing;
pub(crate) mod cost;
pub(crate) mod incidents;
pub(crate) mod options;
pub(crate) mod pace;
pub(crate) mod run_error;
pub(crate) mod runner;
pub(crate) mod sampler;
pub(crate) mod silence;
pub(crate) mod stolen;
pub(crate) mod storage;
pub(crate) mod tally;
pub(crate) mod target;
pub(crate) mod team;
pub(crate) mod wire;
