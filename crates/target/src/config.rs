//! What to serve: a TOML file, flags, or both.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lunway_iscsi::chap::Secret;
use lunway_iscsi::negotiation::DigestPolicy;
use serde::{Deserialize, Deserializer};

use crate::name::IscsiName;
use crate::portal::ISCSI_PORT;
use crate::secret;

/// Largest LUN that flat addressing can name (SAM-5 4.7.5.4).
const LUN_MAX: u16 = 0x3fff;
/// Longest alias, bytes (RFC 7143 §13.8).
const ALIAS_MAX: usize = 255;

/// Everything that a [`Server`](crate::Server) needs to know, from one file:
///
/// ```toml
/// listen = ["0.0.0.0:3260", "[::]:3260"]    # port 3260 where none is written
/// cores = 2                                 # default: all that the process may use
/// header_digest = "allow"                   # CRC32C: "never", "allow" if the initiator wants it, or "require"
/// data_digest = "allow"
///
/// [[target]]
/// name = "iqn.2026-11.com.example:disks"
/// alias = "the fast ones"
///
/// [[target.chap]]                           # with any of these, initiators must prove to be one of them
/// user = "host-1"
/// secret_file = "/etc/lunway/host-1.secret"
///
/// [target.mutual_chap]                      # how the target proves itself to those that ask
/// user = "disks"
/// secret_file = "/etc/lunway/disks.secret"
///
/// [[target.lun]]
/// id = 0
/// device = "ram:1G"                         # any device that the command line takes
/// sector = 4096
/// read_only = false
/// removable = false
/// serial = "4F2A"                           # default: derived from the target's name and the LUN
///
/// [limits]
/// sessions = 256
/// ```
///
/// Nothing in it may be unknown, and each [`ConfigError`] says where and what is wrong. Secrets stand in files of their
/// own, never here: this file may be shown and shared.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The portals. Port 0 lets the kernel choose: [`Server::addresses`](crate::Server::addresses) says what it chose.
    #[serde(default = "default_listen", deserialize_with = "portals")]
    pub listen: Vec<SocketAddr>,
    /// Number of cores that serve connections; `None`: all that this process may use.
    #[serde(default)]
    pub cores: Option<usize>,
    /// What initiators get that ask for CRC32C over headers.
    #[serde(default)]
    pub header_digest: Digest,
    /// What initiators get that ask for CRC32C over data.
    #[serde(default)]
    pub data_digest: Digest,
    /// What is served.
    #[serde(default, rename = "target")]
    pub targets: Vec<TargetConfig>,
    /// What a peer can make this process spend.
    #[serde(default)]
    pub limits: Limits,
    /// Where this came from, for messages: a file's name, or "the command line".
    #[serde(skip)]
    pub origin: String,
}

/// One target: a name that initiators log in to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// Its name.
    pub name: IscsiName,
    /// A name for people, told at login.
    #[serde(default)]
    pub alias: Option<String>,
    /// Who may log in; empty: everybody.
    #[serde(default)]
    pub chap: Vec<ChapUser>,
    /// How the target proves itself to initiators that ask for it.
    #[serde(default)]
    pub mutual_chap: Option<ChapUser>,
    /// Its logical units.
    #[serde(default, rename = "lun")]
    pub luns: Vec<LunConfig>,
}

/// A name and a secret for CHAP.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChapUser {
    /// CHAP_N.
    pub user: String,
    /// The file whose only line is the secret.
    pub secret_file: PathBuf,
}

/// Whether sessions use a digest (RFC 7143 §13.1). The initiator offers, so there is nothing to prefer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Digest {
    /// Initiators that insist on it are refused.
    Never,
    /// Whoever wants it gets it: it costs a pass over the data.
    #[default]
    Allow,
    /// Initiators that cannot do it are refused.
    Require,
}

impl From<Digest> for DigestPolicy {
    fn from(digest: Digest) -> Self {
        match digest {
            Digest::Never => Self::Never,
            Digest::Allow => Self::Allow,
            Digest::Require => Self::Require,
        }
    }
}

/// A logical unit and the device behind it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LunConfig {
    /// Its number, 0 to 16383.
    pub id: u16,
    /// The device, in the grammar of the command line.
    pub device: String,
    /// Bytes of a logical sector, 512 or 4096; `None`: what the device says.
    #[serde(default)]
    pub sector: Option<u32>,
    /// Writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Shown as a removable medium.
    #[serde(default)]
    pub removable: bool,
    /// The unit serial number (VPD page 80h); `None`: derived from the target's name and the LUN, the same after each
    /// start, as initiators recognise a disk by it.
    #[serde(default)]
    pub serial: Option<String>,
}

/// What peers can make this process spend.
///
/// In the worst case the memory is about `sessions × session_memory_mib`, plus 64 KiB for each connection that is not
/// logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Sessions at the same time, not counting those for discovery. One more is told "out of resources".
    pub sessions: usize,
    /// Connections that have not logged in. One more, and the oldest of them is closed.
    pub connections_before_login: usize,
    /// Seconds until a connection must have logged in.
    pub login_timeout_s: u64,
    /// Commands in flight in a session: the window that initiators are told.
    pub command_window: u16,
    /// Memory for data in flight in one session, MiB: half for what initiators write, half for what they read.
    pub session_memory_mib: usize,
    /// Seconds of silence after which an initiator is pinged (NOP-In); 0: never.
    pub nop_interval_s: u64,
    /// Seconds that it has to answer.
    pub nop_timeout_s: u64,
    /// How long a connection that was just busy polls before it sleeps, microseconds; 0: never. Waking a sleeping
    /// core takes 20–40 µs, which is most of a round trip at depth 1; an idle connection never polls.
    pub poll_us: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 256,
            connections_before_login: 1024,
            login_timeout_s: 15,
            command_window: 128,
            session_memory_mib: 64,
            nop_interval_s: 30,
            nop_timeout_s: 30,
            poll_us: 50,
        }
    }
}

impl Limits {
    pub(crate) fn poll(&self) -> Duration {
        Duration::from_micros(self.poll_us)
    }
}

/// What is wrong with a configuration, and where.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML, or has a key that nobody knows, or a value of the wrong kind.
    #[error("{file}, line {line}{key}: {message}", key = .key.as_ref().map_or(String::new(), |key| format!(", {key}")))]
    Syntax {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The key on that line.
        key: Option<String>,
        /// What is wrong.
        message: String,
    },
    /// A value that cannot be.
    #[error("{origin}: {key} = {value:?}: {why}")]
    Value {
        /// The file, or the command line.
        origin: String,
        /// The key or flag, with the target and LUN it belongs to.
        key: String,
        /// Its value.
        value: String,
        /// What is wrong with it, and what would be right.
        why: String,
    },
    /// Nothing to serve.
    #[error(
        "{origin} names no target: add a [[target]] with a name and a [[target.lun]], or a flag such as --lun 0=ram:1G"
    )]
    NoTargets {
        /// The file, or the command line.
        origin: String,
    },
}

/// The origin of what flags say.
pub(crate) const COMMAND_LINE: &str = "the command line";

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: default_listen(),
            cores: None,
            header_digest: Digest::default(),
            data_digest: Digest::default(),
            targets: Vec::new(),
            limits: Limits::default(),
            origin: COMMAND_LINE.to_owned(),
        }
    }
}

impl Config {
    /// Reads and checks a file.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => Self::from_toml(&text, &file),
            Err(source) => Err(ConfigError::Read { file, source }),
        }
    }

    /// Parses the text of a file; `origin` is its name in errors. Not yet [checked](Self::check).
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, ConfigError> {
        match toml::from_str::<Self>(text) {
            Ok(config) => Ok(Self { origin: origin.to_owned(), ..config }),
            Err(error) => Err(syntax_error(&error, text, origin)),
        }
    }

    /// Refuses what cannot be served, from duplicate LUNs to unreadable secret files.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.targets.is_empty() {
            return Err(ConfigError::NoTargets { origin: self.origin.clone() });
        }
        if self.listen.is_empty() {
            return Err(self.wrong("listen", "[]", "at least one address is needed"));
        }
        let mut portals = HashSet::new();
        for portal in self.listen.iter().filter(|portal| portal.port() != 0) {
            if !portals.insert(portal) {
                return Err(self.wrong("listen", portal, "it is there twice"));
            }
        }
        if let Some(cores) = self.cores.filter(|cores| !(1..=1024).contains(cores)) {
            return Err(self.wrong("cores", &cores, "1 to 1024 are possible"));
        }
        self.check_limits()?;
        let mut names = HashSet::new();
        for target in &self.targets {
            if !names.insert(&target.name) {
                return Err(self.wrong("target: name", &target.name, "two targets have this name"));
            }
            self.check_target(target)?;
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        let Limits { sessions, connections_before_login, login_timeout_s, command_window, .. } = self.limits;
        let least_one = "at least 1 is needed";
        if sessions == 0 || sessions > usize::from(u16::MAX) {
            return Err(self.wrong(
                "limits: sessions",
                &sessions,
                "1 to 65535 can be told apart (RFC 7143 §11.12.6)",
            ));
        }
        if connections_before_login == 0 {
            return Err(self.wrong("limits: connections_before_login", &0, least_one));
        }
        if login_timeout_s == 0 {
            return Err(self.wrong("limits: login_timeout_s", &0, least_one));
        }
        if !(1..=4096).contains(&command_window) {
            return Err(self.wrong("limits: command_window", &command_window, "1 to 4096 are possible"));
        }
        if !(16..=65536).contains(&self.limits.session_memory_mib) {
            let value = &self.limits.session_memory_mib;
            return Err(self.wrong("limits: session_memory_mib", value, "16 to 65536 are possible"));
        }
        if self.limits.nop_interval_s != 0 && self.limits.nop_timeout_s == 0 {
            return Err(self.wrong("limits: nop_timeout_s", &0, least_one));
        }
        if self.limits.poll_us > 1000 {
            return Err(self.wrong("limits: poll_us", &self.limits.poll_us, "0 to 1000 make sense"));
        }
        Ok(())
    }

    fn check_target(&self, target: &TargetConfig) -> Result<(), ConfigError> {
        let at = |key: &str| format!("target {}: {key}", target.name);
        if let Some(alias) =
            target.alias.as_ref().filter(|alias| alias.len() > ALIAS_MAX || alias.contains('\0'))
        {
            return Err(self.wrong(
                &at("alias"),
                alias,
                format!("an alias has at most {ALIAS_MAX} bytes, none of them 0"),
            ));
        }
        let mut users = HashSet::new();
        let mut secrets = Vec::new();
        for chap in &target.chap {
            if !users.insert(&chap.user) {
                return Err(self.wrong(&at("chap: user"), &chap.user, "it is there twice"));
            }
            secrets.push(self.secret(target, "chap", chap)?);
        }
        if let Some(mutual) = &target.mutual_chap {
            if target.chap.is_empty() {
                let why =
                    "initiators can ask the target for proof only after their own: add a [[target.chap]]";
                return Err(self.wrong(&at("mutual_chap: user"), &mutual.user, why));
            }
            if secrets.contains(&self.secret(target, "mutual_chap", mutual)?) {
                let file = &mutual.secret_file.display();
                let why = "the secrets of the two directions must differ (RFC 7143 §9.2.1)";
                return Err(self.wrong(&at("mutual_chap: secret_file"), file, why));
            }
        }
        let mut ids = HashSet::new();
        for lun in &target.luns {
            if !ids.insert(lun.id) {
                return Err(self.wrong(&at("lun: id"), &lun.id, "two LUNs have this number"));
            }
            self.check_lun(target, lun)?;
        }
        Ok(())
    }

    fn check_lun(&self, target: &TargetConfig, lun: &LunConfig) -> Result<(), ConfigError> {
        let at = |key: &str| format!("target {}: lun {}: {key}", target.name, lun.id);
        if lun.id > LUN_MAX {
            return Err(self.wrong(&at("id"), &lun.id, format!("0 to {LUN_MAX} can be addressed")));
        }
        if lun.device.is_empty() {
            return Err(self.wrong(&at("device"), "", "write a device such as \"ram:1G\" or a file's path"));
        }
        if let Some(sector) = lun.sector.filter(|sector| ![512, 4096].contains(sector)) {
            return Err(self.wrong(&at("sector"), &sector, "512 and 4096 are possible"));
        }
        if let Some(serial) = &lun.serial {
            let fits = (1..=32).contains(&serial.len()) && serial.bytes().all(|b| b.is_ascii_graphic());
            if !fits {
                return Err(self.wrong(
                    &at("serial"),
                    serial,
                    "1 to 32 visible ASCII characters are possible",
                ));
            }
        }
        Ok(())
    }

    /// Reads the secret of a CHAP entry in section `section` of `target`.
    pub(crate) fn secret(
        &self,
        target: &TargetConfig,
        section: &str,
        chap: &ChapUser,
    ) -> Result<Secret, ConfigError> {
        let at = |key: &str| format!("target {}: {section}: {key}", target.name);
        if chap.user.is_empty() || chap.user.len() > 255 || chap.user.contains('\0') {
            return Err(self.wrong(&at("user"), &chap.user, "a name has 1 to 255 bytes, none of them 0"));
        }
        secret::read(&chap.secret_file)
            .map_err(|error| self.wrong(&at("secret_file"), &chap.secret_file.display(), error.to_string()))
    }

    fn wrong(&self, key: &str, value: &(impl ToString + ?Sized), why: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            origin: self.origin.clone(),
            key: key.to_owned(),
            value: value.to_string(),
            why: why.into(),
        }
    }
}

fn default_listen() -> Vec<SocketAddr> {
    vec![SocketAddr::from(([0, 0, 0, 0], ISCSI_PORT))]
}

/// `ADDRESS:PORT`, `ADDRESS`, `[V6]:PORT` or `V6`.
pub(crate) fn portal(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse::<SocketAddr>().ok();
    let bare = text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    address
        .or(bare.map(|ip| SocketAddr::new(ip, ISCSI_PORT)))
        .ok_or_else(|| format!("{text:?} is no address: write it like 192.168.1.2:3260 or [fd00::2]:3260"))
}

fn portals<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| portal(text).map_err(serde::de::Error::custom)).collect()
}

/// Says line and key of what the parser did not like. Its own message is kept, its excerpt of the file is not: someone
/// may have written a secret there.
fn syntax_error(error: &toml::de::Error, text: &str, file: &str) -> ConfigError {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = text.get(..start).unwrap_or("");
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = text.get(line_start..).and_then(|rest| rest.lines().next()).unwrap_or("");
    let key = line.split_once('=').map(|(key, _)| key.trim().to_owned()).filter(|key| !key.is_empty());
    ConfigError::Syntax {
        file: file.to_owned(),
        line: before.matches('\n').count() + 1,
        key,
        message: error.message().replace('\n', "; "),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        let config = Config::from_toml(text, "lunway.toml")?;
        config.check()?;
        Ok(config)
    }

    fn error(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    fn secret_file(secret: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{secret}").unwrap();
        file
    }

    const TARGET: &str = "[[target]]\nname = \"iqn.2026-11.com.example:a\"\n";

    #[test]
    fn a_file_with_everything_in_it_is_understood() {
        let (one, two) = (secret_file("sesame open one"), secret_file("sesame open two"));
        let text = format!(
            "listen = [\"127.0.0.1\", \"[::1]:3261\"]\ncores = 2\nheader_digest = \"require\"\n[limits]\nsessions = 7\npoll_us = 0\n{TARGET}alias = \"A\"\n\
             [[target.chap]]\nuser = \"u\"\nsecret_file = \"{}\"\n[target.mutual_chap]\nuser = \"t\"\nsecret_file = \"{}\"\n\
             [[target.lun]]\nid = 5\ndevice = \"ram:1G\"\nsector = 4096\nread_only = true\nremovable = true\nserial = \"S1\"\n",
            one.path().display(),
            two.path().display(),
        );
        let config = parse(&text).unwrap();
        assert_eq!(config.listen, ["127.0.0.1:3260".parse().unwrap(), "[::1]:3261".parse().unwrap()]);
        assert_eq!((config.cores, config.limits.sessions, config.limits.poll_us), (Some(2), 7, 0));
        assert_eq!(config.limits.command_window, Limits::default().command_window);
        assert_eq!((config.header_digest, config.data_digest), (Digest::Require, Digest::Allow));
        let target = &config.targets[0];
        assert_eq!(
            (target.chap[0].user.as_str(), target.mutual_chap.as_ref().unwrap().user.as_str()),
            ("u", "t")
        );
        let lun = &target.luns[0];
        assert_eq!((lun.id, lun.device.as_str(), lun.sector), (5, "ram:1G", Some(4096)));
        assert!(lun.read_only && lun.removable);
        assert_eq!(lun.serial.as_deref(), Some("S1"));
    }

    #[test]
    fn errors_name_the_file_the_line_and_the_key() {
        assert_eq!(
            error("listen = [\"127.0.0.1\"]\ncores = \"two\"\n"),
            "lunway.toml, line 2, cores: invalid type: string \"two\", expected usize"
        );
        let unknown = error(&format!("{TARGET}colour = \"red\"\n"));
        assert!(
            unknown.starts_with("lunway.toml, line 3, colour: unknown field `colour`, expected one of"),
            "{unknown}"
        );
        let name = error("[[target]]\nname = \"disk\"\n");
        assert!(name.starts_with("lunway.toml, line 2, name: \"disk\" starts neither"), "{name}");
        let address = error("listen = [\"here\"]\n");
        assert!(address.starts_with("lunway.toml, line 1, listen: \"here\" is no address"), "{address}");
    }

    #[test]
    fn a_secret_in_the_file_is_refused_and_not_repeated() {
        let message = error(&format!("{TARGET}[[target.chap]]\nuser = \"u\"\nsecret = \"hunter2hunter2\"\n"));
        assert!(message.contains("line 5, secret: unknown field `secret`"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }

    #[test]
    fn values_that_cannot_be_are_refused_with_place_and_value() {
        let lun = "[[target.lun]]\nid = 0\ndevice = \"ram:1G\"\n";
        for (text, part) in [
            (String::new(), "lunway.toml names no target"),
            (format!("{TARGET}{lun}{lun}"), "target iqn.2026-11.com.example:a: lun: id = \"0\": two LUNs"),
            (format!("{TARGET}{TARGET}"), "name = \"iqn.2026-11.com.example:a\": two targets"),
            (format!("{TARGET}{lun}sector = 513"), "lun 0: sector = \"513\": 512 and 4096"),
            (format!("{TARGET}{lun}serial = \"a b\""), "serial = \"a b\""),
            (
                format!("{TARGET}[[target.lun]]\nid = 20000\ndevice = \"ram:1G\""),
                "id = \"20000\": 0 to 16383",
            ),
            (format!("listen = []\n{TARGET}"), "listen"),
            (format!("listen = [\"1.2.3.4\", \"1.2.3.4:3260\"]\n{TARGET}"), "it is there twice"),
            (format!("cores = 0\n{TARGET}"), "cores = \"0\""),
            (format!("data_digest = \"maybe\"\n{TARGET}"), "line 1, data_digest: unknown variant `maybe`"),
            (format!("{TARGET}[limits]\nsessions = 0"), "limits: sessions = \"0\""),
            (format!("{TARGET}[limits]\ncommand_window = 5000"), "command_window"),
            (
                format!("{TARGET}[[target.chap]]\nuser = \"u\"\nsecret_file = \"/nonexistent/secret\""),
                "chap: secret_file = \"/nonexistent/secret\": cannot read it: No such file",
            ),
        ] {
            let message = error(&text);
            assert!(message.contains(part), "{text}\n{message}");
        }
    }

    #[test]
    fn the_secrets_of_the_two_directions_must_differ() {
        let (one, same) = (secret_file("sesame open one"), secret_file("sesame open one"));
        let message = error(&format!(
            "{TARGET}[[target.chap]]\nuser = \"u\"\nsecret_file = \"{}\"\n[target.mutual_chap]\nuser = \"t\"\nsecret_file = \"{}\"",
            one.path().display(),
            same.path().display()
        ));
        assert!(message.contains("must differ"), "{message}");
    }
}
