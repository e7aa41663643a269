//! Sessions of this host's processes, as their records tell of them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions as FileOptions};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::initiator_ports::record_folders;
use crate::ports::initiator_port::{NAMES_FILE, Record, hex, isid_of};

/// Sessions that are told. A host with more has one lane each to a thousand disks.
const SESSIONS_MAX: usize = 1024;
/// Longest file of names, bytes: two names of 223 bytes (RFC 7143 §4.2.7.1).
const NAMES_LEN_MAX: u64 = 1024;
/// Most of `/proc/locks` that is read, bytes: forty thousand locks.
const LOCKS_LEN_MAX: u64 = 4 << 20;

/// A session that a process of this user has recorded, or has left behind when it was killed.
///
/// Records are those of [`InitiatorPorts::Host`](crate::InitiatorPorts::Host). A record is written before the first
/// byte of a session's full feature phase and removed after its logout, so that it says where a session may live, not
/// that it is logged in now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedSession {
    /// The initiator's name.
    pub initiator: String,
    /// The target's name, in lower case.
    pub target: String,
    /// The logical unit that it is for.
    pub lun: u16,
    /// The initiator's part of its identity, twelve hexadecimal digits.
    pub isid: String,
    /// The portal that it went to last, `ADDRESS:PORT`.
    pub portal: String,
    /// The local address that it was bound to.
    pub from: Option<IpAddr>,
    /// The process that has it; `None`: it has ended without a logout, or cannot be seen from this PID namespace.
    pub process: Option<u32>,
}

impl RecordedSession {
    /// The sessions of this user's processes on this host, at most a thousand, in the order of their records.
    ///
    /// Takes no lock: a process that looks for a free port would take the next one for that, and leave what a killed
    /// process has left. Who holds a record is read from `/proc/locks`.
    ///
    /// # Errors
    ///
    /// `/proc/locks` or a folder of records cannot be read.
    pub fn all() -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        let locks = locks(&read(Path::new("/proc/locks"), LOCKS_LEN_MAX)?);
        for folder in record_folders() {
            Self::in_folder(&folder, &locks, &mut found)?;
        }
        Ok(found)
    }

    fn in_folder(folder: &Path, locks: &BTreeMap<u64, u32>, found: &mut Vec<Self>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let nodes = entry?.path();
            // Other files of the runtime folder, and records of earlier versions, have no names.
            let Ok(names) = read(&nodes.join(NAMES_FILE), NAMES_LEN_MAX) else { continue };
            let Some((initiator, target)) = names.trim_end().split_once('\n') else { continue };
            for entry in fs::read_dir(&nodes)? {
                let entry = entry?;
                let Some(isid) = entry.file_name().to_str().and_then(isid_of) else { continue };
                let Ok(mut file) = open(&entry.path()) else { continue };
                let Some(record) = Record::read(&mut file) else { continue };
                let Some(group) = record.groups.last() else { continue };
                if found.len() == SESSIONS_MAX {
                    return Ok(());
                }
                found.push(Self {
                    initiator: initiator.to_owned(),
                    target: target.to_owned(),
                    lun: record.lun,
                    isid: hex(&isid),
                    portal: group.portal.clone(),
                    from: group.from,
                    process: locks.get(&file.metadata()?.ino()).copied(),
                });
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    FileOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

fn read(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

/// Processes with an exclusive flock(2), by the file's inode: `1: FLOCK ADVISORY WRITE 712 00:19:1043 0 EOF` (proc(5)).
/// Those that wait for one have `->` in the second place. The device is not compared: overlay file systems show another
/// one there than stat(2) does.
fn locks(text: &str) -> BTreeMap<u64, u32> {
    let lock = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", process, file, ..] = words[..] else { return None };
        Some((file.rsplit(':').next()?.parse().ok()?, process.parse().ok()?))
    };
    text.lines().filter_map(lock).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::initiator_port::UnitPorts;
    use crate::{InitiatorPorts, IscsiUrl, SessionOptions};

    #[test]
    fn a_session_is_told_with_its_names_its_process_and_afterwards_as_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let url = "iscsi://192.0.2.1/iqn.2026-11.com.example:Disk/3?initiator=iqn.2026-11.com.example:host";
        let url = IscsiUrl::parse(url).unwrap();
        let initiator_ports = InitiatorPorts::In(folder.path().to_owned());
        let options = SessionOptions { initiator_ports, ..SessionOptions::default() };
        let ports = UnitPorts::find(&url, &options).unwrap().unwrap();
        let mut port = ports.claim("").unwrap();
        let told = || {
            let mut found = Vec::new();
            let locks = locks(&read(Path::new("/proc/locks"), LOCKS_LEN_MAX).unwrap());
            RecordedSession::in_folder(folder.path(), &locks, &mut found).unwrap();
            found
        };
        assert_eq!(told(), [], "a port that nothing was sent over is no session");
        port.note(1, "192.0.2.1:3260", Some("192.0.2.9".parse().unwrap())).unwrap();
        let session = RecordedSession {
            initiator: "iqn.2026-11.com.example:host".to_owned(),
            target: "iqn.2026-11.com.example:disk".to_owned(),
            lun: 3,
            isid: hex(&port.isid),
            portal: "192.0.2.1:3260".to_owned(),
            from: Some("192.0.2.9".parse().unwrap()),
            process: Some(std::process::id()),
        };
        assert_eq!(told(), std::slice::from_ref(&session));
        assert_ne!(ports.claim("").unwrap().isid, port.isid, "being looked at has not freed it");
        drop(port);
        assert_eq!(told(), [RecordedSession { process: None, ..session }]);
        ports.claim("").unwrap().release();
        assert_eq!(told(), []);
    }

    #[test]
    fn locks_of_other_kinds_and_those_that_are_waited_for_are_left_out() {
        let text = "1: POSIX  ADVISORY  WRITE 7 00:19:1 0 EOF\n2: FLOCK  ADVISORY  WRITE 712 00:19:1043 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 9 00:19:1043 0 EOF\n3: FLOCK  ADVISORY  READ 8 00:19:5 0 EOF\n4: FLOCK\n";
        assert_eq!(locks(text), BTreeMap::from([(1043, 712)]));
    }
}
