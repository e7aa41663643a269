//! Limits on I/O, as options of `lunway lun` and `lunway acl`.

use clap::Args;
use lunway_block::duration::{ExactDuration, parse_duration};
use lunway_block::rate::{ExactRate, parse_rate};
use serde_json::{Map, Value, json};

/// What removes a limit.
const NONE: &str = "none";

/// Limits: each as it goes into a request, null where it is to be removed.
#[derive(Debug, Args)]
pub(super) struct IoLimits {
    /// Limit of commands per second that read or change the medium, or none
    #[arg(long, value_name = "N", value_parser = iops)]
    iops_limit: Option<Value>,
    /// Limit of bytes per second that these read and write, such as 100M, or none
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate_limit: Option<Value>,
    /// After a pause, what was not used in this time may be used at once [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = burst)]
    limit_burst: Option<Value>,
}

impl IoLimits {
    fn members(&self) -> impl Iterator<Item = (String, Option<Value>)> {
        let members = [
            ("iops_limit", &self.iops_limit),
            ("rate_limit", &self.rate_limit),
            ("limit_burst", &self.limit_burst),
        ];
        members.into_iter().map(|(key, value)| (key.to_owned(), value.clone()))
    }

    /// The members of a request that sets those that are given, and no others.
    pub(super) fn given(&self) -> Map<String, Value> {
        self.members().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// The same, and null for the others.
    pub(super) fn all(&self) -> Map<String, Value> {
        self.members().map(|(key, value)| (key, value.unwrap_or_default())).collect()
    }
}

/// The limits in a configuration, for people; empty: there are none.
pub(super) fn shown(config: &Value) -> String {
    let iops = config["iops_limit"].as_u64().map(|iops| format!("{iops} IOPS"));
    let rate = config["rate_limit"].as_str().map(|rate| format!("{}/s", rate.trim_end_matches("/s")));
    iops.into_iter().chain(rate).collect::<Vec<_>>().join(", ")
}

fn iops(text: &str) -> Result<Value, String> {
    match text.parse::<u64>() {
        _ if text == NONE => Ok(Value::Null),
        Ok(iops) if iops > 0 => Ok(json!(iops)),
        _ => Err("a whole number is expected, 1 or more, or none".to_owned()),
    }
}

fn rate(text: &str) -> Result<Value, String> {
    match parse_rate(text) {
        _ if text == NONE => Ok(Value::Null),
        Ok(rate) => Ok(json!(ExactRate(rate).to_string())),
        Err(error) => Err(error.to_string()),
    }
}

fn burst(text: &str) -> Result<Value, String> {
    match parse_duration(text) {
        _ if text == NONE => Ok(Value::Null),
        Ok(time) => Ok(json!(ExactDuration(time).to_string())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_with_its_unit_or_none() {
        assert_eq!((iops("500"), iops("none")), (Ok(json!(500)), Ok(Value::Null)));
        assert!(iops("0").unwrap_err().contains("1 or more"));
        assert_eq!((rate("100M/s"), rate("none")), (Ok(json!("100M")), Ok(Value::Null)));
        assert!(rate("100").unwrap_err().contains("write its unit too"));
        assert_eq!((burst("2000ms"), burst("none")), (Ok(json!("2s")), Ok(Value::Null)));
        assert!(burst("2").unwrap_err().contains("is not a duration"));
    }

    #[test]
    fn what_is_not_given_is_left_as_it_is_or_reset() {
        let limits =
            IoLimits { iops_limit: Some(json!(9)), rate_limit: Some(Value::Null), limit_burst: None };
        assert_eq!(Value::Object(limits.given()), json!({ "iops_limit": 9, "rate_limit": null }));
        assert_eq!(limits.all()["limit_burst"], Value::Null);
        assert_eq!(shown(&json!({ "iops_limit": 9, "rate_limit": "1M" })), "9 IOPS, 1M/s");
        assert_eq!(shown(&json!({})), "");
    }
}
