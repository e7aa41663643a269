//! Whom a store knows us as, and where it is: the environment, and the file that other programs read as well.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lunway_block::small_file;
use zeroize::Zeroizing;

use crate::address::{is_endpoint, is_region, without_slash};
use crate::error::StoreError;

/// Most bytes of a credentials file: hundreds of profiles.
const FILE_MAX: u64 = 256 << 10;

/// Access key.
#[derive(Clone)]
pub struct Credentials {
    pub(crate) id: String,
    pub(crate) secret: Zeroizing<String>,
    pub(crate) token: Option<Zeroizing<String>>,
}

impl Credentials {
    /// An access key's id and secret; `token`: of a session.
    pub fn new(id: &str, secret: &str, token: Option<&str>) -> Self {
        let secret_of = |text: &str| Zeroizing::new(text.to_owned());
        Self { id: id.to_owned(), secret: secret_of(secret), token: token.map(secret_of) }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// Limits of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Of a connection: names, TCP and TLS.
    pub connect: Duration,
    /// Without a byte, in either direction.
    pub stall: Duration,
    /// Of all attempts of one call together, from the first failure on: after it no further one begins.
    pub patience: Duration,
    /// Bytes per second below which a store counts as stalled although it sends some.
    pub slowest: u64,
    /// Before the second attempt; before each further one twice as long, up to `PAUSE_MAX`.
    pub pause: Duration,
}

/// Longest pause between two attempts.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(8);

impl Default for Timing {
    /// A connection takes two round trips: 10 s are those of a path that loses packets. A store that checks what it was
    /// sent answers within seconds: 30 s as the leases of backups. A gateway that is restarted is back in a minute. A
    /// pack of 32 MiB at 64 KiB/s takes eight minutes, which is no way for backups.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            patience: Duration::from_secs(60),
            slowest: 64 << 10,
            pause: Duration::from_millis(250),
        }
    }
}

/// What a store is opened with beside its address.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Access key.
    pub credentials: Credentials,
    /// `https://HOST[:PORT]`, where the address names none.
    pub endpoint: Option<String>,
    /// Region, where the address names none.
    pub region: Option<String>,
    /// PEM file with the certificates that are trusted, where the address names none.
    pub ca_file: Option<PathBuf>,
    /// Limits of time.
    pub timing: Timing,
}

impl Settings {
    /// As other programs read them: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, otherwise the
    /// profile `AWS_PROFILE` (`default`) of the file `AWS_SHARED_CREDENTIALS_FILE` (`~/.aws/credentials`);
    /// `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, `AWS_REGION` or `AWS_DEFAULT_REGION`, `AWS_CA_BUNDLE`. A profile
    /// may have `endpoint_url` and `region` as well.
    ///
    /// # Errors
    ///
    /// Where there are no credentials, or the file cannot be read.
    pub fn of_environment() -> Result<Self, StoreError> {
        Self::of(&|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn of(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, StoreError> {
        let id = variable("AWS_ACCESS_KEY_ID");
        let secret = variable("AWS_SECRET_ACCESS_KEY").map(Zeroizing::new);
        let (credentials, profile) = match (id, secret) {
            (Some(id), Some(secret)) => {
                let token = variable("AWS_SESSION_TOKEN").map(Zeroizing::new);
                (Credentials { id, secret, token }, Profile::default())
            }
            _ => {
                let mut profile = Profile::read(variable)?;
                let missing = || StoreError::Credentials(NO_KEY.to_owned());
                let id = profile.id.take().ok_or_else(missing)?;
                let secret = profile.secret.take().ok_or_else(missing)?;
                (Credentials { id, secret, token: profile.token.take() }, profile)
            }
        };
        let endpoint = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.or(profile.endpoint).map(|url| match is_endpoint(&url) {
            true => Ok(without_slash(&url)),
            false => Err(StoreError::Endpoint),
        });
        let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION")).or(profile.region);
        let region = region.map(|name| match is_region(&name) {
            true => Ok(name),
            false => Err(StoreError::Region(name)),
        });
        Ok(Self {
            credentials,
            endpoint: endpoint.transpose()?,
            region: region.transpose()?,
            ca_file: variable("AWS_CA_BUNDLE").map(PathBuf::from),
            timing: Timing::default(),
        })
    }
}

const NO_KEY: &str = "no credentials for the object store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write \
                      aws_access_key_id and aws_secret_access_key into ~/.aws/credentials or the file that \
                      AWS_SHARED_CREDENTIALS_FILE names";

/// A profile of a credentials file.
#[derive(Default)]
struct Profile {
    id: Option<String>,
    secret: Option<Zeroizing<String>>,
    token: Option<Zeroizing<String>>,
    endpoint: Option<String>,
    region: Option<String>,
}

impl Profile {
    fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, StoreError> {
        let usual = || variable("HOME").map(|home| Path::new(&home).join(".aws/credentials"));
        let Some(file) = variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from).or_else(usual) else {
            return Err(StoreError::Credentials(NO_KEY.to_owned()));
        };
        let shown = file.display();
        let text = match small_file::read_text(&file, FILE_MAX) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(StoreError::Credentials(format!("{NO_KEY}; {shown} is not there")));
            }
            Err(error) => {
                return Err(StoreError::Credentials(format!(
                    "cannot read the credentials file {shown}: {error}"
                )));
            }
        };
        let name = variable("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
        Self::find(&text, &name).ok_or_else(|| {
            StoreError::Credentials(format!("the credentials file {shown} has no profile [{name}]"))
        })
    }

    /// The section of that name: lines `key = value`, comments behind `#` or `;` at a line's beginning.
    fn find(text: &str, name: &str) -> Option<Self> {
        let mut found: Option<Self> = None;
        let mut is_inside = false;
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                is_inside = section.trim() == name;
                if is_inside {
                    found.get_or_insert_default();
                }
            } else if let (true, Some(profile), Some((key, value))) =
                (is_inside, found.as_mut(), line.split_once('='))
            {
                let value = value.trim();
                match key.trim() {
                    "aws_access_key_id" => profile.id = Some(value.to_owned()),
                    "aws_secret_access_key" => profile.secret = Some(Zeroizing::new(value.to_owned())),
                    "aws_session_token" => profile.token = Some(Zeroizing::new(value.to_owned())),
                    "endpoint_url" => profile.endpoint = Some(value.to_owned()),
                    "region" => profile.region = Some(value.to_owned()),
                    _ => {}
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Settings, StoreError> {
        let variables: HashMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Settings::of(&|name| variables.get(name).cloned())
    }

    #[test]
    fn the_environment_comes_before_the_file_and_the_file_has_profiles() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("credentials");
        let text = "# mine\n[default]\naws_access_key_id = first\naws_secret_access_key=s1\n; other\n[other]\n\
                    aws_access_key_id = second\naws_secret_access_key = a=b\naws_session_token = t\nregion = eu-9\n\
                    endpoint_url = https://host:1/\n[empty]\n";
        std::fs::write(&file, text).unwrap();
        let file = ("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap());
        assert_eq!(of(&[file]).unwrap().credentials.id, "first");
        let other = of(&[file, ("AWS_PROFILE", "other")]).unwrap();
        assert_eq!((other.credentials.id.as_str(), other.credentials.secret.as_str()), ("second", "a=b"));
        assert_eq!(other.credentials.token.as_ref().map(|token| token.as_str()), Some("t"));
        assert_eq!(
            (other.region.as_deref(), other.endpoint.as_deref()),
            (Some("eu-9"), Some("https://host:1"))
        );
        let keys = [("AWS_ACCESS_KEY_ID", "own"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_REGION", "x")];
        let own = of(&[&[file], &keys[..]].concat()).unwrap();
        assert_eq!((own.credentials.id.as_str(), own.region.as_deref()), ("own", Some("x")));
        let said = |variables: &[(&str, &str)]| of(variables).unwrap_err().to_string();
        assert!(said(&[]).contains("AWS_ACCESS_KEY_ID"));
        assert!(said(&[file, ("AWS_PROFILE", "none")]).contains("no profile [none]"));
        assert!(said(&[file, ("AWS_PROFILE", "empty")]).contains("aws_secret_access_key"));
        assert!(said(&[("AWS_SHARED_CREDENTIALS_FILE", "/none/there")]).contains("/none/there is not there"));
        assert!(said(&[file, ("AWS_ENDPOINT_URL", "https://key:hidden@host")]).contains("AWS_ENDPOINT_URL"));
        assert!(!said(&[file, ("AWS_ENDPOINT_URL", "https://key:hidden@host")]).contains("hidden"));
    }

    #[test]
    fn no_secret_is_shown() {
        let shown = format!("{:?}", Credentials::new("id", "hidden", Some("hidden")));
        assert!(!shown.contains("hidden"), "{shown}");
    }
}
