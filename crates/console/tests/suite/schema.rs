//! As much of JSON Schema as the API's document uses; any other keyword is an error of the test.

use serde_json::Value;

/// Keywords that say nothing about which values fit, or that need no check because `type` is checked.
const SILENT: [&str; 7] =
    ["description", "title", "format", "default", "examples", "deprecated", "minLength"];

/// Says where `value` is not what `schema` says. Objects may have only the properties that are described.
pub(crate) fn check(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let Value::Object(keywords) = schema else {
        return if *schema == Value::Bool(true) { Ok(()) } else { Err(format!("{at}: nothing fits")) };
    };
    for (keyword, argument) in keywords {
        let fits = match keyword.as_str() {
            "$ref" => {
                let pointer = argument.as_str().unwrap().strip_prefix('#').unwrap();
                let schema = document.pointer(pointer).ok_or(format!("{at}: {argument} is nowhere"))?;
                check(document, schema, value, at)?;
                true
            }
            "type" => match argument {
                Value::Array(kinds) => kinds.iter().any(|kind| is(kind, value)),
                kind => is(kind, value),
            },
            "properties" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let schema = argument.get(key).ok_or(format!("{at}: {key} is not described"))?;
                    check(document, schema, value, &format!("{at}.{key}"))?;
                }
                true
            }
            "required" => {
                argument.as_array().unwrap().iter().all(|key| value.get(key.as_str().unwrap()).is_some())
            }
            "additionalProperties" => *argument == Value::Bool(false),
            "items" => {
                for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                    check(document, argument, value, &format!("{at}[{index}]"))?;
                }
                true
            }
            "anyOf" | "oneOf" => {
                argument.as_array().unwrap().iter().any(|schema| check(document, schema, value, at).is_ok())
            }
            "allOf" => {
                for schema in argument.as_array().unwrap() {
                    check(document, schema, value, at)?;
                }
                true
            }
            "enum" => argument.as_array().unwrap().contains(value),
            "const" => argument == value,
            "minimum" => value.as_f64().is_none_or(|value| value >= argument.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|value| value <= argument.as_f64().unwrap()),
            "minItems" => {
                value.as_array().is_none_or(|value| value.len() as u64 >= argument.as_u64().unwrap())
            }
            "maxItems" => {
                value.as_array().is_none_or(|value| value.len() as u64 <= argument.as_u64().unwrap())
            }
            silent if SILENT.contains(&silent) => true,
            unknown => panic!("{at}: the test does not know the keyword {unknown}"),
        };
        if !fits {
            return Err(format!("{at}: {value} is not {keyword} {argument}"));
        }
    }
    Ok(())
}

fn is(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        unknown => panic!("the test does not know the type {unknown}"),
    }
}

#[test]
fn what_does_not_fit_is_noticed() {
    let document = serde_json::json!({ "S": { "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] } });
    let schema = serde_json::json!({ "type": "array", "items": { "$ref": "#/S" } });
    let outcome = |value: Value| check(&document, &schema, &value, "it");
    assert_eq!(outcome(serde_json::json!([{ "a": 1 }])), Ok(()));
    for wrong in ["{}", "[{}]", "[{\"a\": \"1\"}]", "[{\"a\": 1, \"b\": 1}]"] {
        assert!(outcome(serde_json::from_str(wrong).unwrap()).is_err(), "{wrong}");
    }
}
