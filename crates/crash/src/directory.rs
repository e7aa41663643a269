//! A folder of files that are written anywhere, recorded step by step.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{MemoryStorage, Op, pieces};

/// Bytes that reach a disk together or not at all.
const UNIT: u64 = 4096;

type Names = BTreeMap<String, usize>;

/// Something that was done in a directory.
#[derive(Clone, Debug)]
enum Step {
    /// An empty file, by its number.
    Create(String, usize),
    Rename(String, String),
    Remove(String),
    /// All names before are durable.
    SyncNames,
    /// Something was done to the bytes of a file.
    File(usize, Op),
}

/// A folder in memory whose files are written at any offset, and of which every step is recorded: a directory of a file
/// system, or of a share.
///
/// [`after_kill`](Self::after_kill) and [`after_power_cut`](Self::after_power_cut) make of a recording the folder that
/// a process finds that starts after one. Clones are the same directory.
#[derive(Clone, Default)]
pub struct Directory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Files at the beginning, durable.
    start: Vec<MemoryStorage>,
    start_names: Names,
    files: Vec<Arc<MemoryStorage>>,
    names: Names,
    steps: Vec<Step>,
    space: Option<u64>,
}

/// A file of a [`Directory`], open.
pub struct DirectoryFile {
    directory: Directory,
    number: usize,
    file: Arc<MemoryStorage>,
}

fn apply_names(names: &mut Names, step: &Step) {
    match step {
        Step::Create(name, number) => drop(names.insert(name.clone(), *number)),
        Step::Rename(from, to) => {
            if let Some(number) = names.remove(from) {
                names.insert(to.clone(), number);
            }
        }
        Step::Remove(name) => drop(names.remove(name)),
        Step::SyncNames | Step::File(..) => {}
    }
}

impl Directory {
    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.state().steps.len()
    }

    /// Description of the step of that number, for messages.
    pub fn describe(&self, number: usize) -> String {
        match self.state().steps.get(number) {
            Some(Step::File(file, Op::Write(offset, data))) => {
                format!("write of {} bytes at {offset} into file {file}", data.len())
            }
            Some(step) => format!("{step:?}"),
            None => "the end".into(),
        }
    }

    /// The directory as a process finds it that starts after another was killed behind so many steps: all of them are
    /// there.
    pub fn after_kill(&self, steps: usize) -> Self {
        self.after(steps, || true, |states| states - 1)
    }

    /// The directory after a power cut behind so many steps: names as they were at a moment that `names` chooses among
    /// so many since they were made durable, and of bytes that were not made durable those units of 4096 bytes for
    /// which `kept` says so.
    pub fn after_power_cut(
        &self,
        steps: usize,
        kept: impl FnMut() -> bool,
        names: impl FnOnce(usize) -> usize,
    ) -> Self {
        self.after(steps, kept, names)
    }

    fn after(
        &self,
        steps: usize,
        mut kept: impl FnMut() -> bool,
        choose: impl FnOnce(usize) -> usize,
    ) -> Self {
        let state = self.state();
        let steps = &state.steps[..steps];
        let mut names = state.start_names.clone();
        let mut history = vec![names.clone()];
        for step in steps {
            match step {
                Step::File(..) => {}
                Step::SyncNames => history = vec![names.clone()],
                step => {
                    apply_names(&mut names, step);
                    history.push(names.clone());
                }
            }
        }
        let names = history[choose(history.len())].clone();
        let mut files: Vec<MemoryStorage> = state.start.clone();
        files.resize_with(state.files.len(), MemoryStorage::default);
        let used: std::collections::BTreeSet<usize> = names.values().copied().collect();
        for number in used {
            let done: Vec<&Op> = steps
                .iter()
                .filter_map(|step| match step {
                    Step::File(of, op) if *of == number => Some(op),
                    _ => None,
                })
                .collect();
            let flushed = done.iter().rposition(|op| matches!(op, Op::Flush)).unwrap_or(0);
            let file = &files[number];
            done[..flushed].iter().for_each(|op| op.apply(&mut file.file()));
            for op in &done[flushed..] {
                for piece in pieces(op, UNIT) {
                    if kept() {
                        piece.apply(&mut file.file());
                    }
                }
            }
        }
        let start = files.clone();
        let files = files.into_iter().map(Arc::new).collect();
        let new = State { start, start_names: names.clone(), files, names, steps: Vec::new(), space: None };
        Self(Arc::new(Mutex::new(new)))
    }

    /// The same files, with nothing recorded yet: everything is durable.
    pub fn at_rest(&self) -> Self {
        self.after_kill(self.steps())
    }

    /// Bytes that the files may take together; beyond that writes fail as on a full host.
    pub fn set_space(&self, bytes: Option<u64>) {
        self.state().space = bytes;
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    /// All bytes of a file.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        state.names.get(name).map(|number| state.files[*number].to_bytes())
    }

    /// Changes one byte of a file, unrecorded: rot.
    pub fn flip(&self, name: &str, offset: u64, mask: u8) {
        let state = self.state();
        if let Some(number) = state.names.get(name) {
            let file = &state.files[*number];
            let mut byte = [0];
            if file.read(offset, &mut byte).is_ok() {
                let _ = file.write(offset, &[byte[0] ^ mask]);
            }
        }
    }

    /// Makes an empty file that must not exist.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists).
    pub fn create(&self, name: &str) -> io::Result<DirectoryFile> {
        let mut state = self.state();
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let number = state.files.len();
        state.files.push(Arc::default());
        let step = Step::Create(name.to_owned(), number);
        apply_names(&mut state.names, &step);
        state.steps.push(step);
        let file = Arc::clone(&state.files[number]);
        Ok(DirectoryFile { directory: self.clone(), number, file })
    }

    /// Opens a file.
    ///
    /// # Errors
    ///
    /// [`NotFound`](io::ErrorKind::NotFound).
    pub fn open(&self, name: &str) -> io::Result<DirectoryFile> {
        let state = self.state();
        let number = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let file = Arc::clone(&state.files[number]);
        Ok(DirectoryFile { directory: self.clone(), number, file })
    }

    /// Gives a file another name; one that has it is replaced.
    ///
    /// # Errors
    ///
    /// [`NotFound`](io::ErrorKind::NotFound).
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let step = Step::Rename(from.to_owned(), to.to_owned());
        apply_names(&mut state.names, &step);
        state.steps.push(step);
        Ok(())
    }

    /// Removes a name; none is no mistake.
    pub fn remove(&self, name: &str) {
        let mut state = self.state();
        if state.names.contains_key(name) {
            let step = Step::Remove(name.to_owned());
            apply_names(&mut state.names, &step);
            state.steps.push(step);
        }
    }

    /// Makes names durable.
    pub fn sync(&self) {
        self.state().steps.push(Step::SyncNames);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DirectoryFile {
    /// Content that a reader sees.
    pub fn now(&self) -> &MemoryStorage {
        &self.file
    }

    /// Writes all of `data` at `offset`, beyond the end too.
    ///
    /// # Errors
    ///
    /// [`StorageFull`](io::ErrorKind::StorageFull) where [`Directory::set_space`] leaves no room.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.directory.state();
        if let Some(space) = state.space {
            let used: u64 = state.names.values().map(|number| state.files[*number].allocated()).sum();
            if used + data.len() as u64 > space {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        self.file.write(offset, data)?;
        state.steps.push(Step::File(self.number, Op::Write(offset, data.into())));
        Ok(())
    }

    /// Makes everything before durable.
    pub fn sync(&self) {
        self.record(Op::Flush);
    }

    /// Changes the length.
    pub fn resize(&self, len: u64) {
        self.record(Op::SetLen(len));
    }

    /// Makes a range within the length read as zeroes.
    pub fn clear(&self, offset: u64, len: u64) {
        self.record(Op::Zero(offset, len));
    }

    fn record(&self, op: Op) {
        let mut state = self.directory.state();
        op.apply(&mut self.file.file());
        state.steps.push(Step::File(self.number, op));
    }
}
