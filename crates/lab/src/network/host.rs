//! A host of a network that runs.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command};
use std::thread::JoinHandle;

use crate::error::LabError;
use crate::namespace::Namespace;
use crate::tool::Tool;
use crate::topology::End;

/// A host: a network stack of its own, in which threads of this process work and programs run.
///
/// Sockets belong to the host on which they were made, wherever they are used later. So a thread, or a `current_thread`
/// runtime, that lives on a host reaches what that host reaches, and this process holds all hosts at once.
#[derive(Debug)]
pub struct LiveHost {
    name: String,
    namespace: Namespace,
    /// By the cards' names.
    addresses: Vec<(String, Ipv4Addr)>,
}

impl LiveHost {
    pub(super) fn new(name: &str, namespace: &Namespace, all: &BTreeMap<End, Ipv4Addr>) -> Self {
        let own = all.iter().filter_map(|(end, address)| match end {
            End::Card { host, card } if host == name => Some((card.clone(), *address)),
            _ => None,
        });
        let addresses = own.collect();
        Self { name: name.to_owned(), namespace: namespace.clone(), addresses }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of a card.
    ///
    /// # Errors
    ///
    /// The host has no such card.
    pub fn address(&self, card: &str) -> Result<IpAddr, LabError> {
        let found = self.addresses.iter().find(|(name, _)| name == card);
        found
            .map(|(_, address)| (*address).into())
            .ok_or_else(|| LabError::Unknown { what: "card", name: format!("{}.{card}", self.name) })
    }

    /// All cards and their addresses, by name.
    pub fn cards(&self) -> impl Iterator<Item = (&str, IpAddr)> {
        self.addresses.iter().map(|(card, address)| (card.as_str(), (*address).into()))
    }

    /// Does `work` on a thread on this host, and waits for its end. A panic in it goes on here.
    ///
    /// # Errors
    ///
    /// There can be no more threads.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.namespace.run(work).map_err(|source| self.refused("work", source))
    }

    /// Does `work` on a thread on this host, which the handle is for. The result is an error where the thread could not
    /// get there.
    ///
    /// # Errors
    ///
    /// There can be no more threads.
    pub fn start<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<io::Result<T>>, LabError> {
        self.namespace.start(self.name.clone(), work).map_err(|source| self.refused("work", source))
    }

    /// Starts a program on this host. It ends with the sandbox at the latest; who starts it ends it before that.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn spawn(&self, command: Command) -> Result<Child, LabError> {
        let program = command.get_program().to_string_lossy().into_owned();
        self.namespace.spawn(command).map_err(|source| self.refused(&format!("start {program}"), source))
    }

    /// Does what the lines say, as `ip` takes them.
    pub(crate) fn ip(&self, lines: &[String]) -> Result<(), LabError> {
        Tool::Ip.batch(&self.namespace, &self.name, lines)
    }

    /// Changes a setting of its network stack; one that this kernel was built without stays unset.
    pub(crate) fn set(&self, name: &str, value: &str) -> Result<(), LabError> {
        super::set(&self.namespace, name, value)
    }

    pub(super) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn refused(&self, what: &str, source: io::Error) -> LabError {
        LabError::Kernel { doing: format!("{what} on host {}", self.name), source }
    }
}
