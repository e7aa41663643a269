//! Whether help, manual pages, completions and the documentation say the same: every option is in all of them, and no
//! page names one that does not exist.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lunway_foreign::program;
use serde_json::Value;
use support::{IQN, PATIENCE, finish, lunway, succeed};

/// The pages of the book, README among them.
fn documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = fs::read_dir(root.join("docs/src")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|end| end == "md"));
    pages
        .chain([root.join("README.md")])
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path, text)
        })
        .collect()
}

/// Manual pages of a section, by their names.
fn manual(section: u8) -> BTreeMap<String, String> {
    let names = succeed(lunway(&["man", "--list"]));
    let end = format!(".{section}");
    let names = names.lines().filter_map(|name| name.strip_suffix(&end));
    names.map(|name| (name.to_owned(), succeed(lunway(&["man", name])))).collect()
}

/// What `--help` of the command of a manual page prints where `columns` are free.
fn help(page: &str, columns: usize) -> String {
    let words: Vec<&str> = page.split('-').skip(1).chain(["--help"]).collect();
    let mut help = lunway(&words);
    help.env_remove("LUNWAY_LOG_FORMAT").env_remove("LUNWAY_SOCKET").env("COLUMNS", columns.to_string());
    let lines: Vec<String> = succeed(help).lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Columns of a terminal that nobody has made wider.
const COLUMNS: usize = 80;

/// What stands behind the options of every command: notes and examples.
fn notes(help: &str) -> &str {
    help.split_once(GLOBAL).and_then(|(_, rest)| rest.split_once("[default: text]")).expect(help).1
}

/// The heading of the options of every command.
const GLOBAL: &str = "Options of every command:";

/// Long options in a text, without their dashes. In the source of a manual page a dash is `\-`, and `\f` changes the
/// font.
fn options(text: &str) -> BTreeSet<String> {
    let text = text.replace("\\fB", "").replace("\\fI", "").replace("\\fR", "").replace("\\-", "-");
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("--") {
        let before = text[..at].chars().next_back();
        // Not part of a rule, a table or a word.
        if before.is_some_and(|before| before == '-' || before.is_alphanumeric()) {
            continue;
        }
        let name =
            text[at + 2..].split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap_or_default();
        if name.starts_with(|c: char| c.is_ascii_lowercase()) {
            found.insert(name.trim_end_matches('-').to_owned());
        }
    }
    found
}

/// The page of all commands: what `--help` prints of each. The options of every command are said once.
fn page_of_all_commands() -> String {
    let mut page = "# All commands\n\nWhat `--help` prints. Written by `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-cli --test documented`. `-v, --verbose` and \
        `--log-format` are options of every command; they are described once, under `lunway`.\n"
        .to_owned();
    for name in manual(1).keys() {
        let text = help(name, 100);
        let text = match text.split_once(GLOBAL) {
            Some((before, _)) if name != "lunway" => {
                format!("{}\n\n{}", before.trim_end(), notes(&text).trim_start())
            }
            _ => text,
        };
        page += &format!("\n## {}\n\n```text\n{}\n```\n", name.replace('-', " "), text.trim_end());
    }
    page
}

#[test]
fn every_command_and_option_is_in_the_page_of_all_commands() {
    lunway_foreign::written::says(
        "docs/src/commands.md",
        &page_of_all_commands(),
        "-p lunway-cli --test documented",
    );
    // What help shows the manual has.
    for (name, text) in manual(1) {
        let help = help(&name, 100);
        // The manual has each option under one name.
        let mut parts = help.split("[alias");
        let first = parts.next().unwrap().to_owned();
        let help = parts.fold(first, |help, part| help + part.split_once(']').map_or("", |(_, rest)| rest));
        assert_eq!(options(&text), options(&help), "{name}: manual page and help");
    }
}

#[test]
fn json_is_a_flag_of_every_command_that_has_it_and_files_have_options_of_their_own() {
    let mut counted = 0;
    for page in manual(1).keys() {
        for line in help(page, 110).lines().map(str::trim_start) {
            let Some(rest) = line.find("--json").map(|at| &line[at..]).filter(|_| line.starts_with('-'))
            else {
                continue;
            };
            let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            counted += usize::from(name == "--json");
            assert_eq!(rest.starts_with('<'), name.ends_with("-file"), "{page}: {line}");
        }
    }
    assert!(counted >= 20, "{counted}");
}

#[test]
fn help_has_the_options_of_every_command_last_and_fits_a_terminal() {
    let mut examples = 0;
    for page in manual(1).keys() {
        let wide = help(page, 110);
        let (own, global) = wide.split_once(GLOBAL).unwrap_or_else(|| panic!("{page}: {wide}"));
        let global = &global[..global.len() - notes(&wide).len()];
        assert_eq!(options(global), ["log-format", "verbose"].map(str::to_owned).into(), "{page}");
        assert!(!options(own).contains("verbose") && own.contains("--help"), "{page}: {own}");
        for columns in [COLUMNS, 100] {
            let narrow = help(page, columns);
            let widest = narrow.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{page}: {widest:?} of {columns} columns");
            assert_eq!(notes(&narrow), notes(&wide), "{page}: a line is wrapped at {columns} columns");
        }
        let too_long = notes(&wide).lines().find(|line| line.chars().count() > COLUMNS);
        assert_eq!(too_long, None, "{page}");
        examples += usize::from(notes(&wide).contains("Examples:\n  "));
    }
    assert!(examples > 30, "{examples} commands have examples");
}

#[test]
fn tables_are_cut_to_the_terminal() {
    let Some(script) = program("script") else { return };
    let run = |columns: usize| {
        let program = env!("CARGO_BIN_EXE_lunway");
        let command = format!("stty cols {columns}; {program} lab list");
        let mut command_line = Command::new(&script);
        command_line.args(["--quiet", "--command", &command, "/dev/null"]).env("TERM", "dumb");
        succeed(command_line)
    };
    let width =
        |text: &str| text.lines().map(|line| line.trim_end().chars().count()).max().unwrap_or_default();
    let whole = succeed(lunway(&["lab", "list"]));
    assert!(width(&whole) > 50, "{whole}");
    let cut = run(50);
    assert!(width(&cut) <= 50 && cut.contains('…'), "{cut}");
    assert_eq!(cut.lines().count(), whole.lines().count());
}

/// The first column of the tables of a page of the book: keys, parameters, fields and values, each with the heading
/// above it.
fn names_in_the_book(page: &str) -> BTreeSet<String> {
    let (_, text) = documents().into_iter().find(|(path, _)| path.ends_with(page)).unwrap();
    let mut heading = "";
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if let Some(next) = line.strip_prefix("## ") {
            heading = next;
        } else if let Some(name) = line.strip_prefix("| `").and_then(|row| row.split_once('`')) {
            found.insert(format!("{}: {}", heading.replace('`', ""), name.0));
        }
    }
    found
}

/// The same of a manual page.
fn names_in_the_manual(page: &str) -> BTreeSet<String> {
    let text = succeed(lunway(&["man", page])).replace("\\-", "-").replace("\\&", "");
    let (mut heading, mut found, mut is_name) = (String::new(), BTreeSet::new(), false);
    for line in text.lines() {
        if let Some(next) = line.strip_prefix(".SS ") {
            heading = next.trim_matches('"').to_owned();
        } else if is_name {
            let name = line.strip_prefix("\\fB").and_then(|rest| rest.split_once("\\fR"));
            found.insert(format!("{heading}: {}", name.expect(line).0.replace("\\(dq", "\"")));
        }
        is_name = line == ".TP";
    }
    found
}

/// The keys of a file as its schema has them, with the heading of their table.
fn keys_of(schema: &Value, types: &Value, heading: &str, path: &str, found: &mut BTreeSet<String>) {
    let leads = |schema: &Value| -> Value {
        let of = schema["anyOf"].as_array().map_or(schema, |choices| &choices[0]);
        let name = of["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
        name.map_or_else(|| of.clone(), |name| types[name].clone())
    };
    for (key, value) in leads(schema)["properties"].as_object().into_iter().flatten() {
        found.insert(format!("{heading}: {key}"));
        let path = format!("{path}{key}");
        keys_of(value, types, &format!("[{path}]"), &format!("{path}."), found);
        if value["items"].is_object() {
            keys_of(&value["items"], types, &format!("[[{path}]]"), &format!("{path}."), found);
        }
    }
}

#[test]
fn every_configuration_key_and_field_of_the_interface_is_in_the_book_and_the_manual_and_nothing_else_is() {
    let document: Value = serde_json::from_str(include_str!("../../../docs/openapi.json")).unwrap();
    let types = &document["components"]["schemas"];
    let mut configuration = BTreeSet::new();
    keys_of(&types["Config"], types, "Top level", "", &mut configuration);
    let mut interface = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                if parameter["in"] == "query" {
                    let name = parameter["name"].as_str().unwrap();
                    interface.insert(format!("{} {path}: {name}", method.to_uppercase()));
                }
            }
        }
    }
    for (name, schema) in types.as_object().unwrap() {
        let fields = schema["properties"].as_object().into_iter().flatten();
        interface.extend(fields.map(|(field, _)| format!("{name}: {field}")));
        let values = schema["oneOf"].as_array().into_iter().flatten();
        interface.extend(values.filter_map(|value| Some(format!("{name}: {}", value.get("const")?))));
    }
    assert!(configuration.len() > 60 && interface.len() > 200, "{} {}", configuration.len(), interface.len());
    for (expected, book, manual) in
        [(&configuration, "keys.md", "lunway.toml"), (&interface, "api.md", "lunway-api")]
    {
        assert_eq!(&names_in_the_book(book), expected, "{book}");
        assert_eq!(&names_in_the_manual(manual), expected, "{manual}");
    }
    // Its schema is in another crate, whose test compares it with the book.
    let paths = names_in_the_book("paths.md");
    assert!(
        paths.contains("Top level: portal") && paths == names_in_the_manual("lunway-paths.toml"),
        "{paths:?}"
    );
}

/// The blocks of a kind in a section of the page "Clients".
fn guide(section: &str, kind: &str) -> Vec<String> {
    let (_, guide) = documents().into_iter().find(|(path, _)| path.ends_with("clients.md")).unwrap();
    let begin = format!("\n## {section}");
    let text = guide.split(&begin).nth(1).unwrap_or_else(|| panic!("the page has no section {section}"));
    let text = text.split("\n## ").next().unwrap();
    let begin = format!("```{kind}\n");
    text.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The lines for discovery, login and boot run in the guest of `units.test.sh`. What is left are settings: each is one that a
/// test with a kernel has made, by the same name.
#[test]
fn the_settings_of_open_iscsi_in_the_guide_are_those_that_the_tests_with_a_kernel_use() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kernel");
    let used: String = fs::read_dir(tests)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "sh"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let blocks = [guide("Linux (open-iscsi)", "sh"), guide("Linux (open-iscsi)", "text")].concat().join("\n");
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || "._[]".contains(c);
    let settings: BTreeSet<&str> =
        blocks.split(|c| !is_of_a_name(c)).filter(|word| word.starts_with("node.")).collect();
    assert!(settings.len() >= 6, "{settings:?}");
    // That one is run as it stands on the page.
    for setting in settings.into_iter().filter(|setting| *setting != "node.startup") {
        assert!(used.contains(&format!("{setting}=")), "no test sets {setting}");
    }
}

#[test]
fn qemu_does_what_the_guide_says() {
    let (Some(_), Some(qemu_img)) = (program("qemu-system-x86_64"), program("qemu-img")) else { return };
    let formats = Command::new(&qemu_img).arg("--help").output().unwrap();
    if !String::from_utf8_lossy(&formats.stdout).contains(" iscsi") {
        return lunway_foreign::not_run("QEMU's block-iscsi (Debian: qemu-block-extra)");
    }
    let folder = tempfile::tempdir().unwrap();
    support::image(&folder.path().join("disk.img"), 8 << 20, 4 << 20);
    let made = ["convert", "-f", "raw", "-O", "qcow2", "disk.img", "image.qcow2"];
    assert!(Command::new(&qemu_img).args(made).current_dir(&folder).status().unwrap().success());
    let daemon = support::Served::start(&["--lun", "0=ram:8M"]);
    let blocks = guide("QEMU", "sh");
    let [block] = &blocks[..] else { panic!("{blocks:?}") };
    let block = block.replace("192.0.2.10", &daemon.address).replace("iqn.2026-11.com.example:disks", IQN);
    for line in block.lines() {
        // A guest without anything but the disk, which is not started and ends at once.
        let line = match line.starts_with("qemu-system") {
            true => {
                format!("printf 'info block\\nquit\\n' | {line} -display none -nodefaults -S -monitor stdio")
            }
            false => line.to_owned(),
        };
        let mut command = Command::new("sh");
        command.args(["-exc", &line]).current_dir(&folder);
        let output = finish(command, PATIENCE);
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}: {said}");
        assert!(!line.contains("info block") || said.contains("iscsi://"), "{line}: {said}");
    }
    let read = folder.path().join("read.img");
    succeed(lunway(&["copy", &daemon.url(0), read.to_str().unwrap()]));
    support::assert_same_bytes(&folder.path().join("disk.img"), &read);
}

#[test]
fn libvirt_and_multipath_read_what_the_guides_say() {
    let (_, guide) = documents().into_iter().find(|(path, _)| path.ends_with("clients.md")).unwrap();
    let blocks = |kind: &str| -> Vec<String> {
        let begin = format!("```{kind}\n");
        guide.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
    };
    let folder = tempfile::tempdir().unwrap();
    if program("virt-xml-validate").is_some() && program("xmllint").is_some() {
        let documents = blocks("xml");
        assert_eq!(documents.len(), 3);
        for document in documents {
            let path = folder.path().join("document.xml");
            fs::write(&path, &document).unwrap();
            let output = Command::new("virt-xml-validate").arg(&path).output().unwrap();
            assert!(output.status.success(), "{}\n{document}", String::from_utf8_lossy(&output.stderr));
        }
    }
    if program("multipath").is_some() {
        let text = blocks("text").into_iter().find(|block| block.contains("path_grouping_policy")).unwrap();
        let path = folder.path().join("multipath.conf");
        fs::write(&path, text).unwrap();
        // Another file than /etc/multipath.conf is read where it is mounted over that one: in a namespace of this test.
        let script = format!(
            "touch /etc/multipath.conf && mount --bind {} /etc/multipath.conf && multipath -t",
            path.display()
        );
        let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("not permitted") || said.contains("ermission denied") {
            lunway_foreign::machine_lacks("mount namespaces for multipath.conf");
            return;
        }
        let settings = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !said.contains("multipath.conf line"), "{said}");
        let ours = settings.split("device {").find(|device| device.contains("\"LUNWAY\"")).expect(&settings);
        for setting in ["group_by_prio", "alua", "1 alua", "service-time 0", "immediate", "12"] {
            assert!(ours.contains(setting), "{setting}: {ours}");
        }
    }
}

/// What the fields of the manifests may be, from the Kubernetes API reference, v1.31: PersistentVolumeSpec,
/// ISCSIPersistentVolumeSource, SecretReference, ObjectMeta, Secret. A dot goes down; `*` is any key.
const KUBERNETES: &[(&str, &[(&str, &str)])] = &[
    (
        "PersistentVolume",
        &[
            ("apiVersion", "string"),
            ("kind", "string"),
            ("metadata.name", "string"),
            ("spec.capacity.storage", "quantity"),
            ("spec.accessModes", "strings"),
            ("spec.mountOptions", "strings"),
            ("spec.persistentVolumeReclaimPolicy", "string"),
            ("spec.storageClassName", "string"),
            ("spec.volumeMode", "string"),
            ("spec.iscsi.chapAuthDiscovery", "boolean"),
            ("spec.iscsi.chapAuthSession", "boolean"),
            ("spec.iscsi.fsType", "string"),
            ("spec.iscsi.initiatorName", "string"),
            ("spec.iscsi.iqn", "string"),
            ("spec.iscsi.iscsiInterface", "string"),
            ("spec.iscsi.lun", "integer"),
            ("spec.iscsi.portals", "strings"),
            ("spec.iscsi.readOnly", "boolean"),
            ("spec.iscsi.secretRef.name", "string"),
            ("spec.iscsi.secretRef.namespace", "string"),
            ("spec.iscsi.targetPortal", "string"),
        ],
    ),
    (
        "Secret",
        &[
            ("apiVersion", "string"),
            ("kind", "string"),
            ("metadata.name", "string"),
            ("type", "string"),
            ("stringData.*", "string"),
        ],
    ),
];
/// Those without which the API refuses them.
const KUBERNETES_REQUIRED: [&str; 6] = [
    "metadata.name",
    "spec.capacity.storage",
    "spec.accessModes",
    "spec.iscsi.iqn",
    "spec.iscsi.lun",
    "spec.iscsi.targetPortal",
];

/// What is wrong with a value of this place in a manifest, and with what is below it.
fn unfit(kind: &str, place: &str, value: &Value) -> Vec<String> {
    let fields = KUBERNETES.iter().find(|(known, _)| *known == kind).map_or(&[][..], |(_, fields)| fields);
    let is_folder = fields.iter().any(|(field, _)| field.starts_with(&format!("{place}.")));
    if place.is_empty() || is_folder && value.is_object() {
        let object = value.as_object().into_iter().flatten();
        return object
            .flat_map(|(key, value)| {
                let place = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
                unfit(kind, &place, value)
            })
            .collect();
    }
    let any = place.split_once('.').map(|(folder, _)| format!("{folder}.*"));
    let known = fields.iter().find(|(field, _)| *field == place || Some((*field).to_owned()) == any);
    let fits = known.is_some_and(|(_, form)| match *form {
        "boolean" => value.is_boolean(),
        "integer" => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
        "strings" => {
            value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_string))
        }
        "quantity" => value.as_str().is_some_and(|text| text.ends_with("Gi") || text.ends_with("Ti")),
        _ => value.is_string(),
    });
    if fits { Vec::new() } else { vec![format!("{kind}: {place} is not {known:?}: {value}")] }
}

#[test]
fn the_kubernetes_manifests_have_the_documented_fields_with_the_documented_types() {
    let Some(kubectl) = program("kubectl") else { return };
    let (_, guide) = documents().into_iter().find(|(path, _)| path.ends_with("clients.md")).unwrap();
    let text = guide.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    // kubectl reads the YAML; without a cluster it checks no fields.
    let read = |text: &str| -> Vec<Value> {
        let path = folder.path().join("manifest.yaml");
        fs::write(&path, text).unwrap();
        let mut command = Command::new(&kubectl);
        command
            .args(["label", "--local", "-o", "json", "-f"])
            .arg(&path)
            .arg("read=yes")
            .env("HOME", folder.path());
        let printed = succeed(command);
        serde_json::Deserializer::from_str(&printed).into_iter().map(Result::unwrap).collect()
    };
    let check = |text: &str| -> Vec<String> {
        let mut wrong = Vec::new();
        for mut manifest in read(text) {
            manifest["metadata"].as_object_mut().unwrap().remove("labels");
            let kind = manifest["kind"].as_str().unwrap().to_owned();
            wrong.extend(unfit(&kind, "", &manifest));
            let there = |place: &str| !place.split('.').fold(&manifest, |value, key| &value[key]).is_null();
            let needed = KUBERNETES_REQUIRED.iter().filter(|_| kind == "PersistentVolume");
            wrong.extend(needed.filter(|place| !there(place)).map(|place| format!("{kind} has no {place}")));
        }
        wrong
    };
    assert_eq!(read(text).len(), 2);
    assert_eq!(check(text), Vec::<String>::new());
    // It can fail.
    for (right, wrong) in [
        ("lun: 0", "lun: \"0\""),
        ("fsType:", "fstype:"),
        ("iqn: iqn", "# iqn: iqn"),
        ("[ReadWriteOnce]", "ReadWriteOnce"),
    ] {
        assert!(text.contains(right) && !check(&text.replace(right, wrong)).is_empty(), "{wrong}");
    }
}

#[test]
fn commands_in_the_documentation_have_only_options_that_exist() {
    let pages = manual(1);
    let known: BTreeMap<&str, BTreeSet<String>> =
        pages.iter().map(|(page, text)| (page.as_str(), options(text))).collect();
    let mut wrong = Vec::new();
    let mut commands = 0;
    for (path, text) in documents() {
        let text = text.replace("\\\n", " ");
        for line in text.lines().map(|line| line.trim().trim_start_matches("$ ")) {
            let Some(rest) = line.strip_prefix("lunway ") else { continue };
            // A pipe, a comment or another command ends it.
            let rest = rest.split(['|', '#', ';', '&', '>']).next().unwrap_or_default();
            let mut page = "lunway".to_owned();
            for word in rest.split_whitespace() {
                let below = format!("{page}-{word}");
                if !known.contains_key(below.as_str()) {
                    break;
                }
                page = below;
            }
            if page == "lunway" {
                continue;
            }
            commands += 1;
            for option in options(rest) {
                if !known[page.as_str()].contains(&option) {
                    wrong.push(format!("{}: {page} has no --{option}: {line}", path.display()));
                }
            }
        }
    }
    assert!(commands > 50, "{commands} commands found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Options of other programs that pages name without their program: of fio, iscsiadm, virsh and cargo.
const FOREIGN_OPTIONS: [&str; 4] = ["invalidate", "login", "plain", "test"];

#[test]
fn sentences_in_the_documentation_name_only_options_that_exist() {
    let pages = manual(1);
    let known: BTreeSet<String> = pages.values().flat_map(|text| options(text)).collect();
    let commands: BTreeSet<&str> = pages.keys().filter_map(|page| page.split('-').nth(1)).collect();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (path, text) in documents() {
        let prose: String = text.split("```").step_by(2).collect();
        for span in prose.split('`').skip(1).step_by(2) {
            let first = span.split_whitespace().next().unwrap_or_default();
            if !first.starts_with("--") && first != "lunway" && !commands.contains(first) {
                continue;
            }
            for option in options(span) {
                seen += 1;
                if !known.contains(&option) && !FOREIGN_OPTIONS.contains(&option.as_str()) {
                    wrong.push(format!("{}: --{option} in `{span}`", path.display()));
                }
            }
        }
    }
    assert!(seen > 200, "{seen} options found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn manual_pages_pass_mandocs_lint() {
    if program("mandoc").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut said = String::new();
    let names = succeed(lunway(&["man", "--list"]));
    assert!(
        ["lunway.1", "lunway.toml.5", "lunway-api.7"]
            .iter()
            .all(|name| names.lines().any(|has| has == *name))
    );
    for name in names.lines() {
        let path = folder.path().join(name);
        fs::write(&path, succeed(lunway(&["man", name]))).unwrap();
        let output =
            Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).arg(&path).output().unwrap();
        said += &String::from_utf8_lossy(&output.stdout);
    }
    assert!(said.is_empty(), "{said}");
}

#[test]
fn completions_are_loaded_by_the_shells_and_know_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    let script = |shell: &str, name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, succeed(lunway(&["completions", shell]))).unwrap();
        path
    };
    let run = |shell: &str, arguments: &[&str]| {
        let output = Command::new(shell).args(arguments).env("HOME", folder.path()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    if program("bash").is_some() {
        let path = script("bash", "lunway.bash");
        let code = format!(
            "source {}; COMP_WORDS=(lunway lun ''); COMP_CWORD=2; _lunway lunway '' lun; echo ${{COMPREPLY[@]}}",
            path.display()
        );
        let words = run("bash", &["--norc", "-c", &code]);
        assert!(words.contains("add") && words.contains("resize"), "{words}");
    }
    if program("zsh").is_some() {
        script("zsh", "_lunway");
        let code = format!(
            "fpath=({} $fpath); autoload -U compinit; compinit -u -D; autoload +X _lunway && echo $_comps[lunway]",
            folder.path().display()
        );
        assert_eq!(run("zsh", &["-f", "-c", &code]).trim(), "_lunway");
    }
    if program("fish").is_some() {
        let path = script("fish", "lunway.fish");
        let words = run(
            "fish",
            &["--no-config", "-c", &format!("source {}; complete -C 'lunway lun '", path.display())],
        );
        assert!(words.contains("add") && words.contains("resize"), "{words}");
    }
}
