//! Machines to examine, and the facts used.

use std::io;
use std::path::Path;

use anyhow::{Context, anyhow};
use lunway_block::small_file;
use lunway_doctor::{Diagnosis, Facts, Machine, compare_looks, diagnose, gather, merge};
use lunway_occupancy::is_same_file;

use super::answers::{self, Answers};
use super::{Doctor, lanes, looks, recorded, serving};
use crate::failure::Failure;

/// Longest file of facts, bytes: those of a machine with a thousand disks have some megabytes.
const FACTS_MAX: u64 = 32 << 20;

/// The machines that were looked at. Several that tell of the same sessions are also judged together.
pub(super) struct Looked {
    /// Each with the name of where its facts come from. Of this machine it is empty.
    machines: Vec<(String, Facts)>,
    /// A host that is judged as the other end of the target's sessions only.
    other_end: Option<Facts>,
}

impl Looked {
    /// The facts of the first.
    pub(super) fn facts(&self) -> &Facts {
        &self.machines[0].1
    }

    /// Returns the diagnoses of all rules, with the machines' names if there are several.
    pub(super) fn diagnoses(&self) -> Vec<Diagnosis> {
        let several = self.machines.len() > 1;
        let labels: Vec<String> = self.machines.iter().map(label).collect();
        let named = |(at, (file, facts)): (usize, &(String, Facts))| -> Vec<Diagnosis> {
            // Two machines of one name are told apart by their files.
            let alone = labels.iter().filter(|label| **label == labels[at]).count() == 1;
            let name = if alone { &labels[at] } else { file };
            let mut found = diagnose(facts);
            for diagnosis in found.iter_mut().filter(|_| several) {
                let finding = &mut diagnosis.finding;
                finding.place = format!("{name}: {}", finding.place);
                finding.what = format!("{name}: {}", finding.what);
            }
            found
        };
        let mut found: Vec<Diagnosis> = self.machines.iter().enumerate().flat_map(named).collect();
        let machines = self.machines.iter().map(|(name, facts)| (name.as_str(), facts));
        let all: Vec<_> =
            machines.chain(self.other_end.as_ref().map(|facts| ("this machine", facts))).collect();
        if let Some(ends) = merge(&all) {
            found.extend(diagnose(&Facts { ends: Some(ends), ..Facts::default() }));
        }
        found
    }

    /// Origin of the facts, if it is not this machine.
    pub(super) fn elsewhere(&self) -> Option<String> {
        let names: Vec<&str> =
            self.machines.iter().map(|(name, _)| name.as_str()).filter(|name| !name.is_empty()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Subject of the examination, for the line with the counts.
    pub(super) fn subject(&self) -> String {
        self.machines.iter().map(label).collect::<Vec<_>>().join(", ")
    }
}

/// Name that a machine gives itself, or the origin of its facts.
fn label((from, facts): &(String, Facts)) -> String {
    let host = facts.host.as_ref().map(|host| host.name.clone()).filter(|name| !name.is_empty());
    let windows = facts.windows.as_ref().map(|windows| windows.name.clone());
    let disk = facts.lanes.as_ref().map(|lanes| lanes.disk.clone());
    let known = disk.or(host).or(windows);
    known.unwrap_or_else(|| if from.is_empty() { "this machine".to_owned() } else { from.clone() })
}

impl Doctor {
    /// The facts that the arguments ask for.
    pub(super) fn look(&self) -> Result<Looked, Failure> {
        let mut machines = Vec::new();
        let mut other_end = None;
        for (at, path) in self.from.iter().enumerate() {
            // One machine as two would have two hosts of one name at one target.
            if let Some(same) = self.from[..at].iter().find(|other| is_same_file(other, path)) {
                return Err(Failure::Usage(format!(
                    "--from {} and --from {} are the same file: give the facts of each machine once",
                    same.display(),
                    path.display()
                )));
            }
            machines.push((path.display().to_string(), read(path)?));
        }
        if let Some(root) = &self.root {
            machines.push((format!("the copy in {}", root.display()), self.look_at_copy(root)?));
        }
        if machines.is_empty() {
            let (facts, host) = self.look_here()?;
            let name = if self.daemon.is_here() { String::new() } else { "a running target".to_owned() };
            machines.push((name, facts));
            other_end = host;
        } else if self.daemon.is_named() {
            let target = Some(serving::look(&self.daemon, &Machine::this())?);
            machines.push(("a running target".to_owned(), Facts { target, ..Facts::default() }));
        }
        compare_looks(&mut machines);
        if self.daemon.is_named() {
            let target = machines.last_mut().and_then(|(_, facts)| facts.target.as_mut());
            if let Some(target) = target.filter(|target| target.earlier.is_none()) {
                looks::compare(&self.daemon.name(), target);
            }
        }
        Ok(Looked { machines, other_end })
    }

    fn look_at_copy(&self, root: &Path) -> Result<Facts, Failure> {
        if !root.is_dir() {
            return Err(Failure::failed(anyhow!("there is no folder {}", root.display())));
        }
        let facts = gather(&Machine::copy(root), &self.port);
        self.check_ports(&facts)?;
        Ok(facts)
    }

    /// This machine's facts. A daemon that is reached over TCP is on a machine of its own: this one is then judged as
    /// one of its hosts at most, which comes apart.
    fn look_here(&self) -> Result<(Facts, Option<Facts>), Failure> {
        let machine = Machine::this();
        let mut ports = self.port.clone();
        let lanes = match &self.device {
            None => None,
            Some(device) => {
                let (lanes, interfaces) = lanes::look(device, self.probe, self.pull.then_some(self.yes))?;
                ports.extend(interfaces);
                Some(lanes)
            }
        };
        let target = match self.daemon.is_named() {
            true => Some(serving::look(&self.daemon, &machine)?),
            false => None,
        };
        let answers = {
            let mut answers = Answers::read()?;
            answers::contradict(&self.answer)?;
            answers.add(&self.answer)?;
            if self.ask {
                answers.ask()?;
            }
            Some(answers.into_inner())
        };
        let mut host = Facts { lunway_sessions: Some(recorded::sessions()), ..gather(&machine, &ports) };
        looks::neighbours(&mut host);
        if self.daemon.is_here() {
            self.check_ports(&host)?;
            return Ok((Facts { lanes, target, answers, ..host }, None));
        }
        Ok((Facts { lanes, target, answers, ..Facts::default() }, Some(host)))
    }

    /// A port that is named by mistake would be one that no rule looks at.
    fn check_ports(&self, facts: &Facts) -> Result<(), Failure> {
        let Some((missing, all)) = facts.missing_port(&self.port) else { return Ok(()) };
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        Err(Failure::Usage(format!("--port {missing}: there is no such port, the machine has {all}")))
    }
}

fn read(path: &Path) -> Result<Facts, Failure> {
    let bytes = match small_file::read(path, FACTS_MAX) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            let most = FACTS_MAX >> 20;
            return Err(Failure::failed(anyhow!(
                "{} has more than {most} MiB: it does not hold facts",
                path.display()
            )));
        }
        read => read.with_context(|| format!("cannot read the facts in {}", path.display()))?,
    };
    // PowerShell's older versions write UTF-16.
    let text = match bytes.strip_prefix(&[0xff, 0xfe]) {
        Some(rest) => {
            let units = rest.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
            char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
        }
        None => String::from_utf8_lossy(&bytes).into_owned(),
    };
    Facts::parse(&text).map_err(|why| Failure::failed(anyhow!("cannot judge {}: {why}", path.display())))
}
