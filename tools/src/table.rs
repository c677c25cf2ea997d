//! Plain tables: columns as wide as they need to be, numbers to the right.

/// A table in the making.
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Table { head: head.iter().map(|h| (*h).to_owned()).collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|c| nd_topology::printable(&c).into_owned()).collect());
    }

    /// The text, with a rule below the head.
    pub fn render(&self) -> String {
        let n = self.head.len();
        let width = |c: usize| {
            let cells = self.rows.iter().filter_map(|r| r.get(c)).chain(self.head.get(c));
            cells.map(|s| s.chars().count()).max().unwrap_or(0)
        };
        let numeric = |c: usize| {
            let mut cells = self.rows.iter().filter_map(|r| r.get(c)).filter(|s| !s.is_empty()).peekable();
            cells.peek().is_some() && cells.all(|s| s.starts_with(|ch: char| ch.is_ascii_digit()))
        };
        let columns: Vec<(usize, bool)> = (0..n).map(|c| (width(c), numeric(c))).collect();
        let line = |cells: &[String]| {
            let mut out = String::new();
            for (c, &(width, right)) in columns.iter().enumerate() {
                let cell = cells.get(c).map_or("", String::as_str);
                let pad = " ".repeat(width - cell.chars().count().min(width));
                if c > 0 {
                    out.push_str("  ");
                }
                if right {
                    out.push_str(&format!("{pad}{cell}"))
                } else {
                    out.push_str(&format!("{cell}{pad}"))
                }
            }
            out.truncate(out.trim_end().len());
            out + "\n"
        };
        let rule: Vec<String> = columns.iter().map(|&(w, _)| "─".repeat(w)).collect();
        let mut out = line(&self.head);
        out.push_str(&line(&rule));
        self.rows.iter().for_each(|r| out.push_str(&line(r)));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_right_and_words_left() {
        let mut t = Table::new(&["name", "GB/s"]);
        t.row(["a".into(), "1.0".into()]);
        t.row(["bcd".into(), "100.0".into()]);
        assert_eq!(t.render(), "name   GB/s\n────  ─────\na       1.0\nbcd   100.0\n");
    }
}
