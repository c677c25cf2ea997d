//! Which of several equal interfaces a rank uses. Pure.
//!
//! The ranks of a host take turns by their local index, so that each has an interface to itself where there are
//! enough. Ranks with the same index on different hosts so meet on the same network: a rail.

use super::address::{Candidate, Filter, Interface, Kind};

/// Puts the way that the rank with this local index should use first. Ways are equal when they lead by networks that
/// both sides are on, through cards of the same known speed, or through interfaces that the user has named.
pub fn take_turns(ways: &mut [Candidate], interfaces: &[Interface], filter: &Filter, index: usize) {
    let own = |way: &Candidate| {
        let interface = interfaces.iter().find(|i| way.via.as_ref() == Some(&i.name))?;
        (interface.kind == Kind::Physical && !way.link_local).then_some(interface)
    };
    let Some(first) = ways.first() else { return };
    let (ipv6, speed) = (first.to.is_ipv6(), own(first).and_then(|i| i.speed));
    let equal = |way: &&Candidate| {
        let fits = own(way).is_some_and(|i| filter.chooses() || (speed.is_some() && i.speed == speed));
        fits && way.to.is_ipv6() == ipv6
    };
    let rails = ways.iter().take_while(equal).count();
    if rails > 1 {
        ways[..rails].rotate_left(index % rails);
        ways[0].reason += &format!(", one of {rails} rails, for local rank {index}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::{Advertised, Local, TcpCard, candidates};
    use super::*;
    use crate::Family;

    fn interfaces(host: u8, speeds: [Option<i64>; 3]) -> Vec<Interface> {
        let interface = |(i, speed): (usize, Option<i64>)| Interface {
            name: format!("eth{i}"),
            index: i as u32 + 1,
            addresses: vec![Local { address: [10, 0, i as u8, host].into(), prefix: 24 }],
            up: true,
            kind: Kind::Physical,
            speed,
        };
        speeds.into_iter().enumerate().map(interface).collect()
    }

    /// The interfaces in the order in which the rank with this index tries them.
    fn order(speeds: [Option<i64>; 3], filter: &str, index: usize) -> Vec<String> {
        let (ours, filter) = (interfaces(1, speeds), Filter::parse(filter));
        let address = |i: Interface| Advertised {
            address: i.addresses[0].address,
            prefix: 24,
            interface: i.name,
            kind: i.kind,
        };
        let peer = TcpCard { addresses: interfaces(2, speeds).into_iter().map(address).collect(), port: 7 };
        let mut ways = candidates(&ours, &filter, Family::Any, &peer, false);
        take_turns(&mut ways, &ours, &filter, index);
        ways.into_iter().filter_map(|way| way.via).collect()
    }

    #[test]
    fn equal_cards_are_used_in_turn() {
        let fast = Some(100_000);
        assert_eq!(order([fast; 3], "", 0), ["eth0", "eth1", "eth2"]);
        assert_eq!(order([fast; 3], "", 1), ["eth1", "eth2", "eth0"]);
        assert_eq!(order([fast; 3], "", 5), ["eth2", "eth0", "eth1"]);
    }

    #[test]
    fn slower_and_unknown_ones_wait_for_the_others_to_fail_unless_they_are_named() {
        let (fast, slow) = (Some(100_000), Some(1000));
        assert_eq!(order([fast, fast, slow], "", 1), ["eth1", "eth0", "eth2"]);
        assert_eq!(order([None; 3], "", 1), ["eth0", "eth1", "eth2"]);
        assert_eq!(order([None; 3], "eth0,eth1", 1), ["eth1", "eth0"]);
        assert!(order([fast, fast, slow], "=eth9", 1).is_empty());
    }
}
