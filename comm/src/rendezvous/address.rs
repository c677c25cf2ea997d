//! Where ranks meet.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// Where ranks meet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host (name, IPv4, or IPv6 with its zone: `fe80::1%eth0`) and a port.
    Tcp {
        /// The host, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A name in Linux's abstract socket namespace: ranks of one host and one user, who are recognised by the
    /// kernel (`SO_PEERCRED`). Leaves no file behind.
    Unix(String),
}

impl Address {
    /// A host and a port; brackets around an IPv6 address are taken off.
    pub fn tcp(host: &str, port: u16) -> Address {
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        Address::Tcp { host: bare.to_owned(), port }
    }

    /// Whether it is loopback by what is written, whatever a name server would say.
    pub fn is_literal_loopback(&self) -> bool {
        match self {
            Address::Unix(_) => true,
            Address::Tcp { host, .. } => {
                host.eq_ignore_ascii_case("localhost")
                    || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }

    /// The socket addresses that it stands for (none for a Unix name); asks the name server.
    pub(super) fn resolve(&self) -> Result<Vec<SocketAddr>, String> {
        let Address::Tcp { host, port } = self else { return Ok(Vec::new()) };
        match (host.as_str(), *port).to_socket_addrs() {
            Ok(found) => {
                let mut addresses: Vec<SocketAddr> = Vec::new();
                for address in found {
                    if !addresses.contains(&address) {
                        addresses.push(address);
                    }
                }
                if addresses.is_empty() { Err(format!("{host} has no address")) } else { Ok(addresses) }
            }
            Err(e) => Err(format!("{host} does not resolve to an address ({e})")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(name) => write!(f, "unix:@{name}"),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    /// `host:port`, `[::1]:port`, `[fe80::1%eth0]:port`, `unix:@name`.
    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(name) = text.strip_prefix("unix:@") {
            // sun_path holds 108 bytes, the first of which marks the name as abstract.
            return if name.is_empty() || name.len() > 107 {
                Err(format!("a Unix name has 1 to 107 bytes, not {}", name.len()))
            } else {
                Ok(Address::Unix(name.to_owned()))
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("no port in {text:?}"))?;
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        if host.contains(':') && bracketed.is_none() {
            return Err(format!("an IPv6 address stands in brackets: [{host}]:{port}"));
        }
        let bare = bracketed.unwrap_or(host);
        if bare.is_empty() {
            return Err(format!("no host in {text:?}"));
        }
        if bare.chars().any(|c| c.is_whitespace() || matches!(c, '/' | '[' | ']')) {
            return Err(format!("{host:?} is not a host"));
        }
        // Without its zone.
        let address = bare.split('%').next().unwrap_or(bare);
        if bracketed.is_some() && address.parse::<Ipv6Addr>().is_err() {
            return Err(format!("{host:?} is not an IPv6 address, and only one stands in brackets"));
        }
        match port.parse::<u16>() {
            Ok(0) | Err(_) => Err(format!("{port:?} is not a port from 1 to 65535")),
            Ok(port) => Ok(Address::tcp(bare, port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in
            ["a:1", "10.0.0.1:29500", "[::1]:5", "[fe80::1%eth0]:29500", "unix:@nd-0-x", "a-b.c:65535"]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let nowhere =
            ["", "a", "a:", ":1", "a:0", "a:65536", "::1:5", "[]:5", "unix:@", "a b:1", "http://x:80"];
        let brackets = ["[[]]:4", "[a]:4", "a]:4", "[a:4", "[::1]]:4", "[10.0.0.1]:4", "[%eth0]:4"];
        for text in nowhere.into_iter().chain(brackets) {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        assert_eq!(Address::tcp("[::1]", 5).to_string(), "[::1]:5");
    }

    #[test]
    fn names_that_do_not_resolve_are_named() {
        let e = Address::tcp("no-such-host.invalid", 1).resolve().unwrap_err();
        assert!(e.contains("no-such-host.invalid"), "{e}");
        assert_eq!(Address::tcp("127.0.0.1", 1).resolve().unwrap().len(), 1);
    }
}
