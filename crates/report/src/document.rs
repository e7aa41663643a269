//! Content of a page.

use std::time::SystemTime;

use serde_json::Value;

/// Everything a page shows, in the order in which it shows it: verdicts, tiles, warnings, sections, where it was
/// measured, and the data.
///
/// A section that draws the topology comes last among the sections. Nothing here may hold a secret: a page is made to
/// be passed on.
#[derive(Clone, Debug)]
pub struct Document {
    /// Command that made it: `bench`, `compare`, `net` or `lab`.
    pub kind: &'static str,
    /// Heading.
    pub title: String,
    /// Subject of the measurement, as the user named it.
    pub subject: String,
    /// Time of creation.
    pub created: SystemTime,
    /// Results, each in a sentence.
    pub verdicts: Vec<Conclusion>,
    /// The few figures to see first.
    pub tiles: Vec<Tile>,
    /// Cautions for the reader, each a sentence.
    pub warnings: Vec<String>,
    /// Tables and charts.
    pub sections: Vec<Section>,
    /// Facts about the place, in order: [`environment`](crate::environment) and what the producer knows.
    pub environment: Vec<Fact>,
    /// Notes on the method that a reader must know.
    pub notes: Vec<String>,
    /// The figures that can be compared with those of another document.
    pub measures: Vec<Measure>,
    /// The producer's own data, embedded as it is.
    pub results: Value,
}

impl Document {
    /// A document made now, with nothing in it.
    pub fn new(kind: &'static str, title: impl Into<String>, subject: impl Into<String>) -> Self {
        Self {
            kind,
            title: title.into(),
            subject: subject.into(),
            created: SystemTime::now(),
            verdicts: Vec::new(),
            tiles: Vec::new(),
            warnings: Vec::new(),
            sections: Vec::new(),
            environment: Vec::new(),
            notes: Vec::new(),
            measures: Vec::new(),
            results: Value::Null,
        }
    }
}

/// Result, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conclusion {
    /// The sentence.
    pub text: String,
    /// Tone of the sentence.
    pub tone: VerdictTone,
}

/// Tone of a result: good news or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictTone {
    /// Faster; passed.
    Good,
    /// Slower; failed.
    Bad,
    /// No meaningful difference.
    Even,
    /// Cannot tell.
    Unknown,
}

impl VerdictTone {
    /// Its CSS class, which is its name in JSON too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Even => "even",
            Self::Unknown => "unknown",
        }
    }
}

/// One figure to see first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Label: "Fastest read".
    pub what: String,
    /// The figure, written out.
    pub value: String,
    /// Its unit; may be empty.
    pub unit: String,
    /// Source: the row, or the two figures that it is made of.
    pub of: String,
}

/// A heading with tables and charts. Neighbouring charts stand side by side where there is room.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Heading.
    pub heading: String,
    /// Sentences below the heading.
    pub prose: Vec<String>,
    /// Tables and charts, in order.
    pub blocks: Vec<Block>,
}

impl Section {
    /// A section with nothing in it.
    pub fn new(heading: impl Into<String>) -> Self {
        Self { heading: heading.into(), ..Self::default() }
    }
}

/// A part of a section.
#[derive(Clone, Debug)]
pub enum Block {
    /// A table.
    Table(Grid),
    /// A chart.
    Chart(Card),
}

/// A chart with its title.
#[derive(Clone, Debug)]
pub struct Card {
    /// Title: what the card shows.
    pub title: String,
    /// Unit or method, in softer ink after the title; may be empty.
    pub detail: String,
    /// Chart from a function of [`chart`](crate::chart).
    pub svg: String,
    /// Takes the whole width of the page, as a chart with a narrow and a broad drawing does.
    pub wide: bool,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Grid {
    /// The columns; the first names the row.
    pub columns: Vec<Column>,
    /// The rows, each with a cell for every column.
    pub rows: Vec<Row>,
    /// Meaning of the columns, below the table; may be empty.
    pub caption: String,
}

impl Grid {
    /// A table without rows.
    pub fn new(columns: Vec<Column>) -> Self {
        Self { columns, ..Self::default() }
    }
}

/// A column of a [`Grid`].
#[derive(Clone, Debug)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// Unit, below the heading; may be empty.
    pub unit: String,
    /// Figures are set to the right, words to the left.
    pub numeric: bool,
    /// Left out where there is little room, as on a phone.
    pub wide_only: bool,
}

impl Column {
    /// A column of words.
    pub fn words(name: impl Into<String>) -> Self {
        Self { name: name.into(), unit: String::new(), numeric: false, wide_only: false }
    }

    /// A column of figures.
    pub fn figures(name: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { name: name.into(), unit: unit.into(), numeric: true, wide_only: false }
    }

    /// The same, left out where there is little room.
    #[must_use]
    pub fn wide_only(self) -> Self {
        Self { wide_only: true, ..self }
    }
}

/// A row of a [`Grid`].
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Cells, one for each column.
    pub cells: Vec<Cell>,
    /// A stronger line above it: here begins another group.
    pub group: bool,
}

impl Row {
    /// A row of these cells.
    pub fn new(cells: impl IntoIterator<Item = Cell>) -> Self {
        Self { cells: cells.into_iter().collect(), group: false }
    }
}

/// A cell of a [`Grid`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Text of the cell.
    pub text: String,
    /// A coloured mark before it.
    pub mark: Option<Mark>,
}

impl Cell {
    /// A cell with a mark.
    pub fn marked(text: impl Into<String>, mark: Mark) -> Self {
        Self { text: text.into(), mark: Some(mark) }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), mark: None }
    }
}

/// A coloured mark. Its shape differs too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A verdict.
    Verdict(VerdictTone),
}

impl Mark {
    /// Its CSS class.
    pub fn class(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Verdict(tone) => tone.name(),
        }
    }
}

/// A fact about the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Its name: "Kernel". Two documents are compared by it.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Fact {
    /// A fact.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// A figure that can be compared with that of another document: the same name and unit mean the same thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Name of the measure: "read 4K QD16".
    pub name: String,
    /// "IOPS", "MB/s", "ms".
    pub unit: String,
    /// Direction that is better.
    pub better: Better,
    /// Independent repeats, in order. One run gives one, however long it was: what differs from run to run is seen only
    /// in several.
    pub samples: Vec<f64>,
}

/// Direction that is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Throughput.
    Higher,
    /// Time.
    Lower,
}

impl Better {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Higher => "higher",
            Self::Lower => "lower",
        }
    }
}
