//! Whether the files of LUNs are there, as `serve --check` asks. A process of its own looks at them, as each may lie on
//! a share that hangs.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use serde_json::json;

use super::asker::Asker;
use crate::failure::Failure;
use crate::terminal;
use crate::this_program::this_program;

/// Option of `serve` for that process.
const LOOK: [&str; 2] = ["serve", "--look-at-files"];

/// Folders that are looked at at once. Shares that hang keep no other from being looked at while they are fewer.
const AT_ONCE: usize = 16;

/// Answer about one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// It is there.
    There,
    /// It is not, or cannot be looked at, and why.
    Missing(String),
    /// Its share does not answer.
    Late,
}

/// Asks about these files, in their order.
///
/// # Errors
///
/// Where no process can be asked.
pub(super) fn look_at(files: &[&Path]) -> io::Result<Vec<Looked>> {
    let mut looked = vec![Looked::Late; files.len()];
    if files.is_empty() {
        return Ok(looked);
    }
    let asker = Asker::begin(this_program(&LOOK), &serde_json::to_string(files)?)?;
    for _ in files {
        let Some((file, missing)) = asker.next::<(usize, Option<String>)>()? else { break };
        if let Some(of) = looked.get_mut(file) {
            *of = missing.map_or(Looked::There, Looked::Missing);
        }
    }
    Ok(looked)
}

/// The part of the process: it reads a list of files as JSON, and prints for each its place there and what is wrong.
pub(super) fn answer() -> Result<(), Failure> {
    let text = io::read_to_string(io::stdin()).map_err(Failure::failed)?;
    let files: Vec<PathBuf> = serde_json::from_str(&text).map_err(Failure::failed)?;
    let mut folders = BTreeMap::<_, Vec<_>>::new();
    for (number, file) in files.iter().enumerate() {
        folders.entry(file.parent()).or_default().push((number, file));
    }
    let waiting = Mutex::new(folders.into_values());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        for _ in 0..AT_ONCE {
            let tell = tell.clone();
            scope.spawn(move || {
                while let Some(folder) = next() {
                    for (number, file) in folder {
                        let _ = tell.send((number, missing(file)));
                    }
                }
            });
        }
        drop(tell);
        told.iter().try_for_each(|(number, missing)| terminal::print_json(&json!([number, missing])))
    })
}

/// What is wrong with a file; `None`: nothing.
fn missing(file: &Path) -> Option<String> {
    match file.metadata() {
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some("there is no such file".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}
