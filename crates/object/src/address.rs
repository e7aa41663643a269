//! Addresses of folders in buckets.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const SCHEME: &str = "s3://";
/// Most bytes of a key, with which a file's name must fit (AWS, "Creating object key names").
const PATH_MAX: usize = 900;

/// Returns `true` if a text is meant as an address of an object store.
pub fn is_address(text: &str) -> bool {
    text.starts_with(SCHEME)
}

/// Place of the bucket's name in a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// `https://HOST/BUCKET/KEY`
    Path,
    /// `https://BUCKET.HOST/KEY`
    Virtual,
}

/// A folder in a bucket: `s3://BUCKET[/PATH][?OPTION=VALUE&…]`.
///
/// | option | is |
/// |---|---|
/// | `endpoint` | `https://HOST[:PORT]`; otherwise `AWS_ENDPOINT_URL`, otherwise AWS |
/// | `region` | the region that signatures name; otherwise `AWS_REGION`, otherwise `us-east-1` |
/// | `style` | `path` or `virtual`: where the bucket's name stands in URLs |
/// | `ca-file` | PEM file with the certificates that are trusted, in the place of the system's |
/// | `plain-http` | `yes`: an endpoint without TLS that is not on this machine is accepted |
///
/// Secrets have no place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    bucket: String,
    path: String,
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) style: Option<Style>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) is_plain_http_accepted: bool,
}

/// Reason why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No bucket, or a name that no bucket has.
    #[error(
        "`{0}` has no name of a bucket: write s3://BUCKET/PATH, a name of 3 to 63 of a-z, 0-9, `.` and `-`"
    )]
    Bucket(String),
    /// A path that leads elsewhere, or is too long.
    #[error("`{0}` has a path with an empty part, `.` or `..`, or of more than {PATH_MAX} bytes")]
    Path(String),
    /// An option that there is not, or a value that it cannot have.
    #[error(
        "`{0}` is no option of an address: endpoint=https://HOST[:PORT], region=NAME, style=path|virtual, ca-file=FILE \
         and plain-http=yes are, each behind `?` or `&`"
    )]
    Option(String),
}

impl Address {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| AddressError::Bucket(text.to_owned()))?;
        let (name, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, path) = name.split_once('/').unwrap_or((name, ""));
        if !is_bucket(bucket) {
            return Err(AddressError::Bucket(text.to_owned()));
        }
        let path = path.trim_end_matches('/');
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(char::is_control);
        if path.len() > PATH_MAX || (!path.is_empty() && !path.split('/').all(is_part)) {
            return Err(AddressError::Path(text.to_owned()));
        }
        let mut address = Self {
            bucket: bucket.to_owned(),
            path: path.to_owned(),
            endpoint: None,
            region: None,
            style: None,
            ca_file: None,
            is_plain_http_accepted: false,
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let wrong = || AddressError::Option(option.split('=').next().unwrap_or_default().to_owned());
            match option.split_once('=').ok_or_else(wrong)? {
                ("endpoint", url) if is_endpoint(url) => address.endpoint = Some(without_slash(url)),
                ("region", name) if is_region(name) => address.region = Some(name.to_owned()),
                ("style", "path") => address.style = Some(Style::Path),
                ("style", "virtual") => address.style = Some(Style::Virtual),
                ("ca-file", file) if !file.is_empty() => address.ca_file = Some(file.into()),
                ("plain-http", "yes") => address.is_plain_http_accepted = true,
                _ => return Err(wrong()),
            }
        }
        Ok(address)
    }

    /// The bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The path in it, without slashes at its ends; empty: the whole bucket.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The folder that this one lies in, and its name there; `None`: it is the bucket.
    pub fn parent(&self) -> Option<(Self, &str)> {
        let (path, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        (!name.is_empty()).then(|| (Self { path: path.to_owned(), ..self.clone() }, name))
    }

    /// A folder in this one.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}/{name}", self.path) };
        Self { path, ..self.clone() }
    }

    /// What all keys of files in it begin with.
    pub fn prefix(&self) -> String {
        if self.path.is_empty() { String::new() } else { format!("{}/", self.path) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.bucket)?;
        if !self.path.is_empty() {
            write!(f, "/{}", self.path)?;
        }
        let style = self.style.map(|style| if style == Style::Path { "path" } else { "virtual" });
        let options = [
            self.endpoint.as_ref().map(|url| format!("endpoint={url}")),
            self.region.as_ref().map(|name| format!("region={name}")),
            style.map(|style| format!("style={style}")),
            self.ca_file.as_ref().map(|file| format!("ca-file={}", file.display())),
            self.is_plain_http_accepted.then(|| "plain-http=yes".to_owned()),
        ];
        for (number, option) in options.into_iter().flatten().enumerate() {
            write!(f, "{}{option}", if number == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

/// The names of AWS's general purpose buckets, which other stores accept as well.
fn is_bucket(name: &str) -> bool {
    let is_inner =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    (3..=63).contains(&name.len())
        && name.bytes().all(is_inner)
        && !name.starts_with(['.', '-'])
        && !name.ends_with(['.', '-'])
        && !name.contains("..")
}

/// A host, with a port or without. A user or a password in it would be a secret on a command line.
pub(crate) fn is_endpoint(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let host = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    host.is_some_and(|host| {
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
        !host.is_empty() && host.bytes().all(is_host)
    })
}

pub(crate) fn without_slash(url: &str) -> String {
    url.strip_suffix('/').unwrap_or(url).to_owned()
}

/// It stands in signatures, whose parts are divided by slashes.
pub(crate) fn is_region(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=64).contains(&name.len()) && name.bytes().all(is_inner)
}

/// All but the unreserved characters of RFC 3986, as signatures want it.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const ESCAPED_PATH: &AsciiSet = &ESCAPED.remove(b'/');

/// A value in a query.
pub(crate) fn escaped(value: &str) -> String {
    utf8_percent_encode(value, ESCAPED).to_string()
}

/// A key in a path.
pub(crate) fn escaped_path(key: &str) -> String {
    utf8_percent_encode(key, ESCAPED_PATH).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written_and_nothing_else_is_one() {
        for text in [
            "s3://bucket",
            "s3://my-bucket.7/a/b c",
            "s3://bucket/p?endpoint=https://host:9000&region=eu-1&style=virtual&ca-file=/etc/ca.pem&plain-http=yes",
            "s3://bucket/p?endpoint=http://[::1]:9000",
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Address::parse("s3://bucket/p/").unwrap().to_string(), "s3://bucket/p");
        let with_slash = Address::parse("s3://bucket?endpoint=https://host/").unwrap();
        assert_eq!(with_slash.endpoint.as_deref(), Some("https://host"));
        for text in [
            "s3:/bucket",
            "s3://",
            "s3://Bucket",
            "s3://b",
            "s3:///path",
            "s3://bucket//a",
            "s3://bucket/../a",
            "s3://bucket/a\nb",
            "s3://bucket?endpoint=host",
            "s3://bucket?endpoint=https://key:secret@host",
            "s3://bucket?endpoint=https://host/path",
            "s3://bucket?region=a/b",
            "s3://bucket?style=other",
            "s3://bucket?plain-http",
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        let said = Address::parse("s3://bucket?secret=abc").unwrap_err().to_string();
        assert!(said.contains("`secret`") && !said.contains("abc"), "{said}");
    }

    #[test]
    fn folders_lie_in_folders_up_to_the_bucket() {
        let series = Address::parse("s3://bucket/backups/repo/db?region=eu-1").unwrap();
        let (repository, name) = series.parent().unwrap();
        assert_eq!((repository.to_string().as_str(), name), ("s3://bucket/backups/repo?region=eu-1", "db"));
        assert_eq!(repository.child("db"), series);
        assert_eq!(series.prefix(), "backups/repo/db/");
        let bucket = Address::parse("s3://bucket").unwrap();
        assert_eq!((bucket.parent(), bucket.prefix()), (None, String::new()));
        assert_eq!(bucket.child("a").parent().unwrap().0, bucket);
    }
}
