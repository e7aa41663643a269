//! Overrides: what stands above the configuration of a file for as long as a process runs.

use super::{Config, TargetConfig};
use crate::portal::PortalSpec;

/// Values that take the place of a file's, and a target beside its targets.
///
/// Who starts a server parses what its user typed into this; it is laid over the file each time that the file is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// In the place of the file's portals, if there are any.
    pub listen: Vec<PortalSpec>,
    /// In the place of the file's number of cores.
    pub cores: Option<usize>,
    /// Additional target, after those of the file.
    pub target: Option<TargetConfig>,
}

impl Config {
    /// The same configuration with `overrides` laid over it.
    #[must_use]
    pub fn overridden(mut self, overrides: &Overrides) -> Self {
        if !overrides.listen.is_empty() {
            self.listen.clone_from(&overrides.listen);
        }
        self.cores = overrides.cores.or(self.cores);
        self.targets.extend(overrides.target.clone());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LunConfig;
    use crate::name::IscsiName;

    const FILE: &str = "cores = 2\n[[target]]\nname = \"iqn.2026-11.com.example:a\"\n";

    #[test]
    fn overrides_add_a_target_to_a_file_and_replace_its_portals() {
        let name = IscsiName::parse("iqn.2026-11.com.example:b").unwrap();
        let luns = vec![LunConfig::new(0, "ram:1G".parse().unwrap())];
        let target = TargetConfig { open: true, luns, ..TargetConfig::new(name) };
        let overrides =
            Overrides { listen: vec!["::1".parse().unwrap()], target: Some(target), ..Overrides::default() };
        let config = Config::from_toml(FILE, "lunway.toml").unwrap().overridden(&overrides);
        config.check().unwrap();
        assert_eq!((config.targets.len(), config.cores), (2, Some(2)));
        assert_eq!((config.targets[0].open, config.targets[1].open), (false, true));
        assert_eq!(config.listen, ["[::1]:3260".parse().unwrap()]);
    }
}
