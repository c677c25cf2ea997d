//! The connection of two ranks: its stream, and what protects it.

use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::seal::{Opener, Sealer};
use crate::secure::Secret;

/// A connection whose other end has proved who it is.
#[derive(Debug)]
pub struct Connection {
    pub stream: TcpStream,
    protection: Option<Protection>,
}

/// The only places of their keys.
#[derive(Debug)]
struct Protection {
    sealer: Mutex<Sealer>,
    opener: Mutex<Opener>,
}

/// Which keys a connection has, and for how many records each.
pub struct Keys {
    /// For what is sent.
    pub sending: Secret,
    /// For what is received.
    pub receiving: Secret,
    /// How often they change.
    pub records_per_key: u64,
}

impl Connection {
    /// Without keys nothing is encrypted.
    pub fn new(stream: TcpStream, keys: Option<&Keys>) -> Connection {
        let protection = keys.map(|keys| Protection {
            sealer: Mutex::new(Sealer::new(&keys.sending, keys.records_per_key)),
            opener: Mutex::new(Opener::new(&keys.receiving, keys.records_per_key)),
        });
        Connection { stream, protection }
    }

    /// What seals all that is sent, if this connection is encrypted.
    pub fn sealer(&self) -> Option<MutexGuard<'_, Sealer>> {
        let protection = self.protection.as_ref()?;
        Some(protection.sealer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What opens all that is received.
    pub fn opener(&self) -> Option<MutexGuard<'_, Opener>> {
        let protection = self.protection.as_ref()?;
        Some(protection.opener.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
