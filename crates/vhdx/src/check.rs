//! The deep check of one file: everything that opening refuses, and what it tolerates.

use zerocopy::FromBytes;

use crate::error::{Structure, VhdxOpenError};
use crate::format::{HEADER_OFFSETS, Header, MIB, PAGE};
use crate::log::replay::View;
use crate::metadata::Parameters;
use crate::open;
use crate::scan::{Anomaly, AnomalySeverity, Counts, scan};
use crate::storage::Storage;

/// Maximum number of findings kept; more of a kind say nothing new.
const FINDINGS_MAX: usize = 1000;

/// Report of a check. The file was only read.
#[derive(Debug, Default)]
pub struct Report {
    /// In the order of the file; at most 1000.
    pub findings: Vec<Anomaly>,
    /// Number of further findings.
    pub left_out: u64,
    /// Parameters of the disk, if they could be read.
    pub parameters: Option<Parameters>,
    /// Blocks in each state.
    pub counts: Counts,
    /// Bytes of the file that nothing uses.
    pub free: u64,
    /// The log has entries, which a writable open replays.
    pub log_in_use: bool,
    worst: Option<AnomalySeverity>,
}

impl Report {
    /// Severity of the worst finding; `None`: there is none.
    pub fn worst(&self) -> Option<AnomalySeverity> {
        self.worst
    }

    /// Returns `true` if something is against the standard or lost, so that the file is not opened for writing.
    pub fn is_damaged(&self) -> bool {
        self.worst() >= Some(AnomalySeverity::Damage)
    }

    fn add(&mut self, severity: AnomalySeverity, place: Structure, offset: u64, problem: impl Into<String>) {
        self.push(Anomaly { severity, place, offset, problem: problem.into() });
    }

    fn push(&mut self, finding: Anomaly) {
        // The worst is never left out.
        let worst = self.worst.max(Some(finding.severity));
        match self.findings.len() < FINDINGS_MAX || worst > self.worst {
            true => self.findings.push(finding),
            false => self.left_out += 1,
        }
        self.worst = worst;
    }

    fn add_error(&mut self, error: VhdxOpenError) {
        match error {
            VhdxOpenError::Corrupt { place, offset, problem } => {
                self.add(AnomalySeverity::Damage, place, offset, problem);
            }
            VhdxOpenError::Lost { place, offset, problem } => {
                self.add(AnomalySeverity::Loss, place, offset, problem);
            }
            VhdxOpenError::Unsupported { place, offset, problem } => {
                self.add(
                    AnomalySeverity::Damage,
                    place,
                    offset,
                    format!("{problem}, which this program does not support"),
                );
            }
            other => self.add(AnomalySeverity::Damage, Structure::File, 0, other.to_string()),
        }
    }
}

/// Checks one file, as it is after a replay of its log in memory. Parents are checked by themselves.
pub fn check(storage: &impl Storage) -> Report {
    let mut report = Report::default();
    for offset in HEADER_OFFSETS {
        let mut page = [0; PAGE];
        let read = storage.read_at(offset, &mut page);
        if read.is_ok() && !Header::read_from_bytes(&page).is_ok_and(|header| header.is_valid()) {
            let problem = "signature or checksum is wrong; the other header is used, and a writable open renews this one";
            report.add(AnomalySeverity::Note, Structure::Header, offset, problem);
        }
    }
    let mut opened = match open::read(storage) {
        Ok(opened) => opened,
        Err(error) => {
            report.add_error(error);
            return report;
        }
    };
    report.parameters = Some(opened.parameters.clone());
    if opened.overlay.is_some() {
        report.log_in_use = true;
        let header = &opened.headers.current;
        let problem = "it has entries: the file was not closed; the next writable open replays them";
        report.add(AnomalySeverity::Note, Structure::Log, header.log_offset.get(), problem);
    }
    if let Some(copy) = opened.regions.stale_copy {
        let problem = "this copy differs from the one that is used; a write to the disk repairs it";
        report.add(AnomalySeverity::Note, Structure::RegionTable, copy, problem);
    }
    let view = View { storage, overlay: opened.overlay.as_ref() };
    let (bat, geometry) = (opened.regions.bat, opened.geometry);
    let overlay = opened.overlay.as_ref();
    let mut in_payload = None;
    let scanned = scan(
        &view,
        bat,
        &geometry,
        opened.file_len,
        overlay,
        &mut opened.space,
        |finding| {
            report.push(finding);
            Ok(())
        },
        |block| {
            in_payload = Some(block.offset);
            Ok(())
        },
    );
    match scanned {
        Ok(counts) => report.counts = counts,
        Err(error) => report.add_error(error),
    }
    if let Some(offset) = in_payload {
        report.add(
            AnomalySeverity::Note,
            Structure::Log,
            offset,
            "it changes payload, which the standard forbids",
        );
    }
    report.free = opened.space.free() * MIB;
    if opened.space.end() + MIB <= opened.file_len {
        let problem = format!("the last {} bytes hold nothing", opened.file_len - opened.space.end());
        report.add(AnomalySeverity::Note, Structure::File, opened.space.end(), problem);
    }
    report
}
