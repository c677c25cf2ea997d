//! Opening the port that peers connect to.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

use super::address::{Filter, Interface, TcpCard, advertise};
use super::interfaces::interfaces;
use super::pacing::{self, Preferred};
use crate::{Config, Error, Family, Result};

/// A socket that listens; peers may connect from now on, and are answered once [`super::Tcp`] starts.
#[derive(Debug)]
pub struct Listening {
    pub(super) listener: TcpListener,
    pub(super) interfaces: Vec<Interface>,
    /// What connections from other machines are to be controlled by.
    pub(super) preferred: Preferred,
}

impl Listening {
    /// Listens within `config.ports`, and says by which addresses peers can reach it.
    pub fn open(config: &Config) -> Result<(Listening, TcpCard)> {
        raise_descriptor_limit();
        let interfaces = interfaces()?;
        if !interfaces.iter().any(Interface::is_usable) {
            let there: Vec<String> = interfaces.iter().map(Interface::to_string).collect();
            let what = format!("listening: no interface is up and has an address, of {}", there.join(", "));
            return Err(Error::system(what, io::Error::from_raw_os_error(libc::ENETDOWN)));
        }
        let filter = Filter::parse(&config.interfaces);
        let addresses =
            advertise(&interfaces, &filter, config.family, config.local_address).map_err(|problem| {
                Error::Config {
                    setting: "ND_SOCKET_IFNAME",
                    value: config.interfaces.clone(),
                    problem,
                    remedy: "name one of them, or leave it empty; ND_SOCKET_FAMILY restricts too".into(),
                }
            })?;
        let (listener, preferred) = listen(config)?;
        let port = listener.local_addr().map_err(|e| Error::system("asking for the port", e))?.port();
        Ok((Listening { listener, interfaces, preferred }, TcpCard { addresses, port }))
    }
}

fn listen(config: &Config) -> Result<(TcpListener, Preferred)> {
    let Some(range) = config.ports else {
        return bind(config, 0).map_err(|e| descriptors("listening", e));
    };
    let mut last = None;
    for port in range.first..=range.last {
        match bind(config, port) {
            Ok(bound) => return Ok(bound),
            Err(e) if matches!(e.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => {
                last = Some(e);
            }
            Err(e) => return Err(descriptors("listening", e)),
        }
    }
    let last = last.map_or("the range is empty".into(), |e| e.to_string());
    Err(Error::Config {
        setting: "ND_PORT_RANGE",
        value: format!("{}-{}", range.first, range.last),
        problem: format!("no port of it can be listened on (the last one: {last})"),
        remedy: "widen it: every rank of a host needs a port of its own".into(),
    })
}

/// On all addresses, of both families where the kernel has both, unless all peers are on this host. Strangers are
/// kept out by the handshake.
fn bind(config: &Config, port: u16) -> io::Result<(TcpListener, Preferred)> {
    if config.loopback_only {
        return match config.family {
            Family::V6 => bind_to(SocketAddr::from((Ipv6Addr::LOCALHOST, port)), true, config),
            _ => bind_to(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), false, config),
        };
    }
    let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match config.family {
        Family::V4 => bind_to(v4, false, config),
        Family::V6 => bind_to(v6, true, config),
        Family::Any => match bind_to(v6, false, config) {
            Err(e) if e.kind() != io::ErrorKind::AddrInUse => bind_to(v4, false, config),
            done => done,
        },
    }
}

fn bind_to(address: SocketAddr, only_v6: bool, config: &Config) -> io::Result<(TcpListener, Preferred)> {
    // Close-on-exec is socket2's default.
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    // A port in TIME_WAIT of the job before is free; on Linux two listeners still exclude each other.
    socket.set_reuse_address(true)?;
    set_buffers(&socket, config.socket_buffer)?;
    let preferred = pacing::off(&socket);
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok((socket.into(), preferred))
}

/// Before connecting or listening, so that the window scale allows for it.
pub fn set_buffers(socket: &Socket, bytes: Option<usize>) -> io::Result<()> {
    if let Some(bytes) = bytes {
        socket.set_send_buffer_size(bytes)?;
        socket.set_recv_buffer_size(bytes)?;
    }
    Ok(())
}

/// As high as this process may go by itself; failing is no harm, the need may never come.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// An error of the system; running out of descriptors becomes [`Error::Limit`].
pub fn descriptors(what: &str, e: io::Error) -> Error {
    if e.raw_os_error() != Some(libc::EMFILE) {
        return Error::system(what, e);
    }
    let limit = getrlimit(Resource::Nofile).current;
    Error::Limit {
        what: format!("{what}: open files"),
        needed: "1 per peer by TCP, and some 20 more".into(),
        limit: limit.map_or("unlimited".into(), |l| l.to_string()),
        remedy: "raise it (`ulimit -n`)".into(),
    }
}

/// All ranks of a large job may connect at once; the kernel lowers it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortRange;

    #[test]
    fn ports_come_from_the_range_and_a_full_range_is_named() {
        // A port that is free now; nobody else is given it while the first listener lives.
        let (probe, _) = bind(&Config::default(), 0).unwrap();
        let port = probe.local_addr().unwrap().port();
        drop(probe);
        let config = Config { ports: Some(PortRange { first: port, last: port }), ..Config::default() };
        let (first, card) = Listening::open(&config).unwrap();
        assert_eq!(card.port, port);
        let e = Listening::open(&config).unwrap_err().to_string();
        assert!(e.contains(&format!("ND_PORT_RANGE={port}-{port}")), "{e}");
        drop(first);
    }

    #[test]
    fn an_unknown_interface_is_refused_with_what_there_is() {
        let config = Config { interfaces: "=nosuch0".into(), ..Config::default() };
        let e = Listening::open(&config).unwrap_err().to_string();
        assert!(e.contains("ND_SOCKET_IFNAME==nosuch0") && e.contains("lo ("), "{e}");
    }

    #[test]
    fn running_out_of_descriptors_names_the_limit() {
        let e = descriptors("connecting to rank 3", io::Error::from_raw_os_error(libc::EMFILE)).to_string();
        assert!(e.contains("connecting to rank 3: open files: needs 1 per peer"), "{e}");
        assert!(e.contains("the limit is") && e.contains("ulimit -n"), "{e}");
    }
}
