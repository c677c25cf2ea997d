//! What is said after the rows: which algorithm and transport each size used, and why; pictures.

use std::path::{Path, PathBuf};

use super::collective::Bench;
use super::measure::Half;
use super::options::Options;
use super::report::Row;
use super::{plot, ranges};

/// Rows of one type, operation and root, in the order of the first of each.
fn kinds(rows: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut kinds: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows {
        let kind = row.kind();
        match kinds.iter_mut().find(|(k, _)| *k == kind) {
            Some((_, rows)) => rows.push(row),
            None => kinds.push((kind, vec![row])),
        }
    }
    kinds
}

/// "# allreduce: 8 B–4 KiB oneshot over shm, 8 KiB–64 MiB direct over shm"; one line if all types and operations
/// were done the same way.
pub fn ways(bench: Bench, rows: &[Row], explain: bool) -> String {
    let mut lines: Vec<(String, Vec<String>, Vec<&Row>)> = Vec::new();
    for (kind, rows) in kinds(rows) {
        let merged = ranges::merge(rows.iter().map(|r| (r.size, r.way())));
        let line: Vec<_> = merged.iter().map(|r| format!("{} {}", r.sizes(), r.label)).collect();
        let line = line.join(", ");
        match lines.iter_mut().find(|(l, ..)| *l == line) {
            Some((_, kinds, _)) => kinds.push(kind),
            None => lines.push((line, vec![kind], rows)),
        }
    }
    let several = lines.len() > 1;
    let mut text = String::new();
    for (line, kinds, rows) in &lines {
        let which = if several { format!(" ({})", kinds.join(", ")) } else { String::new() };
        text += &format!("# {bench}{which}: {line}\n");
        if explain {
            for range in ranges::merge(rows.iter().map(|r| (r.size, r.way()))) {
                let first = rows.iter().find(|r| r.size == range.first);
                let why = first.map_or("", |r| r.explanation.why.as_str());
                text += &format!("#   {} {}: {why}\n", range.sizes(), range.label);
                if let Some(row) = first.filter(|r| !r.explanation.predicted.is_empty()) {
                    text += &format!("#     candidates at {} B: {}\n", row.size, candidates(row));
                }
            }
        }
    }
    if explain {
        text += &predictions(rows);
        let links = rows.first().map_or(&[][..], |r| &r.explanation.links);
        links.iter().for_each(|link| text += &format!("#   {link}\n"));
    }
    text
}

/// What was predicted beside what was measured, out of place, and how far apart they are.
fn predictions(rows: &[Row]) -> String {
    let of = |r: &Row| {
        let (_, us) = r.explanation.predicted.iter().find(|(name, _)| *name == r.explanation.algorithm)?;
        Some((r.size, *us, r.apart.time))
    };
    let all: Vec<_> = rows.iter().filter_map(of).filter(|(.., time)| *time > 0.0).collect();
    if all.is_empty() {
        return String::new();
    }
    let mut text = String::from("# predicted against measured, µs:\n");
    let mut errors: Vec<f64> = Vec::new();
    for (size, predicted, measured) in all {
        let error = (predicted - measured) / measured;
        errors.push(error.abs());
        text += &format!("#   {size:>12} B {predicted:>12.2} {measured:>12.2} {:>+7.0} %\n", error * 100.0);
    }
    errors.sort_by(f64::total_cmp);
    text + &format!("# median of |predicted - measured| / measured: {:.0} %\n", errors[errors.len() / 2] * 100.0)
}

/// "direct 12.3 µs, ring 20.1 µs".
fn candidates(row: &Row) -> String {
    let each = row.explanation.predicted.iter().map(|(name, us)| format!("{name} {us:.2} µs"));
    each.collect::<Vec<_>>().join(", ")
}

/// A picture for each type, operation and root, each in a file of its own.
pub fn plots(
    path: &Path,
    o: &Options,
    bench: Bench,
    rows: &[Row],
    ranks: usize,
) -> Vec<(PathBuf, plot::Plot)> {
    let kinds = kinds(rows);
    let named = |kind: &str| {
        let mut name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if o.collectives.len() > 1 {
            name += &format!("-{bench}");
        }
        if kinds.len() > 1 {
            name += &format!("-{}", kind.replace(' ', "-"));
        }
        path.with_file_name(format!("{name}.{}", path.extension().unwrap_or_default().to_string_lossy()))
    };
    let one = |(kind, rows): &(String, Vec<&Row>)| {
        let mut transports: Vec<&str> =
            rows.iter().flat_map(|r| r.explanation.transports.iter().copied()).collect();
        transports.sort_unstable();
        transports.dedup();
        let over =
            if transports.is_empty() { String::new() } else { format!(" over {}", transports.join("+")) };
        let plural = if ranks == 1 { "" } else { "s" };
        let points = |half: &dyn Fn(&Row) -> Option<&Half>| -> Vec<(u64, f64, f64)> {
            let of = |r: &&Row| half(r).map(|h| (r.size, r.bandwidths(h, ranks)));
            rows.iter().filter_map(of).map(|(size, (alg, bus))| (size, alg, bus)).collect()
        };
        let plot = plot::Plot {
            title: format!("{bench} · {ranks} rank{plural}{over} · {kind}"),
            subtitle: size_range(rows),
            apart: points(&|r| Some(&r.apart)),
            in_place: points(&|r| r.in_place.as_ref()),
        };
        (named(kind), plot)
    };
    kinds.iter().map(one).collect()
}

fn size_range(rows: &[&Row]) -> String {
    let merged = ranges::merge(rows.iter().map(|r| (r.size, r.way())));
    merged.iter().map(|r| format!("{} {}", r.sizes(), r.label)).collect::<Vec<_>>().join(", ")
}
