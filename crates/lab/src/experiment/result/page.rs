//! Results for a browser.

use lunway_block::duration::ExactDuration;
use lunway_report::chart::{self, CableState, ChartLine, Event, TimelineChart};
use lunway_report::{
    Better, Block, Card, Cell, Column, Document, Fact, Grid, Mark, Measure, Row, Section, Tile, VerdictTone,
    environment, figure,
};

use crate::experiment::plan::run::{BackupRun, Incident, RunWork};
use crate::experiment::result::results::{Compared, ResultCell, ResultRow, Results, Sample};
use crate::experiment::result::text::{Matrix, headline};
use crate::topology::{End, Topology};

impl Results {
    /// The page: verdicts, figures, tables, throughput over time with what happened meanwhile, matrices, the network
    /// drawn.
    pub fn document(&self) -> Document {
        let experiment = &self.experiment;
        let mut document =
            Document::new("lab", experiment.title.clone(), format!("lunway lab run {}", experiment.name));
        document.verdicts = self.told_verdicts().map(|(_, verdict)| verdict.clone()).collect();
        document.tiles = self.tiles();
        document.warnings = self.warnings();
        let mut sections = vec![self.about()];
        if !self.rows.is_empty() {
            sections.push(self.rows_section());
        }
        sections.extend(self.timelines());
        sections.extend(self.matrices().iter().map(matrix_section));
        sections.extend(self.comparisons.iter().flat_map(compared_sections));
        sections.extend(self.backups_section());
        sections.extend(self.backup_timelines());
        sections.push(self.network());
        document.sections = sections;
        document.environment = environment();
        document.environment.extend(self.facts());
        document.notes = self.notes.clone();
        document.measures = self.measures();
        document.results = self.to_json();
        document
    }

    fn tiles(&self) -> Vec<Tile> {
        let tile = |(name, value): &(String, f64)| Tile {
            what: name.replace('_', " "),
            value: headline(*value),
            unit: String::new(),
            of: self
                .experiment
                .figures
                .iter()
                .find(|figure| figure.name == *name)
                .map_or(String::new(), |figure| figure.value.text().to_owned()),
        };
        self.figures.iter().take(8).map(tile).collect()
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.interrupted {
            warnings.push("Interrupted: the results cover the completed part.".to_owned());
        }
        let limited: Vec<String> = self
            .rows
            .iter()
            .filter(|row| row.limited())
            .map(|row| format!("{} {}", row.test, row.rw))
            .chain(
                self.cells
                    .iter()
                    .filter(|cell| cell.limited)
                    .map(|cell| format!("{} {}", cell.test, cell.name())),
            )
            .chain(self.backups.iter().filter(|row| row.is_limited()).map(|row| row.test.clone()))
            .collect();
        if !limited.is_empty() {
            warnings.push(format!(
                "Limited by the processor, not by the network, and not counted: {}.",
                limited.join(", ")
            ));
        }
        warnings
    }

    fn about(&self) -> Section {
        Section { prose: vec![self.experiment.about.replace('\n', " ")], ..Section::new("What this is") }
    }

    fn rows_section(&self) -> Section {
        let mut grid = Grid::new(vec![
            Column::words("Test"),
            Column::words("Topology").wide_only(),
            Column::words("Policy").wide_only(),
            Column::words("I/O"),
            Column::figures("Response", "ms"),
            Column::figures("Moved", "MB").wide_only(),
            Column::figures("IOPS", ""),
            Column::figures("Throughput", "MB/s"),
            Column::figures("Deviance", "% of control"),
            Column::words("").wide_only(),
        ]);
        grid.rows = self.rows.iter().map(grid_row).collect();
        grid.caption =
            "Medians of the repeats that count. MB = 1,000,000 bytes. Deviance: MB/s against the control of \
                        the same repeat."
                .to_owned();
        Section { blocks: vec![Block::Table(grid)], ..Section::new("Results") }
    }

    /// The last repeat of each measurement: where something happened, all of them would show the same. Of runs in which
    /// nothing happens, the first policy stands for the others.
    fn timelines(&self) -> Option<Section> {
        let mut section = Section::new("Throughput over time");
        for row in self.rows.iter().filter(|row| !row.timeline_is_of_other_row()) {
            let Some(sample) = row.samples.last() else { continue };
            let run = self.experiment.runs.iter().find(|run| run.test == row.test);
            let stands_for_others = run.is_none_or(|run| run.policies.first() == Some(&row.policy));
            let drawn = sample.timeline.paths.iter().any(|(_, values)| values.len() > 1);
            if drawn && (stands_for_others || !sample.timeline.events.is_empty()) {
                section.blocks.push(Block::Chart(self.timeline(row, sample)));
            }
        }
        if section.blocks.is_empty() { None } else { Some(section) }
    }

    fn timeline(&self, row: &ResultRow, sample: &Sample) -> Card {
        let lines: Vec<ChartLine<'_>> = sample
            .timeline
            .paths
            .iter()
            .map(|(label, values)| ChartLine { label, tone: None, values })
            .collect();
        let events: Vec<Event<'_>> =
            sample.timeline.events.iter().map(|event| Event { at: event.at, label: &event.what }).collect();
        let svg = chart::over_time(&TimelineChart {
            unit: "MB/s",
            interval: sample.timeline.interval,
            lines: &lines,
            warm_up: std::time::Duration::ZERO,
            events: &events,
            level: self.level(row),
            wide: true,
        });
        let repeat = sample.repeat + 1;
        Card {
            title: format!("{}, path by path", row.measurement()),
            detail: format!("MB/s, repeat {repeat}"),
            svg,
            wide: true,
        }
    }

    /// Returns the throughput that each path of a row carries alone, if it is the same for all.
    fn level(&self, row: &ResultRow) -> Option<(f64, &'static str)> {
        let run = self.experiment.runs.iter().find(|run| run.test == row.test)?;
        let of = |path: &crate::experiment::RunPath| self.links.iter().find(|link| link.name == path.leaves);
        let first = of(run.paths.first()?)?;
        let same = run.paths.iter().all(|path| of(path).is_some_and(|link| link.rate == first.rate));
        same.then_some((first.calibrated_mb_s, "calibrated link"))
    }

    fn network(&self) -> Section {
        let mut section = Section::new("The network");
        section.prose.push(format!(
            "Built on one machine of namespaces, each host with a network stack of its own; every cable shaped in both directions \
             and calibrated before anything was measured. TCP used {}.",
            self.congestion_control
        ));
        let drawn = chart::topology(&drawn(&self.topology, &self.disturbed(), &self.shares()));
        section.blocks.push(Block::Chart(Card {
            title: "Topology".to_owned(),
            detail: String::new(),
            svg: drawn,
            wide: true,
        }));
        let mut grid = Grid::new(vec![
            Column::words("Link"),
            Column::figures("Rate", ""),
            Column::figures("MTU", "bytes"),
            Column::figures("Delay", "each way"),
            Column::figures("Expected", "MB/s").wide_only(),
            Column::figures("Calibrated", "MB/s"),
        ]);
        grid.rows = self
            .links
            .iter()
            .map(|link| {
                Row::new([
                    Cell::from(link.name.clone()),
                    link.rate.map_or("–".to_owned(), |rate| rate.to_string()).into(),
                    link.mtu.to_string().into(),
                    ExactDuration(link.delay).to_string().into(),
                    link.expected_mb_s.map_or("–".to_owned(), figure).into(),
                    figure(link.calibrated_mb_s).into(),
                ])
            })
            .collect();
        grid.caption = "Payload of one TCP stream in the slower direction.".to_owned();
        section.blocks.push(Block::Table(grid));
        section
    }

    /// Cables that something happened to.
    fn disturbed(&self) -> Vec<&str> {
        let runs = || self.experiment.runs.iter();
        let storages = runs().filter_map(|run| match &run.measure {
            RunWork::Storage(storage) => Some(storage),
            _ => None,
        });
        let cut = runs().filter_map(|run| match &run.measure {
            RunWork::Backup(BackupRun { cut: Some(_), .. }) => {
                run.paths.first().map(|path| path.leaves.as_str())
            }
            _ => None,
        });
        let incidents = storages.flat_map(|storage| &storage.events).map(|event| &event.incident);
        incidents
            .filter_map(|incident| match incident {
                Incident::Cable(action) => Some(action.cable()),
                Incident::Stop(_) | Incident::Start(_) => None,
            })
            .chain(cut)
            .collect()
    }

    /// Hosts that have a share.
    fn shares(&self) -> Vec<&str> {
        let runs = self.experiment.runs.iter();
        let backups = runs.filter(|run| matches!(run.measure, RunWork::Backup(_)));
        backups.map(|run| run.target.as_str()).collect()
    }

    fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![
            Fact::new("TCP congestion control in the lab", self.congestion_control),
            Fact::new("Repeats", self.experiment.repeat.to_string()),
        ];
        let busiest = self.rows.iter().flat_map(|row| &row.samples);
        if let Some(sample) = busiest.max_by(|a, b| a.cpu.mean.total_cmp(&b.cpu.mean)) {
            facts.push(Fact::new("Processor at its busiest", sample.cpu.to_string()));
        }
        facts
    }

    fn measures(&self) -> Vec<Measure> {
        let rows = self.rows.iter().flat_map(|row| {
            let name = format!("{} {} {}", row.test, row.policy, row.rw).replace(" - ", " ");
            let samples = |of: fn(&Sample) -> f64| row.counting().map(of).collect::<Vec<f64>>();
            let measure = |unit: &str, better, samples| Measure {
                name: name.clone(),
                unit: unit.to_owned(),
                better,
                samples,
            };
            [
                measure("MB/s", Better::Higher, samples(|sample| sample.mb_s)),
                measure("ms", Better::Lower, samples(|sample| sample.response_ms)),
            ]
        });
        let cells = self.cells.iter().filter(|cell| cell.counts()).map(|cell| Measure {
            name: format!("{} {} {}", cell.test, cell.name(), cell.rw),
            unit: "MB/s".to_owned(),
            better: Better::Higher,
            samples: cell.samples.clone(),
        });
        rows.chain(cells)
            .chain(self.backup_measures())
            .filter(|measure| !measure.samples.is_empty())
            .collect()
    }
}

fn grid_row(row: &ResultRow) -> Row {
    let mark = if row.rw.contains("write") { Mark::Write } else { Mark::Read };
    let test = match row.counts() {
        true => Cell::from(row.test.clone()),
        false => Cell::marked(row.test.clone(), Mark::Verdict(VerdictTone::Unknown)),
    };
    Row::new([
        test,
        row.topology.clone().into(),
        row.policy.clone().into(),
        Cell::marked(row.rw, mark),
        figure(row.median(|sample| sample.response_ms)).into(),
        figure(row.median(|sample| sample.mb)).into(),
        figure(row.median(|sample| sample.iops)).into(),
        figure(row.median(|sample| sample.mb_s)).into(),
        row.deviance_text().into(),
        row.remark().into(),
    ])
}

/// The sections of a comparison's own page.
fn compared_sections(compared: &Compared) -> Vec<Section> {
    let page = compared.comparison.document(&compared.test, "");
    let mut sections = page.sections;
    for section in &mut sections {
        section.heading = format!("{}, {}: {}", compared.test, compared.topology, section.heading);
    }
    if let Some(first) = sections.first_mut() {
        first.prose.extend(page.verdicts.into_iter().map(|verdict| verdict.text));
        first.prose.extend(page.warnings);
        let limited = compared.limited_rows();
        if !limited.is_empty() {
            first.prose.push(format!("Limited by the processor, and not counted: {}.", limited.join(", ")));
        }
    }
    sections
}

fn matrix_section(matrix: &Matrix<'_>) -> Section {
    let mut section = Section::new(matrix.title());
    let columns: Vec<String> = matrix.mtus.iter().map(u32::to_string).collect();
    let values: Vec<Vec<f64>> = matrix
        .windows
        .iter()
        .map(|window| {
            let cell = |mtu: &u32| matrix.cell(window, *mtu).map_or(f64::NAN, ResultCell::mb_s);
            matrix.mtus.iter().map(cell).collect()
        })
        .collect();
    section.blocks.push(Block::Chart(Card {
        title: "TCP window × MTU".to_owned(),
        detail: "MB/s".to_owned(),
        svg: chart::heat(&chart::HeatMap {
            row_title: "window",
            column_title: "MTU",
            unit: "MB/s",
            rows: &matrix.windows,
            columns: &columns,
            values: &values,
        }),
        wide: true,
    }));
    section
}

/// The network as the chart has it: who reads and writes on the left, who serves on the right.
fn drawn(topology: &Topology, disturbed: &[&str], shares: &[&str]) -> chart::Topology {
    let addresses = topology.addresses();
    let mut hosts: Vec<chart::Host> = topology
        .hosts
        .iter()
        .map(|host| chart::Host {
            name: host.name.clone(),
            detail: host.luns.join(" · "),
            ports: Vec::new(),
            side: match host.luns.is_empty() && !shares.contains(&host.name.as_str()) {
                true => chart::Side::Left,
                false => chart::Side::Right,
            },
        })
        .collect();
    let mut cables = Vec::new();
    for cable in &topology.cables {
        let mut ends = cable.ends.iter().map(|end| match end {
            End::Switch(name) => chart::End::Switch(
                topology.switches.iter().position(|switch| switch.name == *name).unwrap_or(0),
            ),
            End::Card { host, card } => {
                let index = topology.hosts.iter().position(|other| other.name == *host).unwrap_or(0);
                let address = addresses.get(end).map_or(String::new(), ToString::to_string);
                hosts[index].ports.push(chart::Port { name: card.clone(), address });
                chart::End::Port(index, hosts[index].ports.len() - 1)
            }
        });
        let (Some(one), Some(other)) = (ends.next(), ends.next()) else { continue };
        let mut detail = vec![cable.rate.map_or("unshaped".to_owned(), |rate| rate.to_string())];
        detail.push(format!("MTU {}", cable.mtu));
        detail.extend(cable.delay.map(|delay| format!("delay {}", ExactDuration(delay))));
        detail.extend(cable.loss.map(|loss| format!("loss {loss}")));
        cables.push(chart::Cable {
            name: cable.name.clone(),
            ends: [one, other],
            detail: detail.join(", "),
            state: if disturbed.contains(&cable.name.as_str()) {
                CableState::Disturbed
            } else {
                CableState::Up
            },
        });
    }
    let switches = topology.switches.iter().map(|switch| chart::Switch { name: switch.name.clone() });
    chart::Topology { hosts, switches: switches.collect(), cables }
}
