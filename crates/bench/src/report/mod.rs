//! Outcomes as a page.

mod imported;

use std::time::Duration;

use lunway_report::chart::{
    Bar, ChartLine, Curve, SERIES_MAX, TimelineChart, Tone, bars, over_time, percentile_curves,
};
use lunway_report::{
    Better, Block, Card, Cell, Column, Document, Grid, Mark, Measure, Row, Section, Tile, figure,
    response_time,
};

use crate::fio;
use crate::measure::cpu::CpuTime;
use crate::measure::latency::Latency;
use crate::measure::outcome::{Direction, End, Outcome};
use crate::measure::series::Point;
use crate::score::{REFERENCE_VERSION, Score};
use crate::table::{Table, too_short};
use crate::verify::NO_STAMPS;

pub use imported::imported;

/// Heading of the bars.
pub(crate) const THROUGHPUT: &str = "Throughput";

/// A page of the results of a profile, or of single jobs: to which the caller adds notes and facts about the
/// place.
///
/// Each direction of each outcome gives two [`Measure`]s, IOPS and mean response time, of one sample each: a run is one
/// sample, however many I/Os it had.
pub fn document(title: &str, subject: &str, outcomes: &[Outcome]) -> Document {
    let lines = lines(outcomes);
    let mut document = Document::new("bench", title, subject);
    document.tiles = score_tile(outcomes).into_iter().chain(best_tiles(&lines)).collect();
    document.warnings = outcomes.iter().flat_map(warnings).collect();
    document.sections = vec![figures(&lines, outcomes)];
    if !lines.is_empty() {
        document.sections.extend([throughput(&lines), response(&lines)]);
        document.sections.extend(time(outcomes));
    }
    document.measures = lines
        .iter()
        .flat_map(|line| measures(&line.name, line.figures.iops(), Some(line.figures.response.mean())))
        .collect();
    document.results = fio::to_json(outcomes);
    document
}

/// A direction of an outcome that moved something, with its name as in the table.
struct Line<'a> {
    name: String,
    tone: Tone,
    outcome: &'a Outcome,
    figures: &'a Direction,
}

fn lines(outcomes: &[Outcome]) -> Vec<Line<'_>> {
    let lines = outcomes.iter().flat_map(|outcome| {
        let both = outcome.job.mix.reads() && outcome.job.mix.writes();
        outcome.directions().map(move |(direction, figures)| Line {
            name: if both { format!("{} ({direction})", outcome.job.name) } else { outcome.job.name.clone() },
            tone: if direction == "write" { Tone::Write } else { Tone::Read },
            outcome,
            figures,
        })
    });
    lines.filter(|line| line.figures.ios > 0).collect()
}

/// A line's figures that can be compared with another run's.
fn measures(name: &str, iops: f64, mean_ns: Option<f64>) -> impl Iterator<Item = Measure> {
    let measure = |unit: &str, better, value| Measure {
        name: name.into(),
        unit: unit.into(),
        better,
        samples: vec![value],
    };
    let iops = measure("IOPS", Better::Higher, iops);
    let response = mean_ns.map(|ns| measure("ms", Better::Lower, ns / 1e6));
    std::iter::once(iops).chain(response)
}

fn score_tile(outcomes: &[Outcome]) -> Option<Tile> {
    let score = Score::of(outcomes);
    let round = |value: f64| if value < 1000.0 { format!("{value:.0}") } else { figure(value) };
    let read = round(score.read?);
    let tile = |what: &str, value, of| Tile { what: what.into(), value, unit: String::new(), of };
    Some(match (score.total(), score.write) {
        (Some(total), Some(write)) => {
            tile("Score", round(total), format!("read\u{a0}{read} · write\u{a0}{}", round(write)))
        }
        _ => tile("Read score", read, "no writes measured".into()),
    })
}

fn best_tiles(lines: &[Line<'_>]) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for (word, tone) in [("read", Tone::Read), ("write", Tone::Write)] {
        let best = |of: &dyn Fn(&Line<'_>) -> f64| {
            lines.iter().filter(|line| line.tone == tone).max_by(|a, b| of(a).total_cmp(&of(b)))
        };
        if let Some(line) = best(&|line| line.figures.bytes_per_second()) {
            tiles.push(Tile {
                what: format!("Fastest {word}"),
                value: figure(line.figures.bytes_per_second() / 1e6),
                unit: "MB/s".into(),
                of: line.name.clone(),
            });
        }
        if let Some(line) = best(&|line| line.figures.iops()) {
            tiles.push(Tile {
                what: format!("Most {word} IOPS"),
                value: figure(line.figures.iops()),
                unit: String::new(),
                of: line.name.clone(),
            });
        }
    }
    tiles
}

fn warnings(outcome: &Outcome) -> Vec<String> {
    let mut said = Vec::new();
    let name = &outcome.job.name;
    if outcome.errors() > 0 {
        let first = outcome.read.first_error.as_ref().or(outcome.write.first_error.as_ref());
        let first = first.map_or("", String::as_str);
        said.push(format!("{name}: {} I/Os failed; the first: {first}.", outcome.errors()));
    }
    if let Some(found) = outcome.verification.as_ref().filter(|found| found.faulty > 0) {
        let first = found.faults.first().map(ToString::to_string).unwrap_or_default();
        let (faulty, checked) = (found.faulty, found.checked);
        said.push(match found.found_no_stamp() {
            true => format!("{name}: {NO_STAMPS}."),
            false => format!("{name}: {faulty} of {checked} blocks came back wrong; the first: {first}."),
        });
    }
    for (direction, figures) in outcome.directions() {
        if let Some(short) = too_short(figures.ios) {
            said.push(format!("{name}, {direction}: {short}, which say little."));
        }
    }
    match outcome.end {
        End::Limit => {}
        End::Cancelled => {
            said.push(format!("{name}: interrupted; the figures cover the time until then."));
        }
        End::Failing => said.push(format!("{name}: ended early, nothing but errors came.")),
    }
    if outcome.rate_missed() {
        said.push(format!(
            "{name}: the requested rate was not reached; response times are those of an overload."
        ));
    }
    said
}

/// Returns the columns of a table of results, wherever the results come from.
fn columns() -> Vec<Column> {
    vec![
        Column::words("Test"),
        Column::figures("Response", ""),
        Column::figures("p99", "").wide_only(),
        Column::figures("p99.9", "").wide_only(),
        Column::figures("MB", ""),
        Column::figures("IOPS", ""),
        Column::figures("MB/s", ""),
    ]
}

fn figures(lines: &[Line<'_>], outcomes: &[Outcome]) -> Section {
    let mut columns = columns();
    columns.push(Column::figures("CPU", "%").wide_only());
    let mut grid = Grid::new(columns);
    for (index, line) in lines.iter().enumerate() {
        let group = index > 0
            && lines[index - 1].tone != line.tone
            && lines[index - 1].outcome.job.name != line.outcome.job.name;
        let cpu = line.outcome.cpu;
        let mark = match line.tone {
            Tone::Read => Mark::Read,
            Tone::Write => Mark::Write,
        };
        let cells = [
            Cell::marked(&line.name, mark),
            response_time(line.figures.response.mean() / 1e6).into(),
            response_time(line.figures.response.percentile(99.0) as f64 / 1e6).into(),
            response_time(line.figures.response.percentile(99.9) as f64 / 1e6).into(),
            figure(line.figures.bytes as f64 / 1e6).into(),
            figure(line.figures.iops()).into(),
            figure(line.figures.bytes_per_second() / 1e6).into(),
            format!("{:.0}", CpuTime::percent(cpu.user + cpu.system, line.outcome.elapsed)).into(),
        ];
        grid.rows.push(Row { group, ..Row::new(cells) });
    }
    grid.caption = format!(
        "{} Response time is from submission to completion of each I/O; where a rate was set, from the time at which the \
         I/O was due. CPU: of this process, 100 % is one core.",
        Table::UNITS
    );
    if Score::of(outcomes) != Score::default() {
        grid.caption += &format!(
            " Score: 1000 × the geometric mean of IOPS over the reference table {REFERENCE_VERSION}; our own measure, \
             comparable only with itself."
        );
    }
    Section { blocks: vec![Block::Table(grid)], ..Section::new("Results") }
}

fn card(title: &str, detail: &str, svg: String) -> Block {
    Block::Chart(Card { title: title.into(), detail: detail.into(), svg, wide: false })
}

fn throughput(lines: &[Line<'_>]) -> Section {
    let chart = |what: &str, of: &dyn Fn(&Direction) -> f64| {
        let bar =
            |line: &Line<'_>| Bar { label: line.name.clone(), value: of(line.figures), tone: line.tone };
        card(what, "", bars(what, &lines.iter().map(bar).collect::<Vec<_>>()))
    };
    let blocks =
        vec![chart("IOPS", &Direction::iops), chart("MB/s", &|figures| figures.bytes_per_second() / 1e6)];
    Section { blocks, ..Section::new(THROUGHPUT) }
}

fn response(lines: &[Line<'_>]) -> Section {
    let mut blocks = Vec::new();
    for (word, title, tone) in [("read ", "Reads", Tone::Read), ("write ", "Writes", Tone::Write)] {
        let of_tone: Vec<&Line<'_>> = lines.iter().filter(|line| line.tone == tone).collect();
        for part in of_tone.chunks(SERIES_MAX) {
            let points: Vec<Vec<(f64, f64)>> =
                part.iter().map(|line| percentiles(&line.figures.response)).collect();
            // The chart's title says the direction already.
            let curves: Vec<Curve<'_>> = part
                .iter()
                .zip(&points)
                .map(|(line, points)| Curve { label: line.name.trim_start_matches(word), points })
                .collect();
            blocks.push(card(title, "by percentile", percentile_curves(title, &curves)));
        }
    }
    Section { blocks, ..Section::new("Response time") }
}

/// Per cent and nanoseconds, on a scale of nines up to four; ends where fewer than one I/O is left.
pub(crate) fn percentiles(latency: &Latency) -> Vec<(f64, f64)> {
    const STEPS: u32 = 64;
    let most = (latency.count() as f64).log10();
    let nines = (0..=STEPS).map(|step| 4.0 * f64::from(step) / f64::from(STEPS));
    let percents = nines.take_while(|&nines| nines <= most).map(|nines| 100.0 * (1.0 - 10f64.powf(-nines)));
    percents.map(|percent| (percent, latency.percentile(percent) as f64)).collect()
}

fn time(outcomes: &[Outcome]) -> Option<Section> {
    // Two points make a line, not a picture.
    let outcomes = outcomes.iter().filter(|outcome| outcome.series.points().len() > 2);
    let blocks: Vec<Block> = outcomes.filter_map(timeline).collect();
    (!blocks.is_empty()).then(|| Section { blocks, ..Section::new("Over time") })
}

/// A job's throughput, with a line for each direction; `None` where nothing was moved.
fn timeline(outcome: &Outcome) -> Option<Block> {
    let series = &outcome.series;
    let per_second = series.interval().as_secs_f64().recip();
    // Large blocks are about volume, small ones about number.
    let large = outcome.job.block_sizes.largest(outcome.job.mix) >= 64 << 10;
    let values = |of: fn(&Point) -> (u64, u64)| -> Vec<f64> {
        let value = |point| match (of(point), large) {
            ((_, bytes), true) => bytes as f64 * per_second / 1e6,
            ((ios, _), false) => ios as f64 * per_second,
        };
        series.points().iter().map(value).collect()
    };
    let reads = values(|point| (point.read_ios, point.read_bytes));
    let writes = values(|point| (point.write_ios, point.write_bytes));
    let line = |label, tone, values, figures: &Direction| {
        (figures.ios > 0).then_some(ChartLine { label, tone: Some(tone), values })
    };
    let lines: Vec<ChartLine<'_>> = [
        line("read", Tone::Read, &reads, &outcome.read),
        line("write", Tone::Write, &writes, &outcome.write),
    ]
    .into_iter()
    .flatten()
    .collect();
    let unit = if large { "MB/s" } else { "IOPS" };
    let chart = TimelineChart {
        unit,
        interval: series.interval(),
        lines: &lines,
        warm_up: Duration::ZERO,
        events: &[],
        level: None,
        wide: false,
    };
    (!lines.is_empty()).then(|| card(&outcome.job.name, unit, over_time(&chart)))
}

#[cfg(test)]
mod tests {
    use lunway_report::html;

    use super::*;
    use crate::load::access::Mix;
    use crate::load::job::Job;
    use crate::measure::series::Series;

    fn outcome(name: &str, mix: Mix) -> Outcome {
        let mut latency = Latency::default();
        (1..=1000).for_each(|n| latency.record(n * 1000));
        let moved = Direction {
            ios: 1000,
            bytes: 4_096_000,
            elapsed: Duration::from_secs(1),
            response: latency,
            ..Direction::default()
        };
        Outcome {
            job: Job { mix, ..Job::new(name) },
            read: if mix.reads() { moved.clone() } else { Direction::default() },
            write: if mix.writes() { moved } else { Direction::default() },
            elapsed: Duration::from_secs(1),
            series: Series::default(),
            cpu: CpuTime::default(),
            depth_mean: 1.0,
            depth_max: 1,
            end: End::Limit,
            abandoned: 0,
            overdue: 0,
            verification: None,
        }
    }

    #[test]
    fn names_and_errors_from_outside_stay_text() {
        let evil = "</script><script>alert('x')</script><img src=x>";
        let mut failed = outcome(evil, Mix { read_percent: 50 });
        failed.read.errors = 1;
        failed.read.first_error = Some(evil.into());
        let page = html(&document(evil, evil, &[failed]));
        assert_eq!(page.matches("<script").count(), 1, "only the data");
        assert!(!page.contains("<img"));
    }

    #[test]
    fn every_direction_is_two_measures_of_one_sample() {
        let document = document("A & B", "ram:1G", &[outcome("read 4K", Mix::READ)]);
        let measures: Vec<_> = document
            .measures
            .iter()
            .map(|m| (m.name.as_str(), m.unit.as_str(), m.samples.as_slice()))
            .collect();
        assert_eq!(measures, [("read 4K", "IOPS", &[1000.0][..]), ("read 4K", "ms", &[0.5005])]);
        assert_eq!(document.results["jobs"][0]["read"]["total_ios"], 1000);
    }

    #[test]
    fn a_report_of_nothing_is_still_a_page() {
        let page = html(&document("Nothing", "null:1G", &[]));
        assert!(page.contains("<h1>Nothing</h1>") && !page.contains("NaN"));
    }

    #[test]
    fn a_curve_ends_where_its_ios_end() {
        let mut latency = Latency::default();
        (1..=100).for_each(|n| latency.record(n * 1000));
        let points = percentiles(&latency);
        assert!((points.last().unwrap().0 - 99.0).abs() < 1e-9, "100 I/Os know two nines");
        assert!(points.windows(2).all(|pair| pair[0].1 <= pair[1].1));
    }
}
