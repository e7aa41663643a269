//! `lunway backup init`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use lunway_backup::HostFolder;
use lunway_block::spec::is_store_address;
use lunway_repository::{Recipient, create_repository, series_path};
use serde_json::json;

use super::failed;
use crate::failure::Failure;
use crate::terminal;

/// Make a repository, in which the points of many disks share what is alike.
///
/// The folder must exist and be empty; of s3://BUCKET/PATH, an object store, the bucket must exist. Afterwards
/// REPO/NAME is a destination for all other commands: the series NAME of one disk. With --for, everything in the
/// repository is encrypted for these people; whether it is cannot be changed later, for whom can (lunway backup key).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup init /mnt/share/repo
  lunway backup key new ~/.lunway-key
  lunway backup init /mnt/share/repo --for lunway-recipient-5f3c…
  lunway backup run disk.vhdx /mnt/share/repo/server1 --key-file ~/.lunway-key")]
pub(super) struct Init {
    /// The folder: a local one, a mounted share, or s3://BUCKET/PATH
    #[arg(value_name = "REPO")]
    folder: PathBuf,
    /// Encrypt it for this person's public key; may be given several times
    #[arg(long = "for", value_name = "RECIPIENT")]
    recipients: Vec<Recipient>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Init {
    pub(super) fn run(self) -> Result<(), Failure> {
        let shown = self.folder.display();
        if !is_store_address(&self.folder) {
            HostFolder::open(&self.folder).with_context(|| {
                format!("cannot make a repository in {shown}: make the folder first, and see that its share is mounted")
            })?;
        }
        let marker = create_repository(&self.folder, &self.recipients).map_err(failed)?;
        if self.json {
            let recipients: Vec<_> = marker.keys.iter().map(|key| &key.recipient).collect();
            return terminal::print_json(&json!({
                "folder": self.folder,
                "repository": marker.repository,
                "encrypted": marker.encrypted,
                "recipients": recipients,
            }));
        }
        let readers = match self.recipients.len() {
            0 => "not encrypted".to_owned(),
            count => format!("encrypted for {}", terminal::counted(count, "recipient")),
        };
        let series = series_path(&self.folder, "NAME");
        terminal::print(&format!(
            "{shown} is a repository, {readers}: `lunway backup run SRC {}`",
            series.display()
        ))
    }
}
