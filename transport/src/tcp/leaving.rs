//! Taking leave of a peer: until its system has all that it was sent, or that has become vain.

use std::time::{Duration, Instant};

use super::REPEATS;
use super::link::TcpLink;

/// How long a peer is waited for of which nothing is seen: a system that is there acknowledges within milliseconds, and
/// what its process does not take for so long it will hardly take any more.
const STILL: Duration = Duration::from_millis(250);

/// A peer that this rank takes leave of.
#[derive(Debug)]
pub struct Leaving<'a> {
    pub link: &'a TcpLink,
    /// Bytes that its system had acknowledged when that was last more than before, and when that was.
    acknowledged: u64,
    since: Instant,
}

impl Leaving<'_> {
    pub fn of(link: &TcpLink) -> Leaving<'_> {
        Leaving { link, acknowledged: 0, since: Instant::now() }
    }

    /// Sends what is left; whether the peer's system has it, and knows that no more comes.
    pub fn has_left(&mut self) -> bool {
        let mut out = self.link.out();
        let sent = !out.is_joined() || out.broken.is_some() || out.flush().is_err() || !out.waits();
        if sent {
            out.finish();
        }
        sent && out.arrived()
    }

    /// Whether nothing more is to be expected of the peer's system or, as far as it must take something, of the peer.
    pub fn is_in_vain(&mut self) -> bool {
        let out = self.link.out();
        let Some(info) = out.info() else { return true };
        if info.acknowledged_bytes > self.acknowledged {
            (self.acknowledged, self.since) = (info.acknowledged_bytes, Instant::now());
        }
        let still = self.since.elapsed().max(out.stuck());
        still >= STILL || info.repeats >= REPEATS
    }
}
