//! What the values of settings look like. Each parser returns "what is wrong; what to write".

use std::time::Duration;

use nd_transport::secure::Secret;
use nd_transport::{Choice, Family, PortRange};
use sha2::{Digest, Sha256};

use super::{Algorithms, Auth, Rule};
use crate::schedule::Reduction;

/// A value that cannot be used: the problem and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    pub remedy: String,
}

pub(super) fn bad<T>(problem: impl Into<String>, remedy: impl Into<String>) -> Result<T, Bad> {
    Err(Bad { problem: problem.into(), remedy: remedy.into() })
}

/// How many calls a recorder keeps at most: 4 MiB of memory for each communicator.
pub(super) const RECORDER_MAX: usize = 65536;

/// `90`, `90s`, `1.5h`, `10m`, `250ms`.
pub fn duration(text: &str) -> Result<Duration, Bad> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let factor = match text[digits..].trim() {
        "" | "s" | "sec" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" => 1e-6,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => {
            return bad("not a duration", "write seconds or a number with ms, s, m or h, such as 90s or 10m");
        }
    };
    match text[..digits].parse::<f64>() {
        Ok(n) if n.is_finite() && n * factor <= 1e9 && n * factor > 0.0 => {
            Ok(Duration::from_secs_f64(n * factor))
        }
        Ok(_) => bad("out of range", "write a duration above 0 and below 30 years"),
        Err(_) => bad("not a duration", "write seconds or a number with ms, s, m or h, such as 90s or 10m"),
    }
}

/// `4096`, `4K`, `64M`, `1G` (binary).
pub fn size(text: &str) -> Result<usize, Bad> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return bad("not a size", "write bytes or a number with K, M or G, such as 4M"),
    };
    match text[..digits].parse::<usize>() {
        Ok(n) if n <= usize::MAX >> shift => Ok(n << shift),
        Ok(_) => bad("too large", "write at most 16 EiB"),
        Err(_) => bad("not a size", "write bytes or a number with K, M or G, such as 4M"),
    }
}

/// A whole number within a range.
pub fn number<T: TryFrom<u64>>(text: &str, range: std::ops::RangeInclusive<u64>) -> Result<T, Bad> {
    let (first, last) = (range.start(), range.end());
    let remedy = format!("write a whole number from {first} to {last}");
    match text.trim().parse::<u64>() {
        Ok(n) if range.contains(&n) => T::try_from(n).or_else(|_| bad("out of range", remedy)),
        Ok(_) => bad("out of range", remedy),
        Err(_) => bad("not a whole number", remedy),
    }
}

/// `0`/`1` and their synonyms.
pub fn flag(text: &str) -> Result<bool, Bad> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => bad("neither 0 nor 1", "write 0 or 1"),
    }
}

/// `20000-20100` or one port.
pub fn ports(text: &str) -> Result<PortRange, Bad> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
        (Ok(0), _) | (_, Ok(0)) => {
            bad("port 0 means none", "write two ports from 1 to 65535, such as 20000-20100")
        }
        (Ok(first), Ok(last)) if first <= last => Ok(PortRange { first, last }),
        (Ok(_), Ok(_)) => bad("the first port is above the last", "write the lower one first"),
        _ => bad("not a range of ports", "write two ports from 1 to 65535, such as 20000-20100"),
    }
}

pub(super) fn transport(text: &str) -> Result<Choice, Bad> {
    match text.to_ascii_lowercase().as_str() {
        "auto" => Ok(Choice::Auto),
        "shm" => Ok(Choice::Shm),
        "tcp" => Ok(Choice::Tcp),
        "verbs" => Ok(Choice::Verbs),
        other => bad(
            "no such transport",
            format!("write auto, shm, tcp or verbs{}", nearest_of(other, &["auto", "shm", "tcp", "verbs"])),
        ),
    }
}

pub(super) fn family(text: &str) -> Result<Family, Bad> {
    match text.to_ascii_lowercase().as_str() {
        "any" => Ok(Family::Any),
        "4" | "ipv4" | "v4" | "inet" | "af_inet" => Ok(Family::V4),
        "6" | "ipv6" | "v6" | "inet6" | "af_inet6" => Ok(Family::V6),
        _ => bad("no such address family", "write any, ipv4 or ipv6"),
    }
}

pub(super) fn reduction(text: &str) -> Result<Reduction, Bad> {
    match text.to_ascii_lowercase().as_str() {
        "reproducible" => Ok(Reduction::Reproducible),
        "fast" => Ok(Reduction::Fast),
        _ => bad("no such order of reduction", "write reproducible or fast"),
    }
}

pub(super) fn auth(text: &str) -> Result<Auth, Bad> {
    match text.to_ascii_lowercase().as_str() {
        "secret" => Ok(Auth::Secret),
        "none" => Ok(Auth::None),
        _ => {
            bad("no such kind of authentication", "write secret, or none if everyone on the network may join")
        }
    }
}

/// NCCL's syntax: rules separated by `;`, each `collective:name,name` or `name,name` for all collectives, with `^` in
/// front of the names for all but these. Ours besides: a range of sizes behind the collective, `allreduce@64K-4M:ring`,
/// `@-4K:oneshot`. Names are lower-cased (and freed of `_` and `-` in collectives); whether they exist is for whoever
/// knows the algorithms.
pub fn algorithms(text: &str) -> Result<Algorithms, Bad> {
    const REMEDY: &str = "write names such as ring,tree, lists such as allreduce:ring,tree;allgather:ring, \
                          sizes such as allreduce@64K-4M:ring, or ^ring for all others";
    let mut rules = Vec::new();
    for part in text.split(';').map(str::trim).filter(|p| !p.is_empty()) {
        let (about, names) = part.split_once(':').unwrap_or(("", part));
        let (collective, range) = about.split_once('@').map_or((about, None), |(c, range)| (c, Some(range)));
        let collective = collective.trim().to_ascii_lowercase().replace(['_', '-'], "");
        if part.contains(':') && collective.is_empty() && range.is_none() {
            return bad(format!("no collective before the colon in {part:?}"), REMEDY);
        }
        let sizes = match range {
            None => 0..=u64::MAX,
            Some(range) => {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let end = |text: &str, open| {
                    if text.trim().is_empty() { Ok(open) } else { size(text.trim()).map(|s| s as u64) }
                };
                let sizes = end(first, 0)?..=end(last, u64::MAX)?;
                if sizes.is_empty() {
                    return bad(format!("the first size is above the last in {part:?}"), REMEDY);
                }
                sizes
            }
        };
        let names = names.trim();
        let (exclude, names) = names.strip_prefix('^').map_or((false, names), |names| (true, names));
        let names: Vec<String> =
            names.split(',').map(|n| n.trim().to_ascii_lowercase()).filter(|n| !n.is_empty()).collect();
        if names.is_empty() {
            return bad(format!("no algorithm in {part:?}"), REMEDY);
        }
        let collective = Some(collective).filter(|c| !c.is_empty());
        rules.push(Rule { collective, sizes, names, exclude });
    }
    if rules.is_empty() { bad("no algorithm named", REMEDY) } else { Ok(rules) }
}

/// The shortest secret, bytes. Of random hexadecimal digits so many are 64 bits: whoever tries a thousand million a second
/// needs centuries.
pub const SECRET_MIN: usize = 16;

/// 64 hexadecimal digits are the secret itself; any other text is hashed: SHA-256("nd-secret-v1" ‖ 0 ‖ text).
///
/// One hash, not a slow password function: every rank of a large job computes it at start. So the text must be as
/// hard to guess as the secret should be; `openssl rand -hex 32` makes a good one. Less than 16 bytes are refused.
pub fn secret(text: &str) -> Result<Secret, Bad> {
    const REMEDY: &str =
        "put in a random text, such as the output of `openssl rand -hex 32`, the same on all ranks";
    let text = text.trim();
    if text.is_empty() {
        return bad("empty", REMEDY);
    }
    if text.len() < SECRET_MIN {
        let problem = format!("{} bytes can be guessed, a secret has {SECRET_MIN} or more", text.len());
        return bad(problem, REMEDY);
    }
    Ok(Secret::from_hex(text).unwrap_or_else(|| {
        let mut hash = Sha256::new();
        hash.update(b"nd-secret-v1\0");
        hash.update(text.as_bytes());
        Secret::from_bytes(hash.finalize().into())
    }))
}

/// What to say of a file with a secret that others than its owner and group can read, or replace.
pub(super) fn open_to_all(setting: &str, path: &str) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o7777;
    (mode & 0o006 != 0).then(|| {
        format!(
            "{setting}={path}: its mode is {mode:04o}, so every user of this host can read the secret and join; \
             chmod 600 {path}"
        )
    })
}

/// The text of an ordinary file of at most 64 KiB: a device or a pipe might never end.
pub(super) fn short_file(path: &str) -> std::io::Result<String> {
    let metadata = std::fs::metadata(path)?;
    let refused = |why| Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why));
    if !metadata.is_file() {
        return refused("not an ordinary file");
    }
    if metadata.len() > 64 << 10 {
        return refused("longer than 64 KiB");
    }
    std::fs::read_to_string(path)
}

/// The closest of `known`, if it is close.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|k| (distance(name, k), k))
        .filter(|(d, k)| *d <= 1 + k.len() / 4)
        .min()
        .map(|(_, k)| k)
}

fn nearest_of(name: &str, known: &[&str]) -> String {
    nearest(name, known.iter().copied()).map(|n| format!("; did you mean {n}?")).unwrap_or_default()
}

/// Levenshtein's distance with neighbouring letters swapped counting once.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                let by_letter = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let best = by_letter.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if swapped { best.min(rows[i - 2][j - 2] + 1) } else { best }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1.5h"), Ok(Duration::from_secs(5400)));
        for wrong in ["", "s", "-1", "0", "1x", "1e400", "99999999999999999999", "∞", "1.2.3"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_keep_within_their_range() {
        assert_eq!(number::<u8>("7", 0..=7), Ok(7));
        for wrong in ["8", "-1", "", "x", "1.5", "99999999999999999999"] {
            assert!(number::<u8>(wrong, 0..=7).is_err(), "{wrong}");
        }
    }

    #[test]
    fn port_ranges() {
        assert_eq!(ports("20000-20100"), Ok(PortRange { first: 20000, last: 20100 }));
        assert_eq!(ports("7"), Ok(PortRange { first: 7, last: 7 }));
        for wrong in ["", "-", "5-4", "0-9", "1-65536", "a-b", "1-2-3"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn algorithm_lists() {
        let rule = |collective: &str, sizes, names: &[&str], exclude| Rule {
            collective: Some(collective.to_owned()).filter(|c| !c.is_empty()),
            sizes,
            names: names.iter().map(|n| n.to_string()).collect(),
            exclude,
        };
        assert_eq!(algorithms("Ring"), Ok(vec![rule("", 0..=u64::MAX, &["ring"], false)]));
        assert_eq!(
            algorithms("AllReduce:ring,Tree; all_gather:^ring"),
            Ok(vec![
                rule("allreduce", 0..=u64::MAX, &["ring", "tree"], false),
                rule("allgather", 0..=u64::MAX, &["ring"], true)
            ])
        );
        assert_eq!(
            algorithms("allreduce@64K-4M:ring; @-4K:oneshot; broadcast@1G-:tree; @8:direct"),
            Ok(vec![
                rule("allreduce", 65536..=4 << 20, &["ring"], false),
                rule("", 0..=4096, &["oneshot"], false),
                rule("broadcast", 1 << 30..=u64::MAX, &["tree"], false),
                rule("", 8..=8, &["direct"], false),
            ])
        );
        for wrong in ["", ";", ":ring", "allreduce:", ",", "^", "allreduce@4-2:ring", "@x:ring", "@1K:"] {
            assert!(algorithms(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn secrets_are_hex_or_hashed() {
        let hex = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
        assert_eq!(secret(hex).unwrap().reveal_hex(), hex);
        // printf 'nd-secret-v1\0correct horse battery' | sha256sum
        assert_eq!(
            secret(" correct horse battery\n").unwrap().reveal_hex(),
            "fc5a7ed41e6793fb7674e4cbacef0e37574988f525212a8d4597f69bf75af850"
        );
        assert!(secret(" ").is_err());
    }

    #[test]
    fn secrets_that_can_be_guessed_are_refused() {
        let long = "k".repeat(SECRET_MIN);
        assert!(secret(&long).is_ok());
        for short in ["x", &long[1..], &format!("  {}  \n", &long[1..])] {
            let e = secret(short).unwrap_err();
            assert!(e.problem.contains("a secret has 16 or more"), "{}", e.problem);
            assert!(e.remedy.contains("openssl rand -hex 32"), "{}", e.remedy);
        }
    }

    #[test]
    fn near_names() {
        assert_eq!(nearest("ND_TIMOUT", ["ND_TIMEOUT", "ND_DEBUG"]), Some("ND_TIMEOUT"));
        assert_eq!(nearest("ND_WHATEVER_ELSE", ["ND_TIMEOUT", "ND_DEBUG"]), None);
    }
}
