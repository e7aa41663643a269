//! A device as the configuration names it.

use std::fmt;
use std::str::FromStr;

use lunway_block::spec::{DeviceSpec, SpecError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The text that names a device, in the grammar of the command line, and what it stands for.
///
/// The text is kept as it was written, because a configuration that is saved must open the same device again; `Display`
/// and `Debug` show it without the secret that an `iscsi://` address may hold.
#[derive(Clone, PartialEq)]
pub struct DeviceName {
    text: String,
    spec: DeviceSpec,
}

// A specification has no value that differs from itself.
impl Eq for DeviceName {}

impl DeviceName {
    /// What it stands for.
    pub fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// As it was written: it may hold a secret.
    pub fn as_written(&self) -> &str {
        &self.text
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
    fn a_secret_is_kept_and_never_shown() {
        let device: DeviceName =
            "iscsi://host%hunter2hunter2@192.0.2.1/iqn.2026-11.com.example:a/0".parse().unwrap();
        assert!(device.as_written().contains("hunter2"));
        for shown in [device.to_string(), format!("{device:?}"), device.redacted().as_written().to_owned()] {
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
