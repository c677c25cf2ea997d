//! The load of links over time, as a picture: a row for each link, time to the right, the darker the busier.

use std::fmt::Write;

use nd_comm::cost::Timeline;

use crate::units::micros;

const WIDTH: f64 = 1100.0;
const LEFT: f64 = 300.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 76.0;
const ROW: f64 = 22.0;
const BAR: f64 = 17.0;
/// Room for the time axis and the key below the rows.
const BOTTOM: f64 = 84.0;
/// The longest name that fits to the left.
const NAME: usize = 40;

/// As SVG.
pub(super) fn draw(title: &str, us: f64, timeline: &Timeline) -> String {
    let rows = &timeline.rows;
    let height = TOP + rows.len() as f64 * ROW + BOTTOM;
    let span = WIDTH - LEFT - RIGHT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"24\" y=\"32\" font-size=\"17\" font-weight=\"bold\" fill=\"#1c2430\">{}</text>\n\
         <text x=\"24\" y=\"54\" fill=\"#66707e\">How busy the busiest links are while it runs; a link stands for \
         all that do the same at the same time</text>\n",
        escape(title)
    );
    for (i, (name, loads)) in rows.iter().enumerate() {
        let y = TOP + i as f64 * ROW;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#1c2430\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{span}\" height=\"{BAR}\" fill=\"#f0f2f5\"/>",
            LEFT - 10.0,
            y + 13.0,
            escape(&shortened(name))
        );
        // Neighbours of one shade are one rectangle.
        let step = span / loads.len() as f64;
        let mut from = 0;
        while from < loads.len() {
            let shade = shade(loads[from]);
            let to = (from..loads.len()).find(|&j| self::shade(loads[j]) != shade).unwrap_or(loads.len());
            if shade > 0 {
                let _ = writeln!(
                    svg,
                    "<rect x=\"{:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{BAR}\" fill=\"{}\"/>",
                    LEFT + from as f64 * step,
                    (to - from) as f64 * step,
                    colour(shade)
                );
            }
            from = to;
        }
    }
    let base = TOP + rows.len() as f64 * ROW + 6.0;
    for i in 0..=4 {
        let x = LEFT + span * f64::from(i) / 4.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{base}\" stroke=\"#ffffff\" stroke-opacity=\"0.6\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#66707e\">{}</text>",
            base + 14.0,
            micros(us * f64::from(i) / 4.0)
        );
    }
    let y = base + 36.0;
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#66707e\">idle</text>",
        LEFT - 10.0,
        y + 13.0
    );
    for shade in 0..=SHADES {
        let x = LEFT + f64::from(shade) * 24.0;
        let fill = if shade == 0 { "#f0f2f5".into() } else { colour(shade) };
        let _ = writeln!(svg, "<rect x=\"{x}\" y=\"{y}\" width=\"24\" height=\"{BAR}\" fill=\"{fill}\"/>");
    }
    let end = LEFT + f64::from(SHADES + 1) * 24.0 + 10.0;
    let _ = writeln!(svg, "<text x=\"{end}\" y=\"{:.1}\" fill=\"#66707e\">full</text>\n</svg>", y + 13.0);
    svg
}

const SHADES: u8 = 10;

/// From 0, idle, to [`SHADES`], full.
fn shade(load: f64) -> u8 {
    if load < 0.005 { 0 } else { ((load * f64::from(SHADES)).ceil() as u8).clamp(1, SHADES) }
}

/// From a light to a dark blue, and dark orange where the link is full.
fn colour(shade: u8) -> String {
    if shade == SHADES {
        return "#c2500a".into();
    }
    let part = f64::from(shade) / f64::from(SHADES);
    let mix = |light: f64, dark: f64| (light + (dark - light) * part).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(215.0, 16.0), mix(230.0, 66.0), mix(244.0, 122.0))
}

fn shortened(name: &str) -> String {
    let plain = nd_topology::printable(name);
    if plain.chars().count() <= NAME {
        return plain.into_owned();
    }
    plain.chars().take(NAME - 1).chain(['…']).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_each_link_and_shades_by_load() {
        let rows =
            vec![("node0: <a> → b".to_owned(), vec![0.0, 0.5, 0.5, 1.0]), ("c".to_owned(), vec![0.0; 4])];
        let svg = draw("all & sundry", 100.0, &Timeline { step_us: 25.0, rows });
        assert!(svg.contains("all &amp; sundry") && svg.contains("node0: &lt;a&gt; → b"), "{svg}");
        // Two steps of one shade are one rectangle, half the width.
        assert!(svg.contains(&format!("width=\"380.00\" height=\"17\" fill=\"{}\"", colour(5))), "{svg}");
        assert!(svg.contains("100.0 µs") && svg.contains("25.0 µs"));
        assert_eq!((shade(0.0), shade(0.01), shade(0.999), shade(1.0)), (0, 1, 10, 10));
    }
}
