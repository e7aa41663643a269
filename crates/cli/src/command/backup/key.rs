//! `lunway backup key`: who may read an encrypted repository.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use lunway_repository::{Identity, Located, Recipient, Repository, read_identity};
use serde_json::json;

use super::{Destination, KEY_FILE, failed, holder};
use crate::failure::Failure;
use crate::terminal;

/// Make keys, and change for whom a repository is encrypted.
///
/// A repository has one key, which is stored wrapped for each recipient. Adding and removing recipients writes that
/// small file alone. A person who is removed could have kept the repository's key: data that they must never read
/// belongs in a new repository.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup key new ~/.lunway-key
  lunway backup key show ~/.lunway-key
  lunway backup key add /mnt/repo lunway-recipient-5f3c… --key-file ~/.key
  lunway backup key list /mnt/share/repo --key-file ~/.lunway-key")]
pub(super) struct Key {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a secret key in a new file, and print its public key
    New {
        /// The file, which must not exist; only its owner may read it
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the public key of a secret key
    Show {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// List for whom a repository is encrypted
    List {
        #[command(flatten)]
        repository: Readers,
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Let another person read a repository
    Add {
        #[command(flatten)]
        repository: Readers,
        /// The person's public key
        recipient: Recipient,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a person's key out of a repository
    Remove {
        #[command(flatten)]
        repository: Readers,
        /// The person's public key
        recipient: Recipient,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

/// A repository, opened with a key
#[derive(Clone, Debug, Args)]
struct Readers {
    /// The repository
    #[arg(value_name = "REPO")]
    folder: PathBuf,
    /// The file with your secret key
    #[arg(long, value_name = "FILE", env = KEY_FILE)]
    key_file: Option<PathBuf>,
}

impl Readers {
    fn open(self) -> Result<Repository, Failure> {
        let destination = Destination { folder: self.folder, key_file: self.key_file };
        match destination.located()? {
            Located::Repository(path) => destination.repository(&path),
            _ => Err(Failure::failed(anyhow!("{} is not a repository", destination.folder.display()))),
        }
    }
}

impl Key {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::New { file, json } => {
                let key = Identity::generate().context("asking for random numbers")?;
                let new = File::options().write(true).create_new(true).mode(0o600).open(&file);
                let mut new = new.with_context(|| format!("making {}", file.display()))?;
                let text = format!("# public key: {}\n{}\n", key.recipient(), *key.to_text());
                let written = new.write_all(text.as_bytes()).and_then(|()| new.sync_all());
                written.with_context(|| format!("writing {}", file.display()))?;
                print_public(&file, &key, json)
            }
            Action::Show { file, json } => print_public(&file, &read_identity(&file).map_err(failed)?, json),
            Action::List { repository, json } => {
                let repository = repository.open()?;
                let keys = recipients(&repository);
                if json {
                    return terminal::print_json(&json!(keys));
                }
                let none = "everyone who can read its folder";
                let text = if keys.is_empty() { none.to_owned() } else { keys.join("\n") };
                terminal::print(&terminal::clean(&text).replace('\u{FFFD}', "\n"))
            }
            Action::Add { repository, recipient, json } => {
                let mut repository = repository.open()?;
                repository.add_recipient(&recipient, &holder()?).map_err(failed)?;
                print_changed(&repository, &recipient, "may read it", json)
            }
            Action::Remove { repository, recipient, json } => {
                let mut repository = repository.open()?;
                repository.remove_recipient(&recipient, &holder()?).map_err(failed)?;
                print_changed(&repository, &recipient, "may not open it any more", json)
            }
        }
    }
}

fn print_public(file: &Path, key: &Identity, json: bool) -> Result<(), Failure> {
    let recipient = key.recipient().to_string();
    match json {
        true => terminal::print_json(&json!({ "file": file, "recipient": recipient })),
        false => terminal::print(&recipient),
    }
}

fn recipients(repository: &Repository) -> Vec<String> {
    repository.marker().keys.iter().map(|key| key.recipient.clone()).collect()
}

fn print_changed(
    repository: &Repository,
    recipient: &Recipient,
    what: &str,
    json: bool,
) -> Result<(), Failure> {
    match json {
        true => terminal::print_json(
            &json!({ "recipient": recipient.to_string(), "recipients": recipients(repository) }),
        ),
        false => terminal::print(&format!("{recipient} {what}")),
    }
}
