//! Estimates, intervals and tests for measurements that are few, skewed and not to be trusted.
//!
//! Pure functions over slices of `f64`: no I/O, no clock, no random numbers. What comes in may be anything a
//! measurement or a file holds: values that are not finite are a caller's mistake that is answered with `None` (or an
//! empty list), never with a panic, and nothing takes more than O(n) memory, or O(n log n) time, beyond fixed limits
//! that each function names.
//!
//! Rank methods throughout, since storage measurements have stalls: one run ten times as slow moves a mean by whatever
//! it likes and a rank by one place.
//!
//! | question | answer |
//! |---|---|
//! | how large, how scattered? | [`mean`], [`median`], [`quantile`], [`mad`], [`geometric_mean`], [`standard_deviation`] |
//! | by how much do pairs differ? | [`paired::shift`]: Hodges–Lehmann, interval and p-value by Wilcoxon's signed ranks |
//! | by how much do two unpaired samples differ? | [`unpaired::shift`]: Hodges–Lehmann, interval and p-value by Mann–Whitney |
//! | which of many p-values hold together? | [`holm`] |
//! | which line? | [`least_squares`], [`theil_sen`] |
//! | does it drift? | [`mann_kendall`], [`spearman`] |
//! | do neighbours resemble each other? | [`autocorrelation`] |
//! | where does the level change? | [`changepoints`] |
//! | which values are odd? | [`outliers`]: to be shown, never dropped |

pub mod paired;
pub mod unpaired;

mod changepoint;
mod holm;
mod line;
mod normal;
mod order;
mod outlier;
mod summary;
mod trend;

pub use changepoint::{CHANGEPOINT_VALUES_MAX, changepoints};
pub use holm::holm;
pub use line::{Line, THEIL_SEN_POINTS_MAX, least_squares, theil_sen};
pub use normal::{normal_cdf, normal_quantile};
pub use order::{Interval, Shift};
pub use outlier::{OUTLIER_Z, modified_z, outliers};
pub use summary::{geometric_mean, mad, mean, median, quantile, standard_deviation};
pub use trend::{Trend, autocorrelation, mann_kendall, spearman};
