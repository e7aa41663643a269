//! JSON in which no key occurs twice: parsers keep one of two, and which one differs between them.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A value all of whose objects have each key once.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Once;
        impl<'de> Visitor<'de> for Once {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_str<E>(self, value: &str) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
                let mut values = Vec::new();
                while let Some(Strict(value)) = list.next_element()? {
                    values.push(value);
                }
                Ok(Value::Array(values))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
                let mut map = Map::new();
                while let Some((key, Strict(value))) = object.next_entry::<String, Strict>()? {
                    if map.insert(key.clone(), value).is_some() {
                        return Err(A::Error::custom(format!("the key {key:?} occurs twice")));
                    }
                }
                Ok(Value::Object(map))
            }
        }
        deserializer.deserialize_any(Once).map(Self)
    }
}

/// Parses a document; an error where a key occurs twice.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map(|Strict(value)| value).map_err(|error| format!("{error}: {text}"))
}

#[test]
fn a_key_that_occurs_twice_is_found_wherever_it_is() {
    assert!(parse(r#"[{"a": [1, -2, 0.5, null, true, "x"]}, {"a": {"b": {}}}]"#).is_ok());
    for twice in [r#"{"a": 1, "a": 1}"#, r#"[{"b": {"a": 1, "c": 2, "a": 3}}]"#] {
        assert!(parse(twice).is_err_and(|error| error.contains("\"a\" occurs twice")), "{twice}");
    }
}
