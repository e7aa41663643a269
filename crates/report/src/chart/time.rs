//! Something over time: throughput of each path or direction, with what happened meanwhile.

use std::time::Duration;

use super::axis::{linear_ticks, short};
use super::legend::{Legend, LegendEntry};
use super::series::thin;
use super::svg::{Svg, TEXT, fit, width_of};
use super::{BROAD, COLUMN, SERIES_MAX, Tone, both};

/// Values over time.
#[derive(Clone, Copy, Debug)]
pub struct TimelineChart<'a> {
    /// Unit of the values.
    pub unit: &'a str,
    /// Spacing of the values of every line.
    pub interval: Duration,
    /// Up to [`SERIES_MAX`]; more are left out.
    pub lines: &'a [ChartLine<'a>],
    /// So much at the beginning did not count.
    pub warm_up: Duration,
    /// Events during the measurement.
    pub events: &'a [Event<'a>],
    /// A level to compare with, and its name: what the link carries.
    pub level: Option<(f64, &'a str)>,
    /// For the whole width of the page.
    pub wide: bool,
}

/// A line of a [`TimelineChart`].
#[derive(Clone, Copy, Debug)]
pub struct ChartLine<'a> {
    /// A path, or a direction.
    pub label: &'a str,
    /// Its colour, where it is a direction.
    pub tone: Option<Tone>,
    /// Values, one for each interval, at its middle; a value that is not a number is a gap.
    pub values: &'a [f64],
}

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Time of the event.
    pub at: Duration,
    /// Label of the event.
    pub label: &'a str,
}

const LEFT: f64 = 44.0;
const PLOT: f64 = 92.0;
const PLOT_BROAD: f64 = 190.0;
/// Height of a row of events' names.
const LABEL_ROW_HEIGHT: f64 = 15.0;
/// More rows than these are not made: later events keep their mark and lose their name.
const LABEL_ROWS_MAX: usize = 8;

/// A chart of `timeline`, on an axis that starts at 0.
pub fn over_time(timeline: &TimelineChart<'_>) -> String {
    if timeline.wide { both(|width| draw(timeline, width)) } else { draw(timeline, COLUMN).finish("") }
}

fn class(index: usize, line: &ChartLine<'_>) -> String {
    line.tone.map_or_else(|| format!("s{index}"), |tone| tone.class().to_owned())
}

fn draw(timeline: &TimelineChart<'_>, width: f64) -> Svg {
    let right = width - 14.0;
    let lines = &timeline.lines[..timeline.lines.len().min(SERIES_MAX)];
    let interval = timeline.interval.as_secs_f64();
    let values = lines.iter().map(|line| line.values.len()).max().unwrap_or(0);
    let seconds = interval * values.max(1) as f64;
    let x = |second: f64| LEFT + (right - LEFT) * (second / seconds).clamp(0.0, 1.0);
    let warm_up = timeline.warm_up.as_secs_f64().min(seconds);

    let mut entries = Vec::new();
    if lines.len() > 1 {
        entries.extend(lines.iter().enumerate().map(|(index, line)| LegendEntry {
            class: format!("curve {}", class(index, line)),
            area: false,
            label: line.label,
        }));
    }
    if let Some((_, label)) = timeline.level {
        entries.push(LegendEntry { class: "level".into(), area: false, label });
    }
    if warm_up > 0.0 {
        entries.push(LegendEntry { class: "warm".into(), area: true, label: "warm-up, not counted" });
    }
    let legend = Legend::new(&entries, 2.0, right);
    let positions = label_positions(timeline.events, &x, right);
    let rows = positions.iter().filter_map(|position| Some(position.as_ref()?.row + 1)).max().unwrap_or(0);
    let top = legend.height() + rows as f64 * LABEL_ROW_HEIGHT + 8.0;
    let bottom = top + if width >= BROAD { PLOT_BROAD } else { PLOT };
    let unit = timeline.unit;
    let mut svg = Svg::new(width, bottom + 22.0, &format!("{unit} over time"));
    legend.draw(&mut svg);

    let finite = |value: &f64| value.is_finite();
    let all = lines.iter().flat_map(|line| line.values.iter().copied());
    let highest = all.chain(timeline.level.map(|level| level.0)).filter(finite).fold(0.0, f64::max);
    let ticks = linear_ticks(highest, if width >= BROAD { 4 } else { 3 });
    let end = ticks[ticks.len() - 1];
    let y = |value: f64| bottom - (bottom - top) * (value / end).clamp(0.0, 1.0);
    if warm_up > 0.0 {
        svg.rect((LEFT, top), (x(warm_up) - LEFT, bottom - top), "warm", "warm-up, not counted");
    }
    for &tick in &ticks {
        svg.line((LEFT, y(tick)), (right, y(tick)), "grid");
        svg.text(LEFT - 6.0, y(tick) + TEXT * 0.36, "tick end", &short(tick));
    }
    let most = if width >= BROAD { 10 } else { 5 };
    for tick in linear_ticks(seconds, most).into_iter().filter(|&tick| tick <= seconds * (1.0 + 1e-9)) {
        svg.text(x(tick), bottom + 16.0, "tick mid", &format!("{} s", short(tick)));
    }
    if let Some((level, label)) = timeline.level.filter(|level| level.0.is_finite()) {
        svg.polyline([(LEFT, y(level)), (right, y(level))].into_iter(), "level", label);
    }
    for (index, line) in lines.iter().enumerate() {
        let class = class(index, line);
        let position = |(index, &value): (usize, &f64)| {
            (x((index as f64 + 0.5) * interval), if value.is_finite() { y(value) } else { f64::NAN })
        };
        let points: Vec<(f64, f64)> = line.values.iter().enumerate().map(position).collect();
        let points = thin(&points, if width >= BROAD { 480 } else { 240 });
        if let ([first, .., last], 1) = (&points[..], lines.len()) {
            let numbers = points.iter().copied().filter(|point| point.1.is_finite());
            let area = [(first.0, bottom)].into_iter().chain(numbers).chain([(last.0, bottom)]);
            svg.polyline(area, &format!("area {class}"), unit);
        }
        svg.polyline(points.iter().copied(), &format!("trace {class}"), line.label);
        if let [only] = points[..] {
            svg.rect(
                (only.0 - 2.0, only.1.min(bottom) - 2.0),
                (4.0, 4.0),
                &format!("dot {class}"),
                line.label,
            );
        }
    }
    for (event, position) in timeline.events.iter().zip(&positions) {
        let at = x(event.at.as_secs_f64());
        let start = position
            .as_ref()
            .map_or(top, |position| top - 8.0 - (position.row + 1) as f64 * LABEL_ROW_HEIGHT + 2.0);
        svg.polyline([(at, start), (at, bottom)].into_iter(), "event", event.label);
        if let Some(position) = position {
            svg.text(position.x, start + TEXT * 0.8, "name", &position.label);
        }
    }
    svg
}

struct LabelPosition {
    x: f64,
    row: usize,
    label: String,
}

/// Returns places for the names of events so that none touches another: each right of its own mark (at the right edge,
/// as far right as it fits). Rows are counted from the plot upwards. A mark goes down from its name to the plot, so a
/// name that reaches beyond a later event's mark stands above that event's name.
fn label_positions(events: &[Event<'_>], x: &impl Fn(f64) -> f64, right: f64) -> Vec<Option<LabelPosition>> {
    let mut positions: Vec<Option<LabelPosition>> = events.iter().map(|_| None).collect();
    let mut order: Vec<usize> = (0..events.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(events[index].at));
    // For each row, where the leftmost name in it or above it begins.
    let mut taken = [f64::INFINITY; LABEL_ROWS_MAX];
    for index in order {
        let mark = x(events[index].at.as_secs_f64());
        let label = fit(events[index].label, (right - LEFT) * 0.8);
        let width = width_of(&label);
        let start = (mark + 4.0).min(right - width);
        if let Some(row) = taken.iter().position(|&taken| start + width + 4.0 <= taken) {
            let edge = start.min(mark);
            taken[..=row].iter_mut().for_each(|taken| *taken = taken.min(edge));
            positions[index] = Some(LabelPosition { x: start, row, label });
        }
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline<'a>(lines: &'a [ChartLine<'a>], events: &'a [Event<'a>], wide: bool) -> TimelineChart<'a> {
        let interval = Duration::from_millis(100);
        TimelineChart { unit: "MB/s", interval, lines, warm_up: Duration::ZERO, events, level: None, wide }
    }

    #[test]
    fn one_value_and_none_draw_without_numbers_that_are_not() {
        for values in [&[][..], &[0.0], &[5.0, 7.0], &[f64::NAN, 1.0, f64::INFINITY]] {
            let lines = [ChartLine { label: "a", tone: Some(Tone::Read), values }];
            for wide in [false, true] {
                let svg = over_time(&timeline(&lines, &[], wide));
                assert!(svg.ends_with("</svg>") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }

    #[test]
    fn names_of_events_do_not_touch_however_close_the_events_are() {
        let at = |ms| Duration::from_millis(ms);
        let events: Vec<Event<'_>> = [100, 110, 120, 500, 990, 995]
            .iter()
            .map(|&ms| Event { at: at(ms), label: "pull lane1" })
            .collect();
        let positions = label_positions(&events, &|second| LEFT + 300.0 * second, LEFT + 300.0);
        let positions: Vec<&LabelPosition> = positions.iter().flatten().collect();
        assert_eq!(positions.len(), events.len());
        for (index, a) in positions.iter().enumerate() {
            for b in &positions[index + 1..] {
                let apart = a.x + width_of(&a.label) <= b.x || b.x + width_of(&b.label) <= a.x;
                assert!(a.row != b.row || apart, "{} {} {} {}", a.x, a.row, b.x, b.row);
            }
            assert!(a.x + width_of(&a.label) <= LEFT + 300.0 + 1e-9);
        }
    }

    #[test]
    fn a_week_of_seconds_is_drawn_in_a_few_kilobytes() {
        let values: Vec<f64> = (0..604_800).map(|n| f64::from(n % 97)).collect();
        let lines = [ChartLine { label: "a", tone: None, values: &values }];
        assert!(over_time(&timeline(&lines, &[], true)).len() < 40_000);
    }
}
