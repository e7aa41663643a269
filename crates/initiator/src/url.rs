//! `iscsi://` addresses.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use lunway_block::duration::{ExactDuration, parse_duration};
use lunway_block::size::parse_size;
use lunway_block::small_file;
use lunway_iscsi::chap::{ChapAccount, Secret};

/// The port that IANA gave to iSCSI (RFC 7143 §15).
// RFC 7143 [15-1]
pub const DEFAULT_PORT: u16 = 3260;

/// Holds the secret for the user in the address, where neither the address nor a file does.
pub const SECRET_VARIABLE: &str = "LUNWAY_CHAP_SECRET";

/// Times that an address may set: below, a busy network would look dead, and zero means something else to a device.
const TIMER_MIN: Duration = Duration::from_millis(100);
const TIMER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Largest logical unit number of flat space addressing (SAM-5 §4.7.7.3).
const LUN_MAX: u16 = 0x3FFF;

/// Address of a logical unit, and the credentials for it.
///
/// ```text
/// iscsi://[user[%secret]@]host[:port][/target[/lun]][?key=value&…]
/// ```
///
/// The convention of libiscsi and QEMU. An IPv6 host stands in brackets. Without a lun it names a target, without a
/// target a portal: good for listing. Keys:
///
/// | key | is |
/// |---|---|
/// | `secret_file` | file whose only line is the user's CHAP secret |
/// | `target_user`, `target_password`, `target_secret_file` | what the target must prove (mutual CHAP) |
/// | `header_digest`, `data_digest` | `crc32c` insists on a CRC32C, `none` (as without the key) on none |
/// | `initiator` | our iSCSI name |
/// | `from` | local IP address to connect from, which chooses the network path |
/// | `command_timeout` | how long one command may take: a time such as `30s`, from 100 ms to 24 h |
/// | `replacement_timeout` | how long I/O waits for a lost connection to come back: the same |
/// | `keep_unflushed` | how much of what is written and not flushed is kept, to be written again after the target lost it: a size such as `64M`, `0` for nothing |
///
/// The user's secret is looked for in the address, then `secret_file`, then the environment's
/// `LUNWAY_CHAP_SECRET`. Percent signs are decoded in the target and in values; not in `user%secret`, where the
/// first one separates: a secret with `/` or `@` in it belongs into a file. Neither `Display` nor `Debug` shows a
/// secret, and no error quotes the part of the address that may hold one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiUrl {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The target's iSCSI name.
    pub target: Option<String>,
    /// Number of the logical unit.
    pub lun: Option<u16>,
    /// Account that we prove (CHAP).
    pub account: Option<ChapAccount>,
    /// Account that the target proves (mutual CHAP).
    pub target_account: Option<ChapAccount>,
    /// Insist on a CRC32C over headers.
    pub header_digest: bool,
    /// Insist on a CRC32C over data.
    pub data_digest: bool,
    /// Our iSCSI name, where the address gives one.
    pub initiator: Option<String>,
    /// Local address to connect from.
    pub from: Option<IpAddr>,
    /// Time limit for one command.
    pub command_timeout: Option<Duration>,
    /// Time for which I/O waits for a lost connection to come back.
    pub replacement_timeout: Option<Duration>,
    /// Limit of the unflushed writes that are kept, bytes; for the layer that opens a device over this address.
    pub keep_unflushed: Option<u64>,
}

/// Reason why an address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Another scheme.
    #[error(
        "an iSCSI address begins with `iscsi://`, as in iscsi://192.0.2.10:3260/iqn.2004-01.org.example:disk/0"
    )]
    Scheme,
    /// Nothing where the host should be.
    #[error(
        "the address names no host; it should look like iscsi://192.0.2.10/iqn.2004-01.org.example:disk/0"
    )]
    NoHost,
    /// Brackets that do not hold an IPv6 address.
    #[error("`{0}` is not an IPv6 address in brackets, as in iscsi://[2001:db8::10]:3260/iqn…/0")]
    Bracket(String),
    /// Several colons without brackets, or characters that no host has.
    #[error(
        "`{0}` is not a host; an IPv6 address stands in brackets, as in iscsi://[2001:db8::10]:3260/iqn…/0"
    )]
    Host(String),
    /// Not a TCP port.
    #[error("`{0}` is not a port: it is a number from 1 to 65535, as in iscsi://192.0.2.10:3260/…")]
    Port(String),
    /// Not an iSCSI name.
    #[error(
        "`{0}` is not an iSCSI name; it begins with iqn., eui. or naa., as in iqn.2004-01.org.example:disk"
    )]
    Name(String),
    /// Not a logical unit number.
    #[error("`{0}` is not a logical unit number: it is 0 to {LUN_MAX}, after the target, as in …:disk/0")]
    Lun(String),
    /// More than target and lun.
    #[error("`{0}` follows the logical unit; an address ends there, as in iscsi://192.0.2.10/iqn…:disk/0")]
    TooLong(String),
    /// A broken `%XX`.
    #[error("the percent signs in {0} are broken: they are followed by two hexadecimal digits, as in %3A")]
    Percent(&'static str),
    /// A key that is not in the table, or has no value.
    #[error(
        "`{0}` is not a key of an iSCSI address; keys are secret_file, target_user, target_password, \
         target_secret_file, header_digest, data_digest, initiator, from, command_timeout, replacement_timeout, \
         keep_unflushed, each written as key=value"
    )]
    Key(String),
    /// A digest that is not known.
    #[error("{key} cannot be `{value}`: it is crc32c or none, as in ?{key}=crc32c")]
    Digest {
        /// Name of the key.
        key: &'static str,
        /// Value given.
        value: String,
    },
    /// Not an IP address.
    #[error("`{0}` is not a local IP address, as in ?from=192.0.2.20")]
    From(String),
    /// Not a time that can be set.
    #[error(
        "{key} cannot be `{value}`: it is a time from {} to {}, as in ?{key}=30s",
        ExactDuration(TIMER_MIN),
        ExactDuration(TIMER_MAX)
    )]
    Timer {
        /// Name of the key.
        key: &'static str,
        /// Value given.
        value: String,
    },
    /// Not a size.
    #[error("keep_unflushed cannot be `{value}`: {why}; it is a size such as ?keep_unflushed=64M, or 0")]
    KeepUnflushed {
        /// Value given.
        value: String,
        /// Reason why it is wrong.
        why: String,
    },
    /// A user, and nothing to prove it with.
    #[error(
        "there is no CHAP secret for user `{}`: put it into the environment variable {SECRET_VARIABLE}, or into a \
         file named with ?secret_file=PATH{}", without_secret(.0).0, without_secret(.0).1
    )]
    NoSecret(String),
    /// A secret, and no user.
    #[error("a secret is given without a user, as in iscsi://user@host/…?secret_file=PATH")]
    NoUser,
    /// Mutual CHAP with one half missing, or without our own half (RFC 7143 §12.1.3).
    #[error(
        "mutual CHAP takes a user and secret of ours and of the target, as in \
         iscsi://user@host/…?secret_file=PATH&target_user=NAME&target_secret_file=PATH"
    )]
    Mutual,
    // RFC 7143 [9.2.1-8]
    /// Both sides with the same secret: a reflected challenge would be answered (RFC 7143 §9.2.1).
    #[error(
        "the two secrets of mutual CHAP must differ, else a false target can let us answer its own challenge"
    )]
    SameSecret,
    /// A secret of a length that CHAP has no room for.
    #[error("the CHAP secret for `{user}` cannot be used: {why}")]
    Secret {
        /// User of the secret.
        user: String,
        /// Reason why it cannot be used.
        why: String,
    },
    /// The secret file could not be read, or holds something else.
    #[error("the secret file {path} cannot be used: {why}")]
    SecretFile {
        /// Its path.
        path: String,
        /// Message from the operating system, or the fault in the content.
        why: String,
    },
}

/// A user for a message, without what may be a secret behind a colon, and a word about that.
fn without_secret(user: &str) -> (&str, &'static str) {
    match user.split_once(':') {
        Some((user, _)) => (user, "; what is behind the colon is no secret"),
        None => (user, ""),
    }
}

impl IscsiUrl {
    /// Reads an address, the secret files it names, and the environment.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        Self::parse_with(text, |name| std::env::var(name).ok())
    }

    fn parse_with(text: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Self, UrlError> {
        let scheme = text.get(..8).filter(|scheme| scheme.eq_ignore_ascii_case("iscsi://"));
        let rest = &text[scheme.ok_or(UrlError::Scheme)?.len()..];
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, portal) = match authority.rsplit_once('@') {
            Some((login, portal)) => (Some(login), portal),
            None => (None, authority),
        };
        let (host, port) = portal_of(portal)?;
        let (target, lun) = path_of(path)?;
        let mut url = Self {
            host,
            port,
            target,
            lun,
            account: None,
            target_account: None,
            header_digest: false,
            data_digest: false,
            initiator: None,
            from: None,
            command_timeout: None,
            replacement_timeout: None,
            keep_unflushed: None,
        };
        let keys = url.read_query(query)?;

        let (user, secret) = match login {
            Some(login) => login.split_once('%').map_or((login, None), |(user, secret)| (user, Some(secret))),
            None => ("", None),
        };
        url.account = match (user, secret, &keys.secret_file) {
            ("", None, None) => None,
            ("", ..) => return Err(UrlError::NoUser),
            (user, Some(secret), _) => Some(account(user, secret)?),
            (user, None, Some(path)) => {
                Some(ChapAccount { user: user.to_owned(), secret: read_secret(path)? })
            }
            (user, None, None) => match environment(SECRET_VARIABLE) {
                Some(secret) => Some(account(user, &secret)?),
                None => return Err(UrlError::NoSecret(user.to_owned())),
            },
        };
        url.target_account = match (&keys.target_user, &keys.target_password, &keys.target_secret_file) {
            (None, None, None) => None,
            (Some(user), Some(secret), _) => Some(account(user, secret)?),
            (Some(user), None, Some(path)) => {
                Some(ChapAccount { user: user.clone(), secret: read_secret(path)? })
            }
            _ => return Err(UrlError::Mutual),
        };
        match (&url.account, &url.target_account) {
            (None, Some(_)) => Err(UrlError::Mutual),
            (Some(ours), Some(theirs)) if ours.secret == theirs.secret => Err(UrlError::SameSecret),
            _ => Ok(url),
        }
    }

    fn read_query(&mut self, query: &str) -> Result<Keys, UrlError> {
        let mut keys = Keys::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            // Only the key is quoted: what follows may be a secret.
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                UrlError::Key(pair.split(['%', ':']).next().unwrap_or_default().chars().take(40).collect())
            })?;
            let value = percent_decoded(value).ok_or(UrlError::Percent("a value"))?;
            match key {
                "secret_file" => keys.secret_file = Some(value),
                "target_user" => keys.target_user = Some(value),
                "target_password" => keys.target_password = Some(value),
                "target_secret_file" => keys.target_secret_file = Some(value),
                "header_digest" => self.header_digest = digest("header_digest", &value)?,
                "data_digest" => self.data_digest = digest("data_digest", &value)?,
                "initiator" => self.initiator = Some(iscsi_name(value)?),
                "from" => {
                    let bare = value.trim_start_matches('[').trim_end_matches(']');
                    self.from = Some(bare.parse().map_err(|_| UrlError::From(value.clone()))?);
                }
                "command_timeout" => self.command_timeout = Some(timer("command_timeout", &value)?),
                "replacement_timeout" => {
                    self.replacement_timeout = Some(timer("replacement_timeout", &value)?);
                }
                "keep_unflushed" => {
                    let bytes = parse_size(&value).map_err(|error| error.to_string());
                    self.keep_unflushed =
                        Some(bytes.map_err(|why| UrlError::KeepUnflushed { value: value.clone(), why })?);
                }
                _ => return Err(UrlError::Key(key.to_owned())),
            }
        }
        Ok(keys)
    }

    /// Host and port of `host[:port]` or `[v6][:port]`, as they stand in an address.
    pub fn parse_portal(text: &str) -> Result<(String, u16), UrlError> {
        portal_of(text)
    }

    /// An iSCSI name, as it stands in an address (RFC 7143 §4.2.7).
    pub fn parse_name(text: &str) -> Result<String, UrlError> {
        iscsi_name(text.to_owned())
    }

    /// `host:port`, with brackets where they belong.
    pub fn portal(&self) -> String {
        Self::portal_text(&self.host, self.port)
    }

    pub(crate) fn portal_text(host: &str, port: u16) -> String {
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for IscsiUrl {
    /// The address without secrets and keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("iscsi://")?;
        if let Some(account) = &self.account {
            write!(f, "{}@", account.user)?;
        }
        f.write_str(&self.portal())?;
        if let Some(target) = &self.target {
            write!(f, "/{target}")?;
        }
        match self.lun {
            Some(lun) => write!(f, "/{lun}"),
            None => Ok(()),
        }
    }
}

impl std::str::FromStr for IscsiUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        Self::parse(text)
    }
}

/// Keys that are only ingredients.
#[derive(Default)]
struct Keys {
    secret_file: Option<String>,
    target_user: Option<String>,
    target_password: Option<String>,
    target_secret_file: Option<String>,
}

/// Host and port of `host[:port]` or `[v6][:port]`.
pub(crate) fn portal_of(text: &str) -> Result<(String, u16), UrlError> {
    let (host, port) = if let Some(inside) = text.strip_prefix('[') {
        let bad = || UrlError::Bracket(text.to_owned());
        let (host, port) = inside.split_once(']').ok_or_else(bad)?;
        // A zone (`fe80::1%eth0`) is resolved later by the operating system; the address before it must be one.
        let bare = host.split('%').next().unwrap_or(host);
        bare.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
        match port {
            "" => (host, None),
            _ => (host, Some(port.strip_prefix(':').ok_or_else(bad)?)),
        }
    } else {
        let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
        if port.is_some_and(|port| port.contains(':')) || host.contains(|c: char| " %[]\\\"<>".contains(c)) {
            // Behind a percent sign there may be the secret of someone who forgot the `@`.
            return Err(UrlError::Host(text.split('%').next().unwrap_or_default().to_owned()));
        }
        (host, port)
    };
    if host.is_empty() {
        return Err(UrlError::NoHost);
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => {
            let number = port.parse().ok().filter(|&number| number != 0);
            number.ok_or_else(|| UrlError::Port(port.to_owned()))?
        }
    };
    Ok((host.to_owned(), port))
}

fn path_of(path: &str) -> Result<(Option<String>, Option<u16>), UrlError> {
    let mut parts = path.split('/');
    let target = match parts.next() {
        None | Some("") => None,
        Some(name) => Some(iscsi_name(percent_decoded(name).ok_or(UrlError::Percent("the target"))?)?),
    };
    let lun = match parts.next() {
        None | Some("") => None,
        Some(text) => {
            let number = text.parse().ok().filter(|&number| number <= LUN_MAX);
            Some(number.ok_or_else(|| UrlError::Lun(text.to_owned()))?)
        }
    };
    match parts.next() {
        None | Some("") => Ok((target, lun)),
        Some(more) => Err(UrlError::TooLong(more.to_owned())),
    }
}

/// RFC 7143 §4.2.7: a type, at most 223 bytes, and nothing that would break out of a text key.
fn iscsi_name(name: String) -> Result<String, UrlError> {
    let known = ["iqn.", "eui.", "naa."].iter().any(|kind| {
        name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case(kind)) && name.len() > kind.len()
    });
    let clean = name.len() <= 223 && !name.contains(|c: char| c.is_control() || c.is_whitespace());
    if known && clean { Ok(name) } else { Err(UrlError::Name(name)) }
}

fn digest(key: &'static str, value: &str) -> Result<bool, UrlError> {
    match value.to_ascii_lowercase().as_str() {
        "crc32c" => Ok(true),
        "none" => Ok(false),
        _ => Err(UrlError::Digest { key, value: value.to_owned() }),
    }
}

fn timer(key: &'static str, value: &str) -> Result<Duration, UrlError> {
    let time = parse_duration(value).ok().filter(|time| (TIMER_MIN..=TIMER_MAX).contains(time));
    time.ok_or_else(|| UrlError::Timer { key, value: value.to_owned() })
}

fn account(user: &str, secret: &str) -> Result<ChapAccount, UrlError> {
    let secret = Secret::new(secret)
        .map_err(|error| UrlError::Secret { user: user.to_owned(), why: error.to_string() })?;
    Ok(ChapAccount { user: user.to_owned(), secret })
}

fn read_secret(path: &str) -> Result<Secret, UrlError> {
    use std::io::Read;
    let failed = |why: String| UrlError::SecretFile { path: path.to_owned(), why };
    let file = small_file::open(Path::new(path)).map_err(|error| failed(error.to_string()))?;
    let mut content = Vec::with_capacity(Secret::FILE_LEN_MAX + 1);
    let longest = Secret::FILE_LEN_MAX as u64 + 1;
    file.take(longest).read_to_end(&mut content).map_err(|error| failed(error.to_string()))?;
    let secret = Secret::from_file(&content);
    content.fill(0);
    secret.map_err(|error| failed(error.to_string()))
}

fn percent_decoded(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let (digits, tail) = tail.split_at_checked(2)?;
            let [high, low] = [digits[0], digits[1]].map(|digit| char::from(digit).to_digit(16));
            bytes.push((high? * 16 + low?) as u8);
            rest = tail;
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests;
