//! The plot: a panel for each case.
//!
//! `plotters` draws SVG, which asks the viewer for a sans-serif font. PNG is made of the same SVG by `resvg` with DejaVu
//! Sans, which is part of this program.

use std::sync::Arc;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use resvg::{tiny_skia, usvg};

use super::panel::{Drawn, Panel};
use super::peers::Peer;
use super::report::Machine;
use super::rounds::Measured;
use crate::limits::Limits;

/// Units of the drawing for a pixel of the SVG: plotters rounds to whole units.
pub const FINE: i32 = 4;
/// Pixels of a PNG for one of the SVG.
const SCALE: f32 = 2.0;
/// A panel's pixels.
const WIDTH: i32 = 660;
const HEIGHT: i32 = 600;
/// Above the panels: title and legend.
const ABOVE: i32 = 132;
const BELOW: i32 = 60;
const LEFT: i32 = 24;

pub const INK: RGBColor = RGBColor(0x1c, 0x24, 0x30);
pub const GREY: RGBColor = RGBColor(0x5c, 0x66, 0x74);
pub const LIMIT: RGBColor = RGBColor(0x9a, 0xa2, 0xac);

/// How a curve looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Of line and marks.
    pub color: RGBColor,
    /// At each size.
    pub mark: Mark,
}

/// Marks differ by shape too, so that no one depends on colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Disc,
    Square,
    Diamond,
    Up,
    Down,
    Ring,
    Plus,
    Cross,
}

/// Ours is the darkest and thickest.
pub const OURS: Look = Look { color: INK, mark: Mark::Disc };

/// Okabe and Ito's colours ("Color Universal Design", 2008), which people with any colour vision tell apart; yellow
/// is darker here, to be seen on white.
pub fn look(peer: Peer) -> Look {
    let (color, mark) = match peer {
        Peer::OpenMpi => (RGBColor(0xe6, 0x9f, 0x00), Mark::Square),
        Peer::OpenMpi4 => (RGBColor(0xd5, 0x5e, 0x00), Mark::Ring),
        Peer::Mpich => (RGBColor(0x56, 0xb4, 0xe9), Mark::Up),
        Peer::Mpich4 => (RGBColor(0x00, 0x72, 0xb2), Mark::Down),
        Peer::Impi => (RGBColor(0x00, 0x9e, 0x73), Mark::Diamond),
        Peer::OneCcl => (RGBColor(0xcc, 0x79, 0xa7), Mark::Plus),
        Peer::Gloo => (RGBColor(0x8f, 0x84, 0x00), Mark::Cross),
        Peer::Ours => (GREY, Mark::Ring),
    };
    Look { color, mark }
}

/// Text of a size in pixels.
pub fn text(size: i32, color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size * FINE).into_font().color(&color)
}

/// Draws all cases.
pub fn svg(
    cases: &[Measured],
    limits: &Limits,
    machine: &Machine,
) -> Result<String, Box<dyn std::error::Error>> {
    let columns = match cases.len() {
        0 | 1 => 1,
        2..=4 => 2,
        _ => 3,
    };
    let rows = cases.len().div_ceil(columns).max(1);
    let shown = (2 * LEFT + columns as i32 * WIDTH, ABOVE + rows as i32 * HEIGHT + BELOW);
    let size = ((shown.0 * FINE) as u32, (shown.1 * FINE) as u32);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let bold = ("sans-serif", 24 * FINE).into_font().style(FontStyle::Bold).color(&INK);
        root.draw(&Text::new(
            "nd and its peers: time of a call over its size",
            (LEFT * FINE, 18 * FINE),
            bold,
        ))?;
        let subtitle = format!("{}, {} cores, {}", machine.processor, machine.cores, machine.began);
        root.draw(&Text::new(subtitle, (LEFT * FINE, 50 * FINE), text(15, GREY)))?;
        legend(&root, cases, shown.0)?;
        for (index, measured) in cases.iter().enumerate() {
            let (column, row) = ((index % columns) as i32, (index / columns) as i32);
            let at = (LEFT + column * WIDTH, ABOVE + row * HEIGHT);
            Panel::new(measured, limits, at, (WIDTH, HEIGHT)).draw(&root)?;
        }
        let lines = [
            "Medians. Lower axes: ours / peer, with lowest and highest of all pairs; under 1 ours is faster.",
            "The band is ±10 %, which is noise. What lies beyond an axis is drawn at its edge.",
        ];
        for (line, above) in lines.iter().zip([36, 14]) {
            let style = text(14, GREY).pos(Pos::new(HPos::Left, VPos::Bottom));
            root.draw(&Text::new(*line, (LEFT * FINE, (shown.1 - above) * FINE), style))?;
        }
        root.present()?;
    }
    let said = |width, height| format!("width=\"{width}\" height=\"{height}\"");
    Ok(svg.replacen(&said(size.0 as i32, size.1 as i32), &said(shown.0, shown.1), 1))
}

/// Everyone who is in some panel, in as many lines as that takes.
fn legend(
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    cases: &[Measured],
    width: i32,
) -> Drawn {
    let mut peers: Vec<Peer> = Vec::new();
    for peer in cases.iter().flat_map(|c| &c.against).filter(|a| !a.pairs.is_empty()).map(|a| a.peer) {
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }
    let ours = ("nd", Some((OURS, true)));
    let peers = peers.iter().map(|p| (p.name(), Some((look(*p), false))));
    let (mut x, mut y) = (LEFT, 90);
    for (name, shown) in [ours].into_iter().chain(peers).chain([("limit of the machine", None)]) {
        let long = 48 + name.chars().count() as i32 * 8 + 30;
        if x + long - 30 > width - LEFT && x > LEFT {
            (x, y) = (LEFT, y + 24);
        }
        let from_to = [(x * FINE, y * FINE), ((x + 40) * FINE, y * FINE)];
        match shown {
            Some((look, strong)) => {
                let thick = if strong { 4 } else { 2 };
                root.draw(&PathElement::new(from_to, look.color.stroke_width(thick * FINE as u32)))?;
                mark(root, look, ((x + 20) * FINE, y * FINE), if strong { 6 } else { 5 })?;
            }
            None => root.draw(&PathElement::new(from_to, LIMIT.stroke_width(3 * FINE as u32)))?,
        }
        let style = text(15, INK).pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&Text::new(name, ((x + 48) * FINE, y * FINE), style))?;
        x += long;
    }
    Ok(())
}

/// Draws a mark of a radius in pixels, with a white rim that keeps neighbours apart.
pub fn mark(
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    look: Look,
    (x, y): (i32, i32),
    radius: i32,
) -> Drawn {
    let r = radius * FINE;
    let polygon = |points: &[(i32, i32)], grown: i32, color: RGBColor| {
        let at = |p: &(i32, i32)| (x + p.0 * (r + grown) / 100, y + p.1 * (r + grown) / 100);
        root.draw(&Polygon::new(points.iter().map(at).collect::<Vec<_>>(), color.filled()))
    };
    let both = |points: &[(i32, i32)]| {
        polygon(points, FINE, WHITE)?;
        polygon(points, 0, look.color)
    };
    match look.mark {
        Mark::Disc => {
            root.draw(&Circle::new((x, y), r + FINE, WHITE.filled()))?;
            root.draw(&Circle::new((x, y), r, look.color.filled()))?;
        }
        Mark::Ring => {
            root.draw(&Circle::new((x, y), r, look.color.filled()))?;
            root.draw(&Circle::new((x, y), r / 2, WHITE.filled()))?;
        }
        Mark::Square => both(&[(-88, -88), (88, -88), (88, 88), (-88, 88)])?,
        Mark::Diamond => both(&[(0, -120), (120, 0), (0, 120), (-120, 0)])?,
        Mark::Up => both(&[(0, -115), (110, 85), (-110, 85)])?,
        Mark::Down => both(&[(0, 115), (110, -85), (-110, -85)])?,
        Mark::Plus | Mark::Cross => {
            let (long, short) = (110, 34);
            let arms = [
                (-short, -long),
                (short, -long),
                (short, -short),
                (long, -short),
                (long, short),
                (short, short),
                (short, long),
                (-short, long),
                (-short, short),
                (-long, short),
                (-long, -short),
                (-short, -short),
            ];
            match look.mark {
                Mark::Plus => both(&arms)?,
                // Turned by 45°.
                _ => both(&arms.map(|(x, y)| ((x - y) * 71 / 100, (x + y) * 71 / 100)))?,
            }
        }
    }
    Ok(())
}

/// The SVG as PNG.
pub fn png(svg: &str) -> Result<Vec<u8>, String> {
    let mut options = usvg::Options { font_family: "DejaVu Sans".into(), ..usvg::Options::default() };
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.load_font_data(dejavu::sans::bold().to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    let tree = usvg::Tree::from_str(svg, &options).map_err(|e| e.to_string())?;
    let pixels = tree.size().to_int_size().scale_by(SCALE).ok_or("the picture is empty")?;
    let mut map =
        tiny_skia::Pixmap::new(pixels.width(), pixels.height()).ok_or("no memory for the picture")?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut map.as_mut());
    map.encode_png().map_err(|e| e.to_string())
}
