//! Commands that wait for a limit on the I/O of their logical unit or of their initiator.
//!
//! They wait in a line for each logical unit, before the device server knows of them: commands for others go on, and so
//! do task management and everything that moves no data. One that waits holds no buffer of the device, and of its data
//! what came with it: the rest is asked for when it may pass. SYNCHRONIZE CACHE stays behind the commands that came
//! before it for its unit, as does everything else that an ORDERED command is ordered with.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::{AbortHandle, abortable};
use lunway_iscsi::pdu::TaskAttribute;
use lunway_iscsi::target::{Announcement, Command, TaskId};
use lunway_scsi::MediumWork;

use super::Connection;
use super::work::{Done, Work, unit_number};
use crate::io_limit::{Limiter, LunLimiters};

/// The limits that a connection is under, and its commands that wait for them.
pub(super) struct Limited {
    initiator: Option<Arc<Limiter>>,
    luns: Arc<LunLimiters>,
    /// By logical unit; none of them is empty.
    lines: BTreeMap<u16, Line>,
    last_wait: u64,
}

/// Commands of one logical unit that wait, in their order.
#[derive(Default)]
struct Line {
    commands: VecDeque<Waiting>,
    /// Commands among them with the attribute ORDERED.
    ordered: usize,
    /// For the first of them.
    wait: Option<Wait>,
    /// The limit that was waited for last.
    waits_for: Option<Arc<Limiter>>,
}

/// A wait among the connection's work. It ends when this is dropped.
struct Wait {
    number: u64,
    handle: AbortHandle,
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// A command that waits.
struct Waiting {
    what: Held,
    is_ordered: bool,
    /// Bytes that it moves; `None`: it is under no limit, and waits for those before it.
    bytes: Option<u64>,
    since: Instant,
}

/// What is held back of a command.
enum Held {
    /// The command, which has all its data.
    Command(Command),
    /// The request for its data.
    Data(TaskId),
}

impl Waiting {
    fn task(&self) -> TaskId {
        match &self.what {
            Held::Command(command) => command.task,
            Held::Data(task) => *task,
        }
    }
}

/// A command passes now, or has to wait for the limiter at this place of [`Limited::limiters`] and those behind it.
type Passage = Result<(), usize>;

impl Limited {
    /// The limits of a command for a logical unit. That of the initiator first, as it can be waited for beside others
    /// of the unit without taking anything from them.
    fn limiters(&self, lun: u16) -> [Option<&Arc<Limiter>>; 2] {
        [self.initiator.as_ref(), self.luns.of(lun)]
    }

    fn try_pass(&self, lun: u16, bytes: u64) -> Passage {
        let limiters = self.limiters(lun);
        match limiters.iter().position(|limiter| limiter.is_some_and(|limiter| !limiter.try_pass(bytes))) {
            Some(at) => Err(at),
            None => Ok(()),
        }
    }

    /// Says whether a command that has just come may pass.
    fn arrives(&self, lun: u16, work: MediumWork, attribute: TaskAttribute) -> Passage {
        match (self.lines.get(&lun), work) {
            (None, MediumWork::Io { bytes }) => self.try_pass(lun, bytes),
            (None, MediumWork::Flush | MediumWork::None) => Ok(()),
            (Some(_), MediumWork::None) if attribute == TaskAttribute::HEAD_OF_QUEUE => Ok(()),
            (Some(line), MediumWork::None) if attribute != TaskAttribute::ORDERED && line.ordered == 0 => {
                Ok(())
            }
            (Some(_), _) => Err(0),
        }
    }

    /// Lets a command wait. Returns the wait that begins with it.
    fn hold(&mut self, lun: u16, waiting: Waiting, attribute: TaskAttribute, from: usize) -> Option<Work> {
        let line = self.lines.entry(lun).or_default();
        line.ordered += usize::from(waiting.is_ordered);
        let is_first = line.commands.is_empty() || attribute == TaskAttribute::HEAD_OF_QUEUE;
        if is_first {
            line.commands.push_front(waiting);
        } else {
            line.commands.push_back(waiting);
        }
        is_first.then(|| self.wait(lun, from))
    }

    /// The wait of the first command of a line, from this limiter on.
    fn wait(&mut self, lun: u16, from: usize) -> Work {
        let limiters: Vec<_> = self.limiters(lun).into_iter().skip(from).flatten().cloned().collect();
        self.last_wait += 1;
        let number = self.last_wait;
        let line = self.lines.entry(lun).or_default();
        let bytes = line.commands.front().and_then(|first| first.bytes);
        let (passage, handle) = abortable(async move {
            let mut waited_for = None;
            for limiter in limiters {
                if let Some(bytes) = bytes
                    && !limiter.try_pass(bytes)
                {
                    limiter.pass(bytes).await;
                    waited_for = Some(limiter);
                }
            }
            waited_for
        });
        line.wait = Some(Wait { number, handle });
        Work::Elsewhere(Box::pin(async move {
            let waited_for = passage.await.unwrap_or_default();
            Done::Passes { lun, wait: number, waited_for }
        }))
    }

    /// The first command of a line, if it may pass; or the wait for it, which then begins.
    fn next(&mut self, lun: u16) -> Option<Result<Waiting, Work>> {
        let line = self.lines.get_mut(&lun)?;
        line.wait = None;
        let Some(first) = line.commands.front() else {
            self.lines.remove(&lun);
            return None;
        };
        match first.bytes.map_or(Ok(()), |bytes| self.try_pass(lun, bytes)) {
            Ok(()) => self.first(lun).map(Ok),
            Err(from) => Some(Err(self.wait(lun, from))),
        }
    }

    /// Takes the first command of a line.
    fn first(&mut self, lun: u16) -> Option<Waiting> {
        let line = self.lines.get_mut(&lun)?;
        let first = line.commands.pop_front()?;
        line.ordered -= usize::from(first.is_ordered);
        if let (Some(limiter), Some(_)) = (&line.waits_for, first.bytes) {
            limiter.waited(first.since.elapsed());
        }
        Some(first)
    }
}

impl Connection {
    /// Returns a command that no limit keeps from beginning now. Another one waits.
    pub(super) fn let_pass(&mut self, command: Command) -> Option<Command> {
        let (Some(limited), Some(lun)) = (&mut self.limited, unit_number(command.lun)) else {
            return Some(command);
        };
        let nexus = self.session.as_ref().and_then(|session| session.nexus.as_ref());
        let work = nexus.map_or(MediumWork::None, |nexus| {
            nexus.medium_work(command.lun, &command.cdb, Some(&*command.data_out))
        });
        let attribute = command.attribute;
        let Err(from) = limited.arrives(lun, work, attribute) else { return Some(command) };
        self.core.set_aside(command.task);
        let waiting = waiting(Held::Command(command), work, attribute);
        let wait = limited.hold(lun, waiting, attribute, from);
        self.executing.extend(wait);
        None
    }

    /// A command has come whose data has to be asked for: at once, unless a limit lets it wait.
    pub(super) fn announced(&mut self, announcement: Announcement) {
        let Announcement { task, lun, attribute, cdb } = announcement;
        let nexus = self.session.as_ref().and_then(|session| session.nexus.as_ref());
        let work = nexus.map_or(MediumWork::None, |nexus| nexus.medium_work(lun, &cdb, None));
        let (Some(limited), Some(lun), MediumWork::Io { .. }) = (&mut self.limited, unit_number(lun), work)
        else {
            return self.core.ask_for_data(task, false);
        };
        match limited.arrives(lun, work, attribute) {
            Ok(()) => self.core.ask_for_data(task, true),
            Err(from) => {
                self.core.set_aside(task);
                let waiting = waiting(Held::Data(task), work, attribute);
                let wait = limited.hold(lun, waiting, attribute, from);
                self.executing.extend(wait);
            }
        }
    }

    /// A wait for the first command of a line is over.
    pub(super) fn passes(&mut self, lun: u16, wait: u64, waited_for: Option<Arc<Limiter>>) {
        let Some(limited) = &mut self.limited else { return };
        let line = limited.lines.get_mut(&lun);
        let is_present = |line: &&mut Line| line.wait.as_ref().is_some_and(|present| present.number == wait);
        // One that was given up may have been over already.
        let Some(line) = line.filter(is_present) else { return };
        line.waits_for = waited_for.or_else(|| line.waits_for.take());
        if let Some(first) = limited.first(lun) {
            self.release(first);
        }
        self.go_on(lun);
    }

    /// Lets the commands of a line pass that may, and the first of the others wait.
    fn go_on(&mut self, lun: u16) {
        while let Some(next) = self.limited.as_mut().and_then(|limited| limited.next(lun)) {
            match next {
                Ok(first) => self.release(first),
                Err(wait) => return self.executing.push(wait),
            }
        }
    }

    fn release(&mut self, waiting: Waiting) {
        match waiting.what {
            Held::Command(command) => self.core.put_back(command),
            Held::Data(task) => self.core.ask_for_data(task, true),
        }
        self.eventful = true;
    }

    /// The session's limits follow from the configuration as it is now. Commands that wait for one that has changed
    /// wait for the new one.
    pub(super) fn renew_limits(&mut self) {
        let has_target = self.session.as_ref().is_some_and(|session| session.target.is_some());
        let Some(logged_in) = self.core.logged_in().filter(|_| has_target) else { return };
        let (initiator, luns) = self.shared.limiters(logged_in, self.ends);
        // Waits that were given up may still be heard of: no other has their number.
        let (lines, last_wait) =
            self.limited.take().map(|limited| (limited.lines, limited.last_wait)).unwrap_or_default();
        let is_limited = initiator.is_some() || !luns.is_empty();
        self.core.announce(is_limited);
        if !is_limited {
            let waiting = lines.into_values().flat_map(|line| line.commands);
            return waiting.for_each(|waiting| self.release(waiting));
        }
        let waiting: Vec<u16> = lines.keys().copied().collect();
        self.limited = Some(Box::new(Limited { initiator, luns, lines, last_wait }));
        waiting.into_iter().for_each(|lun| self.go_on(lun));
    }

    /// The protocol core has given these commands up. Returns those of them that waited, and that no device will have.
    pub(super) fn forget_waiting(&mut self, tasks: &[TaskId]) -> Vec<TaskId> {
        let Some(limited) = &mut self.limited else { return Vec::new() };
        let (mut forgotten, mut other_first) = (Vec::new(), Vec::new());
        for (lun, line) in &mut limited.lines {
            let first = line.commands.front().map(Waiting::task);
            line.commands.retain(|waiting| {
                let stays = match &waiting.what {
                    Held::Command(command) => !tasks.contains(&command.task),
                    Held::Data(task) => self.core.has_task(*task),
                };
                line.ordered -= usize::from(!stays && waiting.is_ordered);
                if let (false, Held::Command(command)) = (stays, &waiting.what) {
                    forgotten.push(command.task);
                }
                stays
            });
            if line.commands.front().map(Waiting::task) != first {
                other_first.push(*lun);
            }
        }
        other_first.into_iter().for_each(|lun| self.go_on(lun));
        forgotten
    }
}

fn waiting(what: Held, work: MediumWork, attribute: TaskAttribute) -> Waiting {
    let bytes = match work {
        MediumWork::Io { bytes } => Some(bytes),
        MediumWork::Flush | MediumWork::None => None,
    };
    Waiting { what, is_ordered: attribute == TaskAttribute::ORDERED, bytes, since: Instant::now() }
}
