//! CPUs (hardware threads) as sysfs' maps of bits name them.

use super::Numa;

impl Numa {
    /// The kernel's numbers of its CPUs, ascending; nothing where they are not known or the map is malformed.
    ///
    /// ```
    /// # use nd_topology::model::Numa;
    /// let numa = Numa { affinity: Some("00000001,80000001".into()), ..Numa::default() };
    /// assert_eq!(numa.cpus(), Some(vec![0, 31, 32]));
    /// ```
    pub fn cpus(&self) -> Option<Vec<u32>> {
        let words: Vec<&str> = self.affinity.as_deref()?.split(',').collect();
        let mut list = Vec::new();
        for (i, word) in words.iter().rev().enumerate() {
            // hwloc leaves words of zeros empty.
            let bits = if word.is_empty() { 0 } else { u32::from_str_radix(word.trim(), 16).ok()? };
            list.extend((0..32).filter(|b| bits >> b & 1 == 1).map(|b| i as u32 * 32 + b));
        }
        Some(list)
    }
}
