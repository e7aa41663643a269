//! Pages as headless Chromium draws them: at a desk, on a phone, and on paper.
//!
//! The pictures stay in the test's folder below `target`, for people to look at.

mod support;

use std::fs;
use std::path::Path;

use lunway_foreign::{View, look};
use lunway_report::html;

#[test]
fn every_chart_is_there_legible_and_free_of_overlaps_at_a_desk_on_a_phone_and_on_paper() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
    fs::create_dir_all(&folder).unwrap();
    let documents = support::all();
    let problems: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            documents.iter().map(|document| scope.spawn(|| check(document, &folder))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

fn check(document: &lunway_report::Document, folder: &Path) -> Vec<String> {
    let page = folder.join(format!("{}.html", document.kind));
    let text = html(document);
    assert!(text.len() < 1 << 20, "{}: a page of {} bytes", document.kind, text.len());
    fs::write(&page, text).expect("the folder for pictures can be written");
    let mut problems = Vec::new();
    for view in View::ALL {
        let Some(looked) = look(&page, folder, view) else { continue };
        problems.extend(looked.problems);
        let charts = support::charts(document);
        if looked.charts != charts {
            problems.push(format!("{} {view:?}: {} charts of {charts}", document.kind, looked.charts));
        }
        if looked.dark != view.dark {
            problems.push(format!("{} {view:?}: the ground is not as asked", document.kind));
        }
        let picture = fs::metadata(&looked.screenshot).map_or(0, |file| file.len());
        if picture < 10_000 {
            problems.push(format!("{} {view:?}: the picture has {picture} bytes", document.kind));
        }
    }
    problems
}
