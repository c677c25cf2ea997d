//! Connections that stay on one machine share no wire with anybody, and are not paced.
//!
//! A congestion control that paces (BBR) turns pacing on when its connection is made, and it stays on whatever replaces
//! that control later: timers, and pauses, for nothing. So it is replaced before, by Reno, which every kernel has; a
//! connection that turns out to lead elsewhere goes back to what the system prefers as soon as it is there.

use std::io;
use std::net::TcpStream;

use socket2::{SockRef, Socket};

use super::accept::canonical;

/// A congestion control that does not pace.
const UNPACED: &[u8] = b"reno";

/// The congestion control that the system prefers; none where that cannot be found out.
#[derive(Debug, Clone)]
pub struct Preferred(Option<Vec<u8>>);

/// Before connecting or listening: connections are not paced, those that lead elsewhere only until
/// [`Preferred::unless_here`] has looked at them.
pub fn off(socket: &Socket) -> Preferred {
    let preferred = socket.tcp_congestion().ok();
    // Without it connections are only slower.
    let changed = preferred.filter(|_| socket.set_tcp_congestion(UNPACED).is_ok());
    Preferred(changed)
}

impl Preferred {
    /// Once connected.
    pub fn unless_here(&self, stream: &TcpStream) -> io::Result<()> {
        let here = canonical(stream.local_addr()?).ip() == canonical(stream.peer_addr()?).ip();
        if let (false, Some(preferred)) = (here, &self.0) {
            // A route may have a congestion control of its own, which is not to be changed.
            let _ = SockRef::from(stream).set_tcp_congestion(preferred);
        }
        Ok(())
    }
}
