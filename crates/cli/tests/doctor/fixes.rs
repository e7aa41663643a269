//! Fixes as commands: those of lunway's own, those for a shell, and those for systemctl.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use lunway_doctor::{Group, RULES};
use serde_json::Value;

use crate::support::{PATIENCE, finish, lunway, succeed};

/// Programs with which a fix or an undo begins that is a command.
const PROGRAMS: [&str; 25] = [
    "blkid",
    "btrfs",
    "chmod",
    "cpupower",
    "echo",
    "ethtool",
    "for",
    "hdparm",
    "ip",
    "iscsiadm",
    "lunway",
    "lvextend",
    "mdadm",
    "mkdir",
    "modprobe",
    "mount",
    "mpathconf",
    "multipathd",
    "rm",
    "sed",
    "swapoff",
    "sysctl",
    "systemctl",
    "timedatectl",
    "umount",
];

/// Rules whose fixes enable a unit of systemd.
const UNITS: [(&str, &str); 4] = [
    ("mount-trim", "fstrim.timer"),
    ("multipath-running", "multipathd.service"),
    ("kubernetes-multipath", "multipathd.service"),
    ("kubernetes-initiator", "iscsid.service"),
];

#[test]
fn every_command_of_lunway_in_a_fix_or_an_undo_exists_with_its_options() {
    let mut pages: BTreeMap<Vec<String>, String> = BTreeMap::new();
    let mut seen = 0;
    for rule in RULES.into_iter().flatten() {
        // Comments have commands, too.
        let texts = rule.fix.split(['#', ';']).chain(rule.undo.split(['#', ';']));
        for text in texts {
            let Some((_, command)) = text.split_once("lunway ") else { continue };
            let words: Vec<&str> = command.split_whitespace().collect();
            let is_word = |word: &&&str| {
                word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
            };
            let names: Vec<String> = words.iter().take_while(is_word).map(|&word| word.to_owned()).collect();
            if names.is_empty() {
                continue;
            }
            let page = pages.entry(names.clone()).or_insert_with(|| {
                let mut command = lunway(&names);
                command.arg("--help");
                succeed(command)
            });
            for option in words.iter().filter(|word| word.starts_with("--")) {
                assert!(page.contains(option), "{}: lunway {} has no {option}", rule.id, names.join(" "));
            }
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen} commands");
}

#[test]
fn every_command_in_a_fix_or_an_undo_is_one_that_a_shell_parses() {
    let mut seen = 0;
    for rule in RULES.into_iter().flatten().filter(|rule| rule.group != Group::Windows) {
        for text in [rule.fix, rule.undo] {
            let command =
                text.strip_prefix("on {host}: ").or(text.strip_prefix("on {initiator}: ")).unwrap_or(text);
            if !PROGRAMS.contains(&command.split_whitespace().next().unwrap_or_default()) {
                continue;
            }
            let mut shell = Command::new("sh");
            shell.args(["-nc", command]);
            let parsed = finish(shell, PATIENCE);
            assert!(parsed.status.success(), "{}: {command}: {parsed:?}", rule.id);
            seen += 1;
        }
    }
    assert!(seen >= 100, "{seen} commands");
}

#[test]
fn systemctl_enables_and_disables_the_units_of_fixes_and_undos() {
    if lunway_foreign::program("systemctl").is_none() {
        return;
    }
    for (id, unit) in UNITS {
        let rule = lunway_doctor::rule(id).unwrap();
        let machine = tempfile::tempdir().unwrap();
        let units = machine.path().join("usr/lib/systemd/system");
        fs::create_dir_all(&units).unwrap();
        fs::create_dir_all(machine.path().join("etc/systemd/system")).unwrap();
        // As its package installs it.
        let (kind, wanted_by) = match unit.ends_with(".timer") {
            true => ("Timer", "timers.target"),
            false => ("Service", "sysinit.target"),
        };
        fs::write(units.join(unit), format!("[{kind}]\n[Install]\nWantedBy={wanted_by}\n")).unwrap();
        let link = machine.path().join(format!("etc/systemd/system/{wanted_by}.wants/{unit}"));
        let trims = || {
            let facts = succeed(lunway(&["doctor", "--facts", "--root", machine.path().to_str().unwrap()]));
            serde_json::from_str::<Value>(&facts).unwrap()["host"]["trim_timer"].clone()
        };
        for (text, is_enabled) in [(rule.fix, true), (rule.undo, false)] {
            let (_, command) = text.split_once("systemctl ").unwrap();
            let command = command.split(['#', ';']).next().unwrap().trim();
            let mut systemctl = Command::new("systemctl");
            systemctl.arg("--root").arg(machine.path()).args(command.split_whitespace());
            // There is no systemd in a folder that could start it now, and that alone fails.
            let said = String::from_utf8_lossy(&finish(systemctl, PATIENCE).stderr).into_owned();
            let now = "Failed to connect to bus";
            let failed = said.lines().filter(|line| line.starts_with("Failed") && !line.starts_with(now));
            assert_eq!(failed.collect::<Vec<_>>(), Vec::<&str>::new(), "{id}: {command}");
            assert_eq!(link.is_symlink(), is_enabled, "{id}: {command}: {said}");
            if id == "mount-trim" {
                assert_eq!(trims(), is_enabled, "{id}: {command}");
            }
        }
    }
}
