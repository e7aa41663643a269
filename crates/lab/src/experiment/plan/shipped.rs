//! Experiments that come with the program.

use crate::experiment::{Experiment, ExperimentError};

/// An experiment that comes with the program.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

impl Shipped {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// None, as a test shows.
    pub fn experiment(&self) -> Result<Experiment, ExperimentError> {
        Experiment::parse(&format!("{}.toml", self.name), self.text)
    }
}

/// All of them.
pub const SHIPPED: [Shipped; 16] = [
    Shipped { name: "control", text: include_str!("../../../experiments/control.toml") },
    Shipped { name: "two-lanes", text: include_str!("../../../experiments/two-lanes.toml") },
    Shipped { name: "four-lanes", text: include_str!("../../../experiments/four-lanes.toml") },
    Shipped { name: "mpio-seven", text: include_str!("../../../experiments/mpio-seven.toml") },
    Shipped { name: "mesh-4x2", text: include_str!("../../../experiments/mesh-4x2.toml") },
    Shipped { name: "unequal", text: include_str!("../../../experiments/unequal.toml") },
    Shipped {
        name: "asymmetric-latency",
        text: include_str!("../../../experiments/asymmetric-latency.toml"),
    },
    Shipped { name: "slow-lane", text: include_str!("../../../experiments/slow-lane.toml") },
    Shipped { name: "cable-pull", text: include_str!("../../../experiments/cable-pull.toml") },
    Shipped { name: "black-hole", text: include_str!("../../../experiments/black-hole.toml") },
    Shipped { name: "flap", text: include_str!("../../../experiments/flap.toml") },
    Shipped { name: "target-restart", text: include_str!("../../../experiments/target-restart.toml") },
    Shipped { name: "saturated", text: include_str!("../../../experiments/saturated.toml") },
    Shipped { name: "window-mtu", text: include_str!("../../../experiments/window-mtu.toml") },
    Shipped { name: "sectors", text: include_str!("../../../experiments/sectors.toml") },
    Shipped { name: "backup", text: include_str!("../../../experiments/backup.toml") },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_experiment_can_be_read_and_is_called_what_its_file_is_called() {
        for shipped in SHIPPED {
            let experiment = shipped.experiment().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(experiment.name, shipped.name);
            assert!(!experiment.verdicts.is_empty(), "{}: says nothing", shipped.name);
            assert!(!experiment.about.is_empty(), "{}: what is it for?", shipped.name);
        }
    }
}
