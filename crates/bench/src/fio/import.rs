//! Results in fio's JSON, read back: ours and fio's own.

use std::fmt;

use serde_json::Value;

/// Jobs of one document; fio itself runs at most 4096.
const JOBS_MAX: usize = 4096;
/// Percentiles of one latency; fio lets people ask for 20.
const PERCENTILES_MAX: usize = 64;
/// Characters of a job's name.
const NAME_MAX: usize = 200;

/// Results of one direction of one job, as tables and comparisons need them.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The job.
    pub name: String,
    /// Direction of the I/O.
    pub direction: Did,
    /// I/Os in all.
    pub ios: u64,
    /// I/Os per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Duration of the measurement, seconds.
    pub seconds: f64,
    /// Mean response time, nanoseconds: `lat_ns`, from the (intended) start to the completion. `None` where the
    /// document does not tell, as with `disable_lat`.
    pub mean_ns: Option<f64>,
    /// Per cent and nanoseconds, rising: of `lat_ns` where it has percentiles, else of `clat_ns`, as fio has it by
    /// default.
    pub percentiles_ns: Vec<(f64, u64)>,
}

impl Imported {
    /// The time that `percent` % of the I/Os did not exceed, if the document has just that percentile.
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let found = self.percentiles_ns.iter().find(|(known, _)| (known - percent).abs() < 1e-6);
        found.map(|&(_, ns)| ns)
    }
}

/// Direction of the I/O of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// Read.
    Read,
    /// Wrote.
    Write,
    /// Trimmed.
    Trim,
    /// Reads and writes in one, as fio's `unified_rw_reporting` gives them.
    Mixed,
}

impl Did {
    const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Trim, Self::Mixed];

    /// fio's key for it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Trim => "trim",
            Self::Mixed => "mixed",
        }
    }
}

impl fmt::Display for Did {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.key())
    }
}

/// Reason why a document is not what fio writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Not JSON at all.
    #[error("this is not JSON: {why}")]
    Json {
        /// Message from the parser.
        why: String,
    },
    /// No list of jobs.
    #[error("this is not fio JSON: it has no list `jobs`")]
    NoJobs,
    /// More jobs than fio can have run.
    #[error("{count} jobs are more than the {JOBS_MAX} that fio can run")]
    TooMany {
        /// Number of jobs.
        count: usize,
    },
    /// A figure that is missing, or no figure.
    #[error("job {index} of the list has no figure `{field}`")]
    Field {
        /// From 1.
        index: usize,
        /// Its path.
        field: String,
    },
}

/// Reads a document as fio writes it to a file or to its output, with whatever it said before.
pub fn parse(text: &str) -> Result<Vec<Imported>, ImportError> {
    let start = text.find('{').unwrap_or(0);
    // Behind the document fio may have more to say, as when it was asked for two formats.
    let mut documents = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
    let document = documents.next().unwrap_or(Ok(Value::Null));
    import(&document.map_err(|error| ImportError::Json { why: error.to_string() })?)
}

/// Every direction of every job that did anything.
pub fn import(document: &Value) -> Result<Vec<Imported>, ImportError> {
    let jobs = document.get("jobs").and_then(Value::as_array).ok_or(ImportError::NoJobs)?;
    if jobs.len() > JOBS_MAX {
        return Err(ImportError::TooMany { count: jobs.len() });
    }
    let mut imported = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        for did in Did::ALL {
            let Some(figures) = job.get(did.key()).filter(|figures| figures.is_object()) else { continue };
            let field =
                |name: &str| ImportError::Field { index: index + 1, field: format!("{}.{name}", did.key()) };
            let number = |name: &str| positive(&figures[name]).ok_or_else(|| field(name));
            let ios = figures["total_ios"].as_u64().ok_or_else(|| field("total_ios"))?;
            if ios == 0 {
                continue;
            }
            let name = job["jobname"].as_str().unwrap_or_default();
            imported.push(Imported {
                name: name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect(),
                direction: did,
                ios,
                iops: number("iops")?,
                bytes_per_s: number("bw_bytes")?,
                seconds: number("runtime")? / 1000.0,
                mean_ns: mean(&figures["lat_ns"]).or_else(|| mean(&figures["clat_ns"])),
                percentiles_ns: percentiles(&figures["lat_ns"])
                    .or_else(|| percentiles(&figures["clat_ns"]))
                    .unwrap_or_default(),
            });
        }
    }
    Ok(imported)
}

fn positive(value: &Value) -> Option<f64> {
    value.as_f64().filter(|figure| figure.is_finite() && *figure >= 0.0)
}

/// fio writes zeroes where it did not measure.
fn mean(latency: &Value) -> Option<f64> {
    positive(&latency["mean"]).filter(|_| latency["N"].as_u64() != Some(0))
}

fn percentiles(latency: &Value) -> Option<Vec<(f64, u64)>> {
    let list = latency.get("percentile")?.as_object()?;
    let read = |(percent, ns): (&String, &Value)| {
        let percent = percent.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent))?;
        Some((percent, ns.as_u64()?))
    };
    let mut percentiles: Vec<_> = list.iter().take(PERCENTILES_MAX).filter_map(read).collect();
    percentiles.sort_by(|a, b| a.0.total_cmp(&b.0));
    Some(percentiles).filter(|list| !list.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn direction(ios: u64) -> Value {
        json!({
            "total_ios": ios, "iops": 1000.0, "bw_bytes": 4_096_000, "runtime": 2000,
            "clat_ns": { "mean": 900.0, "N": ios, "percentile": { "99.000000": 2000, "50.000000": 800 } },
            "lat_ns": { "mean": 1000.0, "N": ios },
        })
    }

    #[test]
    fn each_direction_that_did_something_is_a_result() {
        let document = json!({ "jobs": [{ "jobname": "a", "read": direction(2000), "write": direction(0), "sync": {} }] });
        let imported = import(&document).unwrap();
        let [read] = &imported[..] else { panic!("{imported:?}") };
        assert_eq!((read.name.as_str(), read.direction, read.ios), ("a", Did::Read, 2000));
        assert_eq!(
            (read.iops, read.bytes_per_s, read.seconds, read.mean_ns),
            (1000.0, 4_096_000.0, 2.0, Some(1000.0))
        );
        assert_eq!(read.percentiles_ns, [(50.0, 800), (99.0, 2000)]);
        assert_eq!((read.percentile_ns(99.0), read.percentile_ns(99.9)), (Some(2000), None));
    }

    #[test]
    fn what_fio_says_around_its_document_is_passed_over() {
        let document = json!({ "jobs": [{ "jobname": "a", "mixed": direction(5) }] });
        let text = format!("note: both iodepth >= 1 and synchronous\n{document}\nrun status\n");
        assert_eq!(parse(&text).unwrap()[0].direction, Did::Mixed);
    }

    #[test]
    fn what_is_not_fios_is_an_error_that_names_what_is_missing() {
        assert_eq!(import(&json!([])), Err(ImportError::NoJobs));
        assert_eq!(parse(""), Err(ImportError::NoJobs));
        assert!(matches!(parse("{ \"jobs\": [ }"), Err(ImportError::Json { .. })));
        assert!(matches!(parse(&"{\"jobs\":[".repeat(10_000)), Err(ImportError::Json { .. })));
        let refused =
            import(&json!({ "jobs": [{ "read": { "total_ios": 5, "iops": "fast" } }] })).unwrap_err();
        assert_eq!(refused.to_string(), "job 1 of the list has no figure `read.iops`");
        let many = json!({ "jobs": vec![Value::Null; JOBS_MAX + 1] });
        assert_eq!(import(&many), Err(ImportError::TooMany { count: JOBS_MAX + 1 }));
    }

    #[test]
    fn wrong_types_are_no_panic() {
        for odd in [json!(null), json!(-1), json!("x"), json!([1]), json!({}), json!(1e308)] {
            for key in ["total_ios", "iops", "bw_bytes", "runtime", "clat_ns", "lat_ns"] {
                let mut figures = direction(5);
                figures[key] = odd.clone();
                let _ = import(&json!({ "jobs": [{ "jobname": odd, "read": figures }, odd] }));
            }
        }
        let mut figures = direction(5);
        figures["lat_ns"] =
            json!({ "mean": 5.0, "percentile": { "nan": 5, "-3": 1, "1e999": 2, "50": -1, "60": 7 } });
        let imported = import(&json!({ "jobs": [{ "read": figures }] })).unwrap();
        assert_eq!(imported[0].percentiles_ns, [(60.0, 7)]);
    }
}
