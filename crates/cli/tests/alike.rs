//! Options that several commands have mean the same in each of them. The commands and their options are read from the
//! command line's own help.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::places::{commands, help, words};
use support::{IQN, PATIENCE, finish, lunway, succeed};

/// A command that does something itself, with its options. Groups of commands are left out, except `net`, which is
/// both.
struct Leaf {
    name: String,
    help: String,
    options: Vec<(String, Option<String>)>,
}

impl Leaf {
    fn all() -> Vec<Self> {
        let all = commands().into_iter().filter_map(|command| {
            let (name, help) = (command.join(" "), help(&command));
            let options = words(&help).into_iter().filter(|(name, _)| name.starts_with("--")).collect();
            (name == "net" || !help.contains("\nCommands:\n")).then_some(Self { name, help, options })
        });
        let all: Vec<Self> = all.collect();
        assert!(all.len() > 60, "{}", all.len());
        all
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|(name, _)| name == option)
    }

    fn group(&self) -> &str {
        self.name.split(' ').next().unwrap()
    }

    /// Whether a running daemon does it.
    fn asks_a_daemon(&self) -> bool {
        let groups = [
            "target",
            "lun",
            "snapshot",
            "portal",
            "acl",
            "session",
            "reservation",
            "config",
            "reload",
            "top",
        ];
        groups.contains(&self.group()) || self.name.starts_with("backup schedule ")
    }

    /// What must stand behind it, in order.
    fn needs(&self) -> Vec<&str> {
        let usage = self.help.split("Usage: lunway ").nth(1).unwrap().lines().next().unwrap();
        let mut before = "";
        let mut found = Vec::new();
        for word in usage.split_whitespace() {
            let value = word.trim_end_matches("...");
            if let Some(value) = value.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'))
                && !before.starts_with("--")
            {
                found.push(value);
            }
            before = word;
        }
        found
    }

    /// The command as somebody would write it. `file` is a configuration.
    fn written(&self, file: &str) -> Vec<String> {
        let value = |name: &str| match name {
            "TARGET" => IQN.to_owned(),
            "TARGET/LUN" => format!("{IQN}/0"),
            "LUN" => "0".to_owned(),
            "DEVICE" => "ram:1M".to_owned(),
            "SIZE" => "8M".to_owned(),
            "RULE" => "host-1".to_owned(),
            "TSIH" => "1".to_owned(),
            "NAME" => "3f2a91c07be4".to_owned(),
            "LISTEN" => "127.0.0.1:3260".to_owned(),
            "CHILD" => Path::new(file).with_file_name("child.avhdx").to_str().unwrap().to_owned(),
            "FILE" => file.to_owned(),
            "EPOCH" => "0".repeat(32),
            other => panic!("`{}` needs {other}: give it a value here", self.name),
        };
        let more: &[&str] = match self.name.as_str() {
            "acl add" => &["--initiator", "*"],
            "lun set" => &["--read-only", "true"],
            "target set" => &["--alias", "other"],
            _ => &[],
        };
        let name = self.name.split(' ').map(str::to_owned);
        let needs = self.needs().into_iter().map(value);
        name.chain(needs).chain(more.iter().map(|word| (*word).to_owned())).collect()
    }
}

/// The names of commands.
fn names(leaves: &[Leaf], which: impl Fn(&Leaf) -> bool) -> BTreeSet<&str> {
    leaves.iter().filter(|leaf| which(leaf)).map(|leaf| leaf.name.as_str()).collect()
}

fn set<const N: usize>(names: [&'static str; N]) -> BTreeSet<&'static str> {
    names.into()
}

#[test]
fn a_value_has_the_same_form_in_every_command() {
    let mut tried = BTreeSet::new();
    for leaf in Leaf::all() {
        for (option, value) in &leaf.options {
            let Some(value) = value.as_deref() else { continue };
            // Rates are bits of a network and bytes of a disk.
            let is_network = ["net", "lab run"].contains(&leaf.name.as_str());
            let (wrong, said, right): (&str, &str, &[&str]) = match value {
                "TIME" => ("5", "`5` is not a duration: write a number with a unit", &["30s", "2m", "1h"]),
                "SIZE" => ("4X", "`4X` is not a size", &["1M", "1MiB", "1MB"]),
                "RATE" if is_network => ("fast", "fast", &["1Gbit", "100Mbit"]),
                "RATE" => ("fast", "fast", &["100M", "100MB/s"]),
                "BYTES" if option.contains("sector") => ("x", "is expected", &["512", "4096", "4K"]),
                "PERCENT" => ("x", "`x` is not a percentage", &["3", "3%"]),
                "N" | "NUMBER" => ("4x", "a whole number is expected", &["4"]),
                _ => continue,
            };
            tried.insert(value.to_owned());
            let name: Vec<&str> = leaf.name.split(' ').collect();
            let refused = finish(lunway(&[&name[..], &[option.as_str(), wrong]].concat()), PATIENCE);
            let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(2), "{} {option} {wrong}: {stderr}", leaf.name);
            assert!(stderr.contains(said), "{} {option} {wrong}: {stderr}", leaf.name);
            // A command without what it must have does nothing, and says first what is wrong with a value.
            for right in right.iter().filter(|_| !leaf.needs().is_empty()) {
                let incomplete = finish(lunway(&[&name[..], &[option.as_str(), *right]].concat()), PATIENCE);
                let stderr = String::from_utf8_lossy(&incomplete.stderr).into_owned();
                assert_eq!(incomplete.status.code(), Some(2), "{} {option} {right}: {stderr}", leaf.name);
                assert!(!stderr.contains("invalid value"), "{} {option} {right}: {stderr}", leaf.name);
            }
        }
    }
    assert_eq!(tried.len(), 7, "{tried:?}");
}

#[test]
fn results_are_printed_as_json_by_every_command_and_written_to_files_by_those_that_measure() {
    let leaves = Leaf::all();
    // What they print is a file, or a page for a person.
    let none = set(["completions", "demo", "lab show", "man"]);
    assert_eq!(names(&leaves, |leaf| !leaf.has("--json")), none);
    let files = names(&leaves, |leaf| leaf.has("--html-file"));
    assert!(files.len() >= 8, "{files:?}");
    for leaf in leaves.iter().filter(|leaf| files.contains(leaf.name.as_str())) {
        assert!(leaf.has("--force"), "{}: what is no report is replaced by a word", leaf.name);
        assert!(leaf.has("--json-file") || leaf.name == "demo", "{}", leaf.name);
    }
    assert!(names(&leaves, |leaf| leaf.has("--json-file")).is_subset(&files));
    for leaf in &leaves {
        for (option, value) in &leaf.options {
            let is_file = option.ends_with("-file") || option == "--stream";
            assert!(option != "--json" || value.is_none(), "{}: --json is a flag", leaf.name);
            assert!(!is_file || value.as_deref() == Some("FILE"), "{} {option}", leaf.name);
        }
    }
}

#[test]
fn what_may_destroy_has_the_same_words_everywhere() {
    let leaves = Leaf::all();
    let copies = names(&leaves, |leaf| leaf.needs().iter().any(|value| ["DST", "OUT"].contains(value)));
    assert_eq!(copies, set(["backup restore", "copy", "disk convert"]));
    assert_eq!(names(&leaves, |leaf| leaf.has("--overwrite")), copies);
    assert_eq!(names(&leaves, |leaf| leaf.has("--resume")), copies);
    // Those that write to measure.
    assert_eq!(names(&leaves, |leaf| leaf.has("--destroy")), set(["bench", "compare"]));
    // Those that can make a disk smaller; `attach` is its clients' word.
    let shrink = set([
        "attach",
        "config apply",
        "disk merge",
        "disk resize",
        "lun add",
        "lun resize",
        "lun set",
        "reload",
    ]);
    assert_eq!(names(&leaves, |leaf| leaf.has("--shrink")), shrink);
    for leaf in leaves.iter().filter(|leaf| leaf.has("--force")) {
        let what = leaf.help.split("\n      --force").nth(1).unwrap().split("\n\n").next().unwrap();
        let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(["Replace", "even if"].iter().any(|word| what.contains(word)), "{}: {what}", leaf.name);
    }
}

#[test]
fn every_command_that_asks_a_daemon_says_alike_which_one() {
    let leaves = Leaf::all();
    let asking = names(&leaves, Leaf::asks_a_daemon);
    assert!(asking.len() >= 35, "{asking:?}");
    // They can ask one, and do something without.
    let also = set(["backup run", "doctor", "serve"]);
    let expected = &asking | &also;
    assert_eq!(names(&leaves, |leaf| leaf.has("--socket")), expected);
    let over_tcp = &asking | &set(["doctor"]);
    for option in ["--api", "--token-file"] {
        assert_eq!(names(&leaves, |leaf| leaf.has(option)), over_tcp, "{option}");
    }
    for leaf in leaves.iter().filter(|leaf| leaf.has("--socket")) {
        assert!(leaf.help.contains("[env: LUNWAY_SOCKET"), "{}", leaf.name);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (socket, file, token) = (path("none.sock"), path("lunway.toml"), path("token"));
    fs::write(&file, configuration(&path("state"))).unwrap();
    fs::write(&token, "0123456789abcdef\n").unwrap();
    for leaf in leaves.iter().filter(|leaf| leaf.asks_a_daemon()) {
        let written = leaf.written(&file);
        let by_option = lunway(&[&written[..], &["--socket".to_owned(), socket.clone()]].concat());
        let mut by_variable = lunway(&[&written[..], &["--json".to_owned()]].concat());
        by_variable.env("LUNWAY_SOCKET", &socket);
        let over_tcp = ["--api", "http://127.0.0.1:9", "--token-file", &token].map(str::to_owned);
        let over_tcp = lunway(&[&written[..], &over_tcp].concat());
        for (command, place) in
            [(by_option, "none.sock"), (by_variable, "none.sock"), (over_tcp, "127.0.0.1:9")]
        {
            let output = finish(command, PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{written:?}: {said}");
            assert!(said.contains("no daemon answers") && said.contains(place), "{written:?}: {said}");
            assert!(output.stdout.is_empty(), "{written:?}");
        }
    }
}

fn configuration(state: &str) -> String {
    format!(
        "# mine\nlisten = [\"127.0.0.1:0\"]\ncores = 1\nstate_dir = \"{state}\"\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"vhdx:disk.vhdx\"\ntrack = true\n[[target.acl]]\nname = \"host-1\"\n\
         initiators = [\"*\"]\n"
    )
}

/// Killed when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Every file below a folder with its bytes, except sockets and what a daemon writes for itself.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.display().to_string(), fs::read(&path).unwrap()))
        .collect();
    found.sort();
    found
}

#[test]
fn a_dry_run_changes_nothing_whatever_it_is_a_run_of() {
    let leaves = Leaf::all();
    let changing = names(&leaves, |leaf| leaf.has("--generation"));
    // Those that need no generation: what they change is no configuration.
    let others = set(["backup prune", "lab run", "reservation clear"]);
    let expected = &changing | &others;
    assert_eq!(names(&leaves, |leaf| leaf.has("--dry-run")), expected);
    let verbs = ["add", "apply", "disable", "enable", "reload", "remove", "resize", "set", "snapshot"];
    for leaf in leaves.iter().filter(|leaf| leaf.asks_a_daemon()) {
        let verb = leaf.name.split(' ').next_back().unwrap();
        assert_eq!(verbs.contains(&verb), changing.contains(leaf.name.as_str()), "{}", leaf.name);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir_all(path("state")).unwrap();
    succeed(lunway(&["disk", "create", &path("disk.vhdx"), "--size", "4M"]));
    fs::write(path("lunway.toml"), configuration(&path("state"))).unwrap();
    // What a change would read is another file than the one that is served.
    fs::create_dir(path("other")).unwrap();
    let other = configuration(&path("state")).replace("true\n[[target.lun]]", "false\n[[target.lun]]");
    fs::write(path("other/lunway.toml"), other.replace("vhdx:disk.vhdx", &path("disk.vhdx"))).unwrap();
    let command = |words: &[String]| {
        let mut command = lunway(words);
        command.env("LUNWAY_SOCKET", path("api.sock")).env("LUNWAY_RUNTIME_DIR", path("run"));
        command
    };
    let serve = ["serve", "-c", &path("lunway.toml"), "--json"].map(str::to_owned);
    let mut serve: Command = command(&serve);
    serve.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut daemon = Daemon(serve.spawn().unwrap());
    BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let shown = || succeed(command(&["config".to_owned(), "show".to_owned()]));
    let (before, served) = (contents(folder.path()), shown());
    let mut worked = 0;
    for leaf in leaves.iter().filter(|leaf| changing.contains(leaf.name.as_str())) {
        let words = [leaf.written(&path("other/lunway.toml")), vec!["--dry-run".to_owned()]].concat();
        let output = finish(command(&words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            // Conflicts, and what there is not.
            Some(1) => {}
            Some(0) => {
                worked += 1;
                let nothing = ["nothing was changed", "nothing to change"];
                assert!(nothing.iter().any(|words| said.contains(words)), "{words:?}: {said}");
            }
            code => panic!("{words:?} ended with {code:?}: {}", String::from_utf8_lossy(&output.stderr)),
        }
        assert_eq!(shown(), served, "{words:?}");
        assert!(contents(folder.path()) == before, "{words:?} changed a file");
    }
    assert!(worked >= 8, "{worked} of {} could be tried", changing.len());
}
