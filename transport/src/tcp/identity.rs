//! What a rank that connects says of itself once the session stands, and the keys that follow from it.

use super::connection::Keys;
use super::link::Common;
use crate::secure::Session;

/// Bytes of an [`Identity`].
pub const IDENTITY: usize = 17;

/// Who connects, to whom, what for, and whether it encrypts what it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The rank that connects.
    pub from: usize,
    /// The rank that it looks for.
    pub to: usize,
    /// `ND_ENCRYPT=1`.
    pub encrypts: bool,
    /// It comes to talk ([`crate::Parley`]), not to put.
    pub talks: bool,
}

impl Identity {
    /// Its bytes.
    pub fn encode(self) -> [u8; IDENTITY] {
        let mut bytes = [0; IDENTITY];
        bytes[..8].copy_from_slice(&(self.from as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.to as u64).to_le_bytes());
        bytes[16] = u8::from(self.encrypts) | u8::from(self.talks) << 1;
        bytes
    }

    /// Of bytes from a peer.
    pub fn decode(bytes: &[u8]) -> Option<Identity> {
        let (from, rest) = bytes.split_first_chunk()?;
        let (to, flags) = rest.split_first_chunk()?;
        let &[flags @ 0..4] = flags else { return None };
        let rank = |bytes: &[u8; 8]| usize::try_from(u64::from_le_bytes(*bytes)).ok();
        Some(Identity { from: rank(from)?, to: rank(to)?, encrypts: flags & 1 > 0, talks: flags & 2 > 0 })
    }

    /// What is wrong if the other side does otherwise.
    pub fn unlike(self, encrypts: bool) -> Option<String> {
        let flag = |on: bool| if on { "1" } else { "0" };
        (self.encrypts != encrypts).then(|| {
            format!(
                "ND_ENCRYPT is {} on rank {} and {} on rank {}; give all ranks the same",
                flag(self.encrypts),
                self.from,
                flag(encrypts),
                self.to
            )
        })
    }
}

/// Which end of a session this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that connected.
    Initiator,
    /// The one that was connected to.
    Responder,
}

/// The keys of a connection, if it is to be encrypted: made of the session's handshake (and so of the job's secret),
/// of the two ranks, and of the direction.
pub fn keys<S: std::io::Read + std::io::Write>(
    session: &Session<S>,
    common: &Common,
    identity: Identity,
    side: Side,
) -> Option<Keys> {
    let records_per_key = common.records_per_key?;
    let [initiators, responders] = session.directions(&[b"nd-tcp payload", &identity.encode()[..]].concat());
    let (sending, receiving) = match side {
        Side::Initiator => (initiators, responders),
        Side::Responder => (responders, initiators),
    };
    Some(Keys { sending, receiving, records_per_key })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn identities_come_back(from: u32, to: u32, encrypts: bool, talks: bool) {
            let identity = Identity { from: from as usize, to: to as usize, encrypts, talks };
            prop_assert_eq!(Identity::decode(&identity.encode()), Some(identity));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(identity) = Identity::decode(&bytes) {
                prop_assert_eq!(&identity.encode()[..], &bytes[..]);
            }
        }
    }
}
