//! How much memory this host has left.

use std::fs;

/// Bytes that programs can still take: of the host's memory, and of what a container's limit allows. None: the system does
/// not say.
pub fn available() -> Option<u64> {
    let host = in_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
    // What is used of a limit may be files, which make room; so all of it counts.
    let limit =
        fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    Some(limit.map_or(host, |limit: u64| limit.min(host)))
}

fn in_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_counts_in_kibibytes() {
        assert_eq!(in_meminfo("MemTotal:  9 kB\nMemAvailable:   16384 kB\n"), Some(16 << 20));
        assert_eq!(in_meminfo("MemTotal:  9 kB\n"), None);
        assert_eq!(in_meminfo("MemAvailable: 18446744073709551615 kB\n"), None);
    }
}
