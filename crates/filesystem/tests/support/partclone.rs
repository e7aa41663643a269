//! partclone's opinion.

use std::ops::Range;
use std::path::Path;

use super::{run, sparse, text};

/// What `partclone.KIND` would not copy of a volume, by the domain map that it writes.
pub(crate) fn free(kind: &str, image: &Path) -> Vec<Range<u64>> {
    let folder = tempfile::tempdir().expect("a folder");
    let map = sparse(folder.path(), "map", 0);
    let log = folder.path().join("log");
    let program = format!("partclone.{kind}");
    run(&program, &["-D", "-F", "-q", "-L", text(&log), "-s", text(image), "-O", text(&map)]);
    let map = std::fs::read_to_string(map).expect("a map");
    let lines = map.lines().filter(|line| line.starts_with("0x"));
    let fields = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter_map(|fields| match fields.as_slice() {
            [at, len, "?"] => {
                let number =
                    |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hex");
                Some(number(at)..number(at) + number(len))
            }
            _ => None,
        })
        .collect()
}
