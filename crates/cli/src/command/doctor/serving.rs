//! A running target, by its management interface.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use lunway_console::Client;
use lunway_doctor::facts::{BackupSchedule, Target, within_limits};
use lunway_doctor::{Machine, Seen, destinations, stores};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use crate::command::manage::{DaemonAddress, failure};
use crate::device;
use crate::failure::Failure;

/// Time for all answers together, which a daemon gives out of memory within milliseconds: a whole run may take 5 s.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Asks a daemon for everything that rules judge. One that has not answered everything within 5 s costs a sentence.
pub(super) fn look(daemon: &DaemonAddress, machine: &Machine) -> Result<Target, Failure> {
    let client = daemon.client()?;
    let left_out = RefCell::new(Vec::new());
    let answers = async {
        let health = ask(&client, "/v1/health").await?;
        let metrics = ask(&client, "/v1/metrics").await?;
        let targets = ask(&client, "/v1/targets").await?;
        let answers = targets["targets"].as_array().into_iter().flatten();
        let targets = Value::Array(answers.map(status).collect());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok::<_, Failure>(Target {
            looked_at: now.as_secs(),
            earlier: None,
            left_out: Vec::new(),
            uptime_s: health["uptime_s"].as_u64().unwrap_or(0),
            warnings: part(&left_out, "warnings", health["warnings"].clone())?,
            portals: part(&left_out, "portals", ask(&client, "/v1/portals").await?["portals"].take())?,
            targets: part(&left_out, "targets", targets)?,
            // The readings are the sessions, with their counters.
            sessions: part(&left_out, "sessions", metrics["sessions"].clone())?,
            logins_refused: match metrics["logins_refused"].as_u64() {
                Some(refused) => Seen::Value(refused),
                None => Seen::unseen("its daemon does not tell"),
            },
            units: part(&left_out, "luns", metrics["luns"].clone())?,
            devices: part(&left_out, "devices", metrics["devices"].clone())?,
            reservations: part(
                &left_out,
                "reservations",
                ask(&client, "/v1/reservations").await?["reservations"].take(),
            )?,
            schedules: schedules(&left_out, client.get("/v1/schedules").await.ok())?,
            stores: Seen::default(),
        })
    };
    let late = || {
        let seconds = ANSWER_TIME.as_secs();
        anyhow!("the daemon did not answer within {seconds} s: look at it, or leave it out of the check")
    };
    let answers = async { timeout(ANSWER_TIME, answers).await.map_err(|_| Failure::failed(late()))? };
    let mut target = device::run(answers)?;
    target.left_out = std::mem::take(&mut *left_out.borrow_mut());
    target.stores = match daemon.is_here() {
        true => Seen::Value(stores(machine, &target)),
        false => Seen::unseen("the target is on another machine"),
    };
    if let (true, Seen::Value(schedules)) = (daemon.is_here(), &mut target.schedules) {
        destinations(machine, schedules);
    }
    Ok(target)
}

async fn ask(client: &Client, path: &str) -> Result<Value, Failure> {
    client.get(path).await.map_err(failure)
}

/// A target as it is served, with the physical sectors that its LUNs are configured to report.
fn status(answer: &Value) -> Value {
    let mut status = answer["status"].clone();
    let configured = answer["config"]["lun"].as_array();
    for lun in status["luns"].as_array_mut().into_iter().flatten() {
        let own = configured.into_iter().flatten().find(|configured| configured["id"] == lun["id"]);
        if let (Some(own), Value::Object(lun)) = (own, lun) {
            lun.insert("physical_sector".to_owned(), own["physical_sector"].clone());
        }
    }
    status
}

/// Backups by the clock, with why the last run of each has failed; `None`: the daemon has no answer.
fn schedules(
    left_out: &RefCell<Vec<String>>,
    answer: Option<Value>,
) -> Result<Seen<Vec<BackupSchedule>>, Failure> {
    let Some(mut answer) = answer else { return Ok(Seen::unseen("its daemon does not tell")) };
    let mut schedules = answer["schedules"].take();
    for schedule in schedules.as_array_mut().into_iter().flatten() {
        let error = schedule["last"]["error"].take();
        if let Value::Object(schedule) = schedule {
            schedule.insert("error".to_owned(), error);
        }
    }
    Ok(Seen::Value(part(left_out, "schedules", schedules)?))
}

/// A part of an answer, within limits; what these leave out is noted. A daemon of another version may tell something
/// else; a hostile one anything.
fn part<T: DeserializeOwned>(
    left_out: &RefCell<Vec<String>>,
    name: &str,
    mut value: Value,
) -> Result<T, Failure> {
    left_out.borrow_mut().extend(within_limits(name, &mut value));
    let other =
        |error| Failure::failed(anyhow!("the daemon is of another version: its {name} differ ({error})"));
    serde_json::from_value(value).map_err(other)
}
