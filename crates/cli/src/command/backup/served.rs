//! A logical unit of a running daemon as the source of a backup: `lun:TARGET/LUN`.
//!
//! 1. The epoch that is to end gets its name, which the destination notes: a run that is killed leaves no epoch behind.
//! 2. The daemon makes a snapshot, and closes the epoch at the same instant.
//! 3. It is asked what changed between the newest point's epoch and this one.
//! 4. The snapshot is read over NBD. It lasts as long as that connection.
//! 5. When the point is sealed, the older epochs are released.
//! 6. The daemon hears of the result, which its metrics show.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use lunway_backup::{Change, Changed, ChangedRange, Level, PointKind, Since, SourceId};
use lunway_block::spec::{DeviceSpec, NbdUri};
use lunway_console::{Method, path_part};
use lunway_nbd::NbdClient;
use lunway_track::EpochId;
use lunway_vhdx_device::random_guids;
use serde_json::{Value, json};

use super::closed_epochs::{ClosedEpochs, Missing};
use super::run::Ended;
use super::source_id::{doubt, of_lun};
use super::store::{Made, Past};
use crate::command::manage::DaemonAddress;
use crate::command::manage::snapshot::{self, LunName};
use crate::device::BlockingRuntime;
use crate::failure::Failure;
use crate::freezing::Freezing;
use crate::terminal;

/// The word before the name of a logical unit.
const PREFIX: &str = "lun:";

/// Time after which a daemon is told nothing more: it answers at once, and one that hangs delays no end.
const TOLD_WITHIN: Duration = Duration::from_millis(500);

/// A logical unit, frozen for one run.
pub(super) struct Frozen<'a> {
    daemon: &'a DaemonAddress,
    lun: LunName,
    epochs: ClosedEpochs<'a>,
    /// The snapshot.
    pub(super) name: String,
    pub(super) client: Arc<NbdClient>,
    /// What it is told by.
    pub(super) id: SourceId,
    /// Why the newest point does not show it: its epochs may be those of another daemon.
    pub(super) doubt: Option<String>,
    /// The epoch that ended with it.
    pub(super) epoch: Option<String>,
    pub(super) held_ms: u64,
}

/// The logical unit that a source names, if it names one.
pub(super) fn lun(source: &str) -> Result<Option<LunName>, Failure> {
    let Some(name) = source.strip_prefix(PREFIX) else { return Ok(None) };
    LunName::parse(name).map(Some).map_err(|error| Failure::Usage(format!("`{source}`: {error}")))
}

/// Name of the LUN in manifests.
pub(super) fn source_name(lun: &LunName) -> String {
    format!("{PREFIX}{lun}")
}

fn path(lun: &LunName) -> String {
    format!("/v1/targets/{}/luns/{}", path_part(&lun.target), lun.lun)
}

impl<'a> Frozen<'a> {
    /// Freezes a logical unit, and says what changed since the newest point of the destination.
    pub(super) fn make(
        daemon: &'a DaemonAddress,
        lun: LunName,
        (mut epochs, past): (ClosedEpochs<'a>, &[Past]),
        (area, freezing): (u64, &Freezing),
        runtime: &BlockingRuntime,
    ) -> Result<(Self, Changed), Failure> {
        let served = daemon.ask(Method::GET, &path(&lun), None)?;
        let device = served["config"]["device"].as_str().and_then(|device| DeviceSpec::parse(device).ok());
        let id = of_lun(device.as_ref());
        let doubt = doubt(&id, past);
        let epoch = match served["config"]["track"] == true && served["config"]["read_only"] != true {
            true => Some(begin_epoch(daemon, &lun, &mut epochs, doubt.is_some())?),
            false => None,
        };
        let order = json!({ "target": lun.target, "lun": lun.lun, "epoch": epoch });
        let orders = json!({ "luns": [order], "area": area, "while_read": true });
        // The snapshot lasts a minute without a reader: what fails here leaves nothing.
        let made = snapshot::make(daemon, freezing, orders)?;
        let snapshot = &made["snapshots"][0]["snapshot"];
        let socket = made["snapshots"][0]["socket"].as_str().unwrap_or_default();
        let client = runtime
            .wait(NbdClient::connect(&NbdUri::on_socket(socket), None))
            .context("reading the snapshot")?;
        let frozen = Self {
            daemon,
            lun,
            epochs,
            name: snapshot["name"].as_str().unwrap_or_default().to_owned(),
            client: Arc::new(client),
            id,
            doubt,
            epoch,
            held_ms: snapshot["held_ms"].as_u64().unwrap_or(0),
        };
        let changed = frozen.changed(past)?;
        Ok((frozen, changed))
    }

    /// Returns the changes between the newest point and this snapshot.
    fn changed(&self, past: &[Past]) -> Result<Changed, Failure> {
        let unknown = |why: &str| Ok(Changed::Unknown { why: terminal::clean(why) });
        let Some(until) = &self.epoch else {
            return unknown("changes of the LUN are not tracked (`lunway lun add … --track`)");
        };
        let Some(newest) = past.last() else { return unknown("there is no point yet") };
        let Some(since) = &newest.epoch else {
            return unknown(&format!("point {} ended with no epoch of change tracking", newest.point));
        };
        if since.parse::<EpochId>().is_err() {
            return unknown(&format!("point {} names an epoch that cannot be one", newest.point));
        }
        let mut ranges: Vec<ChangedRange> = Vec::new();
        let mut offset = 0;
        loop {
            let query = format!("{}/changes?since={since}&until={until}&offset={offset}", path(&self.lun));
            let answer = self.daemon.ask(Method::GET, &query, None)?;
            if answer["known"] != true {
                return unknown(answer["why"].as_str().unwrap_or("the daemon does not know what changed"));
            }
            let page = answer["ranges"].as_array().map_or(&[][..], Vec::as_slice);
            ranges.extend(page.iter().filter_map(range));
            match answer["next_offset"].as_u64() {
                Some(next) if next > offset => offset = next,
                Some(_) => return unknown("the daemon's answers contradict each other"),
                None => break,
            }
        }
        Ok(Changed::Known { since: Since::Epoch(since.clone()), ranges: Box::new(ranges) })
    }

    /// Returns the reason why the snapshot cannot be read any more, where it is so.
    pub(super) fn broken(&self) -> Option<String> {
        let answer = self.daemon.ask(Method::GET, &format!("/v1/snapshots/{}", self.name), None);
        let Ok(answer) = answer else {
            return Some("the daemon has it no more: it was deleted, or the daemon was restarted".to_owned());
        };
        let why = terminal::clean(answer["snapshot"]["broken"].as_str()?);
        let more = if why.contains("is full") { "; a larger one is made with --area" } else { "" };
        Some(format!("{why}{more}"))
    }

    /// The run has ended, and has made this point: gives the snapshot back, and the epochs that are of no use any more.
    pub(super) fn end(self, made: Option<&Made>) {
        let Self { daemon, lun, mut epochs, name, client, doubt, .. } = self;
        drop(client);
        // It ends with the connection, too.
        let _ = daemon.ask(Method::DELETE, &format!("/v1/snapshots/{name}"), None);
        let missing = if doubt.is_some() { Missing::Kept } else { Missing::Forgotten };
        if let Err(error) = epochs.run_ended(made, missing, |epoch| release(daemon, &lun, epoch)) {
            // The next run does it.
            error.report();
        }
    }
}

/// Tells the daemon how a run has ended. A daemon that cannot be told does not change that.
pub(super) fn report(
    daemon: &DaemonAddress,
    lun: &LunName,
    destination: &str,
    result: &Result<Ended, Failure>,
) {
    let report = match result {
        Ok(Ended { made, seconds, .. }) => json!({ "destination": destination, "point": {
            "point": made.facts.point.to_string(),
            "full": made.facts.kind == PointKind::Full,
            "why": made.facts.why,
            "changed_bytes": made.facts.changed_bytes,
            "read_bytes": made.facts.read_bytes,
            "sent_bytes": made.facts.sent_bytes,
            "stored_bytes": made.facts.stored_bytes,
            "seconds": seconds,
        } }),
        Err(failure) => json!({ "destination": destination, "error": failure.sentence() }),
    };
    let told =
        daemon.ask_within(Some(TOLD_WITHIN), Method::POST, &format!("{}/backups", path(lun)), Some(&report));
    if let (Ok(_), Err(Failure::Failed(error))) = (result, told) {
        let why = terminal::clean(&format!("{error:#}"));
        eprintln!("the daemon's metrics lack this run: {why}");
    }
}

fn range(range: &Value) -> Option<ChangedRange> {
    let change = if range["state"] == "unmapped" { Change::Unmapped } else { Change::Written };
    let len = range["length"].as_u64().filter(|len| *len > 0)?;
    Some(ChangedRange { offset: range["offset"].as_u64()?, len, change })
}

/// Names the epoch that is to be closed, and notes it at the destination.
fn begin_epoch(
    daemon: &DaemonAddress,
    lun: &LunName,
    epochs: &mut ClosedEpochs<'_>,
    is_other: bool,
) -> Result<String, Failure> {
    // The names of another daemon's are not known here.
    let missing = if is_other { Missing::Kept } else { Missing::KeptSinceNewest };
    epochs.release_old(missing, |epoch| release(daemon, lun, epoch))?;
    let random = random_guids().context("asking for random numbers")?.next().to_digits();
    let id = EpochId(random.to_be_bytes()).to_string();
    epochs.note(&id)?;
    Ok(id)
}

/// Releases an epoch, and says whether it was there; `None`: that is none of a daemon.
fn release(daemon: &DaemonAddress, lun: &LunName, epoch: &str) -> Result<Option<bool>, Failure> {
    if epoch.parse::<EpochId>().is_err() {
        return Ok(None);
    }
    match daemon.call(Method::DELETE, &format!("{}/epochs/{epoch}", path(lun)), None)? {
        Ok(_) => Ok(Some(true)),
        Err((404 | 422, _)) => Ok(Some(false)),
        Err((_, why)) => Err(Failure::failed(anyhow!("releasing epoch {epoch}: {why}"))),
    }
}

/// Consistency level that the guest had reached when it was frozen.
pub(super) fn level(freezing: &Freezing, application: bool) -> Level {
    match (freezing.is_asked_for(), application) {
        (false, _) => Level::Crash,
        (true, false) => Level::Fs,
        (true, true) => Level::Application,
    }
}
