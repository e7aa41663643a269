//! The initiator ports that processes of this host use: who has which, and what a process that ended has left at
//! targets.

use std::fs::{self, File, OpenOptions as FileOptions, TryLockError};
use std::io::{self, Read, Seek};
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use lunway_iscsi::pdu::Isid;
use lunway_occupancy::FileId;
use sha2::{Digest, Sha256};

use crate::initiator_ports::private_directory;
use crate::options::initiator_name;
use crate::{IscsiUrl, IsidFamily, SessionOptions};

/// Sessions of one host with one logical unit over one lane at a time. A bound for the search, far above any use.
const SLOTS_MAX: u16 = 256;

/// Longest record that is read, bytes: a few hundred portal groups.
const RECORD_LEN_MAX: u64 = 64 << 10;

/// First line of a record.
const RECORD_TITLE: &str = "lunway initiator port 1";

/// The file, beside the records of an initiator name for a target, that has the two names, a line each.
pub(crate) const NAMES_FILE: &str = "names";

/// The ports of this host for one logical unit.
#[derive(Clone, Debug)]
pub(crate) struct UnitPorts {
    /// Of all ports of this initiator name for the target.
    directory: PathBuf,
    /// Seed that all its ISIDs have in common.
    seed: Vec<u8>,
    lun: u16,
}

impl UnitPorts {
    /// None where ports are not recorded.
    pub(crate) fn find(url: &IscsiUrl, options: &SessionOptions) -> io::Result<Option<Self>> {
        let (Some(target), Some(lun)) = (&url.target, url.lun) else { return Ok(None) };
        let Some(root) = options.initiator_ports.directory()? else { return Ok(None) };
        let target = target.to_ascii_lowercase();
        let initiator = initiator_name(url, options);
        let nodes = hash(&[initiator.as_bytes(), target.as_bytes()]);
        let directory = root.join(hex(&nodes[..8]));
        private_directory(&directory)?;
        note_names(&directory, &initiator, &target);
        // Of two users, or two containers, that cannot see each other's locks, no two may choose the same ISID: so the
        // place counts.
        let place = root.as_os_str().as_encoded_bytes();
        // The machine's id is as stable as its installation: two hosts of one name do not end each other's sessions.
        let machine = lunway_machine::machine_id().unwrap_or_else(lunway_machine::host_name);
        let seed = hash(&[machine.as_bytes(), place, target.as_bytes(), &lun.to_be_bytes()]).to_vec();
        Ok(Some(Self { directory, seed, lun }))
    }

    /// RFC 7143 §11.12.5, format 10b, all of whose 40 free bits are the hash's.
    fn isid(&self, lane: &str, slot: u16) -> Isid {
        let hash = hash(&[&self.seed, lane.as_bytes(), &slot.to_be_bytes()]);
        let [a, b, c, d, e, ..] = hash;
        IsidFamily::of([a, b, c]).member(u16::from_be_bytes([d, e]))
    }

    /// The free port of the lowest number. What its record says stays until [`ClaimedPort::note`].
    pub(crate) fn claim(&self, lane: &str) -> io::Result<ClaimedPort> {
        for slot in 0..SLOTS_MAX {
            let isid = self.isid(lane, slot);
            if let Some(mut file) = self.lock(&hex(&isid))? {
                // What is left of an earlier process has been settled before, or else is settled later with the record
                // as it is.
                let record = Record::read(&mut file).filter(|record| record.lun == self.lun);
                let record = record.unwrap_or(Record { lun: self.lun, groups: Vec::new() });
                return Ok(ClaimedPort { isid, record, file, path: self.directory.join(hex(&isid)) });
            }
        }
        Err(io::Error::other(format!("{SLOTS_MAX} sessions of this host use the disk already")))
    }

    /// The ports that a process used which ended without a logout.
    pub(crate) fn abandoned(&self) -> io::Result<Vec<ClaimedPort>> {
        let mut ports = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let Some(isid) = entry?.file_name().to_str().and_then(isid_of) else { continue };
            let name = hex(&isid);
            // Those of other units are not even locked: a process that looks for a free one would take the next.
            let path = self.directory.join(&name);
            let ours = |file: &mut File| Record::read(file).filter(|record| record.lun == self.lun);
            if File::open(&path).ok().as_mut().and_then(ours).is_none() {
                continue;
            }
            if let Some(mut file) = self.lock(&name)?
                && let Some(record) = ours(&mut file)
            {
                ports.push(ClaimedPort { isid, record, file, path });
            }
        }
        Ok(ports)
    }

    /// Keeps all others from opening the same unit meanwhile; none while another does.
    pub(crate) fn begin_opening(&self) -> io::Result<Option<File>> {
        self.lock(&format!("opening-{}", self.lun))
    }

    /// Directory of the port's record, for people.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// None if another has it.
    fn lock(&self, name: &str) -> io::Result<Option<File>> {
        let path = self.directory.join(name);
        loop {
            let mut options = FileOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.custom_flags(libc::O_NOFOLLOW).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Its last owner may have removed it between our opening and our lock.
            let ours = file.metadata()?;
            match fs::symlink_metadata(&path) {
                Ok(there) if FileId::of(&there) == FileId::of(&ours) => return Ok(Some(file)),
                _ => {}
            }
        }
    }
}

/// A port that this process has. Dropped without [`release`](Self::release), its record stays, for the next process to
/// settle.
#[derive(Debug)]
pub(crate) struct ClaimedPort {
    pub(crate) isid: Isid,
    record: Record,
    /// Locked.
    file: File,
    path: PathBuf,
}

impl ClaimedPort {
    /// A session of the port goes to that portal group. To be called before anything is written over it.
    pub(crate) fn note(&mut self, group: u16, portal: &str, from: Option<IpAddr>) -> io::Result<()> {
        let known = Group { tag: group, portal: portal.to_owned(), from };
        if self.record.groups.contains(&known) {
            return Ok(());
        }
        self.record.groups.retain(|other| other.tag != group);
        self.record.groups.push(known);
        self.save()
    }

    /// The portal groups in which its sessions may live.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.record.groups
    }

    /// Nothing of the port is left in that portal group.
    pub(crate) fn settle(&mut self, group: u16) -> io::Result<()> {
        self.record.groups.retain(|other| other.tag != group);
        self.save()
    }

    /// Nothing of the port is left anywhere.
    pub(crate) fn release(self) {
        // While it is locked; see `lock`.
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "the record of an initiator port cannot be removed");
        }
    }

    fn save(&mut self) -> io::Result<()> {
        let text = self.record.to_text();
        // In one call: a kill leaves the old record or the new one.
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }
}

/// A portal group that a port's session lives in, and the path that it took there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) tag: u16,
    pub(crate) portal: String,
    pub(crate) from: Option<IpAddr>,
}

/// Contents of a port's file: lines of words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) lun: u16,
    pub(crate) groups: Vec<Group>,
}

impl Record {
    /// None if nothing is left of the port.
    pub(crate) fn read(file: &mut File) -> Option<Self> {
        let mut text = String::new();
        file.rewind().and_then(|()| file.take(RECORD_LEN_MAX).read_to_string(&mut text)).ok()?;
        Self::parse(&text).filter(|record| !record.groups.is_empty())
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        lines.next().filter(|line| *line == RECORD_TITLE)?;
        let mut record = Self { lun: lines.next()?.strip_prefix("lun ")?.parse().ok()?, groups: Vec::new() };
        for line in lines {
            let mut words = line.strip_prefix("group ")?.split(' ');
            let (tag, portal) = (words.next()?.parse().ok()?, words.next()?.to_owned());
            let from = words.next().map(str::parse).transpose().ok()?;
            record.groups.push(Group { tag, portal, from });
        }
        Some(record)
    }

    fn to_text(&self) -> String {
        let mut text = format!("{RECORD_TITLE}\nlun {}\n", self.lun);
        for Group { tag, portal, from } in &self.groups {
            let from = from.map_or(String::new(), |from| format!(" {from}"));
            text.push_str(&format!("group {tag} {portal}{from}\n"));
        }
        text
    }
}

/// Writes down whose records a directory has, for those who look at them. No session depends on it.
fn note_names(directory: &Path, initiator: &str, target: &str) {
    let path = directory.join(NAMES_FILE);
    if !path.exists()
        && let Err(error) = fs::write(&path, format!("{initiator}\n{target}\n"))
    {
        tracing::debug!(path = %path.display(), %error, "the names of recorded sessions cannot be written down");
    }
}

/// Of parts with their lengths, so that no two lists have the same one.
fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn isid_of(hex: &str) -> Option<Isid> {
    let mut isid = Isid::default();
    if hex.len() != 2 * isid.len() || !hex.is_ascii() {
        return None;
    }
    for (byte, digits) in isid.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(isid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InitiatorPorts;

    fn ports(directory: &Path, lun: u16) -> UnitPorts {
        let url = IscsiUrl::parse(&format!("iscsi://192.0.2.1/iqn.2026-11.com.example:disk/{lun}")).unwrap();
        let initiator_ports = InitiatorPorts::In(directory.to_owned());
        UnitPorts::find(&url, &SessionOptions { initiator_ports, ..SessionOptions::default() })
            .unwrap()
            .unwrap()
    }

    #[test]
    fn a_port_is_the_same_in_every_process_and_another_for_each_unit_lane_and_second_user_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let ports = |lun| ports(directory.path(), lun);
        let first = ports(0).claim("").unwrap();
        let second = ports(0).claim("").unwrap();
        let others = [ports(0).claim("192.0.2.20>192.0.2.10:3260").unwrap(), ports(1).claim("").unwrap()];
        let all = [&first, &second, &others[0], &others[1]].map(|port| port.isid);
        for (n, isid) in all.iter().enumerate() {
            assert_eq!(isid[0], 0x80, "format 10b");
            assert!(!all[..n].contains(isid), "{all:?}");
        }
        drop((first, second));
        assert_eq!(ports(0).claim("").unwrap().isid, all[0], "the lowest one that is free");
    }

    #[test]
    fn what_a_port_was_used_for_is_found_when_its_process_is_gone_and_not_before() {
        let directory = tempfile::tempdir().unwrap();
        let ports = ports(directory.path(), 3);
        let mut port = ports.claim("").unwrap();
        port.note(1, "192.0.2.10:3260", None).unwrap();
        port.note(2, "[2001:db8::1]:3260", Some("2001:db8::2".parse().unwrap())).unwrap();
        assert!(ports.abandoned().unwrap().is_empty(), "it is in use");
        let isid = port.isid;
        drop(port);
        assert!(self::ports(directory.path(), 4).abandoned().unwrap().is_empty(), "another unit's");
        let mut found = ports.abandoned().unwrap();
        let mut port = found.pop().unwrap();
        assert_eq!((port.isid, port.groups().len(), found.len()), (isid, 2, 0));
        assert_eq!(port.groups()[1].from, Some("2001:db8::2".parse().unwrap()));
        port.settle(1).unwrap();
        drop(port);
        let port = ports.abandoned().unwrap().pop().unwrap();
        assert_eq!(port.groups().iter().map(|group| group.tag).collect::<Vec<_>>(), [2]);
        port.release();
        assert!(ports.abandoned().unwrap().is_empty());
    }

    #[test]
    fn a_record_that_is_no_record_is_nothing() {
        for text in
            ["", "lunway initiator port 1\n", "lunway initiator port 1\nlun x\n", "something else\nlun 0\n"]
        {
            assert_eq!(Record::parse(text), None, "{text:?}");
        }
        let record = Record { lun: 7, groups: vec![Group { tag: 1, portal: "a:1".to_owned(), from: None }] };
        assert_eq!(Record::parse(&record.to_text()), Some(record));
    }

    #[test]
    fn a_directory_that_others_may_write_in_is_not_trusted() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let open = directory.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(InitiatorPorts::In(open).directory().is_err());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        assert!(InitiatorPorts::In(link).directory().is_err());
    }
}
