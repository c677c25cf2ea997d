//! Pictures of curves, in one style: what `nd-bench --plot` and `nd-train --plot` share.
//!
//! `plotters` draws SVG, which asks the viewer for a sans-serif font. PNG is made of the same SVG by `resvg` with
//! DejaVu Sans, which is part of this program: it looks the same on a machine without fonts.

pub mod geometry;

use std::io;
use std::path::Path;
use std::sync::Arc;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use resvg::{tiny_skia, usvg};

/// How a picture is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Svg,
    Png,
}

impl Format {
    /// By the file's extension.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn of(path: &Path) -> Result<Format, String> {
        let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        match extension.as_deref() {
            Some("svg") => Ok(Format::Svg),
            Some("png") => Ok(Format::Png),
            _ => Err(format!(
                "--plot {}: pictures are written as .svg or .png; give the file a name that ends so",
                path.display()
            )),
        }
    }
}

/// What the SVG says about its size. All else is in quarters of this, because plotters rounds to whole pixels and
/// slanted dashes would wobble.
const SHOWN: (u32, u32) = (1000, 620);
pub const SIZE: (u32, u32) = (SHOWN.0 * FINE as u32, SHOWN.1 * FINE as u32);
pub const FINE: i32 = 4;
/// Pixels of a PNG for one of the SVG.
const SCALE: f32 = 2.0;
pub const INK: RGBColor = RGBColor(0x1c, 0x24, 0x30);
pub const GREY: RGBColor = RGBColor(0x66, 0x70, 0x7e);
pub const GRID: RGBColor = RGBColor(0xd9, 0xde, 0xe5);
pub const FAINT: RGBColor = RGBColor(0xf0, 0xf2, 0xf5);
pub const BLUE: RGBColor = RGBColor(0x1f, 0x6f, 0xb8);
pub const ORANGE: RGBColor = RGBColor(0xd9, 0x5f, 0x0e);
/// Left edge of the text and right edge of the plot.
pub const LEFT: i32 = 78 * FINE;
pub const RIGHT: i32 = 34 * FINE;
/// Above and below the plot.
pub const ABOVE: i32 = 124 * FINE;
pub const BELOW: i32 = 68 * FINE;
/// Width of curves, radius of points.
pub const THICK: u32 = 3 * FINE as u32;
pub const DOT: i32 = 5 * FINE;

pub type Drawn = Result<(), Box<dyn std::error::Error>>;

/// What is drawn on.
pub type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An SVG with a heading, and what `draw` adds.
pub fn svg(
    title: &str,
    subtitle: &str,
    draw: impl FnOnce(&Canvas<'_>) -> Drawn,
) -> Result<String, Box<dyn std::error::Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        heading(&root, title, subtitle)?;
        draw(&root)?;
        root.present()?;
    }
    let said = |(width, height): (u32, u32)| format!("width=\"{width}\" height=\"{height}\"");
    Ok(svg.replacen(&said(SIZE), &said(SHOWN), 1))
}

/// Writes an SVG as it is, or as pixels.
pub fn write(svg: &str, format: Format, path: &Path) -> io::Result<()> {
    match format {
        Format::Svg => std::fs::write(path, svg),
        Format::Png => std::fs::write(path, png(svg).map_err(io::Error::other)?),
    }
}

/// A style for words.
pub fn text(size: i32, color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size * FINE).into_font().color(&color)
}

/// A place in pixels, and what stands beside it.
pub type Tick = ((i32, i32), String);

/// At the ticks, and what the axes show.
pub fn axes(root: &Canvas<'_>, (below, along): (&str, &[Tick]), (beside, up): (&str, &[Tick])) -> Drawn {
    for ((x, y), label) in along {
        let style = text(15, INK).pos(Pos::new(HPos::Center, VPos::Top));
        root.draw(&Text::new(label.clone(), (*x, y + 10 * FINE), style))?;
    }
    for ((x, y), label) in up {
        let style = text(15, INK).pos(Pos::new(HPos::Right, VPos::Center));
        root.draw(&Text::new(label.clone(), (x - 10 * FINE, *y), style))?;
    }
    let middle = (SIZE.0 as i32 + LEFT - RIGHT) / 2;
    let style = text(16, GREY).pos(Pos::new(HPos::Center, VPos::Bottom));
    root.draw(&Text::new(below.to_owned(), (middle, SIZE.1 as i32 - 12 * FINE), style))?;
    let turned = ("sans-serif", 16 * FINE).into_font().transform(FontTransform::Rotate270).color(&GREY);
    let turned = turned.pos(Pos::new(HPos::Center, VPos::Top));
    root.draw(&Text::new(beside.to_owned(), (14 * FINE, (ABOVE + SIZE.1 as i32 - BELOW) / 2), turned))?;
    Ok(())
}

fn heading(root: &Canvas<'_>, title: &str, subtitle: &str) -> Drawn {
    let bold = ("sans-serif", 25 * FINE).into_font().style(FontStyle::Bold).color(&INK);
    root.draw(&Text::new(title.to_owned(), (LEFT, 22 * FINE), bold))?;
    let mut shown: String = subtitle.chars().take(110).collect();
    if shown.len() < subtitle.len() {
        shown.push('…');
    }
    root.draw(&Text::new(shown, (LEFT, 56 * FINE), text(16, GREY)))?;
    Ok(())
}

/// Pixels of an SVG.
pub fn png(svg: &str) -> Result<Vec<u8>, String> {
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
    fn other_formats_are_refused() {
        assert!(Format::of(Path::new("a.PNG")).is_ok());
        let e = Format::of(Path::new("a.pdf")).unwrap_err();
        assert!(e.contains(".svg") && e.contains(".png"));
    }
}
