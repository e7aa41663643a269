//! `iscsi://` addresses as opaque text with a secret in it.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const SCHEME: &str = "iscsi://";

/// The keys of files that hold secrets.
const SECRET_FILES: [&str; 2] = ["secret_file", "target_secret_file"];
/// The key of the target's secret for mutual CHAP.
const PASSWORD: &str = "target_password=";

/// An `iscsi://[user[%secret]@]host[:port]/iqn/lun[?…]` address as text, not parsed here.
///
/// `Display` and `Debug` print `***` for the secret, so that an address can go into errors, logs and reports;
/// [`expose_secret`](Self::expose_secret) is the only way to it.
#[derive(Clone, PartialEq, Eq)]
pub struct IscsiUrlText(String);

impl IscsiUrlText {
    /// Takes a text that begins with `iscsi://` and goes on; `None` for any other.
    pub fn new(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(SCHEME)?;
        (!rest.is_empty()).then(|| Self(text.to_owned()))
    }

    /// The whole address. The result must not be printed or logged.
    pub fn expose_secret(&self) -> &str {
        &self.0
    }

    /// The same address with relative files of secrets found from `folder`.
    #[must_use]
    pub fn in_folder(&self, folder: &Path) -> Self {
        // A secret may hold a question mark: the keys are behind the last one.
        let Some((address, query)) = self.0.rsplit_once('?') else { return self.clone() };
        let found = |pair: &str| match pair.split_once('=') {
            Some((key, file)) if SECRET_FILES.contains(&key) && is_relative(file) => {
                format!("{key}={}/{file}", escaped(folder))
            }
            _ => pair.to_owned(),
        };
        let query: Vec<_> = query.split('&').map(found).collect();
        Self(format!("{address}?{}", query.join("&")))
    }

    /// Portal, target and LUN as they stand in the address; `None`: it does not have all three.
    pub fn parts(&self) -> Option<(&str, &str, &str)> {
        let rest = match self.secret() {
            Some(secret) => self.0.get(secret.end + 1..)?,
            None => &self.0[SCHEME.len()..],
        };
        let mut parts = rest.split(['/', '?']);
        let authority = parts.next()?;
        let portal = authority.rsplit_once('@').map_or(authority, |(_, portal)| portal);
        Some((portal, parts.next()?, parts.next()?))
    }

    /// Byte range of the secret. Errs on the side of hiding too much: a secret may hold `/`, `?` and `@`.
    fn secret(&self) -> Option<std::ops::Range<usize>> {
        let rest = &self.0[SCHEME.len()..];
        let percent = rest.find('%')?;
        let end = match rest.rfind('@') {
            Some(at) if at > percent => at,
            // No `@` behind it: an IPv6 zone (`[fe80::1%eth0]`) or an escape in the path is no secret, but
            // the start of a mistyped address (`user%secret/iqn…`) is.
            _ => {
                let authority_end = rest.find('/').unwrap_or(rest.len());
                let in_brackets = rest[..percent].rfind('[') > rest[..percent].rfind(']');
                if percent > authority_end || in_brackets {
                    return None;
                }
                authority_end
            }
        };
        Some(SCHEME.len() + percent + 1..SCHEME.len() + end)
    }
}

/// Returns `true` if a query names a file by a relative path. A slash may be escaped.
fn is_relative(file: &str) -> bool {
    let begins =
        |prefix: &str| file.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix));
    !file.is_empty() && !begins("/") && !begins("%2f")
}

/// A folder as it stands in a query: what would end a value, or is no plain character, is escaped.
fn escaped(folder: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let escaped = folder.as_os_str().as_bytes().iter().map(|&byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    escaped.collect::<String>().trim_end_matches('/').to_owned()
}

impl fmt::Display for IscsiUrlText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, mut rest) = match self.secret() {
            None => ("", &self.0[..]),
            Some(secret) => (&self.0[..secret.start], &self.0[secret.end..]),
        };
        if !head.is_empty() {
            write!(f, "{head}***")?;
        }
        while let Some(at) = rest.find(PASSWORD) {
            let (before, password) = rest.split_at(at + PASSWORD.len());
            write!(f, "{before}***")?;
            rest = &password[password.find('&').unwrap_or(password.len())..];
        }
        f.write_str(rest)
    }
}

impl fmt::Debug for IscsiUrlText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IscsiUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_is_hidden() {
        for (text, printed) in [
            ("iscsi://h/iqn.a:b/0", "iscsi://h/iqn.a:b/0"),
            ("iscsi://user@h:3261/iqn.a:b/0", "iscsi://user@h:3261/iqn.a:b/0"),
            ("iscsi://user%s3cret@h/iqn.a:b/0?x=1", "iscsi://user%***@h/iqn.a:b/0?x=1"),
            ("iscsi://user%s/e?c@r%et@h/iqn.a:b/0", "iscsi://user%***@h/iqn.a:b/0"),
            ("iscsi://[fe80::1%eth0]:3260/iqn.a:b/0", "iscsi://[fe80::1%eth0]:3260/iqn.a:b/0"),
            ("iscsi://user@[fe80::1%eth0]/iqn.a:b/0", "iscsi://user@[fe80::1%eth0]/iqn.a:b/0"),
            ("iscsi://h/iqn.a:b%20c/0", "iscsi://h/iqn.a:b%20c/0"),
            ("iscsi://user%s3cret/iqn.a:b/0", "iscsi://user%***/iqn.a:b/0"),
            ("iscsi://user%s3cret", "iscsi://user%***"),
            (
                "iscsi://user@h/iqn.a:b/0?target_user=t&target_password=s3cret&from=::1",
                "iscsi://user@h/iqn.a:b/0?target_user=t&target_password=***&from=::1",
            ),
            (
                "iscsi://u%s3cret@h/iqn.a:b/0?target_password=s4&target_password=s5",
                "iscsi://u%***@h/iqn.a:b/0?target_password=***&target_password=***",
            ),
        ] {
            let url = IscsiUrlText::new(text).unwrap();
            assert_eq!(url.to_string(), printed);
            assert_eq!(url.expose_secret(), text);
        }
    }

    #[test]
    fn other_texts_are_no_address() {
        for text in ["", "iscsi:", "iscsi://", "iscsi:/h", "ISCSI://h", "h/iqn"] {
            assert_eq!(IscsiUrlText::new(text), None, "{text}");
        }
    }
}
