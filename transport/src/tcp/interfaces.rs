//! The network interfaces of this machine. `getifaddrs` by hand: it is one call, and a crate around it would leave
//! out speed and kind, which come from sysfs.
#![allow(unsafe_code)] // a linked list from the C library

use std::ffi::CStr;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::address::{Interface, Kind, Local, kind_by_name};
use crate::{Error, Result};

/// All interfaces, in the kernel's order, those without addresses too.
pub fn interfaces() -> Result<Vec<Interface>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: writes one pointer, to a list that is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(Error::system("listing the network interfaces", io::Error::last_os_error()));
    }
    let mut found: Vec<Interface> = Vec::new();
    let mut next = first;
    // SAFETY: the list is valid until freed; each entry is null-terminated and points to the next.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: every entry has a name, a C string.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        let index = position(&mut found, &name.to_string_lossy(), entry.ifa_flags, name);
        // SAFETY: null, or an address of the length that its family says.
        if let Some(address) = unsafe { ip(entry.ifa_addr) } {
            // SAFETY: as above; the mask has the address's family.
            let prefix = unsafe { ip(entry.ifa_netmask) }.map_or(full(address), ones);
            found[index].addresses.push(Local { address, prefix });
        }
    }
    // SAFETY: from getifaddrs, freed once; nothing above keeps pointers into it.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The place of the interface in the list, which gets it if it is new.
fn position(found: &mut Vec<Interface>, name: &str, flags: u32, c_name: &CStr) -> usize {
    if let Some(at) = found.iter().position(|i| i.name == name) {
        return at;
    }
    let is = |flag: libc::c_int| flags & flag as u32 != 0;
    let sysfs = Path::new("/sys/class/net").join(name);
    let kind = if is(libc::IFF_LOOPBACK) {
        Kind::Loopback
    } else if sysfs.join("bridge").exists() || sysfs.join("tun_flags").exists() {
        Kind::Virtual
    } else {
        kind_by_name(name)
    };
    found.push(Interface {
        name: name.into(),
        // SAFETY: a C string.
        index: unsafe { libc::if_nametoindex(c_name.as_ptr()) },
        addresses: Vec::new(),
        // The kernel says "running" up to a second after the carrier is there, and of a dormant interface never.
        up: is(libc::IFF_UP) && (is(libc::IFF_RUNNING) || is(libc::IFF_LOWER_UP)),
        kind,
        speed: fs::read_to_string(sysfs.join("speed")).ok().and_then(|s| s.trim().parse().ok()),
    });
    found.len() - 1
}

/// # Safety
/// `address` is null or points to a socket address as long as its family says.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    let family = unsafe { address.as_ref()? }.sa_family;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one of these; read unaligned, as alignment is nobody's promise.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn full(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn ones(mask: IpAddr) -> u8 {
    match mask {
        IpAddr::V4(m) => m.to_bits().leading_ones() as u8,
        IpAddr::V6(m) => m.to_bits().leading_ones() as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_them() {
        let all = interfaces().unwrap();
        let lo = all.iter().find(|i| i.kind == Kind::Loopback).unwrap();
        assert!(lo.up && lo.index > 0);
        let home = lo.addresses.iter().find(|a| a.address == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert_eq!(home.prefix, 8);
    }
}
