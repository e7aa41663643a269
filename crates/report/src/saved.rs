//! A document that was saved: as a page, or as JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::document::{Better, Conclusion, Document, Fact, Measure, VerdictTone};
use crate::foreign::{MEASURES_MAX, SAMPLES_MAX, clean, samples};
use crate::shapes;

/// The largest file that is read: pages are below 1 MB, a long comparison's JSON some megabytes.
pub const FILE_MAX: u64 = 64 << 20;
/// Most facts and sentences of a document.
const FACTS_MAX: usize = 512;
const SENTENCES_MAX: usize = 256;
const NAME_MAX: usize = 200;
const TEXT_MAX: usize = 2000;

/// Saved document: everything but its tables and charts.
///
/// The author of the file is not trusted: it is read within limits, and what makes no sense in it is left out. Text has
/// lost its control characters.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Command that made it.
    pub kind: &'static str,
    /// Heading.
    pub title: String,
    /// Subject of the measurement.
    pub subject: String,
    /// Time of creation, if given.
    pub created: Option<SystemTime>,
    /// Results of the measurement.
    pub verdicts: Vec<Conclusion>,
    /// Cautions for the reader.
    pub warnings: Vec<String>,
    /// Facts about the place.
    pub environment: Vec<Fact>,
    /// Notes on the method.
    pub notes: Vec<String>,
    /// Measures that can be compared. No two have the same name and unit.
    pub measures: Vec<Measure>,
    /// The producer's own data.
    pub results: Value,
}

/// Reason why a file is not a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// A page, but none of ours.
    #[error("this page holds no data (no `script#data`): it was not made by lunway, or its end is missing")]
    NoData,
    /// Not JSON.
    #[error("this is neither a lunway report nor JSON: {why}")]
    Json {
        /// Message of the parser.
        why: String,
    },
    /// JSON of another shape.
    #[error("this JSON holds nothing to compare: no `measures`, and no shape that is known")]
    Shape,
    /// A later version's.
    #[error("this was written by a later lunway (schema {schema}, known is {})", crate::page::SCHEMA)]
    Schema {
        /// Its schema.
        schema: u64,
    },
}

impl Saved {
    /// Reads one of our pages, or JSON: that of [`data`](crate::data), or of `compare --json` and `lab run --json`.
    ///
    /// # Errors
    ///
    /// Where it is none of these. fio's JSON is [`SavedError::Shape`]: who knows it builds a document from it.
    pub fn parse(text: &str) -> Result<Self, SavedError> {
        let value: Value =
            serde_json::from_str(json(text)?).map_err(|error| SavedError::Json { why: error.to_string() })?;
        Self::of(&value)
    }

    fn of(value: &Value) -> Result<Self, SavedError> {
        let schema = value["lunway"]["schema"].as_u64();
        if let Some(schema) = schema.filter(|&schema| schema > u64::from(crate::page::SCHEMA)) {
            return Err(SavedError::Schema { schema });
        }
        let (kind, measures) = match value["measures"].as_array() {
            Some(list) => (kind(&value["lunway"]["kind"]), list.iter().filter_map(measure).collect()),
            None => shapes::measures(value).ok_or(SavedError::Shape)?,
        };
        let sentences = |name: &str| -> Vec<String> {
            let list = value[name].as_array().map_or(&[][..], Vec::as_slice);
            list.iter().filter_map(|text| Some(clean(text.as_str()?, TEXT_MAX))).take(SENTENCES_MAX).collect()
        };
        let list = |name: &str| value[name].as_array().map_or(&[][..], Vec::as_slice);
        Ok(Self {
            kind,
            title: clean(value["title"].as_str().unwrap_or(kind), NAME_MAX),
            subject: clean(value["device"].as_str().unwrap_or_default(), TEXT_MAX),
            created: value["created"].as_u64().and_then(|s| UNIX_EPOCH.checked_add(Duration::from_secs(s))),
            verdicts: list("verdicts").iter().filter_map(verdict).take(SENTENCES_MAX).collect(),
            warnings: sentences("warnings"),
            environment: list("environment").iter().filter_map(fact).take(FACTS_MAX).collect(),
            notes: sentences("notes"),
            measures: unique(measures),
            results: value.get("results").cloned().unwrap_or(Value::Null),
        })
    }

    /// Returns `true` if lunway wrote the file: a page, a document, or a stream of lines of which the first is ours.
    ///
    /// Stricter than [`parse`](Self::parse), since such a file may be replaced: JSON of another program that could be
    /// compared as well is not ours.
    pub fn is_ours(text: &str) -> bool {
        let ours = |text: &str| serde_json::from_str(text).is_ok_and(|value: Value| shapes::is_ours(&value));
        ours(json(text).unwrap_or(text)) || ours(text.lines().next().unwrap_or_default())
    }

    /// Returns `true` if both are of one run, such as its page and its JSON: all figures that both have are equal. Of
    /// two runs hardly two figures are equal, and one alone may be by chance.
    pub fn is_same_run(&self, other: &Self) -> bool {
        let both = self.measures.iter().filter_map(|measure| {
            let of_other = other.measures.iter().find(|other| other.is_of(measure))?;
            (!measure.samples.is_empty()).then_some((&measure.samples, &of_other.samples))
        });
        let both: Vec<_> = both.collect();
        let figures: usize = both.iter().map(|(samples, _)| samples.len()).sum();
        let is_enough =
            figures > 1 || (figures == 1 && self.created.is_some() && self.created == other.created);
        is_enough && both.iter().all(|(ours, theirs)| ours == theirs)
    }

    /// Takes the samples of another run of the same thing as further samples of its own.
    pub fn join(&mut self, other: Self) {
        for measure in other.measures {
            match self.measures.iter_mut().find(|known| known.is_of(&measure)) {
                Some(known) => {
                    known.samples.extend(measure.samples);
                    known.samples.truncate(SAMPLES_MAX);
                }
                None => self.measures.push(measure),
            }
        }
        self.measures.truncate(MEASURES_MAX);
    }
}

impl From<Document> for Saved {
    fn from(document: Document) -> Self {
        Self {
            kind: document.kind,
            title: document.title,
            subject: document.subject,
            created: Some(document.created),
            verdicts: document.verdicts,
            warnings: document.warnings,
            environment: document.environment,
            notes: document.notes,
            measures: unique(document.measures),
            results: document.results,
        }
    }
}

impl Measure {
    /// Returns `true` if both measure the same thing.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.name == other.name && self.unit == other.unit
    }
}

/// The JSON of a page, or the text itself.
fn json(text: &str) -> Result<&str, SavedError> {
    if !text.trim_start().starts_with('<') {
        return Ok(text);
    }
    let (_, data) =
        text.rsplit_once("<script type=\"application/json\" id=\"data\">").ok_or(SavedError::NoData)?;
    Ok(data.split_once("</script>").ok_or(SavedError::NoData)?.0)
}

fn kind(value: &Value) -> &'static str {
    const KINDS: [&str; 5] = ["bench", "compare", "net", "lab", "diff"];
    KINDS.into_iter().find(|&kind| value.as_str() == Some(kind)).unwrap_or("report")
}

fn verdict(value: &Value) -> Option<Conclusion> {
    use VerdictTone::{Bad, Even, Good, Unknown};
    let tone = [Good, Bad, Even].into_iter().find(|tone| value["tone"].as_str() == Some(tone.name()));
    Some(Conclusion { text: clean(value["text"].as_str()?, TEXT_MAX), tone: tone.unwrap_or(Unknown) })
}

fn fact(value: &Value) -> Option<Fact> {
    let pair = value.as_array()?;
    let text = |index: usize, most| Some(clean(pair.get(index)?.as_str()?, most));
    Some(Fact { name: text(0, NAME_MAX)?, value: text(1, TEXT_MAX)? })
}

fn measure(value: &Value) -> Option<Measure> {
    let better = match value["better"].as_str()? {
        "higher" => Better::Higher,
        "lower" => Better::Lower,
        _ => return None,
    };
    let name = clean(value["name"].as_str()?, NAME_MAX);
    Some(Measure {
        name,
        unit: clean(value["unit"].as_str()?, NAME_MAX),
        better,
        samples: samples(&value["samples"]),
    })
}

/// No more measures than allowed; a name that comes again with the same unit gets a number.
fn unique(measures: Vec<Measure>) -> Vec<Measure> {
    let mut seen = std::collections::HashMap::new();
    let mut measures: Vec<Measure> = measures.into_iter().take(MEASURES_MAX).collect();
    for measure in &mut measures {
        let count = seen.entry((measure.name.clone(), measure.unit.clone())).or_insert(0u32);
        *count += 1;
        if *count > 1 {
            measure.name += &format!(" #{count}");
        }
    }
    measures
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::page::{data, html};

    fn document() -> Document {
        let mut document = Document::new("lab", "T <b>", "s");
        document.verdicts = vec![Conclusion { text: "good".into(), tone: VerdictTone::Good }];
        document.warnings = vec!["careful".into()];
        document.environment = vec![Fact::new("Kernel", "6.1")];
        document.notes = vec!["note".into()];
        document.measures = vec![Measure {
            name: "a".into(),
            unit: "ms".into(),
            better: Better::Lower,
            samples: vec![1.0, 2.5],
        }];
        document.results = json!({ "x": "</script>" });
        document
    }

    #[test]
    fn runs_are_the_same_if_all_their_figures_are() {
        let run = |samples: &[f64], created: u64| {
            let mut saved = Saved::from(document());
            saved.measures[0].samples = samples.to_vec();
            saved.created = Some(UNIX_EPOCH + Duration::from_secs(created));
            saved
        };
        assert!(run(&[1.0, 2.5], 1).is_same_run(&run(&[1.0, 2.5], 2)));
        assert!(!run(&[1.0, 2.5], 1).is_same_run(&run(&[1.0, 2.6], 1)));
        assert!(!run(&[], 1).is_same_run(&run(&[], 1)), "no figures");
        assert!(!run(&[1.0], 1).is_same_run(&run(&[1.0], 2)), "one figure may be equal by chance");
        assert!(run(&[1.0], 1).is_same_run(&run(&[1.0], 1)));
    }

    #[test]
    fn a_page_and_its_json_are_read_back_as_they_were() {
        let document = document();
        for text in [html(&document), data(&document).to_string()] {
            let saved = Saved::parse(&text).unwrap();
            assert_eq!((saved.kind, saved.title.as_str(), saved.subject.as_str()), ("lab", "T <b>", "s"));
            assert_eq!(saved.verdicts, document.verdicts);
            assert_eq!(saved.warnings, document.warnings);
            assert_eq!(saved.environment, document.environment);
            assert_eq!(saved.notes, document.notes);
            assert_eq!(saved.measures, document.measures);
            assert_eq!(saved.results, document.results);
            let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
            assert_eq!(saved.created.map(seconds), Some(seconds(document.created)));
        }
    }

    #[test]
    fn only_what_lunway_wrote_is_ours() {
        let stream =
            "{\"event\":\"start\",\"lunway\":{\"version\":\"0.1.0\",\"schema\":1}}\n{\"event\":\"end\"}\n";
        for text in [&html(&document()), &data(&document()).to_string(), stream] {
            assert!(Saved::is_ours(text), "{text}");
        }
        let page = |data: &str| format!("<script type=\"application/json\" id=\"data\">{data}</script>");
        for foreign in [
            "",
            "{}",
            "[1]",
            "<html></html>",
            "text",
            "{\"measures\":[]}",
            "{\"measures\":[{\"name\":\"blood pressure\",\"samples\":[120]}]}",
            "{\"experiment\":\"double slit\"}",
            "{\"experiment\":\"double slit\",\"rows\":[]}",
            "{\"plan\":{\"arms\":[]}}",
            "{\"lunway\":{\"host\":\"192.0.2.1\"}}",
            "{\"lunway\":\"yes\",\"measures\":[]}",
            &page("{\"measures\":[]}"),
        ] {
            assert!(!Saved::is_ours(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_page_that_was_cut_anywhere_is_an_error_and_no_panic() {
        let page = html(&document());
        for end in (0..page.len()).filter(|&end| page.is_char_boundary(end)) {
            let cut = Saved::parse(&page[..end]);
            assert!(cut.is_err() || page[end..].trim().len() < "</script></body></html>".len() + 2);
        }
    }

    #[test]
    fn a_hostile_document_is_read_within_limits() {
        let many: Vec<Value> = (0..10_000)
            .map(|n| json!({ "name": format!("m{n}\u{1b}[2J"), "unit": "x".repeat(9999), "better": "higher", "samples": [1e308, "x", null] }))
            .collect();
        let text = json!({
            "lunway": { "schema": 1, "kind": "evil" }, "title": 5, "created": u64::MAX, "verdicts": [{ "text": [] }, 7],
            "environment": [["a"], [1, 2], "x", ["b", "c\u{7}"]], "measures": many,
        });
        let saved = Saved::parse(&text.to_string()).unwrap();
        assert_eq!((saved.kind, saved.title.as_str(), saved.created), ("report", "report", None));
        assert_eq!(saved.measures.len(), MEASURES_MAX);
        assert!(
            saved
                .measures
                .iter()
                .all(|m| m.unit.len() == NAME_MAX && m.samples == [1e308] && !m.name.contains('\u{1b}'))
        );
        assert_eq!(saved.environment, [Fact::new("b", "c\u{fffd}")]);
        assert!(saved.verdicts.is_empty());
        let deep = "[".repeat(100_000);
        assert!(matches!(Saved::parse(&deep), Err(SavedError::Json { .. })));
    }

    #[test]
    fn what_is_no_document_is_said_to_be_none() {
        assert_eq!(Saved::parse("<html>").unwrap_err(), SavedError::NoData);
        assert_eq!(Saved::parse("{\"jobs\":[]}").unwrap_err(), SavedError::Shape);
        let later = r#"{"lunway":{"schema":2},"measures":[]}"#;
        assert_eq!(Saved::parse(later).unwrap_err(), SavedError::Schema { schema: 2 });
        assert!(matches!(Saved::parse(""), Err(SavedError::Json { .. })));
    }

    #[test]
    fn runs_of_the_same_thing_are_samples_of_one() {
        let mut first = Saved::from(document());
        first.join(Saved::from(document()));
        assert_eq!(first.measures.len(), 1);
        assert_eq!(first.measures[0].samples, [1.0, 2.5, 1.0, 2.5]);
    }
}
