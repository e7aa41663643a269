//! What is served, for people and programs that ask.

use serde::Serialize;

/// A target as it is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetSummary {
    /// Its name.
    pub name: String,
    /// Its name for people.
    pub alias: Option<String>,
    /// Initiators may log in.
    pub enabled: bool,
    /// Initiators must authenticate.
    pub authenticated: bool,
    /// Sessions now.
    pub sessions: usize,
    /// Its logical units.
    pub luns: Vec<LunSummary>,
}

/// A logical unit as it is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LunSummary {
    /// Its number.
    pub id: u16,
    /// The device behind it, as configured, without secrets.
    pub device: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical sector.
    pub sector: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// The unit serial number (VPD page 80h).
    pub serial: String,
}
