//! `lunway target`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lunway_console::{Method, path_part};
use serde_json::{Value, json};

use super::{Changing, Daemon, MUST_BE_NEW, MUST_EXIST, given, rows, text};
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
    Add(Box<Set>),
    /// Change a target
    Set(Box<Set>),
    /// Remove a target with its LUNs, rules and users; the devices are not touched
    Remove(Named),
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
struct Set {
    /// The target's name
    #[arg(value_name = "TARGET")]
    name: String,
    /// Description that initiators are told (TargetAlias); an empty one removes it
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
    /// Remove a CHAP user
    #[arg(long, value_name = "USER")]
    no_chap: Vec<String>,
    /// Authenticate as this user to initiators that ask for it (mutual CHAP); an empty value ends that
    #[arg(long, value_name = "USER:SECRETFILE")]
    mutual_chap: Option<String>,
    /// Offer the target through these portal groups only, with these ALUA access states; an empty value means all
    #[arg(long, value_name = "TAG[=STATE][,preferred]")]
    portal_group: Vec<String>,
    #[command(flatten)]
    changing: Changing,
}

impl Target {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.verb {
            Verb::List(daemon) => daemon.show("/v1/targets", table),
            Verb::Add(set) => set.run(MUST_BE_NEW),
            Verb::Set(set) => set.run(MUST_EXIST),
            Verb::Remove(named) => named.changing.change(Method::DELETE, &path(&named.name), None),
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

impl Set {
    /// Adds or changes it, as `query` says.
    fn run(&self, query: &str) -> Result<(), Failure> {
        let daemon = &self.changing.daemon;
        let or_null = |text: &str, value: Value| if text.is_empty() { Value::Null } else { value };
        let user = |text: &str| -> Result<Value, Failure> {
            let (user, file) = pair(text)?;
            Ok(json!({ "user": user, "secret_file": daemon.file(&file) }))
        };
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
            let value = if mutual.is_empty() { Value::Null } else { user(mutual)? };
            body.insert("mutual_chap".to_owned(), value);
        }
        if !self.portal_group.is_empty() {
            let groups = self.portal_group.iter().filter(|text| !text.is_empty());
            let groups = groups.map(|text| portal_group(text)).collect::<Result<Vec<_>, _>>()?;
            body.insert("portal_group".to_owned(), json!(groups));
        }
        if self.chap.is_empty() && self.no_chap.is_empty() {
            return self.changing.change_at(
                Method::PUT,
                &path(&self.name),
                query,
                Some(&Value::Object(body)),
            );
        }
        // One change for all: the list as it is, with what is said of it.
        let users = match query {
            MUST_EXIST => daemon.ask(Method::GET, &format!("{}/chap", path(&self.name)), None)?,
            _ => Value::Null,
        };
        let is_gone = |user: &Value| self.no_chap.iter().any(|gone| user["user"] == **gone);
        let mut users: Vec<_> = rows(&users, "users").iter().filter(|user| !is_gone(user)).cloned().collect();
        for new in &self.chap {
            let new = user(new)?;
            match users.iter_mut().find(|old| old["user"] == new["user"]) {
                Some(old) => *old = new,
                None => users.push(new),
            }
        }
        body.insert("chap".to_owned(), json!(users));
        self.changing.change_at(Method::PUT, &path(&self.name), query, Some(&Value::Object(body)))
    }
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
            (true, rules) => format!("{rules} rules, else everybody"),
            (false, 0) => "nobody".to_owned(),
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
}
