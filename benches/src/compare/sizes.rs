//! Lists of sizes in bytes.

/// Sizes as a user lists them, ascending, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes(pub Vec<u64>);

impl std::str::FromStr for Sizes {
    type Err = String;

    /// `4,1K,64M`: powers of 1024, multiples of 4 bytes (f32).
    fn from_str(text: &str) -> Result<Sizes, String> {
        let mut sizes = text.split(',').map(one).collect::<Result<Vec<u64>, String>>()?;
        sizes.sort_unstable();
        sizes.dedup();
        Ok(Sizes(sizes))
    }
}

fn one(text: &str) -> Result<u64, String> {
    let word = text.trim().to_ascii_uppercase();
    let (digits, shift) = match word.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if word.ends_with('K') => (digits, 10),
        Some(digits) if word.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (word.as_str(), 0),
    };
    let wrong = || format!("'{text}' is not a size from 4 bytes to 4G; write 4, 16K, 64M (powers of 1024)");
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)).ok_or_else(wrong)?;
    match bytes {
        0..4 | 0x1_0000_0001.. => Err(wrong()),
        _ if bytes % 4 != 0 => Err(format!("'{text}': elements have 4 bytes; use a multiple of 4")),
        _ => Ok(bytes),
    }
}

impl Sizes {
    /// The runs that a program with a first and last size and a factor needs: one for each stretch in which every size
    /// is the same multiple of the one before. (first, last, factor)
    pub fn runs(&self) -> Vec<(u64, u64, u64)> {
        let mut runs = Vec::new();
        let mut rest = &self.0[..];
        while let [first, others @ ..] = rest {
            let factor = others.first().filter(|next| **next % first == 0).map_or(2, |next| next / first);
            let length = 1 + rest.windows(2).take_while(|w| w[0] * factor == w[1]).count();
            runs.push((*first, rest[length - 1], factor));
            rest = &rest[length..];
        }
        runs
    }

    /// `4,1024,65536`.
    pub fn list(&self) -> String {
        self.0.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    }
}

/// "4 B", "16 KiB", "1.5 MiB".
pub fn show(bytes: u64) -> String {
    let (value, unit) = match bytes {
        0..0x400 => return format!("{bytes} B"),
        0x400..0x10_0000 => (bytes as f64 / 1024.0, "KiB"),
        0x10_0000..0x4000_0000 => (bytes as f64 / f64::from(1 << 20), "MiB"),
        _ => (bytes as f64 / f64::from(1 << 30), "GiB"),
    };
    let text = format!("{value:.2}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let of = |text: &str| text.parse::<Sizes>().map(|s| s.0);
        assert_eq!(of("1K, 4,4, 64m"), Ok(vec![4, 1024, 64 << 20]));
        for bad in ["", "4,,8", "0", "3", "6", "K", "-4", "1.5K", "5G", "99999999999999999999"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn even_stretches_are_one_run() {
        let of = |text: &str| text.parse::<Sizes>().unwrap().runs();
        assert_eq!(of("4,64,1K,16K"), [(4, 16384, 16)]);
        assert_eq!(of("4,8,64"), [(4, 8, 2), (64, 64, 2)]);
        assert_eq!(of("4,64,1K,4K,16K"), [(4, 1024, 16), (4096, 16384, 4)]);
        assert_eq!(of("8,12,20"), [(8, 8, 2), (12, 12, 2), (20, 20, 2)]);
        assert_eq!(of("1M"), [(1 << 20, 1 << 20, 2)]);
    }

    #[test]
    fn shown_short() {
        let shown = [4, 1024, 1536, 64 << 20, 1 << 30].map(show);
        assert_eq!(shown, ["4 B", "1 KiB", "1.5 KiB", "64 MiB", "1 GiB"]);
    }
}
