//! What `lunway serve` takes on the command line instead of a file, or beside one.

use lunway_block::spec::{SpecError, split_options};

use crate::config::{COMMAND_LINE, ChapUser, Config, ConfigError, DeviceName, LunConfig, TargetConfig};
use crate::name::IscsiName;
use crate::portal::PortalSpecError;

/// What the command line may say; see [`Config::with_flags`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--listen ADDRESS[:PORT]`.
    pub listen: Vec<String>,
    /// `--iqn NAME`.
    pub iqn: Option<String>,
    /// `--chap USER:SECRETFILE`.
    pub chap: Vec<String>,
    /// `--mutual-chap USER:SECRETFILE`.
    pub mutual_chap: Option<String>,
    /// `--lun ID=DEVICE[,sector=4096][,physical-sector=4096][,read-only][,removable][,serial=S]`.
    pub luns: Vec<String>,
    /// `--open`: the same without it, but said on purpose.
    pub open: bool,
    /// `--cores N`.
    pub cores: Option<usize>,
}

impl Config {
    /// Adds what the command line says: `listen` and `cores` take the place of the file's; any of the others describe
    /// one target more, which is open: flags have no rules, and what they start is to be used at once.
    pub fn with_flags(mut self, flags: &Flags) -> Result<Self, ConfigError> {
        if !flags.listen.is_empty() {
            let portals = flags.listen.iter();
            self.listen = portals
                .map(|text| {
                    text.parse()
                        .map_err(|error: PortalSpecError| flag_error("--listen", text, error.to_string()))
                })
                .collect::<Result<_, _>>()?;
        }
        self.cores = flags.cores.or(self.cores);
        let name = match &flags.iqn {
            Some(name) => {
                IscsiName::parse(name).map_err(|error| flag_error("--iqn", name, error.to_string()))?
            }
            None => default_name(),
        };
        let mut target = TargetConfig {
            open: true,
            chap: flags.chap.iter().map(|text| chap_flag("--chap", text)).collect::<Result<_, _>>()?,
            mutual_chap: flags
                .mutual_chap
                .as_ref()
                .map(|text| chap_flag("--mutual-chap", text))
                .transpose()?,
            luns: flags.luns.iter().map(|text| lun_flag(text)).collect::<Result<_, _>>()?,
            ..TargetConfig::new(name)
        };
        if flags.iqn.is_some()
            || !target.chap.is_empty()
            || target.mutual_chap.is_some()
            || !target.luns.is_empty()
        {
            // What is typed is found from here, wherever it is saved later.
            let here = std::env::current_dir().unwrap_or_default();
            for user in target.chap.iter_mut().chain(&mut target.mutual_chap) {
                user.secret_file = here.join(&user.secret_file);
            }
            for lun in &mut target.luns {
                lun.device = lun.device.absolute(&here);
            }
            self.targets.push(target);
        } else if flags.open {
            let why =
                "it belongs to the target that --lun describes; targets of a file have `open = true` there";
            return Err(flag_error("--open", "true", why));
        }
        Ok(self)
    }
}

/// The name of a target whose `--iqn` was not given. The host's name makes it one of its kind, as names of targets should be.
fn default_name() -> IscsiName {
    let host = lunway_machine::host_name().to_ascii_lowercase();
    let host: String =
        host.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).take(64).collect();
    let name = format!("iqn.2026-11.io.lunway:{}", if host.is_empty() { "target" } else { &host });
    IscsiName::parse(&name).expect("made of characters that names may have")
}

fn flag_error(flag: &str, value: &str, why: impl Into<String>) -> ConfigError {
    ConfigError::Value {
        origin: COMMAND_LINE.to_owned(),
        key: flag.to_owned(),
        value: value.to_owned(),
        why: why.into(),
    }
}

fn chap_flag(flag: &str, text: &str) -> Result<ChapUser, ConfigError> {
    match text.split_once(':') {
        Some((user, file)) if !user.is_empty() && !file.is_empty() => {
            Ok(ChapUser { user: user.to_owned(), secret_file: file.into() })
        }
        // The value is not repeated: who took the file's place for the secret has just typed the secret.
        _ => Err(flag_error(flag, "…", "write USER:SECRETFILE, where the file's only line is the secret")),
    }
}

/// `ID=DEVICE[,OPTION]…`.
fn lun_flag(text: &str) -> Result<LunConfig, ConfigError> {
    // The text is not repeated as soon as it may hold a secret.
    let wrong = |why: &str| flag_error("--lun", text, why);
    let (id, device) = text.split_once('=').ok_or_else(|| wrong("write ID=DEVICE, such as 0=ram:1G"))?;
    let id = id.parse().map_err(|_| wrong("the LUN before '=' must be a number from 0 to 16383"))?;
    let known = ["read-only", "removable", "serial", "sector", "physical-sector"];
    let (device, options) = split_options(device, &known);
    let device: DeviceName = device
        .parse()
        .map_err(|error: SpecError| flag_error("--lun", &format!("{id}=…"), error.to_string()))?;
    let mut lun = LunConfig::new(id, device);
    for (key, value) in options {
        let number = || value.parse().map_err(|_| wrong(&format!("{key}= must be 512 or 4096")));
        match key {
            "read-only" => lun.read_only = true,
            "removable" => lun.removable = true,
            "serial" => lun.serial = Some(value.to_owned()),
            "sector" => lun.sector = Some(number()?),
            _ => lun.physical_sector = Some(number()?),
        }
    }
    Ok(lun)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: &str = "cores = 2\n[[target]]\nname = \"iqn.2026-11.com.example:a\"\n";

    #[test]
    fn flags_alone_describe_a_target() {
        let flags = Flags {
            listen: vec!["127.0.0.1:0".to_owned()],
            iqn: Some("iqn.2026-11.com.example:F".to_owned()),
            luns: vec![
                "0=ram:1G".to_owned(),
                "7=fault:read=0.01,seed=7:file:/x,y,sector=4096,read-only,removable,serial=9".to_owned(),
            ],
            cores: Some(1),
            ..Flags::default()
        };
        let config = Config::default().with_flags(&flags).unwrap();
        config.check().unwrap();
        assert_eq!(config.listen, ["127.0.0.1:0".parse().unwrap()]);
        assert_eq!(config.targets[0].name.as_str(), "iqn.2026-11.com.example:f");
        assert!(config.targets[0].open);
        let [first, second] = &config.targets[0].luns[..] else { panic!("two LUNs") };
        assert_eq!((first.id, first.device.as_written(), first.read_only), (0, "ram:1G", false));
        assert_eq!(
            (second.id, second.device.as_written(), second.sector),
            (7, "fault:read=0.01,seed=7:file:/x,y", Some(4096))
        );
        assert!(second.read_only && second.removable);
        assert_eq!(second.serial.as_deref(), Some("9"));
    }

    #[test]
    fn flags_add_a_target_to_a_file_and_replace_its_portals() {
        let file = Config::from_toml(TARGET, "lunway.toml").unwrap();
        let flags =
            Flags { listen: vec!["::1".to_owned()], luns: vec!["0=ram:1G".to_owned()], ..Flags::default() };
        let config = file.with_flags(&flags).unwrap();
        config.check().unwrap();
        assert_eq!((config.targets.len(), config.cores), (2, Some(2)));
        assert_eq!((config.targets[0].open, config.targets[1].open), (false, true));
        assert_eq!(config.listen, ["[::1]:3260".parse().unwrap()]);
    }

    #[test]
    fn wrong_flags_are_named() {
        for (flags, part) in [
            (
                Flags { luns: vec!["ram:1G".to_owned()], ..Flags::default() },
                "--lun = \"ram:1G\": write ID=DEVICE",
            ),
            (Flags { luns: vec!["x=ram:1G".to_owned()], ..Flags::default() }, "must be a number"),
            (Flags { luns: vec!["0=ram:1G,sector=big".to_owned()], ..Flags::default() }, "sector= must be"),
            (
                Flags { listen: vec!["192.0.2.256".to_owned()], ..Flags::default() },
                "--listen = \"192.0.2.256\"",
            ),
            (Flags { iqn: Some("disk".to_owned()), ..Flags::default() }, "--iqn = \"disk\""),
            (Flags { open: true, ..Flags::default() }, "--open = \"true\": it belongs to the target"),
        ] {
            let message = Config::default().with_flags(&flags).unwrap_err().to_string();
            assert!(message.starts_with("the command line: ") && message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_secret_instead_of_a_file_is_not_repeated() {
        let flags = Flags { chap: vec!["hunter2hunter2".to_owned()], ..Flags::default() };
        let message = Config::default().with_flags(&flags).unwrap_err().to_string();
        assert!(message.contains("USER:SECRETFILE") && !message.contains("hunter2"), "{message}");
    }
}
