//! The loss against steps, as a picture.

use std::path::Path;

use nd_training::train::Row;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Deserialize;

use super::error::Error;
use crate::draw::geometry::{decimals, scale};
use crate::draw::{
    self, ABOVE, BELOW, BLUE, Canvas, DOT, Drawn, FINE, Format, GREY, GRID, INK, LEFT, ORANGE, RIGHT, THICK,
    text,
};

/// What is drawn of a row, also of one that is read from a file of them.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Losses {
    /// After which step.
    pub step: u64,
    /// Of training; none where it was no number.
    pub loss: Option<f64>,
    /// On the other text, where it was measured.
    pub eval_loss: Option<f64>,
}

impl From<&Row> for Losses {
    fn from(row: &Row) -> Losses {
        Losses { step: row.step, loss: Some(row.loss).filter(|l| l.is_finite()), eval_loss: row.eval_loss }
    }
}

/// By the file's extension.
pub fn format(path: &Path) -> Result<Format, Error> {
    Format::of(path).map_err(Error::Usage)
}

/// Draws the rows' losses into a file.
pub fn write(path: &Path, title: &str, subtitle: &str, rows: &[Losses]) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.into(), option: "--plot", source };
    let svg = svg(title, subtitle, rows).map_err(|e| failed(std::io::Error::other(e.to_string())))?;
    draw::write(&svg, format(path)?, path).map_err(failed)
}

fn svg(title: &str, subtitle: &str, rows: &[Losses]) -> Result<String, Box<dyn std::error::Error>> {
    let trained: Vec<_> = rows.iter().filter_map(|row| Some((row.step as f64, row.loss?))).collect();
    let measured: Vec<_> = rows.iter().filter_map(|row| Some((row.step as f64, row.eval_loss?))).collect();
    draw::svg(title, subtitle, |root| {
        legend(root, &[("training", BLUE, &trained), ("other text", ORANGE, &measured)])?;
        chart(root, &trained, &measured)
    })
}

type Points = Vec<(f64, f64)>;

/// Above the curves; of one alone nothing need be said.
fn legend(root: &Canvas<'_>, curves: &[(&str, RGBColor, &Points)]) -> Drawn {
    let shown: Vec<_> = curves.iter().filter(|curve| !curve.2.is_empty()).collect();
    if shown.len() < 2 {
        return Ok(());
    }
    for (i, (name, color, _)) in shown.into_iter().enumerate() {
        let (x, y) = (LEFT + i as i32 * 180 * FINE, 96 * FINE);
        root.draw(&PathElement::new([(x, y), (x + 36 * FINE, y)], color.stroke_width(THICK)))?;
        let style = text(15, INK).pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&Text::new((*name).to_owned(), (x + 44 * FINE, y), style))?;
    }
    Ok(())
}

fn chart(root: &Canvas<'_>, trained: &Points, measured: &Points) -> Drawn {
    let most = |of: fn(&(f64, f64)) -> f64| trained.iter().chain(measured).map(of).fold(0.0, f64::max);
    let last = most(|p| p.0).max(1.0);
    let ((top, step), (_, stride)) = (scale(most(|p| p.1)), scale(last));
    let stride = stride.max(1.0);
    let ticks = |step: f64, most: f64| {
        (0..).map(move |i| f64::from(i) * step).take_while(move |v| *v <= most * 1.0001).collect::<Vec<_>>()
    };
    let (values, steps) = (ticks(step, top), ticks(stride, last));
    let mut chart =
        ChartBuilder::on(&root.margin(ABOVE, BELOW, LEFT, RIGHT)).build_cartesian_2d(0.0..last, 0.0..top)?;
    for y in &values {
        let color = if *y == 0.0 { GREY } else { GRID };
        chart.draw_series([PathElement::new([(0.0, *y), (last, *y)], color.stroke_width(FINE as u32))])?;
    }
    for x in &steps {
        chart.draw_series([PathElement::new([(*x, 0.0), (*x, top)], GRID.stroke_width(FINE as u32))])?;
    }
    let place = |x, y| chart.plotting_area().map_coordinate(&(x, y));
    let digits = decimals(step);
    let along: Vec<_> = steps.iter().map(|x| (place(*x, 0.0), format!("{x:.0}"))).collect();
    let up: Vec<_> = values.iter().map(|y| (place(0.0, *y), format!("{y:.digits$}"))).collect();
    draw::axes(root, ("step", &along), ("loss, nats a token", &up))?;
    for (points, color) in [(trained, BLUE), (measured, ORANGE)] {
        // One point is no line.
        if points.len() > 1 {
            chart.draw_series([PathElement::new(points.clone(), color.stroke_width(THICK))])?;
        }
    }
    chart.draw_series(measured.iter().map(|p| Circle::new(*p, DOT, ORANGE.filled())))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_of_little_or_nothing_can_be_drawn() {
        let row = |step, loss, eval_loss| Losses { step, loss, eval_loss };
        let many: Vec<_> =
            (1..=500).map(|s| row(s, Some(5.0 / s as f64), (s % 100 == 0).then_some(1.0))).collect();
        for rows in [vec![], vec![row(1, Some(5.5), None)], vec![row(1, None, Some(2.0))], many] {
            let svg = svg("a < b & c", "d", &rows).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            assert!(draw::png(&svg).unwrap().starts_with(b"\x89PNG"));
        }
    }
}
