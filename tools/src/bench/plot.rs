//! Bandwidth against size, as a picture.
//!
//! `plotters` draws SVG, which asks the viewer for a sans-serif font. PNG is made of the same SVG by `resvg` with
//! DejaVu Sans, which is part of this program: it looks the same on a machine without fonts.

mod geometry;

use std::path::Path;
use std::sync::Arc;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use resvg::{tiny_skia, usvg};

use super::error::Error;
use super::size;
use geometry::{scale, size_ticks, strokes};

/// How a picture is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Svg,
    Png,
}

/// By the file's extension.
pub fn format(path: &Path) -> Result<Format, Error> {
    let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
    match extension.as_deref() {
        Some("svg") => Ok(Format::Svg),
        Some("png") => Ok(Format::Png),
        _ => Err(Error::Usage(format!(
            "--plot {}: pictures are written as .svg or .png; give the file a name that ends so",
            path.display()
        ))),
    }
}

/// Curves of bandwidth over size. Points are (bytes, algbw, busbw), GB/s.
#[derive(Debug, Clone)]
pub struct Plot {
    pub title: String,
    pub subtitle: String,
    pub apart: Vec<(u64, f64, f64)>,
    pub in_place: Vec<(u64, f64, f64)>,
}

/// What the SVG says about its size. All else is in quarters of this, because plotters rounds to whole pixels and
/// slanted dashes would wobble.
const SHOWN: (u32, u32) = (1000, 620);
const SIZE: (u32, u32) = (SHOWN.0 * FINE as u32, SHOWN.1 * FINE as u32);
const FINE: i32 = 4;
/// Pixels of a PNG for one of the SVG.
const SCALE: f32 = 2.0;
const INK: RGBColor = RGBColor(0x1c, 0x24, 0x30);
const GREY: RGBColor = RGBColor(0x66, 0x70, 0x7e);
const GRID: RGBColor = RGBColor(0xd9, 0xde, 0xe5);
const FAINT: RGBColor = RGBColor(0xf0, 0xf2, 0xf5);
const BLUE: RGBColor = RGBColor(0x1f, 0x6f, 0xb8);
const ORANGE: RGBColor = RGBColor(0xd9, 0x5f, 0x0e);
/// Left edge of the text and right edge of the plot.
const LEFT: i32 = 78 * FINE;
const RIGHT: i32 = 34 * FINE;
/// Width of curves, radius of points and of the hole in those in place.
const THICK: u32 = 3 * FINE as u32;
const DOT: i32 = 5 * FINE;
const HOLE: i32 = 3 * FINE;
/// Above and below the plot.
const ABOVE: i32 = 124 * FINE;
const BELOW: i32 = 68 * FINE;

/// One curve.
struct Curve {
    name: String,
    color: RGBColor,
    in_place: bool,
    /// log2(bytes), GB/s.
    points: Vec<(f64, f64)>,
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Plot {
    /// Draws into a file.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::File { path: path.into(), option: "--plot", source };
        let svg = self.svg().map_err(|e| failed(std::io::Error::other(e.to_string())))?;
        let bytes = match format(path)? {
            Format::Svg => svg.into_bytes(),
            Format::Png => png(&svg).map_err(|e| failed(std::io::Error::other(e)))?,
        };
        std::fs::write(path, bytes).map_err(failed)
    }

    fn svg(&self) -> Result<String, Box<dyn std::error::Error>> {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            root.fill(&WHITE)?;
            let curves = self.curves();
            heading(&root, &self.title, &self.subtitle)?;
            legend(&root, &curves)?;
            chart(&root, &curves)?;
            root.present()?;
        }
        let said = |(width, height): (u32, u32)| format!("width=\"{width}\" height=\"{height}\"");
        Ok(svg.replacen(&said(SIZE), &said(SHOWN), 1))
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

fn text(size: i32, color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size * FINE).into_font().color(&color)
}

fn heading<B: DrawingBackend>(root: &DrawingArea<B, Shift>, title: &str, subtitle: &str) -> Drawn
where
    B::ErrorType: 'static,
{
    let bold = ("sans-serif", 25 * FINE).into_font().style(FontStyle::Bold).color(&INK);
    root.draw(&Text::new(title.to_owned(), (LEFT, 22 * FINE), bold))?;
    let mut shown: String = subtitle.chars().take(110).collect();
    if shown.len() < subtitle.len() {
        shown.push('…');
    }
    root.draw(&Text::new(shown, (LEFT, 56 * FINE), text(16, GREY)))?;
    Ok(())
}

/// Above the curves, so that it hides none.
fn legend<B: DrawingBackend>(root: &DrawingArea<B, Shift>, curves: &[Curve]) -> Drawn
where
    B::ErrorType: 'static,
{
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

fn chart<B: DrawingBackend>(root: &DrawingArea<B, Shift>, curves: &[Curve]) -> Drawn
where
    B::ErrorType: 'static,
{
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
fn labels<B: DrawingBackend>(
    root: &DrawingArea<B, Shift>,
    sizes: &[f64],
    values: &[f64],
    place: &dyn Fn(f64, f64) -> (i32, i32),
    (first, step): (f64, f64),
) -> Drawn
where
    B::ErrorType: 'static,
{
    let decimals = (0..6).find(|d| (step * 10f64.powi(*d)).fract().abs() < 1e-6).unwrap_or(6) as usize;
    for x in sizes {
        let (x, y) = (place(*x, 0.0), size::show(x.exp2().round() as u64));
        let style = text(15, INK).pos(Pos::new(HPos::Center, VPos::Top));
        root.draw(&Text::new(y, (x.0, x.1 + 10 * FINE), style))?;
    }
    for y in values {
        let (x, at) = place(first, *y);
        let style = text(15, INK).pos(Pos::new(HPos::Right, VPos::Center));
        root.draw(&Text::new(format!("{y:.decimals$}"), (x - 10 * FINE, at), style))?;
    }
    let middle = (SIZE.0 as i32 + LEFT - RIGHT) / 2;
    let below = text(16, GREY).pos(Pos::new(HPos::Center, VPos::Bottom));
    root.draw(&Text::new("size", (middle, SIZE.1 as i32 - 12 * FINE), below))?;
    let turned = ("sans-serif", 16 * FINE).into_font().transform(FontTransform::Rotate270).color(&GREY);
    let turned = turned.pos(Pos::new(HPos::Center, VPos::Top));
    root.draw(&Text::new("bandwidth, GB/s", (14 * FINE, (ABOVE + SIZE.1 as i32 - BELOW) / 2), turned))?;
    Ok(())
}

fn png(svg: &str) -> Result<Vec<u8>, String> {
    let mut options = usvg::Options { font_family: "DejaVu Sans".into(), ..usvg::Options::default() };
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.load_font_data(dejavu::sans::bold().to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    let tree = usvg::Tree::from_str(svg, &options).map_err(|e| e.to_string())?;
    let (width, height) = (SHOWN.0 as f32 * SCALE, SHOWN.1 as f32 * SCALE);
    let mut pixels =
        tiny_skia::Pixmap::new(width as u32, height as u32).ok_or("no memory for the picture")?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| e.to_string())
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
            assert!(png(&svg).unwrap().starts_with(b"\x89PNG"));
        }
    }

    #[test]
    fn other_formats_are_refused() {
        assert!(format(Path::new("a.PNG")).is_ok());
        let e = format(Path::new("a.pdf")).unwrap_err().to_string();
        assert!(e.contains(".svg") && e.contains(".png"));
    }
}
