//! `lunway config` and `lunway reload`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lunway_console::Method;
use lunway_target::Config as Configuration;
use serde_json::Value;

use super::{Changing, Daemon};
use crate::failure::Failure;
use crate::terminal;

/// Show or replace the configuration of a running daemon.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway config show > lunway.toml
  lunway config apply lunway.toml --dry-run     # what would change
  lunway config apply lunway.toml")]
pub(crate) struct Config {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print it as a configuration file
    Show(Daemon),
    /// Serve what this file says; the daemon's own file is brought in step
    Apply {
        /// A TOML file
        file: PathBuf,
        #[command(flatten)]
        changing: Changing,
    },
}

/// Let a running daemon read its configuration file and its secrets again.
#[derive(Debug, Args)]
#[command(after_help = "\
SIGHUP does the same. A file with an error changes nothing.

Examples:
  lunway reload --dry-run
  lunway reload")]
pub(crate) struct Reload {
    #[command(flatten)]
    changing: Changing,
}

impl Reload {
    pub(crate) fn run(self) -> Result<(), Failure> {
        self.changing.change(Method::POST, "/v1/reload", None)
    }
}

impl Config {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::Show(daemon) => {
                let answer = daemon.ask(Method::GET, "/v1/config", None)?;
                if daemon.json {
                    return terminal::print_json(&answer);
                }
                let config: Configuration =
                    serde_json::from_value(answer["config"].clone()).map_err(|error| {
                        anyhow::anyhow!("the daemon is of another version than this program: {error}")
                    })?;
                terminal::print(config.to_toml().map_err(Failure::failed)?.trim_end())
            }
            Verb::Apply { file, changing } => {
                let config = Configuration::from_file(&file).map_err(Failure::failed)?;
                let body: Value = serde_json::to_value(&config).map_err(Failure::failed)?;
                changing.change(Method::PUT, "/v1/config", Some(&body))
            }
        }
    }
}
