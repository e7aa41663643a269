//! `lunway serve --check`: a configuration, and what it names, without serving.

use anyhow::anyhow;
use lunway_block::small_file;
use lunway_block::spec::{DeviceSpec, is_store_address};
use lunway_target::{BackupConfig, Config, Warning};
use serde_json::{Value, json};

use super::asker::{ANSWER, Asker};
use super::files::Looked;
use super::{backups, config_failure, files};
use crate::failure::Failure;
use crate::terminal;

/// Most bytes of a file with access keys.
const CREDENTIALS_MAX: u64 = 1 << 20;

/// Says what `serve` would warn of. What it would refuse before it opens a device is an error here, too, and so is a
/// file that is not there, and a backup that could not be made: devices themselves are not opened, since the daemon
/// that runs may have them.
pub(super) fn check(config: &Config, file: Option<&str>, as_json: bool) -> Result<(), Failure> {
    config.check().map_err(config_failure)?;
    let late = files_exist(config)?;
    let mut warnings: Vec<_> = Warning::of(config).into_iter().map(|warning| warning.text).collect();
    warnings.extend(late);
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
    }
    match Asker::begin(backups::check(backup), "").and_then(|asker| asker.next::<Value>()) {
        Err(error) => {
            Ok(Some(format!("backup {name}: whether {destination} is there is not known: {error}")))
        }
        Ok(None) if is_store_address(&backup.destination) => Ok(Some(late("the object store"))),
        Ok(None) => Ok(Some(late("its share"))),
        Ok(Some(answer)) => match (answer["key"].as_str(), answer["why"].as_str()) {
            (Some(key), Some(why)) => Err(wrong(key, &why)),
            _ => Ok(None),
        },
    }
}

/// Devices of LUNs that are files have these. Returns warnings of those whose share does not answer now.
fn files_exist(config: &Config) -> Result<Vec<String>, Failure> {
    let luns = config.targets.iter().flat_map(|target| target.luns.iter().map(|lun| (&target.name, lun)));
    let with_files = luns.filter_map(|(name, lun)| match lun.device.spec().leaf() {
        DeviceSpec::File { path, .. }
        | DeviceSpec::Vhdx { path }
        | DeviceSpec::Image { path, .. }
        | DeviceSpec::Paths { path } => Some((name, lun.id, path.as_path())),
        _ => None,
    });
    let with_files: Vec<_> = with_files.collect();
    let files: Vec<_> = with_files.iter().map(|(_, _, path)| *path).collect();
    let looked = match files::look_at(&files) {
        Ok(looked) => looked,
        Err(error) => {
            return Ok(vec![format!("whether the files of the LUNs are there is not known: {error}")]);
        }
    };
    let mut warnings = Vec::new();
    for ((name, id, path), looked) in with_files.into_iter().zip(looked) {
        let lun = format!("target {name}, lun {id}: {}", path.display());
        match looked {
            Looked::There => {}
            Looked::Missing(why) => return Err(Failure::failed(anyhow!("{lun}: {why}"))),
            Looked::Late => {
                let time = ANSWER.as_secs();
                warnings
                    .push(format!("{lun} did not answer within {time} s: see whether its share is there"));
            }
        }
    }
    Ok(warnings)
}
