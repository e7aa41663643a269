//! A running target, by its management interface.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use lunway_console::Client;
use lunway_doctor::facts::Target;
use lunway_doctor::{Machine, Seen, stores};
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
    let answers = async {
        let health = ask(&client, "/v1/health").await?;
        let metrics = ask(&client, "/v1/metrics").await?;
        let targets = ask(&client, "/v1/targets").await?;
        let statuses = targets["targets"].as_array().into_iter().flatten();
        let targets = Value::Array(statuses.map(|target| target["status"].clone()).collect());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok::<_, Failure>(Target {
            looked_at: now.as_secs(),
            earlier: None,
            uptime_s: health["uptime_s"].as_u64().unwrap_or(0),
            warnings: part("warnings", health["warnings"].clone())?,
            portals: part("portals", ask(&client, "/v1/portals").await?["portals"].take())?,
            targets: part("targets", targets)?,
            // The readings are the sessions, with their counters.
            sessions: part("sessions", metrics["sessions"].clone())?,
            units: part("luns", metrics["luns"].clone())?,
            devices: part("devices", metrics["devices"].clone())?,
            reservations: part(
                "reservations",
                ask(&client, "/v1/reservations").await?["reservations"].take(),
            )?,
            stores: Seen::default(),
        })
    };
    let late = || {
        let seconds = ANSWER_TIME.as_secs();
        anyhow!("the daemon did not answer within {seconds} s: look at it, or leave it out of the check")
    };
    let answers = async { timeout(ANSWER_TIME, answers).await.map_err(|_| Failure::failed(late()))? };
    let mut target = device::run(answers)?;
    target.stores = match daemon.is_here() {
        true => Seen::Value(stores(machine, &target)),
        false => Seen::unseen("the target is on another machine"),
    };
    Ok(target)
}

async fn ask(client: &Client, path: &str) -> Result<Value, Failure> {
    client.get(path).await.map_err(failure)
}

/// A part of an answer. A daemon of another version may tell something else; a hostile one anything.
fn part<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, Failure> {
    let other =
        |error| Failure::failed(anyhow!("the daemon is of another version: its {name} differ ({error})"));
    serde_json::from_value(value).map_err(other)
}
