//! `paths.toml`: a disk over several paths, in a file.

use std::io;
use std::path::{Path, PathBuf};

use lunway_block::small_file;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::address::{self, Address, AddressError, MultipathUrl};

/// Largest file that is read, bytes.
const FILE_MAX: u64 = 64 << 10;

/// A disk over several paths. It becomes an address, and its keys have the names that the address has.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PathsFile {
    /// The target's name.
    target: String,
    /// The number of the logical unit.
    lun: u16,
    /// Portals, `HOST[:PORT][,TARGET]`. One is enough: the target is asked for the others. With a target's name where
    /// the storage has another one there.
    portal: Vec<String>,
    /// Local addresses that lanes leave from. Without it: every address that reaches a portal.
    #[serde(default)]
    from: Vec<String>,
    /// The lanes of an explicit plan, `IP>HOST[:PORT][,TARGET][,weight=N][,reserve]`.
    #[serde(default)]
    lane: Vec<String>,
    /// Kind of plan, by which lanes are made of ports and portals: `paired`, `balanced`, `mesh`, `redundant`,
    /// `explicit`. Without it: `paired` where every subnet has as many local ports as portals, otherwise `balanced`.
    plan: Option<String>,
    /// Policy that selects the lane of the next I/O: `adaptive`, `failover`, `round-robin`, `round-robin-subset`,
    /// `least-queue-depth`, `weighted`, `least-blocks`, `service-time`.
    #[schemars(extend("default" = "adaptive"))]
    policy: Option<String>,
    /// Time at which a lane that came back is used again (failback): `immediate`, `manual`, or after a time such as
    /// `30s`.
    failback: Option<String>,
    /// Queueing of I/O while no lane is left: it waits for at most this time, and at most this many bytes of it
    /// (`TIME[:SIZE]`, or `forever[:SIZE]`), or it fails at once (`fail`).
    #[schemars(extend("default" = "30s:256M"))]
    queue: Option<String>,
    /// Another form of `queue`: `fail`, or `queue[:TIME[:SIZE]]`.
    when_none: Option<String>,
    /// Time to wait for proof that a lost session is dead, at most `1h`.
    #[schemars(extend("default" = "10s"))]
    settle: Option<String>,
    /// Treatment of a write in a lost session that nothing has proved dead within `settle`: `resend` writes it again
    /// behind a barrier, `fail` reports an error.
    #[schemars(extend("default" = "resend"))]
    unproven: Option<String>,
    /// Maximum number of bytes of acknowledged writes that are kept until they are flushed, so that they can be written
    /// again after the storage has lost its cache. With `key`: none unless set here.
    #[schemars(extend("default" = "64M"))]
    keep_unflushed: Option<String>,
    /// A persistent reservation key, `0x…`, which is registered on every lane before that lane is used.
    key: Option<String>,
    /// Time at which `key` is registered: `first` (when the disk is opened), `again` (also after a restart of the
    /// target that lost it), `present` (only where it is registered already).
    #[schemars(extend("default" = "first"))]
    register: Option<String>,
    /// Weights of the lanes, in the order of the plan.
    #[serde(default)]
    weight: Vec<u32>,
    /// The CHAP user that logs in.
    user: Option<String>,
    /// The file whose only line is the user's secret. Without it: `LUNWAY_CHAP_SECRET` of the environment.
    secret_file: Option<PathBuf>,
    /// The CHAP user that the target must prove to be.
    target_user: Option<String>,
    /// The file whose only line is the target's secret.
    target_secret_file: Option<PathBuf>,
    /// The digest over headers: `none`, or `crc32c`.
    header_digest: Option<String>,
    /// The digest over data: `none`, or `crc32c`.
    data_digest: Option<String>,
    /// The initiator name to log in with.
    initiator: Option<String>,
    /// Time limit for one command, after which it is aborted.
    #[schemars(extend("default" = "30s"))]
    command_timeout: Option<String>,
}

/// The JSON schema of a `paths.toml`: its keys with what they mean.
pub fn paths_file_schema() -> serde_json::Value {
    schemars::schema_for!(PathsFile).to_value()
}

/// Reason why a file does not describe a disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathsFileError {
    /// Could not be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// Too long to be meant.
    #[error("{} has more than {} KiB: that is not a paths.toml", .path.display(), FILE_MAX >> 10)]
    TooLong {
        /// Path of the file.
        path: PathBuf,
    },
    /// Not TOML, or has keys that are not known.
    #[error("{}: {why}", .path.display())]
    Toml {
        /// Path of the file.
        path: PathBuf,
        /// Place and kind of the error.
        why: String,
    },
    /// Says something that cannot be meant.
    #[error("{}: {source}", .path.display())]
    Address {
        /// Path of the file.
        path: PathBuf,
        /// Error in the address.
        source: AddressError,
    },
    /// No portal to begin with.
    #[error("{}: `portal` is empty; one is enough, the target is asked for the others", .path.display())]
    NoPortal {
        /// Path of the file.
        path: PathBuf,
    },
    /// A user's name that no address has room for.
    #[error("{}: the user's name must not have any of % @ / ? in it", .path.display())]
    User {
        /// Path of the file.
        path: PathBuf,
    },
}

impl MultipathUrl {
    /// Reads a `paths.toml`, the secret files it names, and the environment. Secret files are looked for beside it.
    pub fn from_file(path: &Path) -> Result<Self, PathsFileError> {
        let text = small_file::read_text(path, FILE_MAX).map_err(|source| match source.kind() {
            io::ErrorKind::FileTooLarge => PathsFileError::TooLong { path: path.to_owned() },
            _ => PathsFileError::Read { path: path.to_owned(), source },
        })?;
        let file: PathsFile = toml::from_str(&text)
            .map_err(|error| PathsFileError::Toml { path: path.to_owned(), why: said(&error, &text) })?;
        let text = file.address(path)?;
        let address = Address::parse(&text);
        match address.map_err(|source| PathsFileError::Address { path: path.to_owned(), source })? {
            Address::One(url) => Ok(Self::of_one(url)),
            // All that the file names are portals that the user named; the address has the first as its host.
            Address::Several(url) => Ok(url),
        }
    }
}

/// A TOML error on one line: where, and what.
fn said(error: &toml::de::Error, text: &str) -> String {
    let what = error.message().replace('\n', " ");
    match error.span() {
        Some(span) => {
            let line = text.get(..span.start).map_or(1, |before| before.matches('\n').count() + 1);
            format!("line {line}: {what}")
        }
        None => what,
    }
}

impl PathsFile {
    /// As an address.
    fn address(&self, path: &Path) -> Result<String, PathsFileError> {
        let escaped = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let beside = |file: &Path| {
            let file = path.parent().map_or_else(|| file.to_owned(), |folder| folder.join(file));
            file.to_string_lossy().into_owned()
        };
        let Some((first, more)) = self.portal.split_first() else {
            return Err(PathsFileError::NoPortal { path: path.to_owned() });
        };
        let user = match &self.user {
            Some(user) if user.contains(['%', '@', '/', '?']) => {
                return Err(PathsFileError::User { path: path.to_owned() });
            }
            Some(user) => format!("{user}@"),
            None => String::new(),
        };
        // A portal is checked here, as what is wrong in it must not become another part of the address.
        let first = address::portal("portal", first)
            .map_err(|source| PathsFileError::Address { path: path.to_owned(), source })?;
        let mut query = Vec::new();
        let mut add = |key: &str, value: &str| query.push(format!("{key}={}", escaped(value)));
        for portal in more {
            // The address has the first portal's name, where it has one; the others have the file's.
            match &first.target {
                Some(_) if !portal.contains(',') => add("portal", &format!("{portal},{}", self.target)),
                _ => add("portal", portal),
            }
        }
        self.from.iter().for_each(|from| add("from", from));
        self.lane.iter().for_each(|lane| add("lane", lane));
        let words = [
            ("plan", &self.plan),
            ("policy", &self.policy),
            ("failback", &self.failback),
            ("queue", &self.queue),
            ("when_none", &self.when_none),
            ("settle", &self.settle),
            ("unproven", &self.unproven),
            ("keep_unflushed", &self.keep_unflushed),
            ("key", &self.key),
            ("register", &self.register),
            ("target_user", &self.target_user),
            ("header_digest", &self.header_digest),
            ("data_digest", &self.data_digest),
            ("initiator", &self.initiator),
            ("command_timeout", &self.command_timeout),
        ];
        for (key, value) in words {
            if let Some(value) = value {
                add(key, value);
            }
        }
        for (key, file) in
            [("secret_file", &self.secret_file), ("target_secret_file", &self.target_secret_file)]
        {
            if let Some(file) = file {
                add(key, &beside(file));
            }
        }
        if !self.weight.is_empty() {
            let weights: Vec<_> = self.weight.iter().map(u32::to_string).collect();
            add("weight", &weights.join(","));
        }
        let target = escaped(first.target.as_ref().unwrap_or(&self.target));
        let host = if first.host.contains(':') { format!("[{}]", first.host) } else { first.host };
        Ok(format!("iscsi://{user}{host}:{}/{target}/{}?{}", first.port, self.lun, query.join("&")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunway_multipath::plan::PlanKind;

    fn read(text: &str) -> Result<MultipathUrl, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), "hunter2hunter2\n").unwrap();
        let path = folder.path().join("paths.toml");
        std::fs::write(&path, text).unwrap();
        MultipathUrl::from_file(&path).map_err(|error| {
            let said = error.to_string();
            assert!(said.contains("paths.toml") && !said.contains("hunter2"), "{said}");
            said
        })
    }

    const LEAST: &str = "target = \"iqn.2026-11.com.example:disk\"\nlun = 3\nportal = [\"192.0.2.10\"]\n";

    #[test]
    fn a_file_says_what_an_address_says() {
        let url = read(
            "target = \"iqn.2026-11.com.example:disk\"\nlun = 3\nportal = [\"192.0.2.10\", \"[2001:db8::1]:99\"]\n\
             from = [\"192.0.2.20\"]\nplan = \"redundant\"\nweight = [1, 2]\nuser = \"joe\"\nsecret_file = \"secret\"\n\
             key = \"0x7\"\nqueue = \"forever\"\ncommand_timeout = \"9s\"\nsettle = \"5s\"\nkeep_unflushed = \"8M\"\nunproven = \"fail\"\ndata_digest = \"crc32c\"\n",
        )
        .unwrap();
        assert_eq!(url.to_string(), "iscsi://joe@192.0.2.10:3260/iqn.2026-11.com.example:disk/3");
        assert_eq!((url.portals[0].host.as_str(), url.portals[0].port), ("2001:db8::1", 99));
        assert_eq!((url.plan, url.key, url.weights), (Some(PlanKind::Redundant), Some(7), vec![1, 2]));
        assert_eq!(url.settle, Some(std::time::Duration::from_secs(5)));
        assert_eq!(url.base.command_timeout, Some(std::time::Duration::from_secs(9)));
        let time = lunway_multipath::QUEUE_FOREVER;
        assert_eq!(
            url.when_none,
            Some(lunway_multipath::WhenNone::Queue { time, bytes: lunway_multipath::QUEUE_BYTES })
        );
        assert_eq!(url.unproven, Some(lunway_multipath::Unproven::Fail));
        assert_eq!(url.base.keep_unflushed, Some(8 << 20));
        assert!(url.base.data_digest && url.base.account.is_some());
        assert_eq!(url.from.len(), 1);
    }

    #[test]
    fn a_file_with_one_portal_is_several_paths_too() {
        let url = read(LEAST).unwrap();
        assert_eq!((url.base.port, url.base.lun, url.portals.len()), (3260, Some(3), 0));
        let url = read(&format!("{LEAST}from = [\"192.0.2.20\"]\n")).unwrap();
        assert_eq!(url.from, ["192.0.2.20".parse::<std::net::IpAddr>().unwrap()]);
    }

    #[test]
    fn the_first_portal_of_a_file_may_have_a_name_of_its_own_too() {
        let url =
            read(&LEAST.replace(
                "[\"192.0.2.10\"]",
                "[\"192.0.2.10,iqn.x:a\", \"192.0.2.11\", \"192.0.2.12,iqn.x:a\"]",
            ))
            .unwrap();
        assert_eq!(url.to_string(), "iscsi://192.0.2.10:3260/iqn.x:a/3");
        let names: Vec<_> = url.portals.iter().map(|portal| url.own_name(portal)).collect();
        assert_eq!(names, [Some("iqn.2026-11.com.example:disk".to_owned()), None]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let with = |line: &str| read(&format!("{LEAST}{line}\n")).unwrap_err();
        assert!(with("colour = \"red\"").contains("colour"));
        assert!(with("\n\ncolour = 1").contains("line 6"), "{}", with("\n\ncolour = 1"));
        assert!(with("settle = \"2h\"").contains("settle cannot be `2h`"));
        assert!(with("plan = \"best\"").contains("`best` is not a plan"));
        assert!(with("target_password = \"hunter2\"").contains("target_password"));
        assert!(with("user = \"a@b\"").contains("user's name"));
        assert!(with("user = \"joe\"\nsecret_file = \"none\"").contains("secret file"));
        assert!(read("lun = 0").unwrap_err().contains("target"));
        assert!(read(&LEAST.replace("\"192.0.2.10\"", "")).unwrap_err().contains("`portal` is empty"));
        assert!(read(&LEAST.replace("192.0.2.10", "a/b?c")).is_err());
        assert!(read(&" ".repeat(100_000)).unwrap_err().contains("64 KiB"));
    }
}
