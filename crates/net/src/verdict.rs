//! Interpretation of a matrix, in sentences.

use std::time::Duration;

use crate::matrix::{Cell, Matrix};
use crate::measure::{Direction, Throughput};
use crate::socket::Window;

/// A cell this much slower than the best of its direction is worth a word.
const SLOWER: f64 = 0.9;
/// A window explains a rate that comes this close to one window per round trip, or more.
const EXPLAINED: f64 = 0.6;
/// Several streams that move this much more than one show that one does not fill the wire.
const MORE: f64 = 1.15;
/// A thread this busy has no time left to be faster.
const BUSY: f64 = 0.85;
/// Limit of retransmitted segments: one in a thousand is more than a healthy storage network loses.
const LOSS: f64 = 0.001;

/// Tone of a [`Remark`]: good news or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemarkTone {
    /// As it should be.
    Good,
    /// Something to mend.
    Bad,
    /// Neither.
    Plain,
}

/// A sentence about a wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The sentence.
    pub text: String,
    /// Tone of the sentence.
    pub tone: RemarkTone,
}

impl Matrix {
    /// Returns the remarks: the best throughput, also against a link of `link` bits per second; the windows that
    /// throttle; whether one stream is enough; the gain of longer packets; loss; and whether it was the wire at all
    /// that was measured.
    pub fn remarks(&self, link: Option<f64>) -> Vec<Remark> {
        let mut remarks = Vec::new();
        let mut say = |tone, text: Option<String>| remarks.extend(text.map(|text| Remark { text, tone }));
        say(RemarkTone::Plain, self.fastest());
        say(RemarkTone::Plain, link.and_then(|link| self.of_theory(link)));
        match self.throttled() {
            (Some(text), true) => say(RemarkTone::Bad, Some(text)),
            (text, _) => say(RemarkTone::Good, text),
        }
        say(RemarkTone::Plain, self.streams_needed());
        say(RemarkTone::Plain, self.longer_packets());
        say(RemarkTone::Bad, self.loss());
        say(RemarkTone::Plain, self.busy());
        remarks
    }

    fn fastest(&self) -> Option<String> {
        let way = |direction, word: &str| {
            let best = self.best(direction, |_| true)?;
            Some(format!("{} {word}", megabits(best.measured.bits_per_second())))
        };
        let ways: Vec<_> = [way(Direction::Send, "sending"), way(Direction::Receive, "receiving")]
            .into_iter()
            .flatten()
            .collect();
        (!ways.is_empty()).then(|| format!("The wire carries at most {}.", ways.join(" and ")))
    }

    fn of_theory(&self, link: f64) -> Option<String> {
        let ways = [Direction::Send, Direction::Receive].into_iter();
        let best = ways.filter_map(|direction| self.best(direction, |_| true));
        let rate = |cell: &&Cell| cell.measured.bits_per_second();
        let best = best.max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
        let theory = best.theory(link);
        Some(format!(
            "The best rate is {:.1} % of the theoretical {} of a link of {} at an MTU of {}.",
            100.0 * rate(&best) / theory.max(1.0),
            megabits(theory),
            megabits(link),
            best.mtu.bytes(),
        ))
    }

    /// Windows that throttle one stream, and whether any does.
    fn throttled(&self) -> (Option<String>, bool) {
        let one = |cell: &&Cell| cell.measured.streams.len() == 1;
        let mut worst: Option<(&Throughput, u32, f64)> = None;
        let mut largest = 0;
        let mut smallest: Option<(&Throughput, f64)> = None;
        for cell in self.cells.iter().filter(one) {
            let measured = &cell.measured;
            let (Some(bytes), Some(limit)) = (measured.window.bytes(), measured.window_limit()) else {
                continue;
            };
            let Some(best) = self.best(measured.direction, |other| other.mtu == cell.mtu) else { continue };
            let rate = measured.bits_per_second();
            if rate < SLOWER * best.measured.bits_per_second() && rate > EXPLAINED * limit {
                largest = largest.max(bytes);
                if worst.is_none_or(|(_, _, slowest)| rate < slowest) {
                    worst = Some((measured, bytes, rate));
                }
            }
            if smallest.is_none_or(|(_, least)| limit < least) {
                smallest = Some((measured, limit));
            }
        }
        let round_trip = |measured: &Throughput| time(measured.round_trip().unwrap_or_default());
        match (worst, smallest) {
            (Some((measured, _, rate)), _) => {
                let limit = megabits(measured.window_limit().unwrap_or_default());
                let text = format!(
                    "Windows of {} and less limit the rate: {} moves {}; one window per round trip of {} is {limit}.",
                    Window::Bytes(largest),
                    measured.window,
                    megabits(rate),
                    round_trip(measured),
                );
                (Some(text), true)
            }
            (None, Some((measured, limit))) => {
                let text = format!(
                    "No window limits the rate: even {} per round trip of {} would be {}.",
                    measured.window,
                    round_trip(measured),
                    megabits(limit)
                );
                (Some(text), false)
            }
            (None, None) => (None, false),
        }
    }

    fn streams_needed(&self) -> Option<String> {
        let sentence = |direction| {
            let one = self.best(direction, |cell| cell.measured.streams.len() == 1)?;
            let several = self.best(direction, |cell| cell.measured.streams.len() > 1)?;
            let more = several.measured.bits_per_second() / one.measured.bits_per_second().max(1.0);
            let streams = several.measured.streams.len();
            (more > MORE).then(|| {
                format!("One stream does not fill the wire: {streams} streams move {more:.1} times as much ({direction}).")
            })
        };
        sentence(Direction::Send).or_else(|| sentence(Direction::Receive))
    }

    fn longer_packets(&self) -> Option<String> {
        let mtus = self.cells.iter().map(|cell| cell.mtu);
        let (short, long) =
            (mtus.clone().min_by_key(|mtu| mtu.bytes())?, mtus.max_by_key(|mtu| mtu.bytes())?);
        if short == long {
            return None;
        }
        let gain = [Direction::Send, Direction::Receive].into_iter().filter_map(|direction| {
            let rate = |mtu| Some(self.best(direction, |cell| cell.mtu == mtu)?.measured.bits_per_second());
            Some(format!("{:+.1} % ({direction})", 100.0 * (rate(long)? / rate(short)?.max(1.0) - 1.0)))
        });
        let gain: Vec<_> = gain.collect();
        Some(format!("Packets of {long} instead of {short} bytes: {}.", gain.join(", ")))
    }

    fn loss(&self) -> Option<String> {
        let worst = self.cells.iter().max_by(|a, b| loss(&a.measured).total_cmp(&loss(&b.measured)))?;
        let share = loss(&worst.measured);
        (share > LOSS).then(|| {
            format!(
                "Packets are lost or delayed: up to {:.2} % of the segments were sent again ({}, window {}).",
                100.0 * share,
                worst.measured.direction,
                worst.measured.window
            )
        })
    }

    fn busy(&self) -> Option<String> {
        let best =
            self.best(Direction::Send, |_| true).into_iter().chain(self.best(Direction::Receive, |_| true));
        let busiest = best.map(|cell| busiest(&cell.measured)).max_by(f64::total_cmp)?;
        (busiest > BUSY).then(|| {
            format!(
                "At the best rate a processor was {:.0} % busy with one stream: that, not the wire, may be the limit.",
                100.0 * busiest.min(1.0)
            )
        })
    }
}

/// Of the segments, those sent again.
fn loss(measured: &Throughput) -> f64 {
    let sent: u64 = measured.senders().map(|end| end.tcp.segments_sent).fold(0, u64::saturating_add);
    measured.retransmits() as f64 / (sent as f64).max(1.0)
}

/// Of the time, that in which the busiest thread ran.
fn busiest(measured: &Throughput) -> f64 {
    let ends = measured.streams.iter().flat_map(|stream| {
        let share = |cpu: Duration| cpu.as_secs_f64() / stream.elapsed.as_secs_f64().max(1e-9);
        [share(stream.near.cpu), stream.far.map_or(0.0, |far| share(far.cpu))]
    });
    ends.fold(0.0, f64::max)
}

/// A rate of payload, as networks count: 1,000,000 bits.
fn megabits(bits_per_second: f64) -> String {
    match bits_per_second / 1e6 {
        megabits @ ..100.0 => format!("{megabits:.1} Mb/s"),
        megabits @ ..10_000.0 => format!("{megabits:.0} Mb/s"),
        megabits => format!("{:.1} Gb/s", megabits / 1e3),
    }
}

fn time(time: Duration) -> String {
    match time.as_secs_f64() * 1e6 {
        microseconds @ ..1000.0 => format!("{microseconds:.0} µs"),
        microseconds => format!("{:.1} ms", microseconds / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Path;
    use crate::matrix::Mtu;
    use crate::measure::{End, Stream};
    use crate::tcp_info::TcpInfo;

    /// Returns a cell of one second of `streams` at `megabits` each.
    fn cell(direction: Direction, window: Window, streams: usize, megabits: f64, tcp: TcpInfo) -> Cell {
        let second = Duration::from_secs(1);
        let end = End { cpu: second / 10, tcp, ..End::default() };
        let bytes = (megabits * 1e6 / 8.0) as u64;
        let stream = Stream { bytes, elapsed: second, near: end, far: Some(end), series: Vec::new() };
        let measured = Throughput { direction, window, streams: vec![stream; streams], complete: true };
        Cell { mtu: Mtu::Path(1500), measured }
    }

    fn texts(cells: Vec<Cell>) -> Vec<String> {
        let matrix = Matrix {
            path: Path::default(),
            cells,
            round_trips: Vec::new(),
            mtus_beyond: Vec::new(),
            failure: None,
            complete: true,
        };
        matrix.remarks(None).into_iter().map(|remark| remark.text).collect()
    }

    fn delayed() -> TcpInfo {
        TcpInfo { rtt_min: Duration::from_millis(10), segments_sent: 10_000, ..TcpInfo::default() }
    }

    #[test]
    fn small_windows_are_said_to_throttle_where_there_is_delay() {
        let windows = [(64 << 10, 50.0), (128 << 10, 99.0), (4 << 20, 940.0)];
        let cells = windows
            .map(|(bytes, rate)| cell(Direction::Send, Window::Bytes(bytes), 1, rate, delayed()))
            .to_vec();
        let texts = texts(cells);
        assert_eq!(texts[0], "The wire carries at most 940 Mb/s sending.");
        assert_eq!(
            texts[1],
            "Windows of 128 KiB and less limit the rate: 64 KiB moves 50.0 Mb/s; one window per round trip of 10.0 ms is 52.4 Mb/s."
        );
    }

    #[test]
    fn where_there_is_no_delay_a_slow_cell_is_not_blamed_on_its_window() {
        let tcp = TcpInfo { rtt_min: Duration::from_micros(50), ..TcpInfo::default() };
        let cells = [500.0, 940.0]
            .map(|rate| cell(Direction::Receive, Window::Bytes(64 << 10), 1, rate, tcp))
            .to_vec();
        let texts = texts(cells);
        assert_eq!(
            texts[1],
            "No window limits the rate: even 64 KiB per round trip of 50 µs would be 10.5 Gb/s."
        );
    }

    #[test]
    fn loss_and_a_stream_that_is_not_enough_are_named() {
        let lossy = TcpInfo { retransmits: 200, ..delayed() };
        let cells = vec![
            cell(Direction::Send, Window::Auto, 1, 100.0, lossy),
            cell(Direction::Send, Window::Auto, 4, 200.0, delayed()),
        ];
        let texts = texts(cells);
        assert_eq!(
            texts[1],
            "One stream does not fill the wire: 4 streams move 8.0 times as much (sending)."
        );
        assert!(texts[2].contains("up to 2.00 % of the segments were sent again"), "{texts:?}");
    }
}
