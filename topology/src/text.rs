//! Text of others, made fit to be printed.

use std::borrow::Cow;

/// Names from files and devices as they may be shown: control characters and those that turn the direction of writing
/// are spelled out (`\u{1b}`), so that nobody's name steers the terminal or adds a line.
///
/// ```
/// assert_eq!(nd_topology::printable("mlx5_0"), "mlx5_0");
/// assert_eq!(nd_topology::printable("a\n\u{1b}[2J"), "a\\n\\u{1b}[2J");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if steers(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Letters to insert, remove or replace to turn one word into the other (Levenshtein).
///
/// ```
/// assert_eq!(nd_topology::edits("socket", "sockte"), 2);
/// ```
pub fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}
