//! The file of hosts (`--hosts`). Pure.

/// A line of the file: a host, and how many ranks it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// As the remote shell takes it.
    pub name: String,
    /// Ranks.
    pub slots: usize,
}

/// Reads lines of `NAME [slots=N]`; `#` begins a comment, no `slots` means `ranks`.
pub fn parse(text: &str, file: &str, ranks: usize) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let wrong =
            |word: &str| format!("{file}:{}: {word:?}: write `NAME` or `NAME slots=N`, N at least 1", i + 1);
        if name.starts_with('-') || name.contains('=') {
            return Err(wrong(name));
        }
        let mut host = Host { name: name.into(), slots: ranks };
        for word in words {
            let slots = word.strip_prefix("slots=").and_then(|n| n.parse().ok()).filter(|n| *n > 0);
            host.slots = slots.ok_or_else(|| wrong(word))?;
        }
        hosts.push(host);
    }
    let (Some(first), uneven) = (hosts.first(), hosts.iter().find(|h| h.slots != hosts[0].slots)) else {
        return Err(format!("{file}: no hosts; write one `NAME slots=N` a line"));
    };
    match uneven {
        None => Ok(hosts),
        Some(other) => Err(format!(
            "{file}: {} has {} slots and {} has {}; give every host the same number",
            first.name, first.slots, other.name, other.slots
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_files_read_as_mpi_has_them() {
        let text = "# racks\nnode0 slots=4\n\n  node1   slots=4 # the other\n";
        let host = |name: &str| Host { name: name.into(), slots: 4 };
        assert_eq!(parse(text, "f", 1).unwrap(), [host("node0"), host("node1")]);
        assert_eq!(parse("a\nb", "f", 2).unwrap().iter().map(|h| h.slots).collect::<Vec<_>>(), [2, 2]);
        for (text, said) in [
            ("", "no hosts"),
            ("a slots=0", "f:1: \"slots=0\""),
            ("a\nb extra", "f:2: \"extra\""),
            ("-oProxyCommand=x", "f:1"),
            ("a slots=1\nb slots=2", "a has 1 slots and b has 2"),
        ] {
            let error = parse(text, "f", 1).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
