//! Life of a device, and the sleep of its driver.

use std::mem;
use std::task::Waker;

use lunway_block::BlockError;

/// Life of a device, from its opening to the end of its driver. Where new commands fail at once, with their error.
#[derive(Debug)]
pub(crate) enum Life {
    /// New commands are taken.
    Open,
    /// There is no connection that would be worth a command's waiting, until the next one.
    Refusing(BlockError),
    /// Asked to log out and end, once no caller waits for an answer.
    Closing(BlockError),
    /// The driver has ended: nothing is answered any more.
    Ended(BlockError),
}

impl Life {
    /// Error with which every new command is answered at once.
    pub(super) fn refusal(&self) -> Option<&BlockError> {
        match self {
            Self::Open => None,
            Self::Refusing(error) | Self::Closing(error) | Self::Ended(error) => Some(error),
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self, Self::Closing(_))
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// Has new commands fail, until [`Self::accept`]. One that closes has its own error.
    pub(super) fn refuse(&mut self, error: &BlockError) {
        if let Self::Open | Self::Refusing(_) = self {
            *self = Self::Refusing(error.clone());
        }
    }

    /// Has new commands taken again, unless it closes.
    pub(super) fn accept(&mut self) {
        if let Self::Refusing(_) = self {
            *self = Self::Open;
        }
    }

    /// Is asked to close. Where commands fail already, they go on to fail with the same error.
    pub(super) fn close(&mut self, error: BlockError) {
        match mem::replace(self, Self::Open) {
            Self::Open => *self = Self::Closing(error),
            Self::Refusing(earlier) | Self::Closing(earlier) => *self = Self::Closing(earlier),
            Self::Ended(earlier) => *self = Self::Ended(earlier),
        }
    }

    /// Ends, with `error` where commands do not fail already.
    pub(super) fn end(&mut self, error: &BlockError) {
        *self = Self::Ended(self.refusal().unwrap_or(error).clone());
    }
}

/// Sleep of the driver.
#[derive(Debug)]
pub(crate) enum DriverSleep {
    /// At work, or about to look.
    Awake,
    /// Something has come in since it last looked.
    Roused,
    /// Waits to be woken.
    Asleep(Waker),
}

impl DriverSleep {
    /// There is work. Returns the waker of a driver that sleeps.
    pub(super) fn rouse(&mut self) -> Option<Waker> {
        match mem::replace(self, Self::Roused) {
            Self::Asleep(waker) => Some(waker),
            Self::Awake | Self::Roused => None,
        }
    }

    /// The driver looks at what there is.
    pub(crate) fn look(&mut self) {
        *self = Self::Awake;
    }

    /// The driver falls asleep. Says whether it may: not where something has come in.
    pub(crate) fn sleep(&mut self, waker: &Waker) -> bool {
        let may = !matches!(self, Self::Roused);
        if may {
            *self = Self::Asleep(waker.clone());
        }
        may
    }

    /// The driver is awake, for whatever reason: until the next sleep, rousing it costs a store.
    pub(crate) fn wake_up(&mut self) {
        if self.is_asleep() {
            *self = Self::Awake;
        }
    }

    pub(super) fn is_asleep(&self) -> bool {
        matches!(self, Self::Asleep(_))
    }
}
