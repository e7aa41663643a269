//! `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`: an export of an NBD server.

use std::ffi::OsString;
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::SpecError;

/// Longest name of an export, which is the limit of NBD's specification, bytes.
const EXPORT_MAX: usize = 4096;

/// Address of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdEndpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp {
        /// Name or address; of an IPv6 address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

/// An export of an NBD server: a URI as the NBD project specifies it (`doc/uri.md`), without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    /// The server.
    pub endpoint: NbdEndpoint,
    /// Name of the export; empty: the server's default.
    pub export: String,
}

impl NbdUri {
    /// The port that is registered for the protocol.
    pub const PORT: u16 = 10809;

    /// The default export on a Unix socket.
    pub fn on_socket(path: impl Into<PathBuf>) -> Self {
        Self { endpoint: NbdEndpoint::Unix(path.into()), export: String::new() }
    }

    /// Reads the whole URI.
    pub(super) fn parse(text: &str) -> Result<Self, SpecError> {
        let wrong = || SpecError::NbdForm;
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = String::from_utf8(unescape(export).ok_or_else(wrong)?).map_err(|_| wrong())?;
        if export.len() > EXPORT_MAX || export.contains('\0') {
            return Err(wrong());
        }
        let endpoint = match (scheme, query.strip_prefix("socket=")) {
            ("nbd+unix", Some(socket)) if authority.is_empty() && !socket.contains('&') => {
                let socket = unescape(socket).filter(|path| !path.is_empty() && !path.contains(&0));
                NbdEndpoint::Unix(OsString::from_vec(socket.ok_or_else(wrong)?).into())
            }
            ("nbd", None) if query.is_empty() => {
                let (host, port) = host_and_port(authority).ok_or_else(wrong)?;
                NbdEndpoint::Tcp { host: host.to_owned(), port }
            }
            _ => return Err(wrong()),
        };
        Ok(Self { endpoint, export })
    }

    /// The same with its socket found from `folder`, where it is relative.
    pub(super) fn in_folder(&mut self, folder: &Path) {
        if let NbdEndpoint::Unix(path) = &mut self.endpoint {
            *path = folder.join(&*path);
        }
    }
}

fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']')?;
            (host, if behind.is_empty() { None } else { Some(behind.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Some(NbdUri::PORT), |port| port.parse().ok().filter(|port| *port != 0))?;
    // A user name, or an address without brackets.
    let is_name = !host.is_empty() && !host.contains(['@', '[', ']', '%']);
    is_name.then_some((host, port))
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/')
}

/// Percent-encodes bytes that may not stand in a URI.
fn escape(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for &byte in bytes {
        match is_plain(byte) {
            true => f.write_char(byte.into())?,
            false => write!(f, "%{byte:02X}")?,
        }
    }
    Ok(())
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte == b'%' {
            let digit = |at: usize| char::from(*rest.get(at)?).to_digit(16);
            bytes.push((digit(0)? << 4 | digit(1)?) as u8);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    Some(bytes)
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.endpoint {
            NbdEndpoint::Tcp { host, port } => {
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "nbd://{open}{host}{close}:{port}/")?;
                escape(f, self.export.as_bytes())
            }
            NbdEndpoint::Unix(socket) => {
                f.write_str("nbd+unix:///")?;
                escape(f, self.export.as_bytes())?;
                f.write_str("?socket=")?;
                escape(f, socket.as_os_str().as_encoded_bytes())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_of_other_programs_are_read_and_written_in_one_form() {
        for (text, written) in [
            ("nbd://host", "nbd://host:10809/"),
            ("nbd://host:7/a%20b", "nbd://host:7/a%20b"),
            ("nbd://[::1]/disk", "nbd://[::1]:10809/disk"),
            ("nbd+unix:///?socket=/run/a b.sock", "nbd+unix:///?socket=/run/a%20b.sock"),
            ("nbd+unix:///%C3%BC?socket=rel.sock", "nbd+unix:///%C3%BC?socket=rel.sock"),
        ] {
            let uri = NbdUri::parse(text).unwrap();
            assert_eq!(uri.to_string(), written);
            assert_eq!(NbdUri::parse(written).unwrap(), uri, "{written}");
        }
    }

    #[test]
    fn a_uri_that_means_something_else_is_refused() {
        for text in [
            "nbd:host:10809",
            "nbd:///disk",
            "nbd://user@host/disk",
            "nbd://host:0/",
            "nbd://host:99999/",
            "nbd://::1/disk",
            "nbd://[::1/disk",
            "nbd://host/%zz",
            "nbd://host/%f",
            "nbd://host/%ff",
            "nbd://host/%00",
            "nbd://host/disk?tls-type=x509",
            "nbd+unix:///disk",
            "nbd+unix:///disk?socket=",
            "nbd+unix:///disk?socket=%00",
            "nbd+unix:///disk?socket=a&tls-type=x509",
            "nbd+unix://host/disk?socket=/run/x",
        ] {
            assert_eq!(NbdUri::parse(text), Err(SpecError::NbdForm), "{text}");
        }
        assert!(NbdUri::parse(&format!("nbd://host/{}", "a".repeat(4097))).is_err());
    }

    #[test]
    fn a_relative_socket_is_found_from_its_folder() {
        let mut uri = NbdUri::on_socket("a.sock");
        uri.in_folder(Path::new("/etc/lunway"));
        assert_eq!(uri, NbdUri::on_socket("/etc/lunway/a.sock"));
    }
}
