//! Round numbers on axes, and dashes.

use super::FINE;

/// A line through `points`, in pieces: whole, or with gaps of even length in pixels.
pub fn strokes(
    points: &[(f64, f64)],
    dashed: bool,
    pixels: impl Fn((f64, f64)) -> (f64, f64),
) -> Vec<((f64, f64), (f64, f64))> {
    const DASH: f64 = 8.0 * FINE as f64;
    const GAP: f64 = 6.0 * FINE as f64;
    let mut strokes = Vec::new();
    let mut phase = 0.0;
    for pair in points.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        if !dashed {
            strokes.push((a, b));
            continue;
        }
        let (p, q) = (pixels(a), pixels(b));
        let length = (q.0 - p.0).hypot(q.1 - p.1);
        let on_line = |at: f64| {
            let t = (at / length).clamp(0.0, 1.0);
            (a.0 + (b.0 - a.0) * t, a.1 + (b.1 - a.1) * t)
        };
        let mut at = -phase;
        while at < length {
            if at + DASH > 0.0 {
                strokes.push((on_line(at), on_line(at + DASH)));
            }
            at += DASH + GAP;
        }
        phase = DASH + GAP - (at - length);
    }
    strokes
}

/// Powers of two, at most twelve of them, at even distances; few steps, so that K and M are hit.
pub fn size_ticks(first: f64, last: f64) -> Vec<f64> {
    let (first, last) = (first.ceil() as i32, last.floor() as i32);
    let step = [1, 2, 5, 10].into_iter().find(|step| (last - first) / step < 12).unwrap_or(10);
    (first..=last).filter(|k| k % step == 0).map(f64::from).collect()
}

/// The top of an axis from 0 on, and the distance of its ticks: 1, 2, 2.5 or 5 times a power of ten.
pub fn scale(highest: f64) -> (f64, f64) {
    let wanted = if highest > 0.0 { highest * 1.04 } else { 1.0 };
    let power = 10f64.powf((wanted / 6.0).log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|f| f * power).into_iter().find(|s| wanted / s <= 7.0);
    let step = step.unwrap_or(10.0 * power);
    ((wanted / step).ceil() * step, step)
}

/// Digits after the point that ticks at this distance need.
pub fn decimals(step: f64) -> usize {
    (0..6).find(|d| (step * 10f64.powi(*d)).fract().abs() < 1e-6).unwrap_or(6) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_round() {
        assert_eq!(scale(9.3), (10.0, 2.0));
        assert_eq!(scale(0.0), (1.0, 0.2));
        let (top, step) = scale(123.0);
        assert_eq!((top, step), (140.0, 20.0));
        assert_eq!(size_ticks(2.9, 26.1).first(), Some(&4.0));
        assert_eq!(size_ticks(2.9, 31.1), [5.0, 10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(size_ticks(9.0, 11.0), [9.0, 10.0, 11.0]);
    }

    #[test]
    fn dashes_cover_more_than_gaps() {
        let line = [(0.0, 0.0), (200.0, 0.0), (400.0, 0.0)];
        let drawn: f64 = strokes(&line, true, |p| p).iter().map(|(a, b)| b.0 - a.0).sum();
        assert!((200.0..280.0).contains(&drawn), "{drawn}");
        assert_eq!(strokes(&line, false, |p| p).len(), 2);
    }
}
