//! `rbd:[CLUSTER:]POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`: an image of a Ceph cluster.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SpecError;
use crate::duration::{ExactDuration, parse_duration};

/// Keys behind the name.
const KEYS: &str = "conf, id, keyring, timeout, break_lock and share";

/// Name of an image, and how its cluster is reached.
///
/// A key is never in here: a keyring is a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RbdName {
    /// Name of the cluster, by which its configuration is found; `None`: `ceph`.
    pub cluster: Option<String>,
    /// The pool.
    pub pool: String,
    /// Namespace in the pool.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// A snapshot of it, for reading.
    pub snapshot: Option<String>,
    /// `conf=FILE`: configuration of the cluster; `None`: the one of `CEPH_CONF`, or `/etc/ceph/CLUSTER.conf`.
    pub conf: Option<PathBuf>,
    /// `id=USER`: the user, without `client.`; `None`: `admin`.
    pub id: Option<String>,
    /// `keyring=FILE`: the user's key; `None`: where the configuration says.
    pub keyring: Option<PathBuf>,
    /// `timeout=TIME`: limit of an operation.
    pub timeout: Option<Duration>,
    /// `break_lock=ADDRESS`: fences this client, if it holds the image's lock.
    pub break_lock: Option<String>,
    /// `share=NAME`: has one client of the cluster with all images that are served under this name; `None`: a client of
    /// its own.
    pub share: Option<String>,
}

impl RbdName {
    /// Reads what stands behind `rbd:`.
    pub(super) fn parse(text: &str) -> Result<Self, SpecError> {
        let (name, options) = text.split_once('?').unwrap_or((text, ""));
        let (cluster, path) = match name.split_once(':') {
            Some((cluster, path)) => (Some(cluster), path),
            None => (None, name),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return Err(SpecError::RbdForm),
        };
        let (image, snapshot) = match image.split_once('@') {
            Some((image, snapshot)) => (image, Some(snapshot)),
            None => (image, None),
        };
        let given = [cluster, Some(pool), namespace, Some(image), snapshot];
        if given.into_iter().flatten().any(|part| part.is_empty() || part.contains('@')) {
            return Err(SpecError::RbdForm);
        }
        let owned = |part: Option<&str>| part.map(str::to_owned);
        let mut read = Self {
            cluster: owned(cluster),
            pool: pool.to_owned(),
            namespace: owned(namespace),
            image: image.to_owned(),
            snapshot: owned(snapshot),
            ..Self::default()
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            read.set(option)?;
        }
        Ok(read)
    }

    fn set(&mut self, option: &str) -> Result<(), SpecError> {
        let wrong = || SpecError::RbdOption { option: option.to_owned(), keys: KEYS };
        let (key, value) = option.split_once('=').filter(|(_, value)| !value.is_empty()).ok_or_else(wrong)?;
        let text = || Some(value.to_owned());
        match key {
            "conf" => self.conf = Some(value.into()),
            "id" => self.id = text(),
            "keyring" => self.keyring = Some(value.into()),
            "timeout" => {
                let time = parse_duration(value).map_err(SpecError::RbdTime)?;
                // `rados_osd_op_timeout` is a number of seconds, and 0 is none.
                if time.is_zero() || time.subsec_nanos() != 0 {
                    return Err(SpecError::RbdTimeUnit(value.to_owned()));
                }
                self.timeout = Some(time);
            }
            "break_lock" => self.break_lock = text(),
            "share" => self.share = text(),
            _ => return Err(wrong()),
        }
        Ok(())
    }

    /// The image as Ceph's own commands name it: `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`.
    pub fn image_path(&self) -> String {
        let namespace = self.namespace.as_ref().map(|part| format!("{part}/")).unwrap_or_default();
        let snapshot = self.snapshot.as_ref().map(|part| format!("@{part}")).unwrap_or_default();
        format!("{}/{namespace}{}{snapshot}", self.pool, self.image)
    }

    /// The same with its files found from `folder`, where they are relative.
    pub(super) fn in_folder(&mut self, folder: &Path) {
        for path in [&mut self.conf, &mut self.keyring].into_iter().flatten() {
            *path = folder.join(&*path);
        }
    }
}

impl fmt::Display for RbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rbd:")?;
        if let Some(cluster) = &self.cluster {
            write!(f, "{cluster}:")?;
        }
        f.write_str(&self.image_path())?;
        let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let options = [
            ("conf", file(&self.conf)),
            ("id", self.id.clone()),
            ("keyring", file(&self.keyring)),
            ("timeout", self.timeout.map(|time| ExactDuration(time).to_string())),
            ("break_lock", self.break_lock.clone()),
            ("share", self.share.clone()),
        ];
        let mut sign = '?';
        for (key, value) in options {
            if let Some(value) = value {
                write!(f, "{sign}{key}={value}")?;
                sign = '&';
            }
        }
        Ok(())
    }
}
