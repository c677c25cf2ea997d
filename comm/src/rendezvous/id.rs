//! An invitation: where to join, and the proof that one may.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use nd_transport::Family;
use nd_transport::secure::Secret;
use nd_transport::tcp::address::{Filter, advertise};
use nd_transport::tcp::interfaces::interfaces;

use super::address::Address;
use super::root::{Root, Stop};
use super::stream::Listener;
use crate::config::Config;
use crate::{Error, Result};

/// The longest string (and byte) form.
pub const ID_MAX: usize = 256;

/// Where ranks meet, and the secret that lets them in: who has it may join.
///
/// Whoever [creates](UniqueId::create) it listens, as with `ncclGetUniqueId`, and gathers one job; keep the created
/// one (or a clone) until all ranks have joined. The string form is for the other ranks' eyes only.
#[derive(Clone)]
pub struct UniqueId {
    addresses: Vec<Address>,
    secret: Secret,
    serving: Option<Arc<Serving>>,
}

impl UniqueId {
    /// Listens on a free port (of `ND_PORT_RANGE`, if that is set) of this host, and gathers one job in the
    /// background: the thread ends when the job has started or failed, or when the last clone is dropped.
    ///
    /// # Errors
    /// No port is free, or `ND_SOCKET_IFNAME` leaves no interface.
    pub fn create(config: &Config) -> Result<UniqueId> {
        let secret = Secret::random();
        let listener = listen(config)?;
        let port = listener.port().map_err(|e| failed("ask for the port", &e))?;
        let addresses =
            own_addresses(config)?.into_iter().map(|ip| Address::tcp(&ip.to_string(), port)).collect();
        let root = Root::new(listener, secret.clone()).map_err(|e| failed("make a socket", &e))?;
        let stop = root.stop();
        let thread = thread::Builder::new()
            .name("nd-rendezvous".into())
            .spawn(move || {
                if let Err(failure) = root.run(None, None) {
                    tracing::debug!("rendezvous: {}", failure.problem);
                }
            })
            .map_err(|e| failed("start a thread", &e))?;
        Ok(UniqueId { addresses, secret, serving: Some(Arc::new(Serving { stop, thread: Some(thread) })) })
    }

    /// `nd1:HOST:PORT,…:SECRET`, at most [`ID_MAX`] bytes. Whoever reads it may join: do not log it.
    pub fn to_secret_string(&self) -> String {
        format!("nd1:{}:{}", self.places(), self.secret.reveal_hex())
    }

    /// [`UniqueId::to_secret_string`] as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_secret_string().into_bytes()
    }

    /// From [`UniqueId::to_bytes`]; zeros at the end (a fixed-size buffer) are ignored.
    pub fn from_bytes(bytes: &[u8]) -> Result<UniqueId> {
        let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |p| p + 1);
        std::str::from_utf8(&bytes[..end]).map_err(|_| malformed("it is not text"))?.parse()
    }

    pub(super) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    fn places(&self) -> String {
        self.addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(",")
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<UniqueId> {
        if text.len() > ID_MAX {
            return Err(malformed(format!("it has {} bytes, at most {ID_MAX} are possible", text.len())));
        }
        let rest =
            text.trim().strip_prefix("nd1:").ok_or_else(|| malformed("it does not begin with nd1:"))?;
        let (places, secret) = rest.rsplit_once(':').ok_or_else(|| malformed("it has no secret"))?;
        let secret =
            Secret::from_hex(secret).ok_or_else(|| malformed("its secret is not 64 hexadecimal digits"))?;
        let addresses =
            places.split(',').map(str::parse).collect::<Result<_, String>>().map_err(malformed)?;
        Ok(UniqueId { addresses, secret, serving: None })
    }
}

impl fmt::Display for UniqueId {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nd1:{}:(secret)", self.places())
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({self}, serving: {})", self.serving.is_some())
    }
}

/// The thread that gathers; ends with its last owner.
struct Serving {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(config: &Config) -> Result<Listener> {
    let any: &[IpAddr] = match config.transport.family {
        Family::V4 => &[IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
        Family::V6 => &[IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
        // "::" takes IPv4 as well; a host without IPv6 has only the other.
        Family::Any => &[IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
    };
    let ports = config.transport.ports.map_or(0..=0, |p| p.first..=p.last);
    let mut last = None;
    for port in ports.clone() {
        for ip in any {
            match Listener::tcp(SocketAddr::new(*ip, port)) {
                Ok(listener) => return Ok(listener),
                Err(e) => last = Some(e),
            }
        }
    }
    let why = last.map_or("no port to try".to_owned(), |e| e.to_string());
    Err(Error::Rendezvous {
        who: "UniqueId::create".into(),
        problem: match config.transport.ports {
            Some(p) => format!("no port from {} to {} is free (last: {why})", p.first, p.last),
            None => format!("cannot listen: {why}"),
        },
        remedy: "widen ND_PORT_RANGE or end what uses these ports".into(),
    })
}

/// The addresses by which other hosts most likely reach this one, best first: what the transport would advertise,
/// but neither loopback (unless there is nothing else) nor link-local (whose zone other hosts name otherwise).
fn own_addresses(config: &Config) -> Result<Vec<IpAddr>> {
    // More would not fit into ID_MAX.
    const MOST: usize = 3;
    let transport = &config.transport;
    let failed = |problem: String| Error::Config {
        setting: "ND_SOCKET_IFNAME".into(),
        value: transport.interfaces.clone(),
        problem,
        remedy: "name interfaces that are up and have addresses of ND_SOCKET_FAMILY".into(),
    };
    let all = interfaces().map_err(|e| failed(e.to_string()))?;
    let filter = Filter::parse(&transport.interfaces);
    let advertised =
        advertise(&all, &filter, transport.family, default_route(transport.family)).map_err(failed)?;
    let reach = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let found: Vec<IpAddr> = advertised.iter().map(|a| a.address).filter(reach).take(MOST).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let loopback =
        advertised.iter().map(|a| a.address).filter(IpAddr::is_loopback).take(1).collect::<Vec<_>>();
    if loopback.is_empty() { Err(failed("only link-local addresses are left".into())) } else { Ok(loopback) }
}

/// The address that the default route uses.
fn default_route(family: Family) -> Option<IpAddr> {
    // Connecting a UDP socket sends nothing; it only asks the routing table. Addresses for documentation, RFC 5737
    // and RFC 3849.
    let ask = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
    };
    let v4 = || ask("0.0.0.0:0", "198.51.100.1:9").filter(|_| family != Family::V6);
    let v6 = || ask("[::]:0", "[2001:db8::1]:9").filter(|_| family != Family::V4);
    v4().or_else(v6)
}

fn malformed(problem: impl Into<String>) -> Error {
    Error::Rendezvous {
        who: "UniqueId".into(),
        problem: problem.into(),
        remedy: "pass on exactly what UniqueId::to_secret_string gave".into(),
    }
}

fn failed(what: &str, e: &std::io::Error) -> Error {
    Error::Rendezvous {
        who: "UniqueId::create".into(),
        problem: format!("cannot {what}: {e}"),
        remedy: "check the limits of this process (`ulimit -a`)".into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in "(nd1:)?[0-9a-z:,%@.\\[\\]]{0,40}(:(ab){32})?", bytes: Vec<u8>) {
            if let Ok(id) = text.parse::<UniqueId>() {
                let again = id.to_secret_string();
                prop_assert!(again.len() > ID_MAX || again.parse::<UniqueId>().is_ok(), "{}", again);
            }
            let _ = UniqueId::from_bytes(&bytes);
        }
    }

    #[test]
    fn strings_and_bytes_come_back() {
        let hex = "ab".repeat(32);
        for places in ["10.0.0.1:5", "10.0.0.1:5,[fd00::2]:5", "[fe80::1%eth0]:9", "unix:@x"] {
            let text = format!("nd1:{places}:{hex}");
            let id: UniqueId = text.parse().unwrap();
            assert_eq!(id.to_secret_string(), text);
            let mut bytes = id.to_bytes();
            bytes.resize(ID_MAX, 0);
            assert_eq!(UniqueId::from_bytes(&bytes).unwrap().to_secret_string(), text);
            assert!(!format!("{id} {id:?}").contains(&hex));
        }
        for wrong in [
            "",
            "nd1:",
            "nd2:a:1:00",
            "nd1:a:1:xyz",
            &format!("nd1:a:{hex}"),
            &format!("nd1::{hex}"),
            &"x".repeat(300),
        ] {
            assert!(wrong.parse::<UniqueId>().is_err(), "{wrong}");
        }
    }
}
