//! Elements of the configuration that a path names: creating, changing and removing one of a list.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use lunway_block::spec::DeviceSpec;
use lunway_target::{AccessRule, ChangeOptions, ChapUser, Config, IscsiName, LunConfig, TargetConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::target::{find_mut, name};
use crate::answer::Applied;
use crate::backing::NewFile;
use crate::error::ApiError;
use crate::extract::{Ask, Body, PathParameters};
use crate::manager::Manager;
use crate::patch::{patched, restore_lun, restore_target};

/// An element of a list in the configuration: a target, or a logical unit, CHAP user or access rule of one.
///
/// [`put`] and [`delete`] are the same for all of them; what differs stands here.
pub(super) trait Element: Clone + PartialEq + Serialize + DeserializeOwned + Send + 'static {
    /// Parameters of its path.
    type Path: DeserializeOwned + Send + 'static;
    /// The same as names.
    type Name: Clone + Send + 'static;

    /// Reads the parameters of a path.
    fn name(path: Self::Path) -> Result<Self::Name, ApiError>;

    /// Its name in sentences: `lun 3 of target T`.
    fn title(name: &Self::Name) -> String;

    /// Place named in errors about a wrong value: `target T, lun 3`.
    fn place(name: &Self::Name) -> String;

    /// The member of a body that repeats the path's name, and its value.
    fn member(name: &Self::Name) -> (&'static str, Value);

    /// The list that it is in. An error: there is no such target.
    fn list<'c>(config: &'c mut Config, name: &Self::Name) -> Result<&'c mut Vec<Self>, ApiError>;

    /// Returns `true` if it has that name.
    fn is(&self, name: &Self::Name) -> bool;

    /// The file that a new one needs and how many bytes of it, where the request asks for one.
    fn file(_ask: Ask, _patch: &Value) -> Result<Option<(PathBuf, u64)>, ApiError> {
        Ok(None)
    }

    /// Position of a new element, counted from 1; `None`: behind all others.
    fn at(_ask: Ask) -> Option<usize> {
        None
    }

    /// Writes the name in a body in its normal form.
    fn normalise(_patch: &mut Value, _name: &Self::Name) {}

    /// Gives it back what answers do not show: secrets.
    fn restore(&mut self, _name: &Self::Name, _old: Option<&Self>, _config: &Config) -> Result<(), ApiError> {
        Ok(())
    }

    /// As it is configured once it is served.
    fn as_served(&self) -> Self {
        self.clone()
    }
}

/// Creates an element, or changes what the body names of it.
pub(super) async fn put<E: Element>(
    State(manager): State<Arc<Manager>>,
    PathParameters(path): PathParameters<E::Path>,
    ask: Ask,
    Body(mut patch): Body<Value>,
) -> Result<Applied, ApiError> {
    let name = E::name(path)?;
    E::normalise(&mut patch, &name);
    let make = E::file(ask, &patch)?;
    let edit = move |config: &mut Config| {
        let old = E::list(config, &name)?.iter().find(|old| old.is(&name)).cloned();
        let title = E::title(&name);
        if ask.must_exist && old.is_none() {
            return Err(ApiError::not_found(format!("there is no {title}")));
        }
        let mut new: E = patched(&E::place(&name), old.as_ref(), E::member(&name), patch.clone())?;
        new.restore(&name, old.as_ref(), config)?;
        if ask.must_be_new && old.is_some_and(|old| old != new && old != new.as_served()) {
            return Err(ApiError::conflict(format!(
                "{title} already exists with other settings, and was not changed"
            ))
            .decided_by("must_be_new"));
        }
        let list = E::list(config, &name)?;
        match list.iter().position(|old| old.is(&name)) {
            Some(old) => list[old] = new,
            None => {
                list.insert(E::at(ask).map_or(list.len(), |at| at.saturating_sub(1).min(list.len())), new);
            }
        }
        Ok(())
    };
    manager.change_with(ask, make, ChangeOptions::default(), edit).await
}

/// Removes an element. One that is not there is an error only where the request says so; else the answer says it.
pub(super) async fn delete<E: Element>(
    State(manager): State<Arc<Manager>>,
    PathParameters(path): PathParameters<E::Path>,
    ask: Ask,
) -> Result<Applied, ApiError> {
    let name = E::name(path)?;
    let absent = format!("there is no {}", E::title(&name));
    let error = absent.clone();
    let edit = move |config: &mut Config| {
        let list = match E::list(config, &name) {
            Ok(list) => list,
            // A target that is not there has nothing to remove.
            Err(error) => return if ask.must_exist { Err(error) } else { Ok(()) },
        };
        let before = list.len();
        list.retain(|element| !element.is(&name));
        match list.len() == before && ask.must_exist {
            true => Err(ApiError::not_found(error.clone())),
            false => Ok(()),
        }
    };
    Ok(manager.change(ask, edit).await?.or(absent))
}

impl Element for TargetConfig {
    type Path = String;
    type Name = IscsiName;

    fn name(path: String) -> Result<IscsiName, ApiError> {
        name(&path)
    }

    fn title(name: &IscsiName) -> String {
        format!("target {name}")
    }

    fn place(name: &IscsiName) -> String {
        Self::title(name)
    }

    fn member(name: &IscsiName) -> (&'static str, Value) {
        ("name", json!(name))
    }

    fn list<'c>(config: &'c mut Config, _: &IscsiName) -> Result<&'c mut Vec<Self>, ApiError> {
        Ok(&mut config.targets)
    }

    fn is(&self, name: &IscsiName) -> bool {
        self.name == *name
    }

    fn normalise(patch: &mut Value, name: &IscsiName) {
        // Capitals in the body are the same name.
        if let Some(text) = patch.get("name").and_then(Value::as_str)
            && IscsiName::parse(text).is_ok_and(|same| same == *name)
        {
            patch["name"] = json!(name);
        }
    }

    fn restore(&mut self, _: &IscsiName, _: Option<&Self>, config: &Config) -> Result<(), ApiError> {
        restore_target(self, config)
    }

    fn as_served(&self) -> Self {
        self.with_formats()
    }
}

impl Element for LunConfig {
    type Path = (String, u16);
    type Name = (IscsiName, u16);

    fn name((target, lun): Self::Path) -> Result<Self::Name, ApiError> {
        Ok((name(&target)?, lun))
    }

    fn title((target, lun): &Self::Name) -> String {
        format!("lun {lun} of target {target}")
    }

    fn place((target, lun): &Self::Name) -> String {
        format!("target {target}, lun {lun}")
    }

    fn member((_, lun): &Self::Name) -> (&'static str, Value) {
        ("id", json!(lun))
    }

    fn list<'c>(config: &'c mut Config, (target, _): &Self::Name) -> Result<&'c mut Vec<Self>, ApiError> {
        Ok(&mut find_mut(config, target)?.luns)
    }

    fn is(&self, (_, lun): &Self::Name) -> bool {
        self.id == *lun
    }

    fn file(ask: Ask, patch: &Value) -> Result<Option<(PathBuf, u64)>, ApiError> {
        let Some(size) = ask.create else { return Ok(None) };
        let device = patch.get("device").and_then(Value::as_str).unwrap_or_default();
        let device = DeviceSpec::parse(device).map_err(|error| ApiError::bad_request(error.to_string()))?;
        Ok(Some((NewFile::path_of(&device)?, size)))
    }

    fn restore(&mut self, name: &Self::Name, old: Option<&Self>, _: &Config) -> Result<(), ApiError> {
        restore_lun(&Self::place(name), self, old)
    }

    fn as_served(&self) -> Self {
        self.with_format()
    }
}

impl Element for ChapUser {
    type Path = (String, String);
    type Name = (IscsiName, String);

    fn name((target, user): Self::Path) -> Result<Self::Name, ApiError> {
        Ok((name(&target)?, user))
    }

    fn title((target, user): &Self::Name) -> String {
        format!("chap user {user} of target {target}")
    }

    fn place((target, user): &Self::Name) -> String {
        format!("target {target}, chap user {user}")
    }

    fn member((_, user): &Self::Name) -> (&'static str, Value) {
        ("user", json!(user))
    }

    fn list<'c>(config: &'c mut Config, (target, _): &Self::Name) -> Result<&'c mut Vec<Self>, ApiError> {
        Ok(&mut find_mut(config, target)?.chap)
    }

    fn is(&self, (_, user): &Self::Name) -> bool {
        self.user == *user
    }
}

impl Element for AccessRule {
    type Path = (String, String);
    type Name = (IscsiName, String);

    fn name((target, rule): Self::Path) -> Result<Self::Name, ApiError> {
        Ok((name(&target)?, rule))
    }

    fn title((target, rule): &Self::Name) -> String {
        format!("rule {rule} in the acl of target {target}")
    }

    fn place((target, rule): &Self::Name) -> String {
        format!("target {target}, acl {rule}")
    }

    fn member((_, rule): &Self::Name) -> (&'static str, Value) {
        ("name", json!(rule))
    }

    fn list<'c>(config: &'c mut Config, (target, _): &Self::Name) -> Result<&'c mut Vec<Self>, ApiError> {
        Ok(&mut find_mut(config, target)?.acl)
    }

    fn is(&self, (_, rule): &Self::Name) -> bool {
        self.name.as_ref() == Some(rule)
    }

    fn at(ask: Ask) -> Option<usize> {
        ask.at
    }
}
