//! `lunway backup list` and `status`.

use std::path::Path;

use clap::Args;
use lunway_backup::Moment;
use lunway_block::size::HumanSize;
use lunway_repository::{Located, NamedPoints, Repository, Series, series_path};
use serde_json::{Value, json};

use super::store::{Listed, Listing, chain_listing, series_listing};
use super::{Destination, failed};
use crate::failure::Failure;
use crate::terminal;

/// List the points of a destination, or the series of a repository
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup list /mnt/share/server1
  lunway backup list /mnt/share/server1 --json")]
pub(super) struct List {
    #[command(flatten)]
    destination: Destination,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

/// Show the state of a destination, or of all series of a repository: newest point, space, verification, damage
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup status /mnt/share/server1
  lunway backup status /mnt/share/server1 --json
  lunway backup status /mnt/share/repo")]
pub(super) struct Status {
    #[command(flatten)]
    destination: Destination,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn time(point: &Listed) -> String {
    point.facts.time.map_or_else(|| "-".to_owned(), |time| Moment(time).to_string())
}

pub(super) fn point_json(point: &Listed) -> Value {
    json!({
        "point": point.facts.point.to_string(),
        "generation": point.facts.generation,
        "time": point.facts.time,
        "kind": point.facts.kind.name(),
        "why": point.facts.why,
        "parent": point.facts.parent.map(|parent| parent.to_string()),
        "source": point.facts.source,
        "level": point.facts.level,
        "epoch": point.facts.epoch,
        "virtual_bytes": point.facts.virtual_bytes,
        "changed_bytes": point.facts.changed_bytes,
        "read_bytes": point.facts.read_bytes,
        "sent_bytes": point.facts.sent_bytes,
        "stored_bytes": point.facts.stored_bytes,
        "skipped_bytes": point.facts.skipped_bytes,
        "file": point.file,
        "state": point.state,
    })
}

/// Series whose folders are gone. Those that are there are remembered, so that this user is told of them.
pub(super) fn missing_series(
    repository: &Repository,
    there: &[NamedPoints],
) -> Result<Vec<NamedPoints>, Failure> {
    if let Err(error) = repository.remember_listed(there) {
        let what = format!("a series whose folder is moved away will not be told to this user: {error}");
        eprintln!("{}", terminal::clean(&what));
    }
    repository.missing_series(there).map_err(failed)
}

impl Listing {
    /// Of a destination.
    pub(super) fn of(destination: &Destination) -> Result<Self, Failure> {
        let listing = match destination.series(false)? {
            Some(series) => series_listing(&series, series.points().map_err(failed)?)?,
            None => chain_listing(&*destination.open()?)?,
        };
        listing.warn();
        Ok(listing)
    }

    /// Of each series of a repository that has points, or should have some, by its name. One whose first run is under
    /// way has none yet.
    pub(super) fn of_series(repository: &Repository) -> Result<Vec<(String, Self)>, Failure> {
        let all = repository.all_points().map_err(failed)?;
        let missing = missing_series(repository, &all)?;
        let (mut series, mut told) = (Vec::new(), Vec::new());
        for (name, points) in all {
            if !points.is_empty() {
                let one = Series::of(repository.clone(), &name, false).map_err(failed)?;
                series.push((name, series_listing(&one, points)?));
            } else if !points.warnings().is_empty() {
                told.push((name, points));
            }
        }
        for (name, points) in told.into_iter().chain(missing) {
            let folder = series_path(Path::new(&repository.show()), &name);
            series.push((name, Self::without_points(&folder, &points)));
        }
        series.iter().for_each(|(_, listing)| listing.warn());
        Ok(series)
    }

    /// Says what cannot be listed.
    fn warn(&self) {
        for unreadable in &self.unreadable {
            eprintln!("{}", terminal::clean(&unreadable.to_string()));
        }
        for warning in &self.warnings {
            eprintln!("{}", terminal::clean(warning));
        }
    }

    /// The newest point that was verified.
    pub(super) fn verified(&self) -> Option<&Listed> {
        self.points.iter().rev().find(|point| point.is_verified)
    }

    pub(super) fn sum(&self, bytes: impl Fn(&Listed) -> u64) -> u64 {
        self.points.iter().map(bytes).sum()
    }
}

impl List {
    pub(super) fn run(self) -> Result<(), Failure> {
        if let Located::Repository(path) = self.destination.located()? {
            return self.series_of(&self.destination.repository(&path)?);
        }
        let listing = Listing::of(&self.destination)?;
        let points = listing.points.iter();
        if self.json {
            return terminal::print_json(&points.map(point_json).collect::<Vec<_>>());
        }
        let rows: Vec<_> = points
            .map(|point| {
                [
                    point.facts.point.to_string(),
                    time(point),
                    point.facts.kind.name().to_owned(),
                    HumanSize(point.facts.virtual_bytes).to_string(),
                    HumanSize(point.facts.stored_bytes).to_string(),
                    point.state.to_owned(),
                ]
            })
            .collect();
        let headings = ["POINT", "TIME", "KIND", "DISK", "STORED", "STATE"];
        let empty = if listing.unreadable.is_empty() { "no point yet" } else { "no point that can be read" };
        let mut text = terminal::table(headings, &rows, empty);
        if listing.incomplete > 0 {
            text += "\nOne more point is incomplete: the next run continues it.";
        }
        terminal::print(&text)
    }

    /// The series of a repository.
    fn series_of(&self, repository: &Repository) -> Result<(), Failure> {
        let mut all = repository.all_points().map_err(failed)?;
        all.extend(missing_series(repository, &all)?);
        for warning in all.iter().flat_map(|(_, points)| points.warnings()) {
            eprintln!("{}", terminal::clean(&warning));
        }
        if self.json {
            let series = all.iter().map(|(name, points)| {
                json!({
                    "series": name,
                    "points": points.points().len(),
                    "newest": points.newest().map(|newest| newest.point.to_string()),
                    "time": points.newest().and_then(|newest| newest.time),
                    "virtual_bytes": points.newest().map(|newest| newest.virtual_bytes),
                    "source": points.newest().map(|newest| newest.source.clone()),
                    "warnings": points.warnings(),
                })
            });
            return terminal::print_json(&series.collect::<Vec<_>>());
        }
        let rows: Vec<_> = all
            .iter()
            .map(|(name, points)| {
                let newest = points.newest();
                let time = newest.and_then(|newest| newest.time);
                [
                    terminal::clean(name),
                    points.points().len().to_string(),
                    time.map_or_else(|| "-".to_owned(), |time| Moment(time).to_string()),
                    newest
                        .map_or_else(|| "-".to_owned(), |newest| HumanSize(newest.virtual_bytes).to_string()),
                    newest.map_or_else(String::new, |newest| terminal::clean(&newest.source)),
                ]
            })
            .collect();
        terminal::print(&terminal::table(
            ["SERIES", "POINTS", "NEWEST", "DISK", "SOURCE"],
            &rows,
            "no series yet",
        ))
    }
}

impl Status {
    /// All series of a repository.
    fn of_repository(&self, repository: &Repository) -> Result<(), Failure> {
        let series = Listing::of_series(repository)?;
        let sum = |of: fn(&Listing) -> u64| series.iter().map(|(_, listing)| of(listing)).sum::<u64>();
        let points = sum(|listing| listing.points.len() as u64);
        let stored = sum(|listing| listing.sum(|point| point.facts.stored_bytes));
        let damage = sum(|listing| listing.damage as u64);
        if self.json {
            let one = |(name, listing): &(String, Listing)| {
                json!({
                    "series": name,
                    "points": listing.points.len(),
                    "newest": listing.points.last().map(point_json),
                    "newest_verified": listing.verified().map(|point| point.facts.point.to_string()),
                    "stored_bytes": listing.sum(|point| point.facts.stored_bytes),
                    "damage": listing.damage,
                    "warnings": listing.warnings,
                })
            };
            return terminal::print_json(&json!({
                "folder": repository.show(),
                "repository": repository.marker().repository,
                "encrypted": repository.marker().encrypted,
                "points": points,
                "stored_bytes": stored,
                "damage": damage,
                "series": series.iter().map(one).collect::<Vec<_>>(),
            }));
        }
        let row = |(name, listing): &(String, Listing)| {
            let newest = listing.points.last();
            [
                terminal::clean(name),
                listing.points.len().to_string(),
                newest.map_or_else(|| "-".to_owned(), time),
                HumanSize(listing.sum(|point| point.facts.stored_bytes)).to_string(),
                listing.verified().map_or_else(|| "none".to_owned(), time),
                if listing.damage == 0 { "none known".to_owned() } else { listing.damage.to_string() },
            ]
        };
        let rows: Vec<_> = series.iter().map(row).collect();
        let headings = ["SERIES", "POINTS", "NEWEST", "STORED", "VERIFIED", "DAMAGE"];
        let table = terminal::table(headings, &rows, "no series yet");
        let readers = if repository.marker().encrypted { "encrypted" } else { "not encrypted" };
        let points = terminal::counted(points as usize, "point");
        terminal::print(&format!("{table}\n{points}, {} stored, {readers}", HumanSize(stored)))
    }

    pub(super) fn run(self) -> Result<(), Failure> {
        if let Located::Repository(path) = self.destination.located()? {
            return self.of_repository(&self.destination.repository(&path)?);
        }
        let listing = Listing::of(&self.destination)?;
        let stored = listing.sum(|point| point.facts.stored_bytes);
        let (newest, verified) = (listing.points.last(), listing.verified());
        if self.json {
            return terminal::print_json(&json!({
                "folder": listing.folder,
                "source": newest.map(|newest| newest.facts.source.clone()),
                "points": listing.points.len(),
                "newest": newest.map(point_json),
                "newest_verified": verified.map(|point| point.facts.point.to_string()),
                "chain_files": listing.chain_files,
                "stored_bytes": stored,
                "incomplete": listing.incomplete,
                "damage": listing.damage,
                "warnings": listing.warnings,
            }));
        }
        let Some(newest) = newest else {
            let left =
                if listing.incomplete > 0 { ", and an incomplete one: run the backup again" } else { "" };
            return terminal::print(&format!("no point yet{left}"));
        };
        let rows = [
            ("source", newest.facts.source.clone()),
            ("points", format!("{}, {} stored", listing.points.len(), HumanSize(stored))),
            (
                "newest",
                match listing.chain_files {
                    Some(links) => {
                        format!(
                            "{} of {}, {} of {}",
                            newest.facts.point,
                            time(newest),
                            newest.facts.kind.name(),
                            terminal::counted(links, "file")
                        )
                    }
                    None => {
                        format!("{} of {}, {}", newest.facts.point, time(newest), newest.facts.kind.name())
                    }
                },
            ),
            (
                "its run",
                format!(
                    "{} changed, {} read, {} sent",
                    HumanSize(newest.facts.changed_bytes),
                    HumanSize(newest.facts.read_bytes),
                    HumanSize(newest.facts.sent_bytes)
                ),
            ),
            ("why", terminal::clean(&newest.facts.why)),
            (
                "verified",
                verified.map_or_else(
                    || "none: `lunway backup verify`".to_owned(),
                    |point| format!("{} of {}", point.facts.point, time(point)),
                ),
            ),
            (
                "incomplete",
                match listing.incomplete {
                    0 => "none".to_owned(),
                    _ => "one point: the next run continues it".to_owned(),
                },
            ),
            (
                "damage",
                match listing.damage {
                    0 => "none known".to_owned(),
                    count => {
                        format!("{count}: `lunway backup verify` names it, the next run repairs what it can")
                    }
                },
            ),
        ];
        terminal::print(&terminal::columns(rows))
    }
}
