//! Earlier looks at running targets, kept in the user's state folder.

use lunway_doctor::Looks;
use lunway_doctor::facts::Target;

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
