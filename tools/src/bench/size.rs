//! Sizes in bytes: reading them, stepping through them, showing them.

/// How a series of sizes goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Each is this many times the one before.
    Factor(u64),
    /// Each is this many bytes more than the one before.
    Bytes(u64),
}

/// After 0, where no factor leads away from, a series with a factor goes on here.
const AFTER_ZERO: u64 = 8;

/// Reads `4096`, `4K`, `64M`, `1G`, also `1.5M`, `4KiB`, `64 MB`: all binary, as nccl-tests'.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size; write bytes, or 4K, 64M, 1G (powers of 1024)");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let shift = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(wrong()),
    };
    let too_large = || format!("'{text}' is more bytes than 64 bits can count; lower it");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(too_large);
    }
    if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) {
        return Err(too_large());
    }
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * (1u64 << shift) as f64;
    if bytes >= u64::MAX as f64 { Err(too_large()) } else { Ok(bytes as u64) }
}

/// The sizes from `first` to `last`, both included if the steps meet them.
pub fn series(first: u64, last: u64, step: Step) -> Vec<u64> {
    let next = |size: &u64| match step {
        Step::Factor(_) if *size == 0 => Some(AFTER_ZERO.min(last)).filter(|s| *s > 0),
        Step::Factor(factor) => size.checked_mul(factor),
        Step::Bytes(bytes) => size.checked_add(bytes),
    };
    std::iter::successors(Some(first), next).take_while(|size| *size <= last).collect()
}

/// "8 B", "4 KiB", "1.5 MiB".
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = UNITS.len().min(1 + (bytes.max(1).ilog2() / 10) as usize) - 1;
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    match (value * 100.0).round() / 100.0 {
        v if v.fract() == 0.0 => format!("{v:.0} {}", UNITS[unit]),
        v => format!("{} {}", format!("{v:.2}").trim_end_matches('0'), UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("4K", 4096), ("64m", 64 << 20), ("1G", 1 << 30), ("1.5M", 3 << 19)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse(" 4 KiB "), Ok(4096));
        for bad in ["", "K", "-1", "1X", "1.2.3", "1e3", "99999999999999999999", "17000000T", "."] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn series_stop_at_the_last() {
        assert_eq!(series(8, 64, Step::Factor(2)), [8, 16, 32, 64]);
        assert_eq!(series(8, 63, Step::Factor(2)), [8, 16, 32]);
        assert_eq!(series(0, 512, Step::Factor(8)), [0, 8, 64, 512]);
        assert_eq!(series(0, 4, Step::Factor(8)), [0, 4]);
        assert_eq!(series(0, 0, Step::Factor(2)), [0]);
        assert_eq!(series(0, 10, Step::Bytes(5)), [0, 5, 10]);
        assert_eq!(series(5, 5, Step::Bytes(1)), [5]);
        assert_eq!(series(u64::MAX - 1, u64::MAX, Step::Factor(2)), [u64::MAX - 1]);
    }

    #[test]
    fn shown_as_people_write_them() {
        let sizes = [0, 8, 1000, 4096, 1536, 64 << 20, 1 << 30, (1 << 20) + 1];
        let shown = ["0 B", "8 B", "1000 B", "4 KiB", "1.5 KiB", "64 MiB", "1 GiB", "1 MiB"];
        assert_eq!(sizes.map(show), shown);
    }
}
