//! The commands of backups that the daemon begins by the clock.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use lunway_block::duration::ExactDuration;
use lunway_console::{BackupCommands, Expected, MakeBackupCommands};
use lunway_target::BackupConfig;

use crate::command::backup::CHECK_DESTINATION;
use crate::this_program::this_program;

/// Makes them of the configuration, for a daemon with this state directory.
pub(super) fn commands(state_dir: Option<PathBuf>) -> MakeBackupCommands {
    Arc::new(move |backup, socket, expected, due| {
        let mut commands = BackupCommands { run: run(backup, socket, expected, due), prune: prune(backup) };
        for command in [&mut commands.run].into_iter().chain(&mut commands.prune) {
            with_state(command, state_dir.as_deref(), |name| env::var_os(name));
        }
        commands
    })
}

/// What a user remembers of repositories is kept in the user's home, or in what a service has instead. A daemon that
/// has neither keeps it in its state directory.
fn with_state(command: &mut Command, state_dir: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) {
    let is_place = |name: &&str| variable(name).is_some_and(|place| Path::new(&place).is_absolute());
    if ["STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"].iter().any(is_place) {
        return;
    }
    if let Some(state_dir) = state_dir.and_then(|folder| std::path::absolute(folder).ok()) {
        command.env("STATE_DIRECTORY", state_dir);
    }
}

/// A command that ends with this process.
fn begun_by_this(words: &[&str]) -> Command {
    let mut command = this_program(words);
    command.args(["--json", "--begun-by", &std::process::id().to_string()]);
    command
}

fn run(backup: &BackupConfig, socket: &Path, expected: Expected, due: Option<&str>) -> Command {
    let mut command = begun_by_this(&["backup", "run"]);
    command.arg("--socket").arg(socket);
    let deadline = backup.deadline.map(|time| ExactDuration(time).to_string());
    let options = [
        ("--limit", &backup.limit),
        ("--area", &backup.area),
        ("--freeze", &backup.freeze),
        ("--thaw", &backup.thaw),
        ("--deadline", &deadline),
    ];
    for (option, value) in options {
        // One word: the value may begin with a hyphen.
        command.args(value.as_ref().map(|value| format!("{option}={value}")));
    }
    for (option, _) in [("--skip-free", backup.skip_free), ("--application", backup.application)]
        .iter()
        .filter(|(_, is)| *is)
    {
        command.arg(option);
    }
    if expected == Expected::Points {
        command.arg("--expect-points");
    }
    command.args(due.map(|due| format!("--due={due}")));
    with_key(&mut command, backup);
    command.args(["--", &format!("lun:{}", backup.source)]).arg(&backup.destination);
    command
}

/// Secrets stay in their files.
fn with_key(command: &mut Command, backup: &BackupConfig) {
    if let Some(file) = &backup.key_file {
        command.arg("--key-file").arg(file);
    }
    if let Some(file) = &backup.credentials_file {
        command.env("AWS_SHARED_CREDENTIALS_FILE", file);
        // They would come before the file.
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    }
}

/// Asks its destination, in the environment that its runs have.
pub(super) fn check(backup: &BackupConfig) -> Command {
    let mut command = this_program(&CHECK_DESTINATION);
    with_key(&mut command, backup);
    command.arg("--").arg(&backup.destination);
    command
}

fn prune(backup: &BackupConfig) -> Option<Command> {
    let kept = backup.retention().into_iter().filter_map(|(rule, count)| Some((rule, count?)));
    let rules: Vec<_> = kept.map(|(rule, count)| format!("--keep-{rule}={count}")).collect();
    if rules.is_empty() {
        return None;
    }
    let mut command = begun_by_this(&["backup", "prune"]);
    with_key(&mut command, backup);
    command.args(rules).arg("--").arg(&backup.destination);
    Some(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> String {
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        words.join(" ").replace(&std::process::id().to_string(), "PID")
    }

    #[test]
    fn a_daemon_without_a_home_keeps_what_it_has_seen_in_its_state_directory() {
        let kept = |state_dir: Option<&str>, variables: &[(&str, &str)]| {
            let mut command = Command::new("true");
            let variable = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| OsString::from(value))
            };
            with_state(&mut command, state_dir.map(Path::new), variable);
            let mut set = command.get_envs();
            set.find(|(key, _)| *key == "STATE_DIRECTORY").and_then(|(_, value)| value.map(ToOwned::to_owned))
        };
        let state = Some("/var/lib/lunway");
        assert_eq!(kept(state, &[]), Some("/var/lib/lunway".into()));
        assert_eq!(kept(state, &[("HOME", "")]), Some("/var/lib/lunway".into()));
        for name in ["HOME", "XDG_STATE_HOME", "STATE_DIRECTORY"] {
            assert_eq!(kept(state, &[(name, "/home/a")]), None, "{name}");
        }
        assert_eq!(kept(None, &[]), None);
    }

    #[test]
    fn each_key_is_an_option_of_the_commands() {
        let text = "name = \"db\"\nsource = \"iqn.2026-11.com.example:a/3\"\ndestination = \"/mnt/x\"\nat = [\"02:00\"]\n\
                    credentials_file = \"/etc/c\"\nkey_file = \"/etc/k\"\nkeep_last = 7\nkeep_weekly = 8\nlimit = \"100MB/s\"\narea = \"8G\"\nskip_free = true\n\
                    freeze = \"-f\"\nthaw = \"t\"\ndeadline = \"20s\"\napplication = true\n";
        let commands = commands(None)(
            &toml::from_str(text).unwrap(),
            Path::new("/run/api.sock"),
            Expected::Points,
            Some("7f"),
        );
        assert_eq!(
            words(&commands.run),
            "backup run --json --begun-by PID --socket /run/api.sock --limit=100MB/s --area=8G --freeze=-f --thaw=t \
             --deadline=20s --skip-free --application --expect-points --due=7f --key-file /etc/k -- lun:iqn.2026-11.com.example:a/3 /mnt/x"
        );
        let prune = commands.prune.unwrap();
        for command in [&commands.run, &prune] {
            let variable =
                |name: &str| command.get_envs().find(|(key, _)| *key == name).map(|(_, value)| value);
            assert_eq!(variable("AWS_SHARED_CREDENTIALS_FILE"), Some(Some("/etc/c".as_ref())));
            assert_eq!(variable("AWS_SECRET_ACCESS_KEY"), Some(None));
        }
        assert_eq!(
            words(&prune),
            "backup prune --json --begun-by PID --key-file /etc/k --keep-last=7 --keep-weekly=8 -- /mnt/x"
        );
    }
}
