//! Pins: which space I/O under way may still reach.

/// Counts the I/O under way in two generations, so that freed space is given away only when all I/O that was resolved
/// before it was freed has ended. An I/O costs an increment and a decrement, whatever was freed.
#[derive(Default)]
pub(crate) struct Pins {
    generation: u64,
    active: [u64; 2],
}

/// Pin of one I/O in flight.
#[derive(Debug)]
#[must_use = "space is kept until the pin is given back"]
pub(crate) struct Pin(u8);

impl Pins {
    pub(crate) fn enter(&mut self) -> Pin {
        let slot = self.generation & 1;
        self.active[slot as usize] += 1;
        Pin(slot as u8)
    }

    #[expect(clippy::needless_pass_by_value, reason = "a pin is given back once")]
    pub(crate) fn leave(&mut self, pin: Pin) {
        self.active[usize::from(pin.0)] -= 1;
    }

    /// To be kept beside what was freed.
    pub(crate) fn now(&self) -> u64 {
        self.generation
    }

    /// Returns `true` if all I/O has ended that was resolved at or before `freed`.
    pub(crate) fn have_left(&mut self, freed: u64) -> bool {
        while self.generation < freed + 2 && self.active[(self.generation + 1) as usize & 1] == 0 {
            self.generation += 1;
        }
        self.generation >= freed + 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_space_waits_for_older_io_and_not_for_newer() {
        let mut pins = Pins::default();
        assert!(pins.have_left(0), "nothing is under way");
        let old = pins.enter();
        let freed = pins.now();
        assert!(!pins.have_left(freed));
        let new = pins.enter();
        assert!(!pins.have_left(freed));
        pins.leave(old);
        assert!(pins.have_left(freed));
        pins.leave(new);
    }
}
