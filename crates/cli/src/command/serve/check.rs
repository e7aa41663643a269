//! `lunway serve --check`: a configuration, and what it names, without serving.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use lunway_block::small_file;
use lunway_block::spec::{DeviceSpec, is_store_address};
use lunway_target::{BackupConfig, Config, TargetConfig, Warning};
use serde_json::{Value, json};

use super::{backups, config_failure};
use crate::command::backup;
use crate::failure::Failure;
use crate::terminal;

/// Time within which a destination answers, which may be a share that hangs: as `lunway doctor`, and as long again for
/// an object store.
const ANSWER: Duration = Duration::from_secs(4);

/// Most bytes of a file with access keys.
const CREDENTIALS_MAX: u64 = 1 << 20;

/// Says what `serve` would warn of. What it would refuse before it opens a device is an error here, too, and so is a
/// file that is not there, and a backup that could not be made: devices themselves are not opened, since the daemon
/// that runs may have them.
pub(super) fn check(config: &Config, file: Option<&str>, as_json: bool) -> Result<(), Failure> {
    config.check().map_err(config_failure)?;
    for target in &config.targets {
        files_exist(target)?;
    }
    let mut warnings: Vec<_> = Warning::of(config).into_iter().map(|warning| warning.text).collect();
    for backup in &config.backups {
        warnings.extend(can_be_made(config, backup)?);
    }
    let (targets, luns) =
        (config.targets.len(), config.targets.iter().map(|target| target.luns.len()).sum::<usize>());
    let backups = config.backups.len();
    if as_json {
        return terminal::print_json(&json!({
            "file": file, "targets": targets, "luns": luns, "backups": backups, "warnings": warnings,
        }));
    }
    let warned = warnings.iter().map(|warning| format!("warning: {}\n", terminal::clean(warning)));
    let name = file.unwrap_or("the configuration");
    let mut counts = vec![terminal::counted(targets, "target"), terminal::counted(luns, "LUN")];
    if backups > 0 {
        counts.push(terminal::counted(backups, "backup"));
    }
    terminal::print(&format!("{}{name}: no errors; {}", warned.collect::<String>(), counts.join(", ")))
}

/// A backup by the clock needs its LUN, its destination, and the key of that. Returns a warning if the destination does
/// not answer now.
fn can_be_made(config: &Config, backup: &BackupConfig) -> Result<Option<String>, Failure> {
    let wrong = |key: &str, why: &dyn std::fmt::Display| {
        Failure::failed(anyhow!("backup {}: {key}: {why}", backup.name))
    };
    let source = &backup.source;
    let Some(target) = config.targets.iter().find(|target| target.name.as_str() == source.target) else {
        return Err(wrong("source", &format_args!("there is no target {}", source.target)));
    };
    if !target.luns.iter().any(|lun| lun.id == source.lun) {
        return Err(wrong("source", &format_args!("target {} has no lun {}", source.target, source.lun)));
    }
    let (name, destination) = (&backup.name, backup.destination.display());
    let late = |what: &str| {
        let time = ANSWER.as_secs();
        format!("backup {name}: {destination} did not answer within {time} s: see whether {what} is there")
    };
    if let Some(file) = &backup.credentials_file {
        let read = small_file::read_text(file, CREDENTIALS_MAX);
        read.map_err(|error| wrong("credentials_file", &format_args!("{}: {error}", file.display())))?;
        return match asked_by_process(backups::check(backup)) {
            Err(error) => {
                Ok(Some(format!("backup {name}: whether {destination} is there is not known: {error}")))
            }
            Ok(None) => Ok(Some(late("the object store"))),
            Ok(Some(answer)) => match (answer["key"].as_str(), answer["why"].as_str()) {
                (Some(key), Some(why)) => Err(wrong(key, &why)),
                _ => Ok(None),
            },
        };
    }
    let (tell, told) = mpsc::channel();
    let (folder, key_file) = (backup.destination.clone(), backup.key_file.clone());
    thread::spawn(move || tell.send(backup::check_destination(&folder, key_file.as_deref())));
    match told.recv_timeout(ANSWER) {
        Ok(checked) => checked.map(|()| None).map_err(|(key, why)| wrong(key, &why)),
        Err(_) if is_store_address(&backup.destination) => Ok(Some(late("the object store"))),
        Err(_) => Ok(Some(late("its share"))),
    }
}

/// What a command prints that has an environment of its own, as this process cannot change its; `None`: it does not end
/// in time, and is killed.
fn asked_by_process(mut command: Command) -> io::Result<Option<Value>> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (tell, told) = mpsc::channel();
    let printed = child.stdout.take();
    thread::spawn(move || {
        let mut text = String::new();
        let read = printed.map_or(Ok(0), |mut printed| printed.read_to_string(&mut text));
        tell.send(read.map(|_| text))
    });
    let text = told.recv_timeout(ANSWER);
    // One that has ended is only waited for.
    let _ = child.kill();
    child.wait()?;
    text.ok().map(|text| serde_json::from_str(&text?).map_err(io::Error::other)).transpose()
}

fn files_exist(target: &TargetConfig) -> Result<(), Failure> {
    for lun in &target.luns {
        let (DeviceSpec::File { path, .. }
        | DeviceSpec::Vhdx { path }
        | DeviceSpec::Image { path, .. }
        | DeviceSpec::Paths { path }) = lun.device.spec().leaf()
        else {
            continue;
        };
        let missing = match path.metadata() {
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => "there is no such file".to_owned(),
            Err(error) => error.to_string(),
        };
        let (name, id, path) = (&target.name, lun.id, path.display());
        return Err(Failure::failed(anyhow!("target {name}, lun {id}: {path}: {missing}")));
    }
    Ok(())
}
