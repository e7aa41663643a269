//! A volume, mounted read-only by the kernel or, where that has no driver, by a program that drives its file system.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use lunway_fuse::unmount_by_program;

/// Options of every mount: nothing of an old point is carried out, or becomes a device or another user.
const OPTIONS: &str = "ro,nosuid,nodev,noexec";

/// The most that is shown of what a program says, bytes.
const SAID_MAX: u64 = 4096;

/// How a file system is mounted: by the kernel, else by a program.
pub(super) struct Way {
    /// Its names in the list of what is on a disk.
    kinds: &'static [&'static str],
    /// Name of the kernel's driver.
    driver: &'static str,
    /// Options of the driver; the same for a volume whose journal cannot be replayed because it cannot be written.
    options: &'static str,
    unreplayed: &'static str,
    program: Option<Driver>,
}

/// A program that drives a file system.
struct Driver {
    name: &'static str,
    package: &'static str,
    options: &'static str,
    unreplayed: &'static str,
    /// Program, with its arguments, that replays the journal of a volume: a driver that only reads does not.
    replay: &'static [&'static str],
}

const EXT: Driver = Driver {
    name: "fuse2fs",
    package: "fuse2fs",
    // Who may read the volume may read all files on it.
    options: "fakeroot",
    unreplayed: "fakeroot,norecovery",
    replay: &["e2fsck", "-y", "-E", "journal_only"],
};
const NTFS: Driver =
    Driver { name: "ntfs-3g", package: "ntfs-3g", options: "", unreplayed: "norecover", replay: &[] };
const FAT: Driver = Driver { name: "fusefat", package: "fusefat", options: "", unreplayed: "", replay: &[] };
const EXFAT: Driver =
    Driver { name: "mount.exfat-fuse", package: "exfat-fuse", options: "", unreplayed: "", replay: &[] };

/// Every file system that is mounted. The copy of one that is mounted on this machine has the same UUID: `nouuid`.
const WAYS: [Way; 8] = [
    Way { kinds: &["ext4", "ext"], driver: "ext4", options: "", unreplayed: "noload", program: Some(EXT) },
    Way { kinds: &["ext3"], driver: "ext3", options: "", unreplayed: "noload", program: Some(EXT) },
    Way { kinds: &["ext2"], driver: "ext2", options: "", unreplayed: "", program: Some(EXT) },
    Way { kinds: &["XFS"], driver: "xfs", options: "nouuid", unreplayed: "nouuid,norecovery", program: None },
    Way { kinds: &["btrfs"], driver: "btrfs", options: "", unreplayed: "rescue=nologreplay", program: None },
    Way { kinds: &["NTFS"], driver: "ntfs3", options: "", unreplayed: "", program: Some(NTFS) },
    Way {
        kinds: &["FAT12", "FAT16", "FAT32", "FAT"],
        driver: "vfat",
        options: "",
        unreplayed: "",
        program: Some(FAT),
    },
    Way { kinds: &["exFAT"], driver: "exfat", options: "", unreplayed: "", program: Some(EXFAT) },
];

impl Way {
    /// The way for a file system; `None`: it is not mounted.
    pub(super) fn of(kind: &str) -> Option<&'static Self> {
        WAYS.iter().find(|way| way.kinds.contains(&kind))
    }

    /// Mounts the volume that is the file `volume` on the folder `at`: by what. Blocks.
    ///
    /// # Errors
    ///
    /// Why not, in a sentence: what each way said.
    pub(super) fn mount(&self, volume: &Path, at: &Path, writable: bool) -> Result<&'static str, String> {
        if !rustix::process::geteuid().is_root() {
            return Err(self.by_hand(volume));
        }
        let mut refused = Vec::new();
        let options = |own: &'static str, unreplayed: &'static str| {
            let own = if writable { own } else { unreplayed };
            [OPTIONS, own].join(if own.is_empty() { "" } else { "," })
        };
        // Some programs take a block device only.
        let mut source = volume.as_os_str().to_owned();
        let mut device = None;
        match LoopDevice::on(volume, writable) {
            Err(said) => refused.push(format!("there is no loop device ({said})")),
            Ok(made) => {
                source.clone_from(&made.0);
                device = Some(made);
                let options = options(self.options, self.unreplayed);
                let words = ["-t".as_ref(), self.driver.as_ref(), "-o".as_ref(), options.as_ref()];
                match run("mount", words.into_iter().chain([&*source, at.as_os_str()])) {
                    Ok(()) => return Ok("the kernel"),
                    Err(said) => refused.push(format!("the kernel does not mount it ({said})")),
                }
            }
        }
        if let Some(driver) = &self.program {
            let said = driver.mount(&source, at, &options(driver.options, driver.unreplayed), writable);
            match said {
                Ok(()) => return Ok(driver.name),
                Err(said) => refused.push(said),
            }
        }
        drop(device);
        Err(refused.join(", and "))
    }
}

impl Way {
    /// What a user does who is not root: fusermount3 does not look into directories of a user's mount.
    fn by_hand(&self, volume: &Path) -> String {
        let Some(Driver { name, options, .. }) = &self.program else {
            return "only root can mount it".to_owned();
        };
        let options = ["ro", options].join(if options.is_empty() { "" } else { "," });
        format!(
            "only root mounts it here; on another folder: `{name} -o {options} {} FOLDER`",
            volume.display()
        )
    }
}

impl Driver {
    fn mount(&self, source: &OsStr, at: &Path, options: &str, writable: bool) -> Result<(), String> {
        let Some(program) = found(self.name) else {
            return Err(format!("{} is not installed (Debian: {})", self.name, self.package));
        };
        if let [program, words @ ..] = self.replay
            && writable
        {
            // Its exit code tells whether something was replayed. What it cannot replay the driver refuses.
            let _ = run(program, words.iter().map(OsStr::new).chain([source]));
        }
        let words = ["-o".as_ref(), options.as_ref(), source, at.as_os_str()];
        run(&program, words).map_err(|said| format!("{} does not mount it ({said})", self.name))?;
        match is_mounted(at) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("{} has not mounted it", self.name)),
            Err(error) => Err(format!("/proc/self/mountinfo cannot be read: {error}")),
        }
    }
}

/// A loop device on a file. Dropped it goes as soon as it is not used: with its mount.
struct LoopDevice(OsString);

impl LoopDevice {
    fn on(file: &Path, writable: bool) -> Result<Self, String> {
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show"]);
        if !writable {
            losetup.arg("--read-only");
        }
        let shown = losetup.arg(file).env("LC_ALL", "C").stdin(Stdio::null()).output();
        let shown = shown.map_err(|error| error.to_string())?;
        if !shown.status.success() {
            return Err(first_line(&String::from_utf8_lossy(&shown.stderr)));
        }
        Ok(Self(String::from_utf8_lossy(&shown.stdout).trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = run("losetup", ["--detach".as_ref(), &*self.0]);
    }
}

/// Path of a program: drivers are as a rule where only root looks.
fn found(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Runs a program to its end; a driver goes on in the background. What it says where it fails.
fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    words: impl IntoIterator<Item = S>,
) -> Result<(), String> {
    let name = program.as_ref().to_string_lossy().into_owned();
    let failed = |error: io::Error| format!("{name}: {error}");
    // Not a pipe, whose other end a driver that goes on would keep.
    let mut log = tempfile::tempfile().map_err(failed)?;
    let status = Command::new(&program)
        .args(words)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.try_clone().map_err(failed)?)
        .status()
        .map_err(failed)?;
    match status.success() {
        true => Ok(()),
        false => Err(said_in(&mut log).unwrap_or_else(|| status.to_string())),
    }
}

fn said_in(log: &mut File) -> Option<String> {
    let mut said = Vec::new();
    log.rewind().ok()?;
    log.take(SAID_MAX).read_to_end(&mut said).ok()?;
    Some(first_line(&String::from_utf8_lossy(&said))).filter(|line| !line.is_empty())
}

/// The first line that says something, without the mount point before it.
fn first_line(said: &str) -> String {
    let line = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let line =
        line.strip_prefix("mount: ").and_then(|line| line.split_once(": ")).map_or(line, |line| line.1);
    line.trim_end_matches('.').to_owned()
}

/// Returns `true` if something is mounted on a folder. The kernel's list tells it without an I/O on what is mounted.
pub(super) fn is_mounted(folder: &Path) -> io::Result<bool> {
    let list = fs::read_to_string("/proc/self/mountinfo")?;
    // proc(5): the fifth field, in which blanks and backslashes are octal.
    let escape = |char: char| match char {
        ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", char as u32),
        char => char.to_string(),
    };
    let place: String = folder.to_string_lossy().chars().map(escape).collect();
    Ok(list.lines().any(|line| line.split(' ').nth(4) == Some(&place)))
}

/// Takes a volume off its folder, where something still is. Blocks.
///
/// # Errors
///
/// What `umount` says: as a rule that it is in use.
pub(super) fn unmount(folder: &Path) -> io::Result<()> {
    if is_mounted(folder)? { unmount_by_program(folder, false) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mount_says_is_one_line_without_the_place() {
        let said = "\nmount: /a/b: unknown filesystem type 'vfat'.\n       dmesg(1) may have more\n";
        assert_eq!(first_line(said), "unknown filesystem type 'vfat'");
        assert_eq!(
            first_line("fuse: mount failed: Block device required\n"),
            "fuse: mount failed: Block device required"
        );
    }

    #[test]
    fn the_root_is_mounted_and_a_new_folder_is_not() {
        assert!(is_mounted(Path::new("/")).unwrap());
        assert!(!is_mounted(tempfile::tempdir().unwrap().path()).unwrap());
    }
}
