//! A device as the configuration names it.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use lunway_block::spec::{DeviceSpec, SpecError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The text that names a device, in the grammar of the command line, and what it stands for.
///
/// The text is kept as it was written, because a configuration that is saved must open the same device again; `Display`
/// and `Debug` show it without the secret that an `iscsi://` address may hold. Two names are equal that stand for the
/// same.
#[derive(Clone)]
pub struct DeviceName {
    text: String,
    spec: DeviceSpec,
}

impl PartialEq for DeviceName {
    fn eq(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

// A specification has no value that differs from itself.
impl Eq for DeviceName {}

impl DeviceName {
    /// Returns the device specification that it stands for.
    pub fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// As it was written: it may hold a secret.
    pub fn as_written(&self) -> &str {
        &self.text
    }

    /// The same device with its format said ([`DeviceSpec::with_format`]).
    #[must_use]
    pub fn with_format(&self) -> Self {
        let spec = self.spec.clone().with_format();
        if spec == self.spec {
            return self.clone();
        }
        // Only names of files become others, and they hold no secret. A relative one stays so.
        let written = DeviceSpec::parse(&self.text).map_or_else(|_| spec.clone(), DeviceSpec::with_format);
        Self { text: written.to_string(), spec }
    }

    /// The same with relative files found from `folder`; it stays written as it was.
    #[must_use]
    pub fn in_folder(&self, folder: &Path) -> Self {
        Self { text: self.text.clone(), spec: self.spec.clone().in_folder(folder) }
    }

    /// The same, written with whole paths.
    #[must_use]
    pub fn absolute(&self, folder: &Path) -> Self {
        let spec = self.spec.clone().in_folder(folder);
        let located = (spec != self.spec).then(|| DeviceSpec::located(&self.text, folder).ok()).flatten();
        Self { text: located.unwrap_or_else(|| self.text.clone()), spec }
    }

    /// The same without secrets.
    #[must_use]
    pub fn redacted(&self) -> Self {
        Self { text: self.to_string(), spec: self.spec.clone() }
    }
}

impl FromStr for DeviceName {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Ok(Self { text: text.to_owned(), spec: DeviceSpec::parse(text)? })
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

impl fmt::Debug for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl Serialize for DeviceName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for DeviceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_its_format_keeps_what_was_written() {
        for (text, said) in [
            ("disk.img?cache=none", "raw:disk.img?cache=none"),
            ("raw:disk.img?cache=writeback", "raw:disk.img?cache=writeback"),
            ("iscsi://host%hunter2hunter2@192.0.2.1/iqn.2026-11.com.example:a/0", ""),
        ] {
            let said = if said.is_empty() { text } else { said };
            assert_eq!(text.parse::<DeviceName>().unwrap().with_format().as_written(), said);
        }
        let found = "disk.img".parse::<DeviceName>().unwrap().in_folder(Path::new("/srv"));
        let said = found.with_format();
        assert_eq!((said.as_written(), said.to_string().as_str()), ("raw:disk.img", "raw:/srv/disk.img"));
        assert_eq!(found.absolute(Path::new("/other")).as_written(), "disk.img");
    }

    #[test]
    fn a_secret_is_kept_and_never_shown() {
        let device: DeviceName =
            "iscsi://host%hunter2hunter2@192.0.2.1/iqn.2026-11.com.example:a/0".parse().unwrap();
        assert!(device.as_written().contains("hunter2"));
        for shown in [device.to_string(), format!("{device:?}"), device.redacted().as_written().to_owned()] {
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
