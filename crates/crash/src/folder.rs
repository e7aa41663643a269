//! A folder of files whose power fails after a number of steps.

use std::collections::BTreeMap;
use std::io;

/// Bytes of a file: as they are, and as they are on the disk.
#[derive(Clone, Default)]
struct Inode {
    bytes: Vec<u8>,
    durable: Option<Vec<u8>>,
}

type Names = BTreeMap<String, usize>;
/// Damage to bytes that were not made durable.
type Damage = fn(&[u8]) -> Vec<u8>;

/// A folder in memory, each step as small as a crash can cut it, that fails after a number of them.
///
/// It keeps what is durable apart from what was done: bytes are durable after [`sync_file`](Self::sync_file), names
/// after [`sync`](Self::sync). [`after_power_failure`](Self::after_power_failure) tells what the next start may find.
#[derive(Clone)]
pub struct Folder {
    inodes: Vec<Inode>,
    names: Names,
    /// As they were after each step since the last time they were made durable, the oldest first.
    history: Vec<Names>,
    last: usize,
    steps_left: usize,
}

impl Default for Folder {
    /// An empty folder, with power for ever.
    fn default() -> Self {
        Self {
            inodes: Vec::new(),
            names: Names::new(),
            history: vec![Names::new()],
            last: 0,
            steps_left: usize::MAX,
        }
    }
}

impl Folder {
    /// The same, with power for so many further steps.
    pub fn failing_after(&self, steps: usize) -> Self {
        Self { steps_left: steps, ..self.clone() }
    }

    /// Every folder that may be there after the power comes back: names as they were at any moment since the last sync,
    /// bytes that were not made durable in any of the states that disks leave.
    pub fn after_power_failure(&self) -> Vec<Self> {
        let damage: [Damage; 4] = [
            |_| Vec::new(),
            |bytes| bytes[..bytes.len() / 2].to_vec(),
            |bytes| vec![0; bytes.len()],
            <[u8]>::to_vec,
        ];
        let mut all = Vec::new();
        for names in &self.history {
            for damage in damage {
                let inodes = self.inodes.iter().map(|inode| {
                    let bytes = inode.durable.clone().unwrap_or_else(|| damage(&inode.bytes));
                    Inode { durable: Some(bytes.clone()), bytes }
                });
                all.push(Self {
                    inodes: inodes.collect(),
                    names: names.clone(),
                    history: vec![names.clone()],
                    last: 0,
                    steps_left: usize::MAX,
                });
            }
        }
        all
    }

    /// The bytes of a file; `None`: there is none.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        self.names.get(name).map(|&inode| self.inodes[inode].bytes.clone())
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    /// Makes a file empty, or an empty file.
    ///
    /// # Errors
    ///
    /// Without power, as every step.
    pub fn create(&mut self, name: &str) -> io::Result<()> {
        self.step()?;
        self.last = self.inodes.len();
        self.inodes.push(Inode::default());
        let last = self.last;
        self.change_names(|names| names.extend([(name.to_owned(), last)]));
        Ok(())
    }

    /// Appends to the file that was created last.
    ///
    /// # Errors
    ///
    /// Without power, or without such a file.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        self.created()?.bytes.extend(bytes);
        Ok(())
    }

    /// Makes its bytes durable.
    ///
    /// # Errors
    ///
    /// Without power, or without such a file.
    pub fn sync_file(&mut self) -> io::Result<()> {
        self.step()?;
        let inode = self.created()?;
        inode.durable = Some(inode.bytes.clone());
        Ok(())
    }

    /// Gives a file the name, and the place, of another.
    ///
    /// # Errors
    ///
    /// Without power, or where there is no such file.
    pub fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.step()?;
        let inode = *self.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        self.change_names(|names| {
            names.remove(from);
            names.insert(to.to_owned(), inode);
        });
        Ok(())
    }

    /// Removes a name; none is no mistake.
    ///
    /// # Errors
    ///
    /// Without power.
    pub fn remove(&mut self, name: &str) -> io::Result<()> {
        self.step()?;
        self.change_names(|names| names.retain(|other, _| other != name));
        Ok(())
    }

    /// Makes names durable.
    ///
    /// # Errors
    ///
    /// Without power.
    pub fn sync(&mut self) -> io::Result<()> {
        self.step()?;
        self.history = vec![self.names.clone()];
        Ok(())
    }

    fn created(&mut self) -> io::Result<&mut Inode> {
        self.inodes.get_mut(self.last).ok_or_else(|| io::Error::other("no file was created"))
    }

    fn step(&mut self) -> io::Result<()> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or_else(|| io::Error::other("power failed"))?;
        Ok(())
    }

    fn change_names(&mut self, change: impl FnOnce(&mut Names)) {
        change(&mut self.names);
        self.history.push(self.names.clone());
    }
}
