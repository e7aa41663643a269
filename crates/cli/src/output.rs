//! Where results go.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
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

/// The files that every command with results can write them to.
#[derive(Debug, Args)]
pub(crate) struct Files {
    /// Write the results as JSON; - is standard output, in place of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with tables and charts; - is standard output, in place of the table
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Files {
    /// Refuses what cannot be written, before anything is measured for it.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        check(self.iter())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.json, &self.html].into_iter().flatten()
    }

    /// Shows the results and writes them.
    pub(crate) fn write(
        &self,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
        html: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let mut output = Output::new(self.iter());
        output.text(text)?;
        output.files(self, json, html)?;
        output.end()
    }
}

/// Whether a file's name means standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Refuses files that cannot be written, and a standard output that two of them want.
pub(crate) fn check<'a>(files: impl Iterator<Item = &'a PathBuf>) -> Result<(), Failure> {
    let (to_stdout, files): (Vec<_>, Vec<_>) = files.partition(|path| is_stdout(path));
    if to_stdout.len() > 1 {
        return Err(Failure::Usage("only one file can be -, standard output".to_owned()));
    }
    for path in files {
        let name = path.display();
        if path.is_dir() {
            return Err(Failure::failed(anyhow!("cannot write {name}: it is a directory")));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let folder = folder.display();
            return Err(Failure::failed(anyhow!("cannot write {name}: there is no directory {folder}")));
        }
    }
    Ok(())
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

    /// Writes the document and the page, each if a file is named for it.
    pub(crate) fn files(
        &mut self,
        files: &'a Files,
        json: impl FnOnce() -> Value,
        html: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.json(files.json.as_ref(), json)?;
        match &files.html {
            None => Ok(()),
            Some(path) if is_stdout(path) => terminal::print(&html()),
            Some(path) => self.write(path, &html()),
        }
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
        let files = Files { json: Some(there.clone()), html: Some(nowhere.clone()) };
        let mut output = Output::new(files.iter());
        let written = output.files(&files, || json!({ "mb_s": 1 }), String::new);
        assert_eq!(fs::read_to_string(&there).unwrap(), "{\n  \"mb_s\": 1\n}\n");
        let Err(Failure::Failed(error)) = written else { panic!("written") };
        assert_eq!(error.to_string(), format!("cannot write {}", nowhere.display()));
        assert_eq!(output.written, [there.as_path()]);
    }

    #[test]
    fn what_cannot_be_written_is_refused_before_it_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| Some(folder.path().join(name));
        let (stdout, usual) = (|| Some(PathBuf::from("-")), || file("a.json"));
        for (json, html, sentence) in [
            (usual(), stdout(), None),
            (Some("a.json".into()), None, None),
            (stdout(), stdout(), Some("only one file can be -")),
            (usual(), file("no/a.html"), Some("there is no directory")),
            (Some(folder.path().to_owned()), None, Some("it is a directory")),
        ] {
            let refused = Files { json, html }.check().err().map(|failure| format!("{failure:?}"));
            assert_eq!(refused.is_some(), sentence.is_some(), "{refused:?}");
            assert!(refused.unwrap_or_default().contains(sentence.unwrap_or_default()));
        }
    }

    #[test]
    fn what_goes_to_standard_output_is_alone_there() {
        let (stdout, page) = (PathBuf::from("-"), PathBuf::from("page.html"));
        let silent = Output::new([&stdout, &page]);
        silent.text(|| panic!("nobody reads it")).unwrap();
        assert!(!Output::new([&page]).takes_stdout);
    }
}
