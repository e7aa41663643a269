//! Earlier looks at running targets and at neighbours, kept in the user's state folder.

use std::time::{SystemTime, UNIX_EPOCH};

use lunway_doctor::facts::Target;
use lunway_doctor::{Facts, Looks, NeighbourLooks};

use super::state;

/// Tells a target what its stores were like at an earlier look, and keeps this one. A run whose looks cannot be read or
/// kept says so and goes on: the forecast is then unknown.
pub(super) fn compare(daemon: &str, target: &mut Target) {
    let Some(path) = state::path("doctor-looks.json") else { return };
    let name = path.display();
    let text =
        state::read(&path).and_then(|text| text.map_or(Ok(Looks::default()), |text| Looks::parse(&text)));
    let mut looks = match text {
        Ok(looks) => looks,
        Err(why) => {
            eprintln!(
                "lunway: earlier measurements in {name} cannot be read: {why}; remove the file to begin again"
            );
            return;
        }
    };
    looks.compare(daemon, target);
    let text = serde_json::to_string(&looks).unwrap_or_default();
    if let Err(error) = state::write(&path, &text) {
        eprintln!("lunway: this look cannot be kept in {name}: {error}; the store's growth stays unknown");
    }
}

/// Tells this machine's neighbours which hardware addresses they had at earlier looks, and keeps this one if it is
/// another. A run whose looks cannot be read or kept says so and goes on.
pub(super) fn neighbours(facts: &mut Facts) {
    let Some(path) = state::path("doctor-neighbours.json") else { return };
    let name = path.display();
    let text = state::read(&path)
        .and_then(|text| text.map_or(Ok(NeighbourLooks::default()), |text| NeighbourLooks::parse(&text)));
    let mut looks = match text {
        Ok(looks) => looks,
        Err(why) => {
            eprintln!(
                "lunway: earlier looks in {name} cannot be read: {why}; remove the file to begin again"
            );
            return;
        }
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    if !looks.compare(now, facts) {
        return;
    }
    let text = serde_json::to_string(&looks).unwrap_or_default();
    if let Err(error) = state::write(&path, &text) {
        eprintln!(
            "lunway: this look cannot be kept in {name}: {error}; whether addresses move stays unknown"
        );
    }
}
