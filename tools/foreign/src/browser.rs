//! A page as a browser draws it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program;

/// View of a page: window and medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Width of the window, CSS pixels.
    pub width: u32,
    /// The reader's system is dark.
    pub dark: bool,
    /// As printed: the rules for paper hold.
    pub paper: bool,
}

impl View {
    /// A desk and a phone, light and dark, and a sheet of A4 without its margins.
    pub const ALL: [Self; 5] = [
        Self { width: 1280, dark: false, paper: false },
        Self { width: 1280, dark: true, paper: false },
        Self { width: 390, dark: false, paper: false },
        Self { width: 390, dark: true, paper: false },
        Self { width: 718, dark: false, paper: true },
    ];

    fn name(self) -> String {
        let Self { width, dark, paper } = self;
        format!("{width}{}{}", if dark { "-dark" } else { "" }, if paper { "-paper" } else { "" })
    }
}

/// Result of showing a page in a browser.
#[derive(Clone, Debug)]
pub struct Looked {
    /// Charts that are visible.
    pub charts: usize,
    /// The page's ground is dark.
    pub dark: bool,
    /// Complaints that a reader would have, each a sentence: charts without size, text that is too small, cut off, on
    /// top of other text or hardly told from its ground, anything wider than the window.
    pub problems: Vec<String>,
    /// A picture of all of it.
    pub screenshot: PathBuf,
}

/// Opens `page` in headless Chromium and looks at it; `None` where there is no Chromium, which is noted.
///
/// A page around it measures, as `page` allows no script and a window cannot be made as narrow as a phone. Everything
/// is written to `folder`, with names that begin as `page`'s does.
///
/// # Panics
///
/// Where files cannot be written, or the browser does not do its work within two minutes.
pub fn look(page: &Path, folder: &Path, view: View) -> Option<Looked> {
    let program = program("chromium")?;
    let stem = page.file_stem().and_then(|stem| stem.to_str()).expect("a page has a name");
    let name = format!("{stem}-{}", view.name());
    let html = fs::read_to_string(page).expect("the page can be read");
    // There is no switch for the medium: a copy has the rules for paper hold everywhere.
    let html = if view.paper { html.replace("@media print{", "@media all{") } else { html };
    let (copy, around) = (folder.join(format!("{name}.html")), folder.join(format!("{name}-around.html")));
    fs::write(&copy, html).expect("the folder can be written");
    let text = format!(
        "<!doctype html><body style='margin:0'><pre id=found style='display:none'></pre>\
         <iframe id=page src='{name}.html' width={} height=1000 style='border:0;display:block'></iframe>\
         <script>{}</script>",
        view.width,
        include_str!("audit.js"),
    );
    fs::write(&around, text).expect("the folder can be written");
    let screenshot = folder.join(format!("{name}.png"));
    let found = open(&program, &around, &screenshot, view, &folder.join(format!("{name}-profile")));
    let lines: Vec<&str> = found.lines().collect();
    let (facts, problems) = lines.split_first().unwrap_or_else(|| panic!("nothing found: {found}"));
    let fact = |name: &str| {
        let value = facts.split(' ').find_map(|fact| fact.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {name} in {facts}"))
    };
    Some(Looked {
        charts: fact("charts").parse().expect("the script counts"),
        dark: fact("dark") == "true",
        problems: problems.iter().map(|problem| format!("{name}: {problem}")).collect(),
        screenshot,
    })
}

/// Findings of the script, by the lines.
fn open(program: &Path, around: &Path, screenshot: &Path, view: View, profile: &Path) -> String {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "120"]).arg(program).args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--allow-file-access-from-files",
        "--hide-scrollbars",
        "--virtual-time-budget=5000",
        "--dump-dom",
    ]);
    command.arg(format!("--window-size={},9000", view.width.max(500)));
    command.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!view.dark)));
    command.arg(format!("--screenshot={}", screenshot.display()));
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.arg(format!("file://{}", around.display()));
    let output = command.output().expect("timeout starts");
    let _ = fs::remove_dir_all(profile);
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = dom.split_once(">BEGIN\n").and_then(|(_, rest)| Some(rest.split_once("\nEND")?.0.to_owned()));
    let found = found.unwrap_or_else(|| {
        panic!(
            "{}: the page was not looked at: {dom}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
    });
    found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_would_complain_of_is_found() {
        let folder = std::env::temp_dir().join(format!("lunway-look-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let page = folder.join("bad.html");
        let svg = |inner: &str| {
            format!(
                "<div class=card><svg aria-label=x width=300 height=100 viewBox='0 0 300 100'>{inner}</svg></div>"
            )
        };
        let text = [
            "<!doctype html><body style='background:#fff'><p style='color:#999'>faint words</p><p style='width:2000px'>wide</p>",
            &svg(
                "<rect width=9 height=9 /><text x=10 y=20>one</text><text x=15 y=20>two</text><text x=280 y=90>beyond</text>",
            ),
            &svg(
                "<rect width=300 height=100 fill='#333'/><text x=10 y=20>dark</text><text x=10 y=90 font-size=6 fill='#fff'>tiny</text>",
            ),
            &svg(""),
        ];
        fs::write(&page, text.concat()).unwrap();
        let looked = look(&page, &folder, View::ALL[0]);
        let _ = fs::remove_dir_all(&folder);
        let Some(looked) = looked else { return };
        assert_eq!(looked.charts, 3);
        let said = looked.problems.join("\n");
        for expected in [
            "\"faint words\" has a contrast of 2.8",
            "px wide in a window of 1280",
            "\"one\" and \"two\" overlap",
            "\"beyond\" reaches out of the chart",
            "\"dark\" has a contrast of",
            "\"tiny\" is 6.0 px high",
            "nothing is drawn",
        ] {
            assert!(said.contains(expected), "{expected} is not in:\n{said}");
        }
        assert!(!said.contains("\"tiny\" has a contrast"), "white on its dark box is fine:\n{said}");
    }
}
