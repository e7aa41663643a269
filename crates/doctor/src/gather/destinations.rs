//! Folders of the backups that a target on this machine makes by the clock.

use std::io;
use std::path::{Path, PathBuf};

use super::mount_info;
use super::mounts::unescaped;
use super::source::Machine;
use crate::facts::{BackupFolder, BackupSchedule};

/// File that makes a folder a repository, in which the folder of a series need not be there before its first run.
const REPOSITORY: &str = "repository.json";

/// Looks at the folders of schedules. Those that are no folder of this machine, as `s3://…`, are left out.
pub fn destinations(machine: &Machine, schedules: &mut [BackupSchedule]) {
    let machine = &machine.for_a_run();
    let not_mounted = not_mounted(machine);
    for schedule in schedules {
        let path = PathBuf::from(&schedule.destination);
        if path.is_absolute() {
            schedule.folder = Some(folder(machine, path, &not_mounted).into());
        }
    }
}

/// Mount points that `/etc/fstab` names and on which nothing is mounted. What mounts them when they are looked at
/// (autofs) is mounted there itself.
fn not_mounted(machine: &Machine) -> Vec<String> {
    let (Ok(fstab), Ok(mounts)) = (machine.text("/etc/fstab"), mount_info::table(machine)) else {
        return Vec::new();
    };
    let mounted: Vec<String> = mount_info::listed(&mounts).map(|mount| mount.point).collect();
    let point = |line: &str| {
        let mut fields = line.split_whitespace().map(unescaped);
        let point = fields.nth(1).filter(|_| !line.trim_start().starts_with('#'))?;
        let point = point.trim_end_matches('/').to_owned();
        (point.starts_with('/') && !mounted.contains(&point)).then_some(point)
    };
    fstab.lines().filter_map(point).collect()
}

fn folder(machine: &Machine, path: PathBuf, not_mounted: &[String]) -> Result<BackupFolder, String> {
    let holding = not_mounted.iter().filter(|point| path.starts_with(point));
    let unmounted = holding.max_by_key(|point| point.len()).cloned();
    // A share whose server is gone does not answer.
    let asked = path.clone();
    let (exists, is_empty) =
        machine.answered_at(&path, move || look(&asked))?.map_err(|error| error.to_string())?;
    Ok(BackupFolder { exists, is_empty, unmounted })
}

/// Whether a folder is there, and whether it is empty.
fn look(path: &Path) -> io::Result<(bool, bool)> {
    match path.read_dir() {
        Ok(mut entries) => Ok((true, entries.next().is_none())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_new_series = path.parent().is_some_and(|parent| parent.join(REPOSITORY).exists());
            Ok((is_new_series, true))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::put;
    use crate::seen::Seen;

    #[test]
    fn a_folder_is_there_or_not_and_on_a_share_that_is_mounted_or_not() {
        let place = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let root = place.path().join("machine");
        let shares = place.path().join("shares");
        put(&shares, "mounted/db/000001.json", "{}");
        put(&shares, "gone/db/000001.json", "{}");
        put(&shares, "repo/repository.json", "{}");
        let shown = |name: &str| shares.join(name).display().to_string();
        let fstab = format!(
            "# here\nnas:/a {} nfs defaults 0 0\nnas:/b {}/ nfs noauto 0 0\n/dev/sda2 none swap sw 0 0\n",
            shown("mounted"),
            shown("gone")
        );
        put(&root, "etc/fstab", &fstab);
        let mounts = format!(
            "36 35 98:0 / / rw - ext4 /dev/sda1 rw\n37 36 0:40 / {} rw - nfs nas:/a rw\n",
            shown("mounted")
        );
        put(&root, "proc/self/mountinfo", &mounts);
        let seen = |destination: String| {
            let mut schedules = [BackupSchedule { destination, ..BackupSchedule::default() }];
            destinations(&Machine::copy(&root), &mut schedules);
            let [BackupSchedule { folder, .. }] = schedules;
            folder
        };
        let there = BackupFolder { exists: true, is_empty: false, unmounted: None };
        assert_eq!(seen(shown("mounted/db")), Some(Seen::Value(there.clone())));
        let unmounted = BackupFolder { unmounted: Some(shown("gone")), ..there };
        assert_eq!(seen(shown("gone/db")), Some(Seen::Value(unmounted)));
        let missing = BackupFolder { exists: false, is_empty: true, unmounted: None };
        assert_eq!(seen(shown("mounted/new")), Some(Seen::Value(missing.clone())));
        assert_eq!(seen(shown("repo/new")), Some(Seen::Value(BackupFolder { exists: true, ..missing })));
        assert!(
            seen(shown("mounted/db/000001.json")).is_some_and(|folder| folder.get().is_none()),
            "no folder"
        );
        assert_eq!(seen("s3://bucket/db".to_owned()), None);
    }
}
