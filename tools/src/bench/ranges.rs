//! Which sizes were done how, neighbours merged.

use super::size;

/// A run of sizes with one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range<L> {
    pub first: u64,
    pub last: u64,
    pub label: L,
}

impl<L> Range<L> {
    /// "8 B–4 KiB".
    pub fn sizes(&self) -> String {
        let (first, last) = (size::show(self.first), size::show(self.last));
        if first == last { first } else { format!("{first}–{last}") }
    }
}

/// Neighbours with equal labels become one range; of two labels of one size, the later counts.
pub fn merge<L: PartialEq>(points: impl IntoIterator<Item = (u64, L)>) -> Vec<Range<L>> {
    let points: std::collections::BTreeMap<u64, L> = points.into_iter().collect();
    let mut ranges: Vec<Range<L>> = Vec::new();
    for (size, label) in points {
        match ranges.last_mut() {
            Some(range) if range.label == label => range.last = size,
            _ => ranges.push(Range { first: size, last: size, label }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge() {
        let points = [
            (64, "ring"),
            (0, "oneshot"),
            (8, "oneshot"),
            (8, "oneshot"),
            (4096, "ring"),
            (1 << 20, "oneshot"),
        ];
        let shown: Vec<_> = merge(points).iter().map(|r| format!("{} {}", r.sizes(), r.label)).collect();
        assert_eq!(shown, ["0 B–8 B oneshot", "64 B–4 KiB ring", "1 MiB oneshot"]);
        assert!(merge(Vec::<(u64, &str)>::new()).is_empty());
    }
}
