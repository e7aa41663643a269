//! Where results go.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

use crate::failure::Failure;
use crate::terminal;

/// Results on their way out: to whoever watches, to files, to a program that reads standard output.
///
/// [`text`](Self::text) first, then the files in any order, then [`end`](Self::end), which names them. A file called `-` is standard
/// output, which then has nothing for people on it.
pub(crate) struct Output<'a> {
    takes_stdout: bool,
    written: Vec<&'a Path>,
}

/// Whether a file's name means standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl<'a> Output<'a> {
    /// `files` are those that a program may read from standard output.
    pub(crate) fn new(files: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        Self { takes_stdout: files.into_iter().any(|path| is_stdout(path)), written: Vec::new() }
    }

    /// Prints what people read.
    pub(crate) fn text(&self, text: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.takes_stdout { Ok(()) } else { terminal::print(&text()) }
    }

    /// Writes a document for programs, if a file is named for it.
    pub(crate) fn json(
        &mut self,
        path: Option<&'a PathBuf>,
        document: impl FnOnce() -> Value,
    ) -> Result<(), Failure> {
        let Some(path) = path else { return Ok(()) };
        let text = serde_json::to_string_pretty(&document()).context("cannot build JSON")?;
        if is_stdout(path) { terminal::print(&text) } else { self.write(path, &(text + "\n")) }
    }

    /// Writes a page, if a file is named for it.
    pub(crate) fn page(
        &mut self,
        path: Option<&'a PathBuf>,
        html: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        path.map_or(Ok(()), |path| self.write(path, &html()))
    }

    /// A file that somebody else has written, if there is one.
    pub(crate) fn written(&mut self, path: Option<&'a PathBuf>) {
        self.written.extend(path.map(PathBuf::as_path));
    }

    fn write(&mut self, path: &'a Path, text: &str) -> Result<(), Failure> {
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        self.written.push(path);
        Ok(())
    }

    /// Says which files there are now.
    pub(crate) fn end(self) -> Result<(), Failure> {
        if self.takes_stdout {
            return Ok(());
        }
        self.written.iter().try_for_each(|path| terminal::print(&format!("written: {}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_named_and_the_others_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let (there, nowhere) = (folder.path().join("a.json"), folder.path().join("no/a.html"));
        let mut output = Output::new([&there, &nowhere]);
        output.json(Some(&there), || json!({ "mb_s": 1 })).unwrap();
        assert_eq!(fs::read_to_string(&there).unwrap(), "{\n  \"mb_s\": 1\n}\n");
        let Err(Failure::Failed(error)) = output.page(Some(&nowhere), String::new) else { panic!("written") };
        assert_eq!(error.to_string(), format!("cannot write {}", nowhere.display()));
        assert_eq!(output.written, [there.as_path()]);
    }

    #[test]
    fn what_goes_to_standard_output_is_alone_there() {
        let (stdout, page) = (PathBuf::from("-"), PathBuf::from("page.html"));
        let silent = Output::new([&stdout, &page]);
        silent.text(|| panic!("nobody reads it")).unwrap();
        assert!(!Output::new([&page]).takes_stdout);
    }
}
