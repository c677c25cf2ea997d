//! Numbers with units, as tables show them. *Pure.*

/// GB/s with three digits that matter.
pub fn gbps(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// µs in the unit that reads best.
pub fn micros(us: f64) -> String {
    // An empty sum is -0.0.
    match us + 0.0 {
        u if u >= 1e6 => format!("{:.2} s", u / 1e6),
        u if u >= 1e3 => format!("{:.2} ms", u / 1e3),
        u => format!("{u:.1} µs"),
    }
}

/// Bytes in decimal units, as link speeds are.
pub fn bytes(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.2} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n if n >= 1e3 => format!("{:.1} KB", n / 1e3),
        n => format!("{n:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_takes_no_negative_time() {
        assert_eq!(micros([].iter().sum::<f64>()), "0.0 µs");
        assert_eq!(micros(-0.0), "0.0 µs");
    }
}
