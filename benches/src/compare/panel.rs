//! One case: time over size on logarithmic axes, and beneath it the ratios.

use std::collections::BTreeMap;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::picture::{FINE, GREY, INK, LIMIT, Look, OURS, look, mark, text};
use super::rounds::Measured;
use super::sizes;
use super::statistics::{NOISE, Summary};
use crate::limits::Limits;

/// What drawing returns.
pub type Drawn = Result<(), Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const GRID: RGBColor = RGBColor(0xdd, 0xe1, 0xe7);
const BAND: RGBColor = RGBColor(0xec, 0xee, 0xf2);
/// Pixels within a panel: left of the axes, right of them, above the times, between times and ratios, below.
const LEFT: i32 = 86;
const RIGHT: i32 = 24;
const ABOVE: i32 = 40;
const BETWEEN: i32 = 30;
const BELOW: i32 = 46;
/// Height of the ratios.
const RATIOS: i32 = 170;
/// Ratios beyond this, and under one over it, are drawn at the edge.
const WIDEST: f64 = 20.0;
/// Between the ratios of two peers at the same size.
const APART: i32 = 6 * FINE;
/// At most so many sizes have a label.
const LABELS: usize = 8;

/// What is drawn where. All in units of a quarter pixel.
pub struct Panel<'a> {
    measured: &'a Measured,
    bounds: BTreeMap<u64, f64>,
    at: (i32, i32),
    sizes: Axis,
    times: Axis,
    ratios: Axis,
}

/// A logarithmic axis.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Axis {
    least: f64,
    most: f64,
    from: i32,
    to: i32,
}

impl Axis {
    /// Where `value` is; at the edge if it lies beyond.
    fn place(&self, value: f64) -> i32 {
        let part = (value / self.least).ln() / (self.most / self.least).ln();
        self.from + (f64::from(self.to - self.from) * part.clamp(0.0, 1.0)).round() as i32
    }
}

impl<'a> Panel<'a> {
    /// A panel whose upper left corner is `at`, of `extent`, in pixels.
    pub fn new(measured: &'a Measured, limits: &Limits, at: (i32, i32), extent: (i32, i32)) -> Panel<'a> {
        let sizes: Vec<u64> = measured.ours.keys().copied().collect();
        let bounds: BTreeMap<u64, f64> =
            sizes.iter().filter_map(|s| Some((*s, limits.bound(&measured.case, *s)?))).collect();
        let summaries = measured.against.iter().flat_map(|a| a.pairs.keys().filter_map(|s| a.summary(*s)));
        let summaries: Vec<Summary> = summaries.collect();
        let times = summaries.iter().flat_map(|s| [s.ours, s.theirs]);
        let times =
            times.chain(bounds.values().copied()).chain(sizes.iter().filter_map(|s| measured.ours(*s)));
        let (least, most) = range(times, (1.0, 10.0));
        let (lowest, highest) = range(summaries.iter().map(|s| s.ratio), (0.5, 2.0));
        let (first, last) = range(sizes.iter().map(|s| *s as f64), (4.0, 8.0));
        let margin = (last / first).powf(0.06).max(1.5);
        let pixels = |x: i32| x * FINE;
        let bottom = at.1 + extent.1 - BELOW;
        Panel {
            measured,
            bounds,
            at: (pixels(at.0), pixels(at.1)),
            sizes: Axis {
                least: first / margin,
                most: last * margin,
                from: pixels(at.0 + LEFT),
                to: pixels(at.0 + extent.0 - RIGHT),
            },
            times: Axis {
                least: 10f64.powf((least * 0.9).log10().floor()),
                most: 10f64.powf((most * 1.1).log10().ceil()),
                from: pixels(bottom - RATIOS - BETWEEN),
                to: pixels(at.1 + ABOVE),
            },
            ratios: Axis {
                least: (lowest * 0.8).clamp(1.0 / WIDEST, 0.45),
                most: (highest * 1.25).clamp(2.2, WIDEST),
                from: pixels(bottom),
                to: pixels(bottom - RATIOS),
            },
        }
    }

    /// Draws it.
    pub fn draw(&self, root: &Area<'_>) -> Drawn {
        self.frame(root)?;
        let limit: Vec<_> = self.bounds.iter().map(|(s, t)| self.point(&self.times, *s, *t)).collect();
        root.draw(&PathElement::new(limit, LIMIT.stroke_width(3 * FINE as u32)))?;
        let peers = self.measured.against.len() as i32;
        for (index, against) in self.measured.against.iter().enumerate() {
            let look = look(against.peer);
            let all: Vec<_> = against.pairs.keys().filter_map(|s| Some((*s, against.summary(*s)?))).collect();
            let times = all.iter().map(|(size, s)| self.point(&self.times, *size, s.theirs)).collect();
            self.curve(root, times, look, false)?;
            // Beside each other, so that none hides another's extremes.
            let aside = (2 * index as i32 + 1 - peers) * APART / 2;
            let ratio = |size: u64, value| {
                let (x, y) = self.point(&self.ratios, size, value);
                (x + aside, y)
            };
            for (size, s) in &all {
                let extremes = [ratio(*size, s.lowest), ratio(*size, s.highest)];
                let thin = look.color.mix(0.5).stroke_width(3 * FINE as u32 / 2);
                root.draw(&PathElement::new(extremes, thin))?;
            }
            let ratios = all.iter().map(|(size, s)| ratio(*size, s.ratio)).collect();
            self.curve(root, ratios, look, false)?;
        }
        let ours = self.measured.ours.keys().filter_map(|s| Some((*s, self.measured.ours(*s)?)));
        self.curve(root, ours.map(|(size, time)| self.point(&self.times, size, time)).collect(), OURS, true)
    }

    /// Title, grid and labels.
    fn frame(&self, root: &Area<'_>) -> Drawn {
        let (left, right) = (self.sizes.from, self.sizes.to);
        let title = ("sans-serif", 17 * FINE).into_font().style(FontStyle::Bold).color(&INK);
        root.draw(&Text::new(self.measured.case.to_string(), (left, self.at.1 + 8 * FINE), title))?;
        let (over, under) = (self.ratios.place(1.0 + NOISE), self.ratios.place(1.0 - NOISE));
        root.draw(&Rectangle::new([(left, over), (right, under)], BAND.filled()))?;
        let thin = |color: RGBColor| color.stroke_width(FINE as u32);
        let label = |value: String, y: i32| {
            let style = text(13, INK).pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(value, (left - 8 * FINE, y), style))
        };
        let first = self.times.least.log10().round() as i32;
        for decade in first..=self.times.most.log10().round() as i32 {
            let y = self.times.place(10f64.powi(decade));
            root.draw(&PathElement::new([(left, y), (right, y)], thin(GRID)))?;
            label(time(decade), y)?;
        }
        for ratio in [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0] {
            if (self.ratios.least..=self.ratios.most).contains(&ratio) {
                let y = self.ratios.place(ratio);
                root.draw(&PathElement::new(
                    [(left, y), (right, y)],
                    thin(if ratio == 1.0 { GREY } else { GRID }),
                ))?;
                label(ratio.to_string(), y)?;
            }
        }
        let sizes: Vec<u64> = self.measured.ours.keys().copied().collect();
        let step = sizes.len().div_ceil(LABELS).max(1);
        for (index, &size) in sizes.iter().enumerate() {
            let x = self.sizes.place(size as f64);
            for axis in [&self.times, &self.ratios] {
                root.draw(&PathElement::new([(x, axis.from), (x, axis.to)], thin(GRID)))?;
            }
            if index % step == 0 {
                let style = text(13, INK).pos(Pos::new(HPos::Center, VPos::Top));
                root.draw(&Text::new(sizes::show(size), (x, self.ratios.from + 8 * FINE), style))?;
            }
        }
        for (name, axis) in [("time of a call", &self.times), ("ours / peer", &self.ratios)] {
            let turned =
                ("sans-serif", 14 * FINE).into_font().transform(FontTransform::Rotate270).color(&GREY);
            let turned = turned.pos(Pos::new(HPos::Center, VPos::Top));
            root.draw(&Text::new(name, (self.at.0 + 2 * FINE, (axis.from + axis.to) / 2), turned))?;
        }
        Ok(())
    }

    fn point(&self, axis: &Axis, size: u64, value: f64) -> (i32, i32) {
        (self.sizes.place(size as f64), axis.place(value))
    }

    fn curve(&self, root: &Area<'_>, points: Vec<(i32, i32)>, look: Look, strong: bool) -> Drawn {
        let (width, radius) = if strong { (4, 6) } else { (2, 5) };
        root.draw(&PathElement::new(points.clone(), look.color.stroke_width((width * FINE) as u32)))?;
        points.into_iter().try_for_each(|at| mark(root, look, at, radius))
    }
}

/// The least and the greatest of positive values, or `otherwise`.
fn range(values: impl Iterator<Item = f64>, otherwise: (f64, f64)) -> (f64, f64) {
    let values = values.filter(|v| *v > 0.0 && v.is_finite());
    let (least, most) = values.fold((f64::INFINITY, 0.0), |(a, b): (f64, f64), v| (a.min(v), b.max(v)));
    if least <= most { (least, most) } else { otherwise }
}

/// A power of ten of µs.
fn time(decade: i32) -> String {
    match decade {
        ..0 => format!("{} ns", 10f64.powi(decade + 3)),
        0..3 => format!("{} µs", 10f64.powi(decade)),
        3..6 => format!("{} ms", 10f64.powi(decade - 3)),
        _ => format!("{} s", 10f64.powi(decade - 6)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes() {
        let axis = Axis { least: 1.0, most: 100.0, from: 200, to: 0 };
        assert_eq!([1.0, 10.0, 100.0, 1e-3, 1e6].map(|v| axis.place(v)), [200, 100, 0, 200, 0]);
        assert_eq!(range([3.0, 0.0, 1.0, f64::INFINITY].into_iter(), (5.0, 6.0)), (1.0, 3.0));
        assert_eq!(range([].into_iter(), (5.0, 6.0)), (5.0, 6.0));
        assert_eq!([-1, 0, 2, 4, 6].map(time), ["100 ns", "1 µs", "100 µs", "10 ms", "1 s"]);
    }
}
