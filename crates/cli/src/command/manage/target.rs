//! `lunway target`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lunway_console::{Method, path_part};
use serde_json::{Map, Value, json};

use super::{Changing, Daemon, Ending, Forcing, MUST_BE_NEW, MUST_EXIST, given, joined, rows, text};
use crate::failure::Failure;
use crate::terminal;

/// List, add, change and remove the targets of a running daemon.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  # Initiators are refused until `lunway acl add` allows them:
  lunway target add iqn.2026-11.com.example:disks --alias 'the fast ones'
  # Every initiator may read and write:
  lunway target add iqn.2026-11.com.example:scratch --open
  lunway target set iqn.2026-11.com.example:disks --chap host-1:host-1.secret
  # Before maintenance: initiators are asked to log out:
  lunway target disable iqn.2026-11.com.example:disks
  lunway target remove iqn.2026-11.com.example:disks --dry-run")]
pub(crate) struct Target {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the targets
    List(Daemon),
    /// Add a target; an existing one with other settings is an error
    Add(Box<Add>),
    /// Change a target
    Set(Box<Set>),
    /// Remove a target with its LUNs, rules and users; the devices are not touched
    ///
    /// One that initiators are logged in to, and one with a ram: disk that holds data, which are lost, is removed only
    /// with --force.
    Remove {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        forcing: Forcing,
        #[command(flatten)]
        ending: Ending,
    },
    /// Allow logins again
    Enable(Named),
    /// Ask initiators to log out, and refuse logins
    Disable(Named),
}

#[derive(Debug, Args)]
struct Named {
    /// The target's name
    #[arg(value_name = "TARGET")]
    name: String,
    #[command(flatten)]
    changing: Changing,
}

#[derive(Debug, Args)]
struct Add {
    /// The target's name
    #[arg(value_name = "TARGET")]
    name: String,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    changing: Changing,
}

#[derive(Debug, Args)]
struct Set {
    /// The target's name
    #[arg(value_name = "TARGET")]
    name: String,
    #[command(flatten)]
    settings: Settings,
    /// Remove a CHAP user
    #[arg(long, value_name = "USER")]
    no_chap: Vec<String>,
    /// No longer offer the target through this portal group
    #[arg(long, value_name = "TAG")]
    no_portal_group: Vec<u16>,
    #[command(flatten)]
    changing: Changing,
}

/// Settings of a target that `add` and `set` have in common.
#[derive(Debug, Args)]
struct Settings {
    /// Description that is reported to initiators (TargetAlias); an empty one removes it
    #[arg(long, value_name = "TEXT")]
    alias: Option<String>,
    /// Redirect initiators to this portal; an empty address ends that
    #[arg(long, value_name = "ADDRESS:PORT")]
    redirect: Option<String>,
    /// Report the redirection as permanent
    #[arg(long, requires = "redirect")]
    permanent: bool,
    /// Allow initiators that match no access rule (with CHAP users: after authentication)
    #[arg(long)]
    open: bool,
    /// Allow only initiators that match an access rule
    #[arg(long, conflicts_with = "open")]
    no_open: bool,
    /// Add a CHAP user, or change the file of its secret
    #[arg(long, value_name = "USER:SECRETFILE")]
    chap: Vec<String>,
    /// Authenticate as this user to initiators that ask for it (mutual CHAP); an empty value ends that
    #[arg(long, value_name = "USER:SECRETFILE")]
    mutual_chap: Option<String>,
    /// Add a portal group that offers the target, or change its ALUA access state. Without any, all groups offer the
    /// target; an empty value restores that
    #[arg(long, value_name = "TAG[=STATE][,preferred]")]
    portal_group: Vec<String>,
}

impl Target {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::List(daemon) => daemon.show("/v1/targets", table),
            Verb::Add(add) => add.run(),
            Verb::Set(set) => set.run(),
            Verb::Remove { named, forcing, ending } => {
                let query = joined([forcing.query(), ending.query()]);
                named.changing.change_at(Method::DELETE, &path(&named.name), &query, None)
            }
            Verb::Enable(named) => named.put(&json!({ "enabled": true })),
            Verb::Disable(named) => named.put(&json!({ "enabled": false })),
        }
    }
}

/// The path of a target.
pub(super) fn path(name: &str) -> String {
    format!("/v1/targets/{}", path_part(name))
}

impl Named {
    fn put(&self, body: &Value) -> Result<(), Failure> {
        self.changing.change_at(Method::PUT, &path(&self.name), MUST_EXIST, Some(body))
    }
}

impl Add {
    fn run(&self) -> Result<(), Failure> {
        let mut body = self.settings.body(&self.changing.daemon)?;
        let found = self.found()?;
        let users = self.settings.users(&self.changing.daemon)?;
        let lists = [("chap", users), ("portal_group", self.settings.groups()?)];
        body.extend(
            lists
                .into_iter()
                .filter(|(_, list)| !list.is_empty())
                .map(|(key, list)| (key.to_owned(), json!(list))),
        );
        self.changing.change_at(Method::PUT, &path(&self.name), MUST_BE_NEW, Some(&Value::Object(body)))?;
        if let Some(found) = found {
            eprintln!("{}", terminal::clean(&found));
        }
        Ok(())
    }

    /// Remark that the target is there already and lets in every initiator, which a new one does not.
    fn found(&self) -> Result<Option<String>, Failure> {
        let targets = self.changing.daemon.ask(Method::GET, "/v1/targets", None)?;
        let is_it = |target: &&Value| text(&target["config"], "name").eq_ignore_ascii_case(&self.name);
        let found = rows(&targets, "targets").iter().find(is_it);
        let open = found.filter(|target| target["config"]["open"] == true);
        Ok(open.map(|_| format!("target {} already exists and is open to every initiator", self.name)))
    }
}

impl Set {
    fn run(&self) -> Result<(), Failure> {
        let daemon = &self.changing.daemon;
        let mut body = self.settings.body(daemon)?;
        // One change for all: each list as it is, with what is said of it.
        let (users, groups) = (self.settings.users(daemon)?, self.settings.groups()?);
        if !users.is_empty() || !self.no_chap.is_empty() {
            let present = daemon.ask(Method::GET, &format!("{}/chap", path(&self.name)), None)?;
            let is_gone = |user: &Value| self.no_chap.iter().any(|gone| user["user"] == **gone);
            body.insert("chap".to_owned(), json!(edited(rows(&present, "users"), is_gone, users, "user")));
        }
        if self.settings.all_groups() && groups.is_empty() && self.no_portal_group.is_empty() {
            body.insert("portal_group".to_owned(), json!([]));
        } else if !groups.is_empty() || !self.no_portal_group.is_empty() {
            let present = daemon.ask(Method::GET, &path(&self.name), None)?;
            let present = match self.settings.all_groups() {
                true => &[],
                false => rows(&present["config"], "portal_group"),
            };
            let is_gone = |group: &Value| self.no_portal_group.iter().any(|gone| group["tag"] == *gone);
            let left = edited(present, is_gone, groups, "tag");
            if left.is_empty() && !present.is_empty() {
                return Err(Failure::Usage(
                    "--no-portal-group removes the last portal group, and without any, all groups offer the target; write \
                     --portal-group '' if that is meant"
                        .to_owned(),
                ));
            }
            body.insert("portal_group".to_owned(), json!(left));
        }
        self.changing.change_at(Method::PUT, &path(&self.name), MUST_EXIST, Some(&Value::Object(body)))
    }
}

impl Settings {
    /// Request body with the members that replace the present ones.
    fn body(&self, daemon: &Daemon) -> Result<Map<String, Value>, Failure> {
        let or_null = |text: &str, value: Value| if text.is_empty() { Value::Null } else { value };
        let mut body = given([
            ("open", (self.open || self.no_open).then(|| json!(self.open))),
            ("alias", self.alias.as_ref().map(|alias| or_null(alias, json!(alias)))),
            (
                "redirect",
                self.redirect
                    .as_ref()
                    .map(|to| or_null(to, json!({ "to": to, "permanent": self.permanent }))),
            ),
        ]);
        if let Some(mutual) = &self.mutual_chap {
            let value = if mutual.is_empty() { Value::Null } else { user(daemon, mutual)? };
            body.insert("mutual_chap".to_owned(), value);
        }
        Ok(body)
    }

    /// CHAP users to add or change.
    fn users(&self, daemon: &Daemon) -> Result<Vec<Value>, Failure> {
        self.chap.iter().map(|text| user(daemon, text)).collect()
    }

    /// Portal groups to add or change.
    fn groups(&self) -> Result<Vec<Value>, Failure> {
        self.portal_group.iter().filter(|text| !text.is_empty()).map(|text| portal_group(text)).collect()
    }

    /// The list of portal groups is emptied first.
    fn all_groups(&self) -> bool {
        self.portal_group.iter().any(String::is_empty)
    }
}

/// A list of a target: without what is gone; the new ones take the place of those with the same `key`.
fn edited(present: &[Value], is_gone: impl Fn(&Value) -> bool, new: Vec<Value>, key: &str) -> Vec<Value> {
    let mut list: Vec<_> = present.iter().filter(|entry| !is_gone(entry)).cloned().collect();
    for new in new {
        match list.iter_mut().find(|old| old[key] == new[key]) {
            Some(old) => *old = new,
            None => list.push(new),
        }
    }
    list
}

fn user(daemon: &Daemon, text: &str) -> Result<Value, Failure> {
    let (user, file) = pair(text)?;
    Ok(json!({ "user": user, "secret_file": daemon.file(&file)? }))
}

/// `USER:FILE`. The text is not repeated: who took the file's place for the secret has just typed the secret.
fn pair(text: &str) -> Result<(String, PathBuf), Failure> {
    match text.split_once(':') {
        Some((user, file)) if !user.is_empty() && !file.is_empty() => Ok((user.to_owned(), file.into())),
        _ => {
            Err(Failure::Usage("write USER:SECRETFILE, where the file's only line is the secret".to_owned()))
        }
    }
}

/// `TAG[=STATE][,preferred]`.
fn portal_group(text: &str) -> Result<Value, Failure> {
    let (rest, preferred) = match text.strip_suffix(",preferred") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let (tag, state) = rest.split_once('=').unwrap_or((rest, "active-optimized"));
    match tag.parse::<u16>() {
        Ok(tag) => Ok(json!({ "tag": tag, "state": state, "preferred": preferred })),
        Err(_) => Err(Failure::Usage(format!(
            "--portal-group {text:?}: write TAG[=STATE][,preferred], such as 2=active-non-optimized"
        ))),
    }
}

fn table(answer: &Value) -> String {
    let row = |target: &Value| {
        let (config, status) = (&target["config"], &target["status"]);
        let state = match (status["enabled"] == true, config["redirect"].is_object()) {
            (false, _) => "disabled",
            (true, true) => "redirected",
            (true, false) => "enabled",
        };
        let chap = if status["authenticated"] == true { "CHAP" } else { "" };
        let access = match (config["open"] == true, rows(config, "acl").len()) {
            (true, 0) => "everybody".to_owned(),
            (true, 1) => "1 rule, others: full".to_owned(),
            (true, rules) => format!("{rules} rules, others: full"),
            (false, 0) => "nobody".to_owned(),
            (false, 1) => "1 rule".to_owned(),
            (false, rules) => format!("{rules} rules"),
        };
        [
            text(config, "name"),
            state.to_owned(),
            rows(status, "luns").len().to_string(),
            text(status, "sessions"),
            chap.to_owned(),
            access,
            text(config, "alias"),
        ]
    };
    let rows: Vec<_> = rows(answer, "targets").iter().map(row).collect();
    terminal::table(["TARGET", "STATE", "LUNS", "SESSIONS", "AUTH", "ACCESS", "ALIAS"], &rows, "no targets")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portal_groups_are_read() {
        assert_eq!(
            portal_group("2=standby,preferred").unwrap(),
            json!({ "tag": 2, "state": "standby", "preferred": true })
        );
        assert_eq!(portal_group("1").unwrap()["state"], "active-optimized");
        assert!(portal_group("x").is_err());
    }

    #[test]
    fn a_list_keeps_what_is_not_named() {
        let group = |text: &str| portal_group(text).unwrap();
        let present = [group("1"), group("2=standby")];
        let tags = |list: &[Value]| list.iter().map(|group| group["tag"].to_string()).collect::<Vec<_>>();
        let list = edited(&present, |_| false, vec![group("3"), group("2")], "tag");
        assert_eq!(tags(&list), ["1", "2", "3"]);
        assert_eq!(list[1]["state"], "active-optimized");
        let list = edited(&present, |group| group["tag"] == 1, Vec::new(), "tag");
        assert_eq!(tags(&list), ["2"]);
    }
}
