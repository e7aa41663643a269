//! The format of a file that a `disk` command was given.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use lunway_block::spec::DeviceSpec;
use lunway_device::{OpenOptions, image_format};
use lunway_image::Format;

use crate::device::{self, parse};
use crate::failure::Failure;

/// A file by the format that its name says.
///
/// The name decides, never the content: a guest writes the content of a raw disk, and a VHDX header that it wrote there
/// must not make its host move blocks in that disk, or open a parent of the guest's choice.
pub(super) enum Named {
    /// `*.vhdx`, `*.avhdx` or `vhdx:FILE`.
    Vhdx(PathBuf),
    /// VHD or qcow2.
    Image(PathBuf, Format),
    /// Any other name: a raw disk image. Opened as such, a container that was not named `raw:` is refused.
    Raw {
        /// The file.
        path: PathBuf,
        /// The file as a device.
        spec: Box<DeviceSpec>,
    },
}

impl Named {
    pub(super) fn of(file: &Path) -> Result<Self, Failure> {
        // The grammar is text: of another name only its end can say something.
        let Some(text) = file.to_str() else { return Ok(Self::of_bytes(file)) };
        let spec = parse(text)?;
        Ok(match &spec {
            DeviceSpec::Vhdx { path } => Self::Vhdx(path.clone()),
            DeviceSpec::Image { path, format } => Self::Image(path.clone(), image_format(*format)),
            DeviceSpec::File { path, .. } => Self::Raw { path: path.clone(), spec: Box::new(spec) },
            _ => return Err(Failure::Usage(format!("{spec} is not a file, which this command works on"))),
        })
    }

    fn of_bytes(file: &Path) -> Self {
        let named = |end: &str| file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(end));
        let path = file.to_owned();
        match named("vhdx") || named("avhdx") {
            true => Self::Vhdx(path),
            false => {
                let (format, cache) = Default::default();
                let spec = DeviceSpec::File { path: path.clone(), format, cache };
                Self::Raw { path, spec: Box::new(spec) }
            }
        }
    }
}

/// The VHDX file that a command works on which takes no other. `instead` is what helps with a raw image: the end of a
/// sentence, or nothing.
pub(super) fn vhdx(file: &Path, instead: &str) -> Result<PathBuf, Failure> {
    let instead = if instead.is_empty() { String::new() } else { format!("; {instead}") };
    match Named::of(file)? {
        Named::Vhdx(path) => Ok(path),
        Named::Image(path, format) => Err(Failure::failed(anyhow!(
            "{} is not a VHDX file but {}: `lunway disk convert` makes a VHDX file of it",
            path.display(),
            format.name()
        ))),
        Named::Raw { path, spec } => {
            // What is wrong with the file comes first: that it is not there, or a container without its format.
            let options = OpenOptions { read_only: true, ..OpenOptions::default() };
            device::run(async {
                device::open(&spec, &options).await?.close_or_log().await;
                Ok(())
            })?;
            Err(Failure::failed(anyhow!(
                "{0} is not a VHDX file by its name: those are called *.vhdx or *.avhdx, or written vhdx:{0}{instead}",
                path.display()
            )))
        }
    }
}
