//! Destinations of results.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use lunway_block::spec::DeviceSpec;
use lunway_occupancy::is_same_file;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::report_file::ReportFile;
use crate::terminal;

/// Results on their way out: text for people, files, JSON for a program that reads standard output.
///
/// [`text`](Self::text) first, then the files in any order, then [`end`](Self::end), which names them. Where JSON or a
/// file called `-` takes standard output, nothing for people is on it.
pub(crate) struct Output<'a> {
    takes_stdout: bool,
    written: Vec<&'a Path>,
}

/// The places that every command with results can write them to.
#[derive(Debug, Default, Args)]
pub(crate) struct Files {
    /// Print the results as JSON instead of text
    #[arg(long)]
    json: bool,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json_file: Option<PathBuf>,
    /// Write a page with tables and charts to this file; - is standard output, instead of text
    #[arg(long, value_name = "FILE", visible_alias = "html")]
    html_file: Option<PathBuf>,
    /// Replace files that are not lunway reports
    #[arg(long)]
    force: bool,
}

impl Files {
    /// Refuses what must not be replaced or cannot be written, before anything is measured. `devices` are those that
    /// the command works on.
    pub(crate) fn check(&self, devices: &[&DeviceSpec]) -> Result<(), Failure> {
        self.check_with(std::iter::empty(), devices)
    }

    /// [`check`](Self::check), with files that only this command has.
    pub(crate) fn check_with<'a>(
        &'a self,
        more: impl Iterator<Item = &'a PathBuf>,
        devices: &[&DeviceSpec],
    ) -> Result<(), Failure> {
        let (to_stdout, files): (Vec<_>, Vec<_>) = self.iter().chain(more).partition(|path| is_stdout(path));
        if to_stdout.len() + usize::from(self.json) > 1 {
            return Err(Failure::Usage(
                "only one of --json and the files called - can have standard output".to_owned(),
            ));
        }
        for (index, path) in files.iter().enumerate() {
            if files[..index].iter().any(|other| is_same_file(other, path)) {
                let name = path.display();
                return Err(Failure::Usage(format!("two results cannot go to one file, {name}")));
            }
            self.report_file(path).check(devices)?;
        }
        Ok(())
    }

    /// A file of results, with the user's word on what it may replace.
    pub(crate) fn report_file<'a>(&self, path: &'a Path) -> ReportFile<'a> {
        ReportFile::new(path, self.force)
    }

    fn iter(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.json_file, &self.html_file].into_iter().flatten()
    }

    /// The way out for these and, with `more`, for files that only this command has.
    pub(crate) fn output<'a>(&self, mut more: impl Iterator<Item = &'a PathBuf>) -> Output<'a> {
        let takes_stdout =
            self.json || self.iter().any(|path| is_stdout(path)) || more.any(|path| is_stdout(path));
        Output { takes_stdout, written: Vec::new() }
    }

    /// Shows the results and writes them.
    pub(crate) fn write(
        &self,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
        html: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let mut output = self.output(std::iter::empty());
        output.text(text)?;
        output.files(self, json, html)?;
        output.end()
    }
}

/// A document with the object by which a report of ours is known, which may be replaced.
fn stamped(mut document: Value) -> Value {
    if let Some(document) = document.as_object_mut() {
        document
            .entry("lunway")
            .or_insert_with(|| json!({ "version": env!("CARGO_PKG_VERSION"), "schema": 1 }));
    }
    document
}

/// Returns `true` if a file's name means standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl<'a> Output<'a> {
    /// Prints what people read.
    pub(crate) fn text(&self, text: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.takes_stdout { Ok(()) } else { terminal::print(&text()) }
    }

    /// Prints a document for programs if that is asked for, and writes it if a file is named for it.
    pub(crate) fn json(
        &mut self,
        files: &Files,
        print: bool,
        path: Option<&'a PathBuf>,
        document: impl FnOnce() -> Value,
    ) -> Result<(), Failure> {
        if !print && path.is_none() {
            return Ok(());
        }
        let text = serde_json::to_string_pretty(&stamped(document())).context("cannot build JSON")?;
        if print || path.is_some_and(|path| is_stdout(path)) {
            terminal::print(&text)?;
        }
        match path.filter(|path| !is_stdout(path)) {
            Some(path) => self.write(files, path, &(text + "\n")),
            None => Ok(()),
        }
    }

    /// Writes the document and the page, each if a place is named for it.
    pub(crate) fn files(
        &mut self,
        files: &'a Files,
        json: impl FnOnce() -> Value,
        html: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.json(files, files.json, files.json_file.as_ref(), json)?;
        match &files.html_file {
            None => Ok(()),
            Some(path) if is_stdout(path) => terminal::print(&html()),
            Some(path) => self.write(files, path, &html()),
        }
    }

    /// A file that is written elsewhere, if there is one.
    pub(crate) fn written(&mut self, path: Option<&'a PathBuf>) {
        self.written.extend(path.map(PathBuf::as_path));
    }

    fn write(&mut self, files: &Files, path: &'a Path, text: &str) -> Result<(), Failure> {
        files.report_file(path).write(text)?;
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
    use std::fs;

    use super::*;

    fn files(json_file: &Path, html_file: &Path) -> Files {
        Files {
            json_file: Some(json_file.to_owned()),
            html_file: Some(html_file.to_owned()),
            ..Files::default()
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_and_the_others_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let (there, nowhere) = (folder.path().join("a.json"), folder.path().join("no/a.html"));
        let files = files(&there, &nowhere);
        let mut output = files.output(std::iter::empty());
        let written = output.files(&files, || json!({ "mb_s": 1 }), String::new);
        let text = fs::read_to_string(&there).unwrap();
        assert!(text.ends_with("}\n") && lunway_report::Saved::is_ours(&text), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["mb_s"], 1);
        let Err(Failure::Failed(error)) = written else { panic!("written") };
        assert_eq!(error.to_string(), format!("cannot write {}", nowhere.display()));
        assert_eq!(output.written, [there.as_path()]);
    }

    #[test]
    fn what_cannot_be_written_is_refused_before_it_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| Some(folder.path().join(name));
        let (stdout, usual) = (|| Some(PathBuf::from("-")), || file("a.json"));
        for (json, json_file, html_file, sentence) in [
            (false, usual(), stdout(), None),
            (true, usual(), file("a.html"), None),
            (false, Some("a.json".into()), None, None),
            (false, stdout(), stdout(), Some("can have standard output")),
            (true, None, stdout(), Some("can have standard output")),
            (false, usual(), usual(), Some("two results cannot go to one file")),
            (false, usual(), file("no/a.html"), Some("there is no directory")),
            (false, Some(folder.path().to_owned()), None, Some("it is a directory")),
        ] {
            let files = Files { json, json_file, html_file, force: false };
            let refused = files.check(&[]).err().map(|failure| format!("{failure:?}"));
            assert_eq!(refused.is_some(), sentence.is_some(), "{refused:?}");
            assert!(refused.unwrap_or_default().contains(sentence.unwrap_or_default()));
        }
    }

    #[test]
    fn what_goes_to_standard_output_is_alone_there() {
        let silent = files(Path::new("-"), Path::new("page.html"));
        silent.output(std::iter::empty()).text(|| panic!("nobody reads it")).unwrap();
        let json = Files { json: true, ..Files::default() };
        json.output(std::iter::empty()).text(|| panic!("nobody reads it")).unwrap();
        assert!(!files(Path::new("a.json"), Path::new("page.html")).output(std::iter::empty()).takes_stdout);
    }
}
