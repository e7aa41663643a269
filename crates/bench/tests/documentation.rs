//! The page of profiles says what the code does.

use std::path::Path;
use std::{env, fs};

use lunway_bench::profile::{Kind, published};

/// Between these lines of the page stands what the code says of a profile.
fn marks(kind: Kind) -> (String, &'static str) {
    (format!("<!-- published: {} -->\n", kind.name()), "<!-- end -->\n")
}

/// `page` with what stands between the marks replaced by what the code says.
fn filled(page: &str) -> String {
    Kind::ALL.into_iter().fold(page.to_owned(), |page, kind| {
        let (begin, end) = marks(kind);
        let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("{begin} is not on the page"));
        let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("{begin} has no end"));
        format!("{before}{begin}\n{}\n{end}{after}", published(kind))
    })
}

/// `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-bench --test documentation` writes the page anew.
#[test]
fn the_page_of_profiles_has_every_constant_that_the_code_has() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/profiles.md");
    let page = fs::read_to_string(&path).expect("the page is there");
    let expected = filled(&page);
    lunway_foreign::written::says("docs/src/profiles.md", &expected, "-p lunway-bench --test documentation");
}
