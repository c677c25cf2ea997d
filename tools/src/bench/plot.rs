//! Bandwidth against size, as a picture.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::error::Error;
use super::size;
use crate::draw::geometry::{decimals, scale, size_ticks, strokes};
use crate::draw::{
    self, ABOVE, BELOW, BLUE, Canvas, DOT, Drawn, FAINT, FINE, Format, GREY, GRID, INK, LEFT, ORANGE, RIGHT,
    THICK, text,
};

/// By the file's extension.
pub fn format(path: &Path) -> Result<Format, Error> {
    Format::of(path).map_err(Error::Usage)
}

/// Curves of bandwidth over size. Points are (bytes, algbw, busbw), GB/s.
#[derive(Debug, Clone)]
pub struct Plot {
    pub title: String,
    pub subtitle: String,
    pub apart: Vec<(u64, f64, f64)>,
    pub in_place: Vec<(u64, f64, f64)>,
}

/// Radius of the hole in points of calls in place.
const HOLE: i32 = 3 * FINE;

/// One curve.
struct Curve {
    name: String,
    color: RGBColor,
    in_place: bool,
    /// log2(bytes), GB/s.
    points: Vec<(f64, f64)>,
}

impl Plot {
    /// Draws into a file.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::File { path: path.into(), option: "--plot", source };
        let svg = self.svg().map_err(|e| failed(std::io::Error::other(e.to_string())))?;
        draw::write(&svg, format(path)?, path).map_err(failed)
    }

    fn svg(&self) -> Result<String, Box<dyn std::error::Error>> {
        draw::svg(&self.title, &self.subtitle, |root| {
            let curves = self.curves();
            legend(root, &curves)?;
            chart(root, &curves)
        })
    }

    /// Those there is something to show of; where algbw and busbw are the same, one.
    fn curves(&self) -> Vec<Curve> {
        let same =
            self.apart.iter().chain(&self.in_place).all(|(_, alg, bus)| (alg - bus).abs() <= 1e-9 * alg);
        let mut curves = Vec::new();
        for (points, in_place) in [(&self.apart, false), (&self.in_place, true)] {
            let how = if in_place { "in place" } else { "out of place" };
            let mut curve = |name: &str, color, value: fn(&(u64, f64, f64)) -> f64| {
                // Several cycles give a size several times: show their mean.
                let mut sizes = std::collections::BTreeMap::<u64, (f64, f64)>::new();
                for point in points.iter().filter(|p| p.0 > 0) {
                    let (sum, count) = sizes.entry(point.0).or_default();
                    (*sum, *count) = (*sum + value(point), *count + 1.0);
                }
                let points: Vec<_> =
                    sizes.iter().map(|(size, (sum, count))| ((*size as f64).log2(), sum / count)).collect();
                if !points.is_empty() {
                    curves.push(Curve { name: format!("{name}, {how}"), color, in_place, points });
                }
            };
            if same {
                curve("algbw = busbw", BLUE, |p| p.2);
            } else {
                curve("busbw", ORANGE, |p| p.2);
                curve("algbw", BLUE, |p| p.1);
            }
        }
        curves
    }
}

/// Above the curves, so that it hides none.
fn legend(root: &Canvas<'_>, curves: &[Curve]) -> Drawn {
    let wide = curves.iter().map(|c| c.name.len()).max().unwrap_or(0) as i32;
    for (i, curve) in curves.iter().enumerate() {
        let (x, y) = (LEFT + i as i32 * (wide * 8 + 66) * FINE, 96 * FINE);
        let from_to = [(x, y), (x + 36 * FINE, y)].map(|(x, y)| (f64::from(x), f64::from(y)));
        for (a, b) in strokes(&from_to, curve.in_place, |p| p) {
            let pixels = |p: (f64, f64)| (p.0.round() as i32, p.1.round() as i32);
            root.draw(&PathElement::new([pixels(a), pixels(b)], curve.color.stroke_width(THICK)))?;
        }
        root.draw(&Circle::new((x + 18 * FINE, y), DOT, curve.color.filled()))?;
        if curve.in_place {
            root.draw(&Circle::new((x + 18 * FINE, y), HOLE, WHITE.filled()))?;
        }
        let style = text(15, INK).pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&Text::new(curve.name.clone(), (x + 44 * FINE, y), style))?;
    }
    Ok(())
}

fn chart(root: &Canvas<'_>, curves: &[Curve]) -> Drawn {
    let all = || curves.iter().flat_map(|c| &c.points);
    let first = all().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let last = all().map(|p| p.0).fold(0.0, f64::max);
    let (first, last) = if first <= last { (first, last) } else { (0.0, 10.0) };
    let margin = if first == last { 1.0 } else { (last - first) * 0.025 };
    let (first, last) = (first - margin, last + margin);
    let highest = all().map(|p| p.1).fold(0.0, f64::max);
    let (top, step) = scale(highest);
    let sizes = size_ticks(first, last);
    let values: Vec<f64> = (0..).map(|i| f64::from(i) * step).take_while(|v| *v <= top * 1.0001).collect();
    let area = root.margin(ABOVE, BELOW, LEFT, RIGHT);
    let mut chart = ChartBuilder::on(&area).build_cartesian_2d(first..last, 0.0..top)?;
    for x in (first.ceil() as i32..=last.floor() as i32).map(f64::from) {
        let color = if sizes.contains(&x) { GRID } else { FAINT };
        chart.draw_series([PathElement::new([(x, 0.0), (x, top)], color.stroke_width(FINE as u32))])?;
    }
    for y in &values {
        let color = if *y == 0.0 { GREY } else { GRID };
        chart.draw_series([PathElement::new([(first, *y), (last, *y)], color.stroke_width(FINE as u32))])?;
    }
    labels(root, &sizes, &values, &|x, y| chart.plotting_area().map_coordinate(&(x, y)), (first, step))?;
    let pixels = area.dim_in_pixel();
    let ratio = ((last - first) / f64::from(pixels.0), top / f64::from(pixels.1));
    // Those in place on top: they are dashed, and what lies below shows through.
    for curve in curves {
        let pixels = |p: (f64, f64)| (p.0 / ratio.0, p.1 / ratio.1);
        for (a, b) in strokes(&curve.points, curve.in_place, pixels) {
            chart.draw_series([PathElement::new([a, b], curve.color.stroke_width(THICK))])?;
        }
        let (color, hollow) = (curve.color, curve.in_place);
        chart.draw_series(curve.points.iter().map(|p| Circle::new(*p, DOT, color.filled())))?;
        if hollow {
            chart.draw_series(curve.points.iter().map(|p| Circle::new(*p, HOLE, WHITE.filled())))?;
        }
    }
    Ok(())
}

/// At the ticks, and what the axes show.
fn labels(
    root: &Canvas<'_>,
    sizes: &[f64],
    values: &[f64],
    place: &dyn Fn(f64, f64) -> (i32, i32),
    (first, step): (f64, f64),
) -> Drawn {
    let decimals = decimals(step);
    let size = |x: &f64| (place(*x, 0.0), size::show(x.exp2().round() as u64));
    let sizes: Vec<_> = sizes.iter().map(size).collect();
    let values: Vec<_> = values.iter().map(|y| (place(first, *y), format!("{y:.decimals$}"))).collect();
    draw::axes(root, ("size", &sizes), ("bandwidth, GB/s", &values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_of_little_or_nothing_can_be_drawn() {
        let points =
            |n: u32| (0..n).map(|i| (1u64 << i, f64::from(i), f64::from(i) * 1.5)).collect::<Vec<_>>();
        for (apart, in_place) in
            [(points(0), points(0)), (points(1), points(0)), (points(2), points(1)), (points(40), points(40))]
        {
            let plot = Plot { title: "a < b & c".into(), subtitle: "x".repeat(300), apart, in_place };
            let svg = plot.svg().unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            assert!(draw::png(&svg).unwrap().starts_with(b"\x89PNG"));
        }
    }
}
