//! Flags of `lunway serve` as overrides of a configuration.

use lunway_block::spec::{SpecError, split_options};
use lunway_target::{
    ChapUser, Config, ConfigError, DeviceName, IscsiName, LunConfig, Overrides, PortalSpecError, TargetConfig,
};

/// Texts of the flags that describe what is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// `--listen ADDRESS[:PORT]`.
    pub(super) listen: Vec<String>,
    /// `--iqn NAME`.
    pub(super) iqn: Option<String>,
    /// `--chap USER:SECRETFILE`.
    pub(super) chap: Vec<String>,
    /// `--mutual-chap USER:SECRETFILE`.
    pub(super) mutual_chap: Option<String>,
    /// `--lun ID=DEVICE[,sector=4096][,physical-sector=4096][,read-only][,removable][,serial=S]`.
    pub(super) luns: Vec<String>,
    /// `--open`: the target of the flags is open without it too, but then on purpose.
    pub(super) open: bool,
    /// `--cores N`.
    pub(super) cores: Option<usize>,
}

impl Flags {
    /// Parses them. `listen` and `cores` take the place of the file's; any of the others describe one target more,
    /// which is open: flags have no access rules, and what they start is to be used at once.
    pub(super) fn overrides(self) -> Result<Overrides, ConfigError> {
        let listen = |text: &String| {
            text.parse().map_err(|error: PortalSpecError| flag_error("--listen", text, error.to_string()))
        };
        Ok(Overrides {
            listen: self.listen.iter().map(listen).collect::<Result<_, _>>()?,
            cores: self.cores,
            target: self.target()?,
        })
    }

    fn target(&self) -> Result<Option<TargetConfig>, ConfigError> {
        let Self { iqn, chap, mutual_chap, luns, open, .. } = self;
        if iqn.is_none() && chap.is_empty() && mutual_chap.is_none() && luns.is_empty() {
            let why =
                "it belongs to the target that --lun describes; targets of a file have `open = true` there";
            return if *open { Err(flag_error("--open", "true", why)) } else { Ok(None) };
        }
        let name = match iqn {
            Some(name) => {
                IscsiName::parse(name).map_err(|error| flag_error("--iqn", name, error.to_string()))?
            }
            None => IscsiName::of_this_host(),
        };
        let mut target = TargetConfig {
            open: true,
            chap: chap.iter().map(|text| chap_user("--chap", text)).collect::<Result<_, _>>()?,
            mutual_chap: mutual_chap.as_ref().map(|text| chap_user("--mutual-chap", text)).transpose()?,
            luns: luns.iter().map(|text| lun(text)).collect::<Result<_, _>>()?,
            ..TargetConfig::new(name)
        };
        // What is typed is found from here, wherever it is saved later.
        let here = std::env::current_dir().unwrap_or_default();
        for user in target.chap.iter_mut().chain(&mut target.mutual_chap) {
            user.secret_file = here.join(&user.secret_file);
        }
        for lun in &mut target.luns {
            lun.device = lun.device.absolute(&here);
        }
        Ok(Some(target))
    }
}

/// A flag's value that cannot be.
pub(super) fn flag_error(flag: &str, value: &str, why: impl Into<String>) -> ConfigError {
    ConfigError::Value {
        // A configuration that no file says is the command line's.
        origin: Config::default().origin,
        key: flag.to_owned(),
        value: value.to_owned(),
        why: why.into(),
    }
}

/// `USER:SECRETFILE`.
fn chap_user(flag: &str, text: &str) -> Result<ChapUser, ConfigError> {
    match text.split_once(':') {
        Some((user, file)) if !user.is_empty() && !file.is_empty() => {
            Ok(ChapUser { user: user.to_owned(), secret_file: file.into() })
        }
        // The value is not repeated: who took the file's place for the secret has just typed the secret.
        _ => Err(flag_error(flag, "…", "write USER:SECRETFILE, where the file's only line is the secret")),
    }
}

/// `ID=DEVICE[,OPTION]…`.
fn lun(text: &str) -> Result<LunConfig, ConfigError> {
    // The text is not repeated as soon as it may hold a secret.
    let wrong = |why: &str| flag_error("--lun", text, why);
    let (id, device) = text.split_once('=').ok_or_else(|| wrong("write ID=DEVICE, such as 0=ram:1G"))?;
    let id = id.parse().map_err(|_| wrong("the LUN before '=' must be a number from 0 to 16383"))?;
    let known = ["read-only", "removable", "serial", "sector", "physical-sector"];
    let (device, options) = split_options(device, &known);
    // A size has no comma: what follows one was meant as an option. A file's name may have one.
    if let (true, Some((_, option))) =
        (device.starts_with("ram:") || device.starts_with("null:"), device.split_once(','))
    {
        let option = option.split(['=', ',']).next().unwrap_or(option);
        return Err(wrong(&format!("there is no option `{option}`; there are {}", known.join(", "))));
    }
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

    fn flags(luns: &[&str]) -> Flags {
        Flags { luns: luns.iter().map(|&lun| lun.to_owned()).collect(), ..Flags::default() }
    }

    #[test]
    fn flags_alone_describe_a_target() {
        let flags = Flags {
            listen: vec!["127.0.0.1:0".to_owned()],
            iqn: Some("iqn.2026-11.com.example:F".to_owned()),
            cores: Some(1),
            ..flags(&[
                "0=ram:1G",
                "7=fault:read=0.01,seed=7:file:/x,y,sector=4096,read-only,removable,serial=9",
            ])
        };
        let config = Config::default().overridden(&flags.overrides().unwrap());
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
    fn files_of_flags_are_found_from_the_working_folder_wherever_they_are_saved() {
        let chap = vec!["host:host.secret".to_owned()];
        let target = Flags { chap, ..flags(&["0=b.img"]) }.overrides().unwrap().target.unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(target.luns[0].device.as_written(), here.join("b.img").display().to_string());
        assert_eq!(target.chap[0].secret_file, here.join("host.secret"));
    }

    #[test]
    fn wrong_flags_are_named() {
        for (flags, part) in [
            (flags(&["ram:1G"]), "--lun = \"ram:1G\": write ID=DEVICE"),
            (flags(&["x=ram:1G"]), "must be a number"),
            (flags(&["0=ram:1G,sector=big"]), "sector= must be"),
            (
                Flags { listen: vec!["192.0.2.256".to_owned()], ..Flags::default() },
                "--listen = \"192.0.2.256\"",
            ),
            (Flags { iqn: Some("disk".to_owned()), ..Flags::default() }, "--iqn = \"disk\""),
            (Flags { open: true, ..Flags::default() }, "--open = \"true\": it belongs to the target"),
        ] {
            let message = flags.overrides().unwrap_err().to_string();
            assert!(message.starts_with("the command line: ") && message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_secret_instead_of_a_file_is_not_repeated() {
        let flags = Flags { chap: vec!["hunter2hunter2".to_owned()], ..Flags::default() };
        let message = flags.overrides().unwrap_err().to_string();
        assert!(message.contains("USER:SECRETFILE") && !message.contains("hunter2"), "{message}");
    }
}
