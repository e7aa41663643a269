//! Experiments that come with the program.

use super::{Experiment, ExperimentError};

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
pub const SHIPPED: [Shipped; 4] = [
    Shipped { name: "control", text: include_str!("../../experiments/control.toml") },
    Shipped { name: "window-mtu", text: include_str!("../../experiments/window-mtu.toml") },
    Shipped { name: "sectors", text: include_str!("../../experiments/sectors.toml") },
    Shipped { name: "cable-pull", text: include_str!("../../experiments/cable-pull.toml") },
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
