//! A matrix, as cells that are coloured by their value.

use super::axis::short;
use super::svg::{CHARACTER, Svg, TEXT, fit, width_of};
use super::{BROAD, both};

/// A matrix.
#[derive(Clone, Copy, Debug)]
pub struct HeatMap<'a> {
    /// Title of the rows: "window".
    pub row_title: &'a str,
    /// Title of the columns: "MTU".
    pub column_title: &'a str,
    /// Unit of the values.
    pub unit: &'a str,
    /// Names of the rows.
    pub rows: &'a [String],
    /// Names of the columns.
    pub columns: &'a [String],
    /// For each row, a value for each column; what is missing or no number is a dash.
    pub values: &'a [Vec<f64>],
}

/// Steps of the scale, as many as the page has colours `h0` … `h6` for.
const STEPS: usize = 7;
const ROW: f64 = 30.0;
const GAP: f64 = 2.0;
/// Least width of a cell: four figures with a decimal point and a unit.
const CELL_MIN: f64 = 6.0 * CHARACTER;
/// Most width of a cell.
const CELL_MAX: f64 = 120.0;
/// Height of a line of headings.
const HEADING: f64 = 17.0;

/// A heat map of `matrix`, its value in each cell, on a scale from 0 that stands below it. Columns that do not fit
/// beside each other go on in another band below.
pub fn heat(matrix: &HeatMap<'_>) -> String {
    both(|width| draw(matrix, width))
}

fn draw(matrix: &HeatMap<'_>, width: f64) -> Svg {
    let names = matrix.rows.iter().map(|name| width_of(name)).fold(width_of(matrix.row_title), f64::max);
    let left = names.min(width * 0.3) + 10.0;
    let heads = matrix.columns.iter().map(|name| width_of(name) + 6.0).fold(CELL_MIN, f64::max);
    let room = width - left;
    let least = heads.min(if width >= BROAD { CELL_MAX } else { 11.0 * CHARACTER });
    let most = ((room / least) as usize).max(1);
    let bands = matrix.columns.len().div_ceil(most).max(1);
    let per_band = matrix.columns.len().div_ceil(bands).max(1);
    let cell = (room / per_band as f64).min(CELL_MAX);
    let band_height = 2.0 * HEADING + matrix.rows.len() as f64 * ROW + 12.0;
    let all = matrix.values.iter().flatten().copied().filter(|value| value.is_finite());
    let highest = all.fold(0.0, f64::max);
    let height = bands as f64 * band_height + 40.0;
    let label = format!("{} by {} and {}", matrix.unit, matrix.row_title, matrix.column_title);
    let mut svg = Svg::new(width, height, &label);

    for band in 0..bands {
        let top = band as f64 * band_height;
        let columns = (band * per_band)..((band + 1) * per_band).min(matrix.columns.len());
        let middle = left + cell * columns.len() as f64 / 2.0;
        svg.text(
            middle,
            top + HEADING - 5.0,
            "tick mid",
            &fit(matrix.column_title, cell * columns.len() as f64),
        );
        svg.text(left - 8.0, top + 2.0 * HEADING - 5.0, "tick end", &fit(matrix.row_title, left - 8.0));
        for (place, column) in columns.clone().enumerate() {
            let name = fit(&matrix.columns[column], cell - 2.0);
            svg.text(left + (place as f64 + 0.5) * cell, top + 2.0 * HEADING - 5.0, "mid", &name);
        }
        for (row, name) in matrix.rows.iter().enumerate() {
            let y = top + 2.0 * HEADING + row as f64 * ROW;
            let text = y + (ROW - GAP) / 2.0 + TEXT * 0.36;
            svg.text(left - 8.0, text, "end", &fit(name, left - 8.0));
            for (place, column) in columns.clone().enumerate() {
                let value = matrix.values.get(row).and_then(|values| values.get(column)).copied();
                let value = value.unwrap_or(f64::NAN);
                let x = left + place as f64 * cell;
                let hint = format!("{name}, {}: {} {}", matrix.columns[column], short(value), matrix.unit);
                let (cell_class, text_class) = match step(value, highest) {
                    Some(step) => (format!("h{step}"), format!("mid t{step}")),
                    None => ("none".into(), "mid soft".into()),
                };
                svg.rect((x, y), (cell - GAP, ROW - GAP), &cell_class, &hint);
                svg.text(x + (cell - GAP) / 2.0, text, &text_class, &fit(&short(value), cell));
            }
        }
    }
    scale(&mut svg, (left, bands as f64 * band_height + 6.0), width - left, (highest, matrix.unit));
    svg
}

/// The colours with what they mean.
fn scale(svg: &mut Svg, (left, top): (f64, f64), room: f64, (highest, unit): (f64, &str)) {
    let width = room.min(300.0) / STEPS as f64;
    for step in 0..STEPS {
        svg.rect((left + step as f64 * width, top), (width - 1.0, 9.0), &format!("h{step}"), "");
    }
    svg.text(left, top + 24.0, "tick", "0");
    let end = format!("{} {unit}", short(highest));
    svg.text(left + STEPS as f64 * width, top + 24.0, "tick end", &end);
}

fn step(value: f64, highest: f64) -> Option<usize> {
    if !value.is_finite() {
        return None;
    }
    let share = if highest > 0.0 { (value / highest).clamp(0.0, 1.0) } else { 0.0 };
    Some(((share * STEPS as f64) as usize).min(STEPS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_do_not_fit_go_on_below_and_every_value_is_there() {
        let columns: Vec<String> = (0..12).map(|n| format!("MTU {n}000")).collect();
        let rows = ["64K".to_owned(), "auto".to_owned()];
        let values = vec![(0..12).map(|n| f64::from(n) + 100.0).collect(), vec![f64::NAN; 3]];
        let matrix = HeatMap {
            row_title: "window",
            column_title: "MTU",
            unit: "MB/s",
            rows: &rows,
            columns: &columns,
            values: &values,
        };
        let svg = heat(&matrix);
        for n in 0..12 {
            assert_eq!(svg.matches(&format!(">{}</text>", n + 100)).count(), 2, "once in each drawing");
        }
        assert!(!svg.contains("NaN"));
        assert_eq!(svg.matches(">–</text>").count(), 24);
    }

    #[test]
    fn the_scale_begins_at_zero_and_its_end_has_the_last_colour() {
        assert_eq!([0.0, 14.2, 50.0, 99.0, 100.0].map(|value| step(value, 100.0).unwrap()), [0, 0, 3, 6, 6]);
        assert_eq!(step(0.0, 0.0), Some(0));
        assert_eq!(step(f64::NAN, 100.0), None);
    }
}
