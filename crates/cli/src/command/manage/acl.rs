//! `lunway acl`.

use std::net::IpAddr;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use lunway_console::{Method, path_part};
use serde_json::{Value, json};

use super::io_limit::{self, IoLimits};
use super::{Changing, Daemon, MUST_BE_NEW, rows, target, text};
use crate::failure::Failure;
use crate::terminal;

/// List, add and remove the access rules of a target
#[derive(Debug, Args)]
#[command(after_help = "\
The first rule that matches an initiator decides. Initiators that match no
rule are refused, unless the target is open (lunway target set TARGET --open).

Examples:
  lunway acl add iqn.2026-11.com.example:disks host-1 \\
      --initiator iqn.2026-11.com.example:host-1 --luns 0,2
  lunway acl add iqn.2026-11.com.example:disks lan --from 10.0.0.0/8 --read-only
  lunway acl add iqn.2026-11.com.example:disks guests --initiator '*:guest-*' \\
      --iops-limit 1000 --rate-limit 50M
  lunway acl add iqn.2026-11.com.example:disks no --from 10.0.0.7 --deny --at 1
  lunway acl remove iqn.2026-11.com.example:disks host-1")]
pub(crate) struct Acl {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the rules, in the order in which they apply
    List {
        /// The target's name
        #[arg(value_name = "TARGET")]
        target: String,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Add a rule; an existing one with other settings is an error
    Add(Box<Add>),
    /// Remove a rule; initiators that match no other rule are refused, unless the target is open
    Remove {
        /// The target's name
        #[arg(value_name = "TARGET")]
        target: String,
        /// The rule's name
        #[arg(value_name = "RULE")]
        rule: String,
        #[command(flatten)]
        changing: Changing,
    },
}

#[derive(Debug, Args)]
struct Add {
    /// The target's name
    #[arg(value_name = "TARGET")]
    target: String,
    /// The rule's name
    #[arg(value_name = "RULE")]
    rule: String,
    /// Match initiators with this name; * stands for any text. A rule that lets
    /// initiators in needs --initiator, --from or --user
    #[arg(long, value_name = "NAME")]
    initiator: Vec<String>,
    /// Match initiators from this network [default: any]
    #[arg(long, value_name = "ADDRESS[/BITS]", value_parser = network)]
    from: Vec<String>,
    /// Match initiators that authenticate as this user [default: any]
    #[arg(long, value_name = "USER")]
    user: Vec<String>,
    /// Show them only these LUNs [default: all]
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    luns: Option<Vec<u16>>,
    /// Refuse their writes
    #[arg(long)]
    read_only: bool,
    /// Refuse their logins
    #[arg(long)]
    deny: bool,
    /// Position of the new rule, counted from 1 [default: after all others]
    #[arg(long, value_name = "N")]
    at: Option<usize>,
    /// Replace the rule that has this name
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    limits: IoLimits,
    #[command(flatten)]
    changing: Changing,
}

impl Acl {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::List { target, daemon } => daemon.show(&format!("{}/acl", target::path(&target)), table),
            Verb::Add(add) => add.run(),
            Verb::Remove { target, rule, changing } => {
                changing.change(Method::DELETE, &path(&target, &rule), None)
            }
        }
    }
}

fn path(target: &str, rule: &str) -> String {
    format!("{}/acl/{}", target::path(target), path_part(rule))
}

impl Add {
    fn run(&self) -> Result<(), Failure> {
        if self.initiator.is_empty() && self.from.is_empty() && self.user.is_empty() && !self.deny {
            return Err(Failure::failed(anyhow!(
                "rule {} would let in every initiator: say whom it matches with --initiator, --from or --user (--initiator '*' for \
                 all)",
                self.rule
            )));
        }
        // All of the rule: what is not said is as it is by default, also where a rule of that name was there.
        let mut body = json!({
            "initiators": self.initiator,
            "from": self.from,
            "users": self.user,
            "luns": self.luns,
            "read_only": self.read_only,
            "deny": self.deny,
        });
        if let Some(body) = body.as_object_mut() {
            body.extend(self.limits.all());
        }
        let at = self.at.map(|at| format!("at={at}"));
        let new = (!self.replace).then(|| MUST_BE_NEW.to_owned());
        let query: Vec<_> = at.into_iter().chain(new).collect();
        self.changing.change_at(Method::PUT, &path(&self.target, &self.rule), &query.join("&"), Some(&body))
    }
}

/// A network; one address is a network of itself.
fn network(text: &str) -> Result<String, String> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr =
        address.parse().map_err(|_| "write ADDRESS or ADDRESS/BITS, such as 10.0.0.0/8".to_owned())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    match bits.map_or(Some(most), |bits| bits.parse().ok()) {
        Some(bits) if bits <= most => Ok(format!("{address}/{bits}")),
        _ => Err(format!("BITS must be from 0 to {most}")),
    }
}

fn table(answer: &Value) -> String {
    let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    let row = |(at, rule): (usize, &Value)| {
        let rights = match (rule["deny"] == true, rule["read_only"] == true) {
            (true, _) => "none",
            (false, true) => "read",
            (false, false) => "read, write",
        };
        let limits = io_limit::shown(rule);
        let separator = if limits.is_empty() { "" } else { "; " };
        [
            (at + 1).to_string(),
            text(rule, "name"),
            or(text(rule, "initiators"), "any"),
            or(text(rule, "from"), "anywhere"),
            or(text(rule, "users"), "any"),
            if rule["luns"].is_array() { or(text(rule, "luns"), "none") } else { "all".to_owned() },
            format!("{rights}{separator}{limits}"),
        ]
    };
    let rows: Vec<_> = rows(answer, "rules").iter().enumerate().map(row).collect();
    let none = "no rules: initiators may log in only if the target is open (lunway target list)";
    terminal::table(["#", "RULE", "INITIATORS", "FROM", "USERS", "LUNS", "RIGHTS"], &rows, none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_cannot_be_is_refused_with_the_range_of_its_bits() {
        for (text, network_of) in [("10.0.0.7", "10.0.0.7/32"), ("fd00::/8", "fd00::/8"), ("::1", "::1/128")]
        {
            assert_eq!(network(text).as_deref(), Ok(network_of));
        }
        assert!(network("10.0.0.0/33").unwrap_err().contains("0 to 32"));
        assert!(network("10.0.0/8").unwrap_err().contains("ADDRESS/BITS"));
    }
}
