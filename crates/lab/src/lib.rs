//! Networks on one machine, without root.
//!
//! A [`Topology`] says which hosts there are and which cables go from where to where. [`Sandbox::enter`] makes the
//! place for it, in which [`Network::build`] makes it real: a network stack for each host, cables with a rate, a burst,
//! a delay, a loss and an MTU, which can be pulled, slowed and turned into black holes while traffic runs over them.
//! What was built is calibrated before anything is measured on it, and the processor is watched while something is.
//!
//! | part | is |
//! |---|---|
//! | `topology` | the description: hosts, switches, cables, and what is wrong with it |
//! | `rate` | bits per second on the wire |
//! | `sandbox` | namespaces that end with the process |
//! | `namespace` | one network stack |
//! | `tool` | `ip` and `tc` as children |
//! | `line` | cables on which frames take time and get lost |
//! | `network` | the plan, the network, its hosts and cables |
//! | `timeline` | what happens to cables, and when |
//! | `cpu` | how busy the machine was |
//! | [`experiment`] | what is measured on which network, as files |
//!
//! Does not know the command line.

mod cpu;
mod error;
pub mod experiment;
mod line;
mod namespace;
mod network;
mod rate;
mod sandbox;
mod timeline;
mod tool;
mod topology;

pub use cpu::{CpuUse, CpuWatch};
pub use error::LabError;
pub use network::{Calibrating, Calibration, LiveCable, LiveHost, Network, Shortfall};
pub use rate::{Rate, RateError};
pub use sandbox::{Sandbox, SandboxError, Side};
pub use timeline::{
    Action, Event, Flap, Happened, NewDelay, NewLoss, RunningTimeline, Slow, Timeline, TimelineError,
};
pub use topology::{Cable, End, Host, Loss, MTU_DEFAULT, Switch, Topology, TopologyError};
