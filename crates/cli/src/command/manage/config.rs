//! `lunway config` and `lunway reload`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lunway_console::Method;
use lunway_target::{Config as Configuration, ConfigError};
use serde_json::Value;

use super::{Changing, Daemon, Ending, Forcing, Shrinking, joined};
use crate::command::serve::config_failure;
use crate::failure::Failure;
use crate::terminal;

/// Show or replace the configuration of a running daemon.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway config show > copy.toml
  lunway config apply lunway.toml --dry-run     # what would change
  lunway config apply lunway.toml")]
pub(crate) struct Config {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the configuration as a file
    Show(Daemon),
    /// Replace the configuration with this file; the daemon's own file is updated
    Apply {
        /// A TOML file
        file: PathBuf,
        #[command(flatten)]
        shrinking: Shrinking,
        #[command(flatten)]
        ending: Ending,
        #[command(flatten)]
        forcing: Forcing,
        #[command(flatten)]
        changing: Changing,
    },
}

/// Make a running daemon read its configuration file and secrets again
#[derive(Debug, Args)]
#[command(after_help = "\
SIGHUP does the same, without --shrink, --end-snapshots and --force: the log
says what it refuses.
A file with an error changes nothing.

Examples:
  lunway reload --dry-run
  lunway reload")]
pub(crate) struct Reload {
    #[command(flatten)]
    shrinking: Shrinking,
    #[command(flatten)]
    ending: Ending,
    #[command(flatten)]
    forcing: Forcing,
    #[command(flatten)]
    changing: Changing,
}

impl Reload {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let query = joined([self.shrinking.query(), self.ending.query(), self.forcing.query()]);
        self.changing.change_at(Method::POST, "/v1/reload", &query, None)
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
            Verb::Apply { file, shrinking, ending, forcing, changing } => {
                let config = Configuration::from_file(&file).map_err(|error| match error {
                    // No flag of this command adds one.
                    ConfigError::NoTargets { .. } => Failure::Usage(error.to_string()),
                    error => config_failure(error),
                })?;
                let body: Value = serde_json::to_value(&config).map_err(Failure::failed)?;
                let query = joined([shrinking.query(), ending.query(), forcing.query()]);
                let applied = changing.change_at(Method::PUT, "/v1/config", &query, Some(&body));
                applied.map_err(|failure| match failure {
                    Failure::Failed(error) => {
                        Failure::Failed(error.context(format!("cannot apply {}", file.display())))
                    }
                    other => other,
                })
            }
        }
    }
}
