//! The JSON of commands whose shape is older than documents.

use serde_json::Value;

use crate::document::{Better, Measure};
use crate::foreign::{MEASURES_MAX, clean, samples};

/// Characters of a part of a name.
const PART_MAX: usize = 100;

/// Returns the command that wrote `value`, and the measures in it that can be compared; `None` where it is neither a
/// comparison nor an experiment.
pub(crate) fn measures(value: &Value) -> Option<(&'static str, Vec<Measure>)> {
    if value["plan"]["arms"].is_array() {
        return Some(("compare", comparison(value)));
    }
    value["experiment"].is_string().then(|| ("lab", experiment(value)))
}

/// Returns `true` if lunway wrote `value`. Today's output has a `lunway` object with the schema; comparisons and
/// experiments did not always, and are recognized by all that only they have together.
pub(crate) fn is_ours(value: &Value) -> bool {
    let (stamp, plan) = (&value["lunway"], &value["plan"]);
    let lists = |names: &[&str]| names.iter().all(|&name| value[name].is_array());
    let stamped = stamp["schema"].is_u64();
    let comparison = plan["arms"].is_array()
        && plan["control"].is_string()
        && plan["warm_up"].is_u64()
        && lists(&["rows", "aa", "runs"]);
    let experiment = value["experiment"].is_string()
        && value["figures"].is_object()
        && lists(&["links", "rows", "matrix", "comparisons"]);
    stamped || comparison || experiment
}

fn part(value: &Value) -> String {
    clean(value.as_str().unwrap_or_default(), PART_MAX)
}

/// `compare --json`: each row's figures of each device, one for each pair.
fn comparison(value: &Value) -> Vec<Measure> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (arms, rows) = (list(&value["plan"]["arms"]), list(&value["rows"]));
    let mut found = Vec::new();
    for run in list(&value["runs"]).iter().take(MEASURES_MAX) {
        let row = rows.iter().find(|row| row["name"] == run["name"]);
        let unit = row.map_or_else(|| "IOPS".into(), |row| part(&row["unit"]));
        let better =
            if row.is_some_and(|row| row["better"] == "lower") { Better::Lower } else { Better::Higher };
        for (arm, figures) in
            arms.iter().zip(list(&run["arms"])).take(MEASURES_MAX - found.len().min(MEASURES_MAX))
        {
            let name = format!("{} · {}", part(&run["name"]), part(arm));
            found.push(Measure { name, unit: unit.clone(), better, samples: samples(&figures) });
        }
    }
    found
}

/// `lab run --json`: each run's throughput and response time. Runs of the same name are repeats.
fn experiment(value: &Value) -> Vec<Measure> {
    let rows = value["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let mut found: Vec<Measure> = Vec::new();
    for row in rows.iter().take(MEASURES_MAX / 2) {
        let name = [part(&row["test"]), part(&row["rw"])].join(" ").trim().to_owned();
        for (field, unit, better) in [("mb_s", "MB/s", Better::Higher), ("response_ms", "ms", Better::Lower)]
        {
            let Some(figure) = row[field].as_f64().filter(|figure| figure.is_finite()) else { continue };
            match found.iter_mut().find(|measure| measure.name == name && measure.unit == unit) {
                Some(measure) => measure.samples.push(figure),
                None => found.push(Measure {
                    name: name.clone(),
                    unit: unit.into(),
                    better,
                    samples: vec![figure],
                }),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn comparisons_and_experiments_without_a_stamp_are_ours_by_all_that_they_have() {
        let comparison = json!({
            "plan": { "arms": ["a.img", "b.img"], "control": "a.img", "pairs": 2, "warm_up": 1 },
            "rows": [], "aa": [], "runs": [],
        });
        let experiment = json!({
            "experiment": "control", "figures": {}, "links": [], "rows": [], "matrix": [], "comparisons": [],
        });
        for ours in [comparison, experiment] {
            assert!(is_ours(&ours));
            for name in ours.as_object().unwrap().keys() {
                let mut less = ours.clone();
                less.as_object_mut().unwrap().remove(name);
                assert!(!is_ours(&less), "without {name}");
            }
        }
    }

    #[test]
    fn a_comparison_gives_each_device_its_figures() {
        let value = json!({
            "plan": { "arms": ["a.img", "b.img"] },
            "rows": [{ "name": "read 4K", "unit": "ms", "better": "lower" }],
            "runs": [{ "name": "read 4K", "arms": [[1.0, 2.0], [3.0, 4.0]] }, { "name": "?", "arms": 5 }],
        });
        let (kind, measures) = measures(&value).unwrap();
        assert_eq!(kind, "compare");
        let names: Vec<_> =
            measures.iter().map(|m| (m.name.as_str(), m.better, m.samples.as_slice())).collect();
        assert_eq!(
            names,
            [
                ("read 4K · a.img", Better::Lower, &[1.0, 2.0][..]),
                ("read 4K · b.img", Better::Lower, &[3.0, 4.0])
            ]
        );
    }

    #[test]
    fn runs_of_an_experiment_with_the_same_name_are_repeats() {
        let row = |mb_s: f64| json!({ "test": "D", "rw": "read", "mb_s": mb_s, "response_ms": null });
        let value = json!({ "experiment": "control", "rows": [row(110.0), row(111.0), 7] });
        let (_, measures) = measures(&value).unwrap();
        assert_eq!(measures.len(), 1);
        assert_eq!(
            (measures[0].name.as_str(), measures[0].samples.as_slice()),
            ("D read", &[110.0, 111.0][..])
        );
    }
}
