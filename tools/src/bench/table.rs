//! nccl-tests' table, to the character (`src/util.cu`).

use nd_comm::schedule::Collective;

use super::host::Device;
use super::measure::Half;
use super::number::{float, general};
use super::report::Row;

/// The lines above the rows.
pub fn header(per_iteration: bool) -> String {
    let left =
        |a: &str, b: &str, c: &str, d: &str, e: &str| format!("# {a:>10}  {b:>12}  {c:>8}  {d:>6}  {e:>6}");
    let half = |a: &str, b: &str, c: &str, d: &str| format!("  {a:>7}  {b:>6}  {c:>6}  {d:>6}");
    let four = |a: &str, b: &str, c: &str, d: &str| format!("  {a:>7}  {b:>7}  {c:>7}  {d:>7}");
    let spread = |a, b, c, d| if per_iteration { four(a, b, c, d) } else { String::new() };
    let names = half("time", "algbw", "busbw", "#wrong") + &spread("i_min", "i_max", "i_p99", "i_cv%");
    let units = half("(us)", "(GB/s)", "(GB/s)", "") + &spread("(us)", "(us)", "(us)", "(%)");
    let title = match per_iteration {
        true => {
            "              out-of-place (+ per-iteration)                                in-place (+ per-iteration)"
        }
        false => "           out-of-place                       in-place          ",
    };
    format!(
        "#\n{}{title}\n{}{names}{names} \n{}{units}{units} \n",
        left("", "", "", "", ""),
        left("size", "count", "type", "redop", "root"),
        left("(B)", "(elements)", "", "", ""),
    )
}

/// One row.
pub fn row(row: &Row, ranks: usize) -> String {
    let data_type = row.data_type.map_or("none", |t| t.name());
    let op = row.op.map_or("none", |o| o.name());
    let root = row.root.map_or("-1".to_owned(), |r| r.to_string());
    let mut line = format!("{:>12}  {:>12}  {data_type:>8}  {op:>6}  {root:>6}", row.size, row.count);
    for half in [Some(&row.apart), row.in_place.as_ref()] {
        match half {
            Some(half) => line += &columns(row, half, ranks),
            None => line += &format!("  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A"),
        }
    }
    line + "\n"
}

fn columns(row: &Row, half: &Half, ranks: usize) -> String {
    let (alg, bus) = row.bandwidths(half, ranks);
    let wrong = match half.wrong {
        Some(wrong) if row.bench.0 != Collective::Barrier => general(wrong as f64),
        _ => "N/A".into(),
    };
    let mut text = format!("  {}  {}  {}  {wrong:>6}", float(half.time, 7), float(alg, 6), float(bus, 6));
    if let Some(spread) = &half.spread {
        for value in [spread.min, spread.max, spread.p99, spread.variation] {
            text += &format!("  {}", float(value, 7));
        }
    }
    text
}

/// The line about one rank.
pub fn device(d: &Device) -> String {
    format!(
        "#  Rank {:>2} Group {:>2} Pid {:>6} on {:>10} device {:>2} [{}] {}\n",
        d.rank, d.group, d.pid, d.hostname, d.device, d.device_hex, d.device_info
    )
}

/// The lines below the rows.
pub fn footer(program: &str, wrong: u64, bandwidth: f64) -> String {
    format!(
        "# {:<20} : {wrong} {}\n# {:<20} : {} \n#\n# Collective test concluded: {program}\n",
        "Out of bounds values",
        if wrong == 0 { "OK" } else { "FAILED" },
        "Avg bus bandwidth",
        general(bandwidth),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::collective::Bench;
    use crate::bench::statistics::Spread;
    use nd_comm::prelude::{DataType, ReduceOp};

    fn half(time: f64, wrong: Option<u64>) -> Half {
        Half { time, iterations: 20, wrong, spread: None }
    }

    fn a_row() -> Row {
        Row {
            bench: Bench(Collective::AllReduce),
            size: 8,
            count: 2,
            data_type: Some(DataType::F32),
            op: Some(ReduceOp::Sum),
            root: None,
            apart: half(11.87, Some(0)),
            in_place: Some(half(11.64, Some(0))),
            explanation: nd_comm::communicator::Explanation {
                algorithm: "oneshot",
                why: String::new(),
                predicted: vec![],
                transports: vec![],
                links: vec![],
            },
        }
    }

    #[test]
    fn the_row_is_nccl_tests() {
        let expected = "           8             2     float     sum      -1    11.87    0.00    0.00       0    11.64    0.00    0.00       0\n";
        assert_eq!(row(&a_row(), 8), expected);
    }

    #[test]
    fn bandwidths_roots_and_what_is_missing() {
        let mut r = a_row();
        (r.size, r.count, r.op) = (64 << 20, 16 << 20, None);
        (r.bench, r.root) = (Bench(Collective::Gather), Some(3));
        (r.apart, r.in_place) = (half(12345.6, Some(1234567)), None);
        let expected = "    67108864      16777216     float    none       3  12345.6    5.44    4.08  1.23457e+06      N/A     N/A     N/A     N/A\n";
        assert_eq!(row(&r, 4), expected);
        r.apart = half(12345.6, None);
        assert!(row(&r, 4).contains("  12345.6    5.44    4.08     N/A  "));
        r.apart.spread = Some(Spread::of(vec![1.0, 3.0]));
        assert!(row(&r, 4).contains("     N/A     1.00     3.00     3.00    50.00  "));
    }

    #[test]
    fn the_header_is_nccl_tests() {
        let expected = "\
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
";
        assert_eq!(header(false), expected);
        assert_eq!(header(true).lines().nth(2).unwrap().len(), row(&a_row(), 2).trim_end().len() + 8 * 9 + 1);
    }

    #[test]
    fn the_footer_is_nccl_tests() {
        let expected = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 2.34598 \n#\n# Collective test concluded: allreduce\n";
        assert_eq!(footer("allreduce", 0, 2.345978), expected);
        assert!(footer("x", 7, 0.0).starts_with("# Out of bounds values : 7 FAILED\n"));
    }
}
