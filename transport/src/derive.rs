//! Secrets made of other secrets.

use crate::secure::Secret;

impl Secret {
    /// Another secret, for the purpose that `label` names: BLAKE3 with this one as the key. Whoever knows the result
    /// learns nothing of this one.
    pub fn derive(&self, label: &[u8]) -> Secret {
        Secret::from_bytes(*blake3::keyed_hash(self.as_bytes(), label).as_bytes())
    }
}
