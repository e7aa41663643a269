//! The parent locator: which file a differencing disk was made on, and the paths where it may be.

use std::path::{Component, Path, PathBuf};

use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Structure, VhdxOpenError};
use crate::format::{Guid, LocatorEntry, LocatorHeader, item};

/// Keys and values of a parent locator, in their order on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locator {
    entries: Vec<(String, String)>,
}

impl Locator {
    /// The parent's DataWriteGuid.
    pub const LINKAGE: &str = "parent_linkage";
    /// Another one that is right too: the parent's next one while a change of the parent is under way.
    pub const LINKAGE2: &str = "parent_linkage2";
    /// The path from the child's folder.
    pub const RELATIVE: &str = "relative_path";
    /// The path with a volume GUID.
    pub const VOLUME: &str = "volume_path";
    /// The path with a drive letter or a share.
    pub const ABSOLUTE: &str = "absolute_win32_path";

    /// A locator for a parent at `relative` from the child's folder (with `/` or `\`), and its absolute path if that is
    /// to be kept too.
    pub fn new(linkage: Guid, relative: &str, absolute: Option<&str>) -> Self {
        let mut entries = vec![
            (Self::LINKAGE.into(), format!("{{{linkage}}}")),
            (Self::RELATIVE.into(), relative.replace('/', "\\")),
        ];
        if let Some(absolute) = absolute {
            entries.push((Self::ABSOLUTE.into(), absolute.into()));
        }
        // Windows writes it always, zero where there is no second parent.
        entries.push((Self::LINKAGE2.into(), format!("{{{}}}", Guid::ZERO)));
        Self { entries }
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Sets the value of a key, which is added where it is not there.
    pub fn set(&mut self, key: &str, value: &str) {
        match self.entries.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => value.clone_into(old),
            None => self.entries.push((key.into(), value.into())),
        }
    }

    /// Returns `true` if a file with this DataWriteGuid is the parent. A zero second linkage matches nothing.
    pub fn matches(&self, data_write: Guid) -> bool {
        let is = |key| {
            self.get(key).and_then(|text| text.parse::<Guid>().ok()).is_some_and(|guid| guid == data_write)
        };
        is(Self::LINKAGE) || !data_write.is_zero() && is(Self::LINKAGE2)
    }

    /// `parent_linkage`.
    pub fn linkage(&self) -> Guid {
        self.get(Self::LINKAGE).and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// Paths where the parent may be, in the order of 2.6.2.6.3 (relative, volume, absolute), for a child in `folder`.
    /// The locator is untrusted: an absolute path is taken by its file name alone, and looked for in the child's
    /// folder; a relative one must not leave `root`.
    pub fn candidates(&self, folder: &Path, root: &Path) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        if let Some(relative) = self.get(Self::RELATIVE) {
            let mut path = folder.to_path_buf();
            for part in relative.split(['\\', '/']) {
                match part {
                    "" | "." => {}
                    ".." => {
                        path.pop();
                    }
                    name => path.push(name),
                }
            }
            let plain = path.components().all(|part| !matches!(part, Component::ParentDir));
            if plain && path.starts_with(root) {
                paths.push(path);
            }
        }
        for key in [Self::RELATIVE, Self::VOLUME, Self::ABSOLUTE] {
            let name = self.get(key).and_then(|value| value.rsplit(['\\', '/']).next());
            if let Some(name) = name.filter(|name| !matches!(*name, "" | "." | "..")) {
                paths.push(folder.join(name));
            }
        }
        let mut unique: Vec<PathBuf> = Vec::new();
        for path in paths {
            if !unique.contains(&path) {
                unique.push(path);
            }
        }
        unique
    }

    /// The parent's file, canonical: the first of the [`candidates`](Self::candidates) that is a file. Where none is, a
    /// name that differs in its case alone will do: Windows takes it for the same. `root` is canonical.
    ///
    /// # Errors
    ///
    /// [`VhdxOpenError::NoParent`], [`VhdxOpenError::ParentAmbiguous`].
    pub fn find(&self, folder: &Path, root: &Path) -> Result<PathBuf, VhdxOpenError> {
        let candidates = self.candidates(folder, root);
        // Where a symbolic link leads out of the root, nothing is found: who sent the file may have sent the link.
        let inside =
            |path: &Path| path.canonicalize().ok().filter(|found| found.starts_with(root) && found.is_file());
        if let Some(found) = candidates.iter().find_map(|path| inside(path)) {
            return Ok(found);
        }
        for path in &candidates {
            if let Some(found) = without_case(path, root)?.and_then(|path| inside(&path)) {
                return Ok(found);
            }
        }
        let names: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        Err(VhdxOpenError::NoParent(names.join(", ")))
    }

    pub(crate) fn parse(bytes: &[u8], at: u64) -> Result<Self, VhdxOpenError> {
        let corrupt = |problem: String| VhdxOpenError::corrupt(Structure::Locator, at, problem);
        let (header, rest) =
            LocatorHeader::read_from_prefix(bytes).map_err(|_| corrupt("it is too short".into()))?;
        if header.locator_type != item::VHDX_LOCATOR {
            let problem = format!("a locator of type {}", header.locator_type);
            return Err(VhdxOpenError::unsupported(Structure::Locator, at, problem));
        }
        let count = usize::from(header.key_value_count.get());
        if rest.len() < count * size_of::<LocatorEntry>() {
            return Err(corrupt(format!("{count} keys do not fit into {} bytes", bytes.len())));
        }
        let text = |offset: u32, length: u16| -> Result<String, VhdxOpenError> {
            let (start, len) = (offset as usize, usize::from(length));
            let found =
                bytes.get(start..start + len).filter(|found| start > 0 && !found.is_empty() && len % 2 == 0);
            let found = found
                .ok_or_else(|| corrupt(format!("a string has {len} bytes at {start}, outside of it")))?;
            let units = found.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit));
            let text: Result<String, _> = char::decode_utf16(units).collect();
            match text {
                Ok(text) if !text.contains('\0') => Ok(text),
                _ => Err(corrupt(format!("the string at {start} is not UTF-16 without NUL"))),
            }
        };
        let mut entries: Vec<(String, String)> = Vec::new();
        // Overlapping strings would make 65,535 entries of 64 KiB each out of 1 MiB.
        let mut total = 0;
        for entry in rest.chunks_exact(size_of::<LocatorEntry>()).take(count) {
            let entry =
                LocatorEntry::read_from_bytes(entry).map_err(|_| corrupt("it is too short".into()))?;
            total += usize::from(entry.key_length.get()) + usize::from(entry.value_length.get());
            if total > bytes.len() {
                return Err(corrupt("its strings overlap".into()));
            }
            let key = text(entry.key_offset.get(), entry.key_length.get())?;
            let value = text(entry.value_offset.get(), entry.value_length.get())?;
            entries.push((key, value));
        }
        let mut keys: Vec<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(corrupt(format!("key {:?} is there twice", pair[0])));
        }
        let locator = Self { entries };
        match locator.get(Self::LINKAGE).map(str::parse::<Guid>) {
            Some(Ok(_)) => {}
            Some(Err(problem)) => return Err(corrupt(format!("{}: {problem}", Self::LINKAGE))),
            None => return Err(corrupt(format!("it has no {}", Self::LINKAGE))),
        }
        if [Self::RELATIVE, Self::VOLUME, Self::ABSOLUTE].iter().all(|key| locator.get(key).is_none()) {
            return Err(corrupt("it has no path".into()));
        }
        Ok(locator)
    }

    /// Says what does not fit into the format.
    pub(crate) fn check(&self) -> Result<(), String> {
        let too_long = |text: &str| text.encode_utf16().count() > usize::from(u16::MAX) / 2;
        match self.entries.iter().find(|(key, value)| too_long(key) || too_long(value)) {
            Some((key, _)) => Err(format!("the parent's {key} is longer than {} characters", u16::MAX / 2)),
            None => Ok(()),
        }
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let table = size_of::<LocatorHeader>() + self.entries.len() * size_of::<LocatorEntry>();
        let (mut head, mut strings) = (Vec::new(), Vec::new());
        let header = LocatorHeader {
            locator_type: item::VHDX_LOCATOR,
            reserved: 0.into(),
            key_value_count: (self.entries.len() as u16).into(),
        };
        head.extend_from_slice(header.as_bytes());
        let mut put = |text: &str| {
            let offset = table + strings.len();
            strings.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
            (offset as u32, (table + strings.len() - offset) as u16)
        };
        for (key, value) in &self.entries {
            let ((key_offset, key_length), (value_offset, value_length)) = (put(key), put(value));
            let entry = LocatorEntry {
                key_offset: key_offset.into(),
                value_offset: value_offset.into(),
                key_length: key_length.into(),
                value_length: value_length.into(),
            };
            head.extend_from_slice(entry.as_bytes());
        }
        head.extend_from_slice(&strings);
        head
    }
}

/// The one path below `root` that is `path` but for the case of its names.
fn without_case(path: &Path, root: &Path) -> Result<Option<PathBuf>, VhdxOpenError> {
    let Ok(names) = path.strip_prefix(root) else { return Ok(None) };
    let mut found = root.to_path_buf();
    for name in names {
        let exact = found.join(name);
        if exact.symlink_metadata().is_ok() {
            found = exact;
            continue;
        }
        // Folders outside are not looked into.
        if !found.canonicalize().is_ok_and(|folder| folder.starts_with(root)) {
            return Ok(None);
        }
        let (Some(name), Ok(entries)) = (name.to_str().map(str::to_lowercase), found.read_dir()) else {
            return Ok(None);
        };
        let mut alike = entries
            .flatten()
            .map(|entry| entry.file_name())
            .filter(|entry| entry.to_str().is_some_and(|entry| entry.to_lowercase() == name));
        match (alike.next(), alike.next()) {
            (None, _) => return Ok(None),
            (Some(one), None) => found.push(one),
            (Some(one), Some(other)) => {
                let mut both = [found.join(one), found.join(other)].map(|path| path.display().to_string());
                both.sort();
                let [first, second] = both;
                return Err(VhdxOpenError::ParentAmbiguous { first, second });
            }
        }
    }
    Ok(Some(found))
}

/// A parent's path from the folder of its child, which it must not leave: a file that came from elsewhere could name
/// any other. The child need not exist.
///
/// # Errors
///
/// Where one of them is not found, or the parent lies elsewhere or has a name that the format cannot say.
pub fn relative_path(child: &Path, parent: &Path) -> Result<String, VhdxOpenError> {
    let found = parent.canonicalize().map_err(VhdxOpenError::access("looking for the parent"))?;
    let folder = match child.canonicalize() {
        Ok(child) => child.parent().map(Path::to_path_buf).unwrap_or_default(),
        Err(_) => {
            let folder = child.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize();
            folder.map_err(VhdxOpenError::access("looking for the folder of the child"))?
        }
    };
    let unfit = |why: String| VhdxOpenError::ParentUnfit(why);
    let inside = found.strip_prefix(&folder).map_err(|_| {
        unfit(format!(
            "{} is neither in the directory of {} nor below it, where parents are searched for: put both into one directory",
            found.display(),
            child.display()
        ))
    })?;
    let text =
        inside.to_str().ok_or_else(|| unfit(format!("the name of {} is not UTF-8", found.display())))?;
    // The format's own separator: it would lead elsewhere.
    if text.contains('\\') {
        return Err(unfit(format!(
            "the name of {} has a backslash, which separates folders in a VHDX file: rename it",
            found.display()
        )));
    }
    Ok(format!("./{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKAGE: Guid = Guid::from_digits(0x83ed0ec3_24c8_49a6_a959_5e4bf1288bfb);

    #[test]
    fn a_locator_reads_back_and_matches_its_parent_alone() {
        let locator = Locator::new(LINKAGE, "../base/a parent.vhdx", Some("\\\\?\\d:\\base\\a parent.vhdx"));
        let parsed = Locator::parse(&locator.build(), 0).expect("a locator");
        assert_eq!(parsed, locator);
        assert_eq!(parsed.get(Locator::RELATIVE), Some("..\\base\\a parent.vhdx"));
        assert!(parsed.matches(LINKAGE));
        assert!(!parsed.matches(Guid::ZERO), "a zero second linkage is none");
    }

    #[test]
    fn a_locator_leads_nowhere_outside_of_the_root() {
        let candidates = |relative: &str, absolute| {
            Locator::new(LINKAGE, relative, absolute)
                .candidates(Path::new("/disks/child"), Path::new("/disks"))
        };
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(candidates("..\\p.vhdx", None), paths(&["/disks/p.vhdx", "/disks/child/p.vhdx"]));
        assert_eq!(candidates("..\\..\\etc\\passwd", None), paths(&["/disks/child/passwd"]));
        let absolute = Some("\\\\?\\d:\\other\\q.vhdx");
        assert_eq!(candidates(".\\p.vhdx", absolute), paths(&["/disks/child/p.vhdx", "/disks/child/q.vhdx"]));
    }

    #[test]
    fn cut_and_overlapping_locators_are_refused() {
        let whole = Locator::new(LINKAGE, "p.vhdx", None).build();
        for len in 0..whole.len() {
            assert!(Locator::parse(&whole[..len], 0).is_err(), "{len} bytes");
        }
        let mut many = whole;
        many[18..20].copy_from_slice(&u16::MAX.to_le_bytes());
        assert!(Locator::parse(&many, 0).is_err());
    }
}
