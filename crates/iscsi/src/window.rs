//! Command numbering of a session, seen from the target (RFC 7143 §4.2.2.1).

use crate::serial::Serial;

/// What to do with a command that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// It is the one expected: deliver it.
    Next,
    /// It is inside the window, with others missing before it: keep it until they are here.
    Later,
    /// It is outside the window: ignore it silently.
    Outside,
}

/// ExpCmdSN, and how far beyond it the initiator may go.
///
/// MaxCmdSN = ExpCmdSN + depth − commands in flight − 1. It never goes back: a command that is delivered raises ExpCmdSN
/// and what is in flight together, one that finishes opens the window by one.
#[derive(Debug)]
pub(crate) struct CommandWindow {
    expected: Serial,
    depth: u32,
    in_flight: u32,
}

impl CommandWindow {
    /// `first`: the CmdSN of the leading Login Request, which is immediate and thus is the next one expected as well.
    pub(crate) fn new(first: u32, depth: u16) -> Self {
        Self { expected: Serial(first), depth: u32::from(depth.max(1)), in_flight: 0 }
    }

    /// Judges a CmdSN without taking it.
    pub(crate) fn judge(&self, cmd_sn: u32) -> Order {
        let distance = cmd_sn.wrapping_sub(self.expected.0);
        match distance {
            0 if self.in_flight < self.depth => Order::Next,
            _ if distance < self.depth - self.in_flight.min(self.depth) => Order::Later,
            _ => Order::Outside,
        }
    }

    /// Takes the command that [`judge`](Self::judge) called next.
    pub(crate) fn advance(&mut self) {
        self.expected = self.expected.next();
    }

    /// A delivered command occupies the target until [`finished`](Self::finished).
    pub(crate) fn started(&mut self) {
        self.in_flight += 1;
    }

    /// A command has been answered or aborted.
    pub(crate) fn finished(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    pub(crate) fn expected(&self) -> u32 {
        self.expected.0
    }

    /// The highest CmdSN that the initiator may use; ExpCmdSN − 1 closes the window.
    pub(crate) fn maximum(&self) -> u32 {
        self.expected.0.wrapping_add(self.depth - self.in_flight.min(self.depth)).wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_closes_with_commands_in_flight_and_opens_as_they_finish() {
        let mut window = CommandWindow::new(u32::MAX, 2);
        assert_eq!(window.maximum(), 0, "serial arithmetic wraps");
        for cmd_sn in [u32::MAX, 0] {
            assert_eq!(window.judge(cmd_sn), Order::Next);
            window.advance();
            window.started();
        }
        assert_eq!((window.expected(), window.maximum()), (1, 0));
        assert_eq!(window.judge(1), Order::Outside);
        window.finished();
        assert_eq!(window.maximum(), 1);
        assert_eq!(window.judge(1), Order::Next);
    }

    #[test]
    fn old_and_far_numbers_are_outside() {
        let window = CommandWindow::new(10, 4);
        let judged: Vec<Order> = (8..16).map(|sn| window.judge(sn)).collect();
        use Order::*;
        assert_eq!(judged, [Outside, Outside, Next, Later, Later, Later, Outside, Outside]);
    }
}
