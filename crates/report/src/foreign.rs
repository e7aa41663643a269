//! Values of a file whose writer is not trusted, within limits.

use serde_json::Value;

/// Most measures of a document. Far more than any of ours has.
pub(crate) const MEASURES_MAX: usize = 4096;
/// Most samples of a measure.
pub(crate) const SAMPLES_MAX: usize = 1000;

/// Text of at most `most` characters, none of which makes a terminal do things.
pub(crate) fn clean(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The numbers of a list.
pub(crate) fn samples(value: &Value) -> Vec<f64> {
    let list = value.as_array().map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(Value::as_f64).filter(|sample| sample.is_finite()).take(SAMPLES_MAX).collect()
}
