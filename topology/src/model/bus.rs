//! PCI bus addresses as the tools of the field write them.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

/// A PCI address such as `0000:81:00.0`, with its spelling kept.
///
/// Domains of four to eight digits (Azure and Hyper-V use eight) and the placeholders `fffffff:ffff:ff` and
/// `fffffff:ff:ff.0` that stand for an NVSwitch hidden from a virtual machine are all accepted. Two addresses are
/// equal when their digits are, whatever the leading zeros: `0001:00:00.0` is `00000001:00:00.0`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BusId {
    text: Box<str>,
    value: u64,
}

impl BusId {
    /// Reads an address; the message of the error says what one looks like.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let bad = || format!("`{}` is no PCI address; one looks like 0000:81:00.0", clip(text));
        if text.len() > 32 || text.is_empty() {
            return Err(bad());
        }
        let parts: Vec<&str> = text.split([':', '.']).collect();
        let hex = |p: &&str| !p.is_empty() && p.len() <= 8 && p.bytes().all(|b| b.is_ascii_hexdigit());
        if !(3..=4).contains(&parts.len()) || !parts.iter().all(hex) || parts[0].len() < 4 {
            return Err(bad());
        }
        if let Some(function) = parts.get(3)
            && !matches!(function.as_bytes(), [b'0'..=b'7'])
        {
            return Err(format!("`{}`: the function, behind the dot, is one digit from 0 to 7", clip(text)));
        }
        let digits: String = parts.concat();
        let significant = digits.trim_start_matches('0');
        if significant.len() > 16 {
            return Err(bad());
        }
        let value = if significant.is_empty() {
            0
        } else {
            u64::from_str_radix(significant, 16).map_err(|_| bad())?
        };
        Ok(BusId { text: text.to_ascii_lowercase().into_boxed_str(), value })
    }

    /// The digits as one number: domain, bus, device, function.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// The spelling in the source, in lower case.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same device with function 0: what the ports of one adapter share.
    pub fn adapter(&self) -> u64 {
        self.value & !0xf
    }

    /// True for the address that stands for an NVSwitch which the machine does not show.
    pub fn is_placeholder(&self) -> bool {
        matches!(self.text.as_ref(), "fffffff:ffff:ff" | "fffffff:ff:ff.0" | "ffffffff:ff:ff.0")
            || self.text.starts_with("ffffffff:ffff")
    }
}

fn clip(text: &str) -> String {
    text.chars().take(40).collect()
}

impl PartialEq for BusId {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}
impl Eq for BusId {}
impl PartialOrd for BusId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for BusId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.value.cmp(&other.value)
    }
}
impl Hash for BusId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.value.hash(state);
    }
}
impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}
impl TryFrom<String> for BusId {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        BusId::parse(&text)
    }
}
impl From<BusId> for String {
    fn from(bus: BusId) -> String {
        bus.text.into_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_domains_are_one_address() {
        assert_eq!(BusId::parse("0001:00:00.0"), BusId::parse("00000001:00:00.0"));
        assert_ne!(BusId::parse("0000:81:00.0"), BusId::parse("0000:81:00.1"));
        assert!(BusId::parse("fffffff:ffff:ff").unwrap().is_placeholder());
        assert!(BusId::parse("fffffff:ff:ff.0").unwrap().is_placeholder());
    }

    #[test]
    fn functions_are_0_to_7() {
        assert!(BusId::parse("0000:81:00.7").is_ok());
        for bad in ["0000:81:00.8", "0000:81:00.9", "0000:81:00.f", "0000:81:00.00"] {
            let error = BusId::parse(bad).unwrap_err();
            assert!(error.contains(bad) && error.contains("0 to 7"), "{error}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        for bad in ["", "81:00.0", "0000:zz:00.0", "eth0", "0000:81:00:00.0:1", "99999999999:0:0.0"] {
            assert!(BusId::parse(bad).unwrap_err().contains("0000:81:00.0"), "{bad}");
        }
    }
}
