//! Backups that are made by the clock.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lunway_schedule::{TimeOfDay, Weekday, When};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target::{is_no, is_yes, yes};
use super::text;

/// A logical unit of a target of this daemon, `TARGET/LUN`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BackupSource {
    /// The target's name.
    pub target: String,
    /// The logical unit number.
    pub lun: u16,
}

impl FromStr for BackupSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once('/').filter(|(target, _)| !target.is_empty());
        let parsed = parts.and_then(|(target, lun)| {
            Some(Self { target: target.to_ascii_lowercase(), lun: lun.parse().ok()? })
        });
        parsed.ok_or_else(|| {
            format!("`{text}` is no logical unit: write TARGET/LUN, such as iqn.2026-11.com.example:disks/0")
        })
    }
}

impl TryFrom<String> for BackupSource {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<BackupSource> for String {
    fn from(source: BackupSource) -> Self {
        source.to_string()
    }
}

impl fmt::Display for BackupSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.target, self.lun)
    }
}

/// How often a run that failed is made again, by default, and how long after its end: what Veeam's jobs do.
const RETRIES: u32 = 3;
const RETRY_AFTER: Duration = Duration::from_secs(600);

/// A backup that the daemon begins by the clock: `lunway backup run` as a process of its own.
///
/// Its commands are run by `sh` as the daemon's user. So a `[[backup]]` comes from the configuration file alone, and
/// the management interface does not change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupConfig {
    /// Its name, by which `lunway backup schedule` and metrics refer to it: letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// The logical unit of this daemon, `TARGET/LUN`.
    #[schemars(with = "String")]
    pub source: BackupSource,
    /// The folder of the points: it must exist, and each `[[backup]]` needs its own. Or `REPO/NAME`, the series `NAME`
    /// of a repository, which may be an address, `s3://BUCKET/PATH/NAME`.
    pub destination: PathBuf,
    /// For an encrypted repository: the file with a secret key (`lunway backup key new`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// For an object store: the file with the access key, as `~/.aws/credentials`; of its profiles the one that
    /// `AWS_PROFILE` names, otherwise `default`. Without it: what the daemon's environment says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// Times of day, `HH:MM`, in the machine's time zone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<TimeOfDay>,
    /// Days of the week for `at`: `mon`, `tue`, `wed`, `thu`, `fri`, `sat`, `sun`. Without it: each day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Weekday>,
    /// Instead of `at`: the time from the beginning of one run to that of the next, such as `6h`. The first run is at
    /// once.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "text::from_time",
        deserialize_with = "text::to_time"
    )]
    #[schemars(with = "Option<String>")]
    pub every: Option<Duration>,
    /// Each run begins later by up to this time, such as `30m`: always the same part of it for this machine and name,
    /// so that many machines do not begin at once.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "text::from_time",
        deserialize_with = "text::to_time"
    )]
    #[schemars(with = "Option<String>")]
    pub jitter: Option<Duration>,
    /// `true`: a run that was missed while the daemon did not run, or that ended with the daemon, is made after its
    /// start; one for all that were missed. One that has failed is made again after a start in either case, unless the
    /// next due time has passed.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    #[schemars(extend("default" = true))]
    pub catch_up: bool,
    /// How often a run that failed is made again, unless the next one is due before that; one that was asked for
    /// (`lunway backup schedule run`) is not. Without it: `3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// How long after the end of the one that failed. Without it: `10m`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "text::from_time",
        deserialize_with = "text::to_time"
    )]
    #[schemars(with = "Option<String>")]
    pub retry_after: Option<Duration>,
    /// Points that no `keep_…` keeps are removed after each run (`lunway backup prune`). This one keeps so many of the
    /// newest. Without any `keep_…`: nothing is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<usize>,
    /// Keeps the newest point of each of so many hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_hourly: Option<usize>,
    /// Keeps the newest point of each of so many days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_daily: Option<usize>,
    /// Keeps the newest point of each of so many weeks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_weekly: Option<usize>,
    /// Keeps the newest point of each of so many months.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_monthly: Option<usize>,
    /// Keeps the newest point of each of so many years.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_yearly: Option<usize>,
    /// Most data that is sent in a second, such as `100MB/s`. Without it: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// How much may be overwritten while the disk is read, such as `8G`. Without it: `4G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub area: Option<String>,
    /// `true`: what the file systems on the disk prove to be free is left out.
    #[serde(default, skip_serializing_if = "is_no")]
    #[schemars(extend("default" = false))]
    pub skip_free: bool,
    /// Command that freezes the file systems of the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze: Option<String>,
    /// Command that thaws them; always run after `freeze`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thaw: Option<String>,
    /// Maximum time for which they are frozen, such as `30s`, which is the default.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "text::from_time",
        deserialize_with = "text::to_time"
    )]
    #[schemars(with = "Option<String>")]
    pub deadline: Option<Duration>,
    /// `true`: `freeze` also makes applications write their data.
    #[serde(default, skip_serializing_if = "is_no")]
    #[schemars(extend("default" = false))]
    pub application: bool,
    /// Command that is run after a run that succeeded, with its result in environment variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_success: Option<String>,
    /// Command that is run after each attempt that failed, with the error in environment variables.
    /// `LUNWAY_BACKUP_RETRIES_LEFT` is 0 after the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<String>,
}

impl BackupConfig {
    /// When it is due.
    pub fn when(&self) -> When {
        match self.every {
            Some(interval) => When::Every(interval),
            None => When::At { times: self.at.clone(), days: self.days.clone() },
        }
    }

    /// How often a run that failed is made again, and how long after its end.
    pub fn retries(&self) -> (u32, Duration) {
        (self.retries.unwrap_or(RETRIES), self.retry_after.unwrap_or(RETRY_AFTER))
    }

    /// What is kept: the keys' names without `keep_`, and how many.
    pub fn retention(&self) -> [(&'static str, Option<usize>); 6] {
        [
            ("last", self.keep_last),
            ("hourly", self.keep_hourly),
            ("daily", self.keep_daily),
            ("weekly", self.keep_weekly),
            ("monthly", self.keep_monthly),
            ("yearly", self.keep_yearly),
        ]
    }
}
