//! Merge of a PUT with the present configuration (RFC 7396).

use lunway_target::{Config, LunConfig, TargetConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::extract::unfit;

/// Sets the keys that `patch` names; null takes a key's default back. Lists are replaced, tables gone into.
pub(crate) fn merge(present: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else { return *present = patch };
    if !present.is_object() {
        *present = Value::Object(Map::new());
    }
    let Value::Object(present) = present else { return };
    for (key, value) in patch {
        if value.is_null() {
            present.remove(&key);
        } else {
            merge(present.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// `present`, or something new, with what `patch` says. `name` is the key and value that the path gave: the body may
/// repeat it, and may not say otherwise.
pub(crate) fn patched<T: Serialize + DeserializeOwned>(
    place: &str,
    present: Option<&T>,
    name: (&str, Value),
    patch: Value,
) -> Result<T, ApiError> {
    let Value::Object(patch) = patch else {
        return Err(ApiError::bad_request(format!("{place}: the body must be a JSON object")));
    };
    let (key, value) = name;
    if let Some(other) = patch.get(key).filter(|other| **other != value) {
        let sentence = format!("{place}: the path says that `{key}` is {value}, the body says {other}");
        return Err(ApiError::bad_request(sentence));
    }
    let mut merged = match present {
        Some(present) => serde_json::to_value(present).map_err(|error| unfit(place, &error))?,
        None => Value::Object(Map::new()),
    };
    merge(&mut merged, Value::Object(patch));
    merged[key] = value;
    serde_json::from_value(merged).map_err(|error| unfit(place, &error))
}

/// Puts secrets back into the addresses of devices that came as they are shown, without.
pub(crate) fn restore_secrets(new: &mut Config, old: &Config) -> Result<(), ApiError> {
    for target in &mut new.targets {
        restore_target(target, old)?;
    }
    Ok(())
}

/// The same for one target.
pub(crate) fn restore_target(target: &mut TargetConfig, old: &Config) -> Result<(), ApiError> {
    let before = old.target(target.name.as_str());
    for lun in &mut target.luns {
        let place = format!("target {}, lun {}", target.name, lun.id);
        restore_lun(&place, lun, before.and_then(|target| target.lun(lun.id)))?;
    }
    Ok(())
}

/// The same for one LUN.
pub(crate) fn restore_lun(place: &str, lun: &mut LunConfig, old: Option<&LunConfig>) -> Result<(), ApiError> {
    let text = lun.device.as_written();
    if !text.contains("***") {
        return Ok(());
    }
    match old.filter(|old| old.device.redacted().as_written() == text) {
        Some(old) => {
            lun.device = old.device.clone();
            Ok(())
        }
        None => Err(ApiError::unprocessable(format!(
            "{place}: device: the secret shown as *** is unknown: write the secret, or name a file with secret_file="
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_sets_what_it_names_and_null_takes_back() {
        let mut value = json!({ "a": 1, "t": { "x": 1, "y": 2 }, "l": [1, 2] });
        merge(
            &mut value,
            json!({ "a": null, "b": 2, "t": { "y": 3 }, "l": [3], "n": { "z": null, "w": 1 } }),
        );
        assert_eq!(value, json!({ "b": 2, "t": { "x": 1, "y": 3 }, "l": [3], "n": { "w": 1 } }));
    }

    #[test]
    fn what_the_path_names_cannot_be_renamed() {
        let lun = LunConfig::new(3, "ram:1M".parse().unwrap());
        let put = |patch| patched("lun 3", Some(&lun), ("id", json!(3)), patch);
        assert_eq!(put(json!({ "id": 3 })).unwrap(), lun);
        assert!(put(json!({ "read_only": true })).unwrap().read_only);
        assert!(put(json!({ "id": 4 })).unwrap_err().sentence.contains("the body says 4"));
        let unknown = put(json!({ "colour": "red" })).unwrap_err();
        assert!(unknown.sentence.starts_with("lun 3: unknown field `colour`"), "{}", unknown.sentence);
        assert!(put(json!([])).is_err());
        let new = patched::<LunConfig>("lun 3", None, ("id", json!(3)), json!({}));
        assert_eq!(new.unwrap_err().sentence, "lun 3: missing field `device`");
    }

    #[test]
    fn a_device_that_comes_as_it_is_shown_keeps_its_secret() {
        let device = "iscsi://u%hunter2hunter2@h/iqn.2026-11.com.example:b/0";
        let text = format!(
            "[[target]]\nname = \"iqn.2026-11.com.example:a\"\n[[target.lun]]\nid = 0\ndevice = \"{device}\"\n"
        );
        let old = Config::from_toml(&text, "x").unwrap();
        let mut new = old.redacted();
        restore_secrets(&mut new, &old).unwrap();
        assert_eq!(new, old);
        let mut other = old.redacted();
        other.targets[0].luns[0].id = 1;
        assert!(restore_secrets(&mut other, &old).is_err());
    }
}
