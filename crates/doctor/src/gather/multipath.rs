//! dm-multipath: settings in use, and maps.

use std::collections::BTreeMap;

use super::source::Machine;
use crate::facts::{Multipath, MultipathMap};
use crate::seen::Seen;

/// The vendor that lunway's disks report (INQUIRY, SPC-4 §6.6).
const VENDOR: &str = "LUNWAY";

/// Settings and maps; `None`: the machine has no multipath.
pub(super) fn multipath(machine: &Machine) -> Option<Multipath> {
    let maps = maps(machine);
    let printed = machine.printed("multipathd", &["show", "config"]);
    let running = printed.is_ok();
    // Without the daemon, the tool says what it would use.
    let printed = printed.or_else(|_| machine.printed("multipath", &["-t"]));
    let unseen = match &printed {
        Err(why) if why.contains("not installed") || why.contains("the copy has no output") => {
            if maps.as_ref().is_ok_and(Vec::is_empty) && !machine.exists("/etc/multipath.conf") {
                return None;
            }
            why.clone()
        }
        Err(why) => why.clone(),
        Ok(_) => String::new(),
    };
    let settings = printed.ok().map(|text| Settings::parse(&text));
    let known = |settings: Option<BTreeMap<String, String>>| match settings {
        Some(settings) => Seen::Value(settings),
        None => Seen::unseen(&unseen),
    };
    Some(Multipath {
        running: Seen::Value(running),
        defaults: known(settings.as_ref().map(|settings| settings.defaults.clone())),
        ours: known(settings.map(Settings::for_ours)),
        maps: maps.into(),
    })
}

/// Maps by sysfs, which any user may read: device-mapper devices whose identity begins with `mpath-`.
fn maps(machine: &Machine) -> Result<Vec<MultipathMap>, String> {
    let map = |device: String| {
        let folder = format!("/sys/block/{device}");
        let identity = machine.line(&format!("{folder}/dm/uuid")).ok()?;
        identity.starts_with("mpath-").then(|| MultipathMap {
            name: machine.line(&format!("{folder}/dm/name")).unwrap_or_else(|_| device.clone()),
            paths: machine.names(&format!("{folder}/slaves")),
            device,
        })
    };
    let devices = machine.listed("/sys/block")?;
    Ok(devices.into_iter().filter(|name| name.starts_with("dm-")).filter_map(map).collect())
}

/// A configuration as multipath prints it.
#[derive(Debug, Default)]
struct Settings {
    defaults: BTreeMap<String, String>,
    devices: Vec<BTreeMap<String, String>>,
    overrides: BTreeMap<String, String>,
}

impl Settings {
    /// `section {` and `}` on lines of their own, and `key value` or `key "value"`.
    fn parse(text: &str) -> Self {
        let mut settings = Self::default();
        let mut sections: Vec<&str> = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_suffix('{') {
                sections.push(name.trim());
                if sections == ["devices", "device"] {
                    settings.devices.push(BTreeMap::new());
                }
                continue;
            }
            if line == "}" {
                sections.pop();
                continue;
            }
            let Some((key, value)) = line.split_once(char::is_whitespace) else { continue };
            let value = value.trim().trim_matches('"').to_owned();
            let to = match sections.as_slice() {
                ["defaults"] => Some(&mut settings.defaults),
                ["overrides"] => Some(&mut settings.overrides),
                ["devices", "device"] => settings.devices.last_mut(),
                _ => None,
            };
            if let Some(to) = to {
                to.insert(key.to_owned(), value);
            }
        }
        settings
    }

    /// Returns the settings for lunway's disks: later devices win over earlier ones, overrides over all.
    fn for_ours(self) -> BTreeMap<String, String> {
        let is_ours = |device: &&BTreeMap<String, String>| {
            device.get("vendor").is_some_and(|vendor| vendor.trim_start_matches('^').starts_with(VENDOR))
        };
        let mut settings = self.defaults.clone();
        for device in self.devices.iter().filter(is_ours) {
            settings.extend(device.clone());
        }
        settings.extend(self.overrides);
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "defaults {\n\tpath_selector \"service-time 0\"\n\tno_path_retry fail\n\tfind_multipaths \"strict\"\n}\nblacklist {\n\
        \tdevnode \"^loop\"\n}\ndevices {\n\tdevice {\n\t\tvendor \"OTHER\"\n\t\tprio \"const\"\n\t}\n\tdevice {\n\t\tvendor \"LUNWAY\"\n\
        \t\tproduct \".*\"\n\t\tprio \"alua\"\n\t\tno_path_retry 12\n\t}\n}\noverrides {\n\tfast_io_fail_tmo 5\n}\n";

    #[test]
    fn devices_are_laid_over_defaults_and_overrides_over_both() {
        let ours = Settings::parse(PRINTED).for_ours();
        let value = |key: &str| ours.get(key).map(String::as_str);
        assert_eq!(value("path_selector"), Some("service-time 0"));
        assert_eq!((value("prio"), value("no_path_retry")), (Some("alua"), Some("12")));
        assert_eq!(value("fast_io_fail_tmo"), Some("5"));
        assert_eq!(value("devnode"), None);
    }

    #[test]
    fn a_configuration_that_makes_no_sense_gives_no_settings() {
        for text in ["", "}", "}}}}\n}\n", "defaults\n{\n", "devices {\nkey value\n", "\0\0 {\n\0 x\n}"] {
            assert!(Settings::parse(text).for_ours().is_empty(), "{text:?}");
        }
    }

    #[test]
    fn the_multipath_that_is_installed_prints_what_is_understood() {
        let printed = match Machine::this().printed("multipath", &["-t"]) {
            Ok(printed) => printed,
            Err(why) => return lunway_foreign::not_run(&why),
        };
        let settings = Settings::parse(&printed);
        assert!(
            settings.defaults.contains_key("path_selector") && !settings.devices.is_empty(),
            "{settings:?}"
        );
    }
}
