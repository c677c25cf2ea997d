//! Slurm's compressed lists: `node[003-006,9],gpu1` and `4(x2),3`.

/// No cluster has more hosts; a typing error may ask for more.
const MOST: usize = 1 << 20;

/// The hosts of a Slurm host list, in order.
pub fn hosts(list: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for part in split_outside_brackets(list)? {
        expand(part, String::new(), &mut hosts)?;
    }
    if hosts.is_empty() { Err("it is empty".into()) } else { Ok(hosts) }
}

/// How many tasks each node has, from `4(x2),3`.
pub fn tasks_per_node(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if times > MOST - all.len() {
            return None;
        }
        all.extend(std::iter::repeat_n(count.trim().parse::<usize>().ok()?, times));
    }
    Some(all)
}

fn split_outside_brackets(list: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, c) in list.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1).ok_or("a ] without its [")?,
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if depth > 1 {
            return Err("brackets inside brackets".into());
        }
    }
    if depth != 0 {
        return Err("a [ without its ]".into());
    }
    parts.push(&list[start..]);
    Ok(parts.into_iter().map(str::trim).filter(|p| !p.is_empty()).collect())
}

/// Appends every host that `prefix` followed by `rest` stands for.
fn expand(rest: &str, prefix: String, hosts: &mut Vec<String>) -> Result<(), String> {
    let Some(open) = rest.find('[') else {
        if hosts.len() >= MOST {
            return Err(format!("more than {MOST} hosts"));
        }
        hosts.push(prefix + rest);
        return Ok(());
    };
    let close = rest.find(']').ok_or("a [ without its ]")?;
    for range in rest[open + 1..close].split(',') {
        let range = range.trim();
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<usize>().ok().filter(|_| digits).ok_or_else(|| format!("{range:?} is not a range"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if to < from || to - from >= MOST {
            return Err(format!("{range:?} is not a range"));
        }
        for n in from..=to {
            expand(
                &rest[close + 1..],
                format!("{prefix}{}{n:0width$}", &rest[..open], width = first.len()),
                hosts,
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let all = |list| hosts(list).unwrap().join(" ");
        assert_eq!(all("node[003-006,9],gpu1"), "node003 node004 node005 node006 node9 gpu1");
        assert_eq!(all("tux"), "tux");
        assert_eq!(all("r[1-2]n[01-02]-ib"), "r1n01-ib r1n02-ib r2n01-ib r2n02-ib");
        assert_eq!(all("n[08-11]"), "n08 n09 n10 n11");
        for wrong in
            ["", ",", "n[", "n]", "n[1-", "n[3-1]", "n[a]", "n[[1]]", "n[]", "n[1-99999999]", "n[+1]"]
        {
            assert!(hosts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tasks() {
        assert_eq!(tasks_per_node("4(x2),3"), Some(vec![4, 4, 3]));
        assert_eq!(tasks_per_node("8"), Some(vec![8]));
        assert_eq!(tasks_per_node("4(x2"), None);
        assert_eq!(tasks_per_node("1(x99999999999)"), None);
        assert_eq!(tasks_per_node("1,1(x18446744073709551615)"), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(list in "[n\\[\\],0-9-]{0,24}") {
            let _ = hosts(&list);
            let _ = tasks_per_node(&list);
        }
    }
}
