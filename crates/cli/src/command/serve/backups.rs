//! The commands of backups that the daemon begins by the clock.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use lunway_block::duration::ExactDuration;
use lunway_console::{BackupCommands, MakeBackupCommands};
use lunway_target::BackupConfig;

use crate::command::backup::{CHECK_DESTINATION, KEY_FILE};
use crate::this_program::this_program;

/// Makes them of the configuration.
pub(super) fn commands() -> MakeBackupCommands {
    Arc::new(|backup, socket| BackupCommands { run: run(backup, socket), prune: prune(backup) })
}

/// A command that ends with this process.
fn begun_by_this(words: &[&str]) -> Command {
    let mut command = this_program(words);
    command.args(["--json", "--begun-by", &std::process::id().to_string()]);
    command
}

fn run(backup: &BackupConfig, socket: &Path) -> Command {
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
    command.env_remove(KEY_FILE);
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
    fn each_key_is_an_option_of_the_commands() {
        let text = "name = \"db\"\nsource = \"iqn.2026-11.com.example:a/3\"\ndestination = \"/mnt/x\"\nat = [\"02:00\"]\n\
                    credentials_file = \"/etc/c\"\nkey_file = \"/etc/k\"\nkeep_last = 7\nkeep_weekly = 8\nlimit = \"100MB/s\"\narea = \"8G\"\nskip_free = true\n\
                    freeze = \"-f\"\nthaw = \"t\"\ndeadline = \"20s\"\napplication = true\n";
        let commands = commands()(&toml::from_str(text).unwrap(), Path::new("/run/api.sock"));
        assert_eq!(
            words(&commands.run),
            "backup run --json --begun-by PID --socket /run/api.sock --limit=100MB/s --area=8G --freeze=-f --thaw=t \
             --deadline=20s --skip-free --application --key-file /etc/k -- lun:iqn.2026-11.com.example:a/3 /mnt/x"
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
