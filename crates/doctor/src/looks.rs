//! Earlier looks at running targets, by which the growth of their stores is measured.

use serde::{Deserialize, Serialize};

use crate::facts::{Device, Facts, Look, Target};

/// Seconds between two looks below which growth is noise: one large copy, one burst of a log.
pub(crate) const APART_MIN_S: u64 = 600;
/// Seconds over which growth is measured, where there are looks so old: a day has its backup and its quiet hours.
const DAY_S: u64 = 86_400;
/// Seconds after which a look is forgotten.
const KEPT_S: u64 = 7 * DAY_S;
/// Seconds between two looks that are kept, so that a day has 24 of them however often it is looked.
const KEPT_EVERY_S: u64 = 3600;
/// Looks at one daemon that are kept: those of a week.
const LOOKS_MAX: usize = 168;
/// Daemons that are remembered, and stores of each.
const DAEMONS_MAX: usize = 64;
const DEVICES_MAX: usize = 256;

/// Looks at running targets, as they are kept in a file between two runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Looks {
    daemons: Vec<Daemon>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Daemon {
    name: String,
    /// The oldest first.
    looks: Vec<Look>,
}

impl Looks {
    /// Parses the looks of a file.
    ///
    /// # Errors
    ///
    /// A clause: what is not a file of looks.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Tells a target the look that its stores' growth is measured from: the oldest of the last day, or the newest
    /// before it. `daemon` is where the daemon was asked. Then keeps this look, unless the last one is less than an
    /// hour old.
    pub fn compare(&mut self, daemon: &str, target: &mut Target) {
        let now = target.looked_at;
        let name = format!("{daemon} {}", target.targets.first().map_or("", |served| &served.name));
        let at = match self.daemons.iter().position(|daemon| daemon.name == name) {
            Some(at) => at,
            None => {
                let more = (self.daemons.len() + 1).saturating_sub(DAEMONS_MAX);
                self.daemons.drain(..more);
                self.daemons.push(Daemon { name, looks: Vec::new() });
                self.daemons.len() - 1
            }
        };
        let looks = &mut self.daemons[at].looks;
        // A clock that was set back makes later looks of earlier ones.
        looks.retain(|look| look.looked_at <= now && now - look.looked_at <= KEPT_S);
        looks.sort_by_key(|look| look.looked_at);
        let of_day = looks.iter().find(|look| now - look.looked_at <= DAY_S);
        target.earlier = match of_day {
            Some(look) if now - look.looked_at >= APART_MIN_S => Some(look.clone()),
            _ => looks.iter().rfind(|look| now - look.looked_at >= APART_MIN_S).cloned(),
        };
        if looks.last().is_none_or(|last| now - last.looked_at >= KEPT_EVERY_S) {
            looks.drain(..(looks.len() + 1).saturating_sub(LOOKS_MAX));
            let told = target.devices.iter().filter(|device| device.space.is_some());
            let devices: Vec<Device> = told.take(DEVICES_MAX).cloned().collect();
            looks.push(Look { looked_at: now, devices });
        }
    }
}

/// Of several machines' facts that tell of one target at different times, gives the last the look of the first, and
/// takes the target out of the others: they are looks, and not targets of their own.
pub fn compare_looks(machines: &mut [(String, Facts)]) {
    let name =
        |facts: &Facts| facts.target.as_ref().and_then(|target| Some(target.targets.first()?.name.clone()));
    for at in 0..machines.len() {
        let Some(own) = name(&machines[at].1) else { continue };
        let same: Vec<usize> =
            (0..machines.len()).filter(|&other| name(&machines[other].1).as_ref() == Some(&own)).collect();
        let time = |&at: &usize| machines[at].1.target.as_ref().map_or(0, |target| target.looked_at);
        let (Some(&first), Some(&last)) =
            (same.iter().min_by_key(|at| time(at)), same.iter().max_by_key(|at| time(at)))
        else {
            continue;
        };
        if time(&first) == time(&last) {
            continue;
        }
        let look = machines[first].1.target.take();
        let look = look.map(|target| Look { looked_at: target.looked_at, devices: target.devices });
        for &other in same.iter().filter(|&&other| other != last) {
            machines[other].1.target = None;
        }
        if let Some(target) = &mut machines[last].1.target {
            target.earlier = look;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{ServedTarget, Space};

    fn at(hours: u64, used: u64) -> Target {
        let space = Space { allocated: 0, used, available: 1000 - used };
        Target {
            looked_at: 1_000_000 + hours * 3600,
            targets: vec![ServedTarget { name: "t".into(), luns: vec![] }],
            devices: vec![Device { target: "t".into(), lun: 0, size: 1000, space: Some(space) }],
            ..Target::default()
        }
    }

    fn compared(looks: &mut Looks, hours: u64) -> Option<u64> {
        let mut target = at(hours, hours);
        looks.compare("socket", &mut target);
        target.earlier.map(|look| (look.looked_at - 1_000_000) / 3600)
    }

    #[test]
    fn growth_is_measured_from_the_oldest_look_of_a_day() {
        let mut looks = Looks::default();
        assert_eq!(compared(&mut looks, 0), None, "one look tells nothing of growth");
        assert_eq!(compared(&mut looks, 0), None, "two at once neither");
        assert_eq!(compared(&mut looks, 1), Some(0));
        assert_eq!(compared(&mut looks, 20), Some(0));
        assert_eq!(compared(&mut looks, 25), Some(1));
        assert_eq!(compared(&mut looks, 100), Some(25), "an older one where there is none of the day");
        assert_eq!(compared(&mut looks, 500), None, "they are forgotten after a week");
        assert_eq!(compared(&mut looks, 400), None, "the clock was set back");
        let mut elsewhere = at(401, 0);
        looks.compare("another", &mut elsewhere);
        assert_eq!(elsewhere.earlier, None);
        let text = serde_json::to_string(&looks).unwrap_or_default();
        assert_eq!(Looks::parse(&text).as_ref(), Ok(&looks));
    }

    #[test]
    fn files_of_one_target_are_two_looks_at_it() {
        let file = |hours: u64, used| {
            (hours.to_string(), Facts { target: Some(at(hours, used)), ..Facts::default() })
        };
        let mut machines = [file(5, 9), file(0, 1), file(3, 4)];
        compare_looks(&mut machines);
        assert!(machines[1].1.target.is_none() && machines[2].1.target.is_none());
        let target = machines[0].1.target.clone().unwrap_or_default();
        assert_eq!(target.earlier.map(|look| look.looked_at), Some(1_000_000));
        let mut at_once = [file(5, 9), file(5, 9)];
        compare_looks(&mut at_once);
        assert!(at_once.iter().all(|(_, facts)| facts.target.is_some()), "two daemons");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut looks = Looks::default();
        for hour in 0..500 {
            compared(&mut looks, hour);
        }
        assert!(looks.daemons[0].looks.len() <= LOOKS_MAX, "{}", looks.daemons[0].looks.len());
        for daemon in 0..100 {
            looks.compare(&daemon.to_string(), &mut at(501, 0));
        }
        assert_eq!(looks.daemons.len(), DAEMONS_MAX);
        for text in ["", "7", "{\"daemons\":7}", "{\"daemons\":[{\"looks\":[{\"looked_at\":-1}]}]}"] {
            assert!(Looks::parse(text).is_err(), "{text}");
        }
    }
}
