//! Whether runs to a destination can begin, as `serve --check` asks. It makes nothing.

use std::path::Path;

use clap::Args;
use lunway_repository::Located;
use serde_json::json;

use super::Destination;
use crate::failure::Failure;
use crate::terminal;

/// Words of the command below, which a check starts for a destination whose access key is in an environment of its own.
pub(crate) const CHECK_DESTINATION: [&str; 2] = ["backup", "check-destination"];

/// See whether runs to a destination can begin, and print which key of a `[[backup]]` is wrong, as JSON.
#[derive(Debug, Args)]
pub(super) struct CheckDestination {
    #[command(flatten)]
    destination: Destination,
}

impl CheckDestination {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Destination { folder, key_file } = &self.destination;
        terminal::print_json(&match check_destination(folder, key_file.as_deref()) {
            Ok(()) => json!({}),
            Err((key, why)) => json!({ "key": key, "why": why }),
        })
    }
}

/// Checks that runs to a destination can begin; else which of the two keys of a `[[backup]]` is wrong, and why.
fn check_destination(folder: &Path, key_file: Option<&Path>) -> Result<(), (&'static str, String)> {
    let destination = Destination { folder: folder.to_owned(), key_file: key_file.map(Path::to_owned) };
    let said = |failure: Failure| failure.sentence();
    match destination.located().map_err(|failure| ("destination", said(failure)))? {
        Located::Series { repository, .. } => {
            let key = if key_file.is_some() { "key_file" } else { "destination" };
            destination.repository(&repository).map(drop).map_err(|failure| (key, said(failure)))
        }
        Located::Repository(path) => {
            let path = path.display();
            Err(("destination", format!("{path} is a repository: name one of its series, {path}/NAME")))
        }
        Located::Elsewhere => {
            destination.open().map_err(|failure| ("destination", said(failure)))?;
            match key_file {
                Some(_) => {
                    let folder = folder.display();
                    Err(("key_file", format!("it is for an encrypted repository, and {folder} is in none")))
                }
                None => Ok(()),
            }
        }
    }
}
