//! Command numbering of a session, seen from the target (RFC 7143 §4.2.2.1).

use crate::serial::Serial;

/// Verdict on a command that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The one expected: deliver it.
    Next,
    /// Inside the window, with others missing before it: keep it until they are here.
    Later,
    /// Outside the window: ignore it silently.
    Outside,
}

/// ExpCmdSN, and how far beyond it the initiator may go.
///
/// MaxCmdSN = ExpCmdSN + depth − commands in flight − 1. It never goes back: a command that is delivered raises
/// ExpCmdSN and what is in flight together, one that finishes opens the window by one. With a
/// [smaller depth](Self::set_depth) what has been told still holds, and the window is opened no further until so many
/// commands have finished.
#[derive(Debug)]
pub(crate) struct CommandWindow {
    expected: Serial,
    /// MaxCmdSN.
    maximum: Serial,
    depth: u32,
    in_flight: u32,
    /// Numbers that count as received although they never came (RFC 7143 §11.6.1); always within the window, so at most
    /// `depth` of them.
    plugged: Vec<u32>,
    /// Of a connection that took another's place: where the numbers of the session stood, until the first request
    /// comes.
    stood_at: Option<u32>,
}

impl CommandWindow {
    /// `first`: the CmdSN of the leading Login Request, which is immediate and thus is the next one expected as well.
    pub(crate) fn new(first: u32, depth: u16) -> Self {
        let depth = u32::from(depth.max(1));
        Self {
            expected: Serial(first),
            maximum: Serial(first.wrapping_add(depth - 1)),
            depth,
            in_flight: 0,
            plugged: Vec::new(),
            stood_at: None,
        }
    }

    /// Commands in flight that are offered from now on.
    pub(crate) fn set_depth(&mut self, depth: u16) {
        self.depth = u32::from(depth.max(1));
        self.open();
    }

    /// Raises MaxCmdSN to what the depth allows. A window that is closed has commands in flight, as the depth is 1 at
    /// least: their answers open it.
    fn open(&mut self) {
        let room = self.depth - self.in_flight.min(self.depth);
        let maximum = Serial(self.expected.0.wrapping_add(room).wrapping_sub(1));
        if self.maximum < maximum {
            self.maximum = maximum;
        }
    }

    /// Numbers that the initiator may use.
    fn room(&self) -> u32 {
        self.maximum.0.wrapping_sub(self.expected.0).wrapping_add(1)
    }

    /// The numbers may also go on where those of the session stood, whose only connection this one replaces. RFC 7143
    /// §11.12.8 has the Login Request say the number that comes next; some initiators say a constant there and count
    /// on, and others begin anew with it. The first request shows it: of the two beginnings the one is meant that it is
    /// nearer to.
    pub(crate) fn may_go_on_at(&mut self, cmd_sn: u32) {
        self.stood_at = Some(cmd_sn);
    }

    /// Settles where the numbers begin, at the first request.
    fn settle_beginning(&mut self, cmd_sn: u32) {
        if let Some(stood_at) = self.stood_at.take()
            && cmd_sn.wrapping_sub(stood_at) < cmd_sn.wrapping_sub(self.expected.0)
        {
            self.expected = Serial(stood_at);
            self.maximum = Serial(stood_at.wrapping_sub(1));
            self.open();
        }
    }

    /// Judges a CmdSN without taking it.
    // RFC 7143 [4.2.2.1-8, 4.2.2.1-10]
    // RFC 7143 [4.2.2.1-7]
    pub(crate) fn judge(&self, cmd_sn: u32) -> Order {
        let distance = cmd_sn.wrapping_sub(self.expected.0);
        match distance {
            _ if distance >= self.room() => Order::Outside,
            0 => Order::Next,
            _ if self.plugged.contains(&cmd_sn) => Order::Outside,
            _ => Order::Later,
        }
    }

    /// Takes a request if it is the next one. One that `occupies` the target does so until
    /// [`finished`](Self::finished): both steps are one, as MaxCmdSN would go back between them.
    pub(crate) fn take(&mut self, cmd_sn: u32, occupies: bool) -> Order {
        self.settle_beginning(cmd_sn);
        let order = self.judge(cmd_sn);
        if order == Order::Next {
            self.in_flight += u32::from(occupies);
            self.advance();
        }
        order
    }

    fn advance(&mut self) {
        self.expected = self.expected.next();
        while let Some(at) = self.plugged.iter().position(|cmd_sn| *cmd_sn == self.expected.0) {
            self.plugged.swap_remove(at);
            self.expected = self.expected.next();
        }
        self.open();
    }

    /// Counts a number that has not come as received, if it is within the window: what comes under it later is outside.
    /// Says whether it is.
    pub(crate) fn plug(&mut self, cmd_sn: u32) -> bool {
        match self.judge(cmd_sn) {
            Order::Outside => self.plugged.contains(&cmd_sn),
            Order::Next => {
                self.advance();
                true
            }
            Order::Later => {
                self.plugged.push(cmd_sn);
                true
            }
        }
    }

    /// A command has been answered or aborted.
    pub(crate) fn finished(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.open();
    }

    /// Returns `true` if every number before this one has arrived.
    pub(crate) fn has_reached(&self, cmd_sn: u32) -> bool {
        Serial(cmd_sn) <= self.expected
    }

    pub(crate) fn expected(&self) -> u32 {
        self.expected.0
    }

    /// The highest CmdSN that the initiator may use; ExpCmdSN − 1 closes the window.
    // RFC 7143 [4.2.2.1-9]
    pub(crate) fn maximum(&self) -> u32 {
        self.maximum.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows RFC 7143 [4.2.2.1-9, 4.2.2.1-8]
    #[test]
    fn the_window_closes_with_commands_in_flight_and_opens_as_they_finish() {
        let mut window = CommandWindow::new(u32::MAX, 2);
        assert_eq!(window.maximum(), 0, "serial arithmetic wraps");
        for cmd_sn in [u32::MAX, 0] {
            assert_eq!(window.take(cmd_sn, true), Order::Next);
        }
        assert_eq!((window.expected(), window.maximum()), (1, 0));
        assert_eq!(window.judge(1), Order::Outside);
        window.finished();
        assert_eq!(window.maximum(), 1);
        assert_eq!(window.judge(1), Order::Next);
    }

    // shows RFC 7143 [4.2.2.1-9]
    #[test]
    fn a_window_that_gets_smaller_takes_back_nothing_and_opens_when_commands_have_finished() {
        let mut window = CommandWindow::new(u32::MAX - 2, 8);
        let told = window.maximum();
        assert_eq!(window.take(u32::MAX - 2, true), Order::Next);
        window.set_depth(2);
        assert_eq!(window.maximum(), told);
        for cmd_sn in (0..7).map(|number| (u32::MAX - 1).wrapping_add(number)) {
            assert_eq!(window.take(cmd_sn, true), Order::Next, "it was offered");
        }
        assert_eq!(window.judge(told.wrapping_add(1)), Order::Outside);
        for finished in 1..=8 {
            window.finished();
            let opened = window.maximum().wrapping_sub(told);
            assert_eq!(opened, [0, 0, 0, 0, 0, 0, 1, 2][finished - 1], "{finished}");
        }
        assert_eq!(window.take(told.wrapping_add(1), false), Order::Next);
        assert_eq!(window.maximum(), told.wrapping_add(3), "a ping is not in flight");
        window.set_depth(8);
        assert_eq!(window.maximum(), told.wrapping_add(9));
    }

    #[test]
    fn the_first_request_of_a_reinstated_connection_shows_where_its_numbers_begin() {
        for (first, expected) in [(1, 1), (3, 1), (40, 40), (43, 40), (39, 1)] {
            let mut window = CommandWindow::new(1, 8);
            window.may_go_on_at(40);
            window.take(first, true);
            assert_eq!(window.expected(), if first == expected { expected + 1 } else { expected }, "{first}");
            assert_eq!(window.take(90, true), Order::Outside, "it is settled once");
        }
        let mut window = CommandWindow::new(u32::MAX, 8);
        window.may_go_on_at(u32::MAX - 20);
        assert_eq!(
            window.take(0, true),
            Order::Later,
            "numbers that were lost are passed over by the login's"
        );
    }

    #[test]
    fn old_and_far_numbers_are_outside() {
        let window = CommandWindow::new(10, 4);
        let judged: Vec<Order> = (8..16).map(|sn| window.judge(sn)).collect();
        use Order::*;
        assert_eq!(judged, [Outside, Outside, Next, Later, Later, Later, Outside, Outside]);
    }

    #[test]
    fn a_number_that_was_plugged_is_passed_over_and_not_taken_when_it_comes() {
        let mut window = CommandWindow::new(10, 8);
        assert!(window.plug(12) && window.plug(12), "plugging is idempotent");
        assert!(!window.plug(9) && !window.plug(18), "outside of the window there is nothing to plug");
        assert_eq!(window.judge(12), Order::Outside);
        assert_eq!(window.take(10, false), Order::Next);
        assert_eq!(window.take(11, false), Order::Next);
        assert_eq!(window.expected(), 13);
        assert!(window.plug(13));
        assert_eq!((window.expected(), window.judge(13)), (14, Order::Outside));
    }
}
