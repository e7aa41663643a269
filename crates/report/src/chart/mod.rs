//! Charts as inline SVG, drawn here from plain data: no script, no external resource, the same on paper.
//!
//! A chart for a column is [`COLUMN`] units wide and scales with it, so a unit is a little less than a pixel on a
//! narrow phone and a little more on a desk: text of 12 units is legible at both. A chart that wants the whole width of
//! a page is drawn twice, for [`COLUMN`] and for [`BROAD`] units, and the page shows the drawing that fits: scaling one
//! alone would make its text tiny on a phone.
//!
//! Colours are CSS classes (`read`, `write`, `s0` … `s7`, `good`, `bad`, `even`, `unknown`), defined by the page once
//! for light and once for dark. Nothing is told by colour alone: lines differ by dash pattern too, verdicts by their
//! word, cells of a heat map hold their figure.
//!
//! Values that are no numbers are gaps. Labels that do not fit are cut; what a reader needs whole is in the table
//! beside the chart.

mod axis;
mod bars;
mod curves;
mod forest;
mod heat;
mod legend;
mod series;
mod steady;
mod strip;
mod svg;
mod time;
mod topology;
mod zones;

pub use axis::{linear_ticks, log_ticks, short, short_ns, signed_ticks};
pub use bars::{Bar, bars};
pub use curves::{Curve, percentile_curves};
pub use forest::{Estimate, forest};
pub use heat::{HeatMap, heat};
pub use steady::{Rounds, steady};
pub use strip::{Strip, strip};
pub use svg::escape;
pub use time::{ChartLine, Event, TimelineChart, over_time};
pub use topology::{Cable, CableState, End, Host, Port, Side, Switch, Topology, topology};
pub use zones::{Zones, zones};

use svg::Svg;

/// Width of a chart for a column, and of the narrow drawing of a broad one, in units of its view box.
pub const COLUMN: f64 = 360.0;
/// Width of the broad drawing of a chart that takes the whole page.
pub const BROAD: f64 = 800.0;
/// Most lines of one chart: as many colours and dash patterns as can be told apart.
pub const SERIES_MAX: usize = 8;

/// Direction that an element shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

impl Tone {
    /// The CSS class.
    pub fn class(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// A chart for the whole width: both drawings, of which the page shows one.
fn both(draw: impl Fn(f64) -> Svg) -> String {
    let slim = draw(COLUMN).finish("slim");
    slim + &draw(BROAD).finish("broad")
}
