//! What a channel of each shape does, one leg after the other.

use super::Pattern;

/// One leg of a channel. Each takes a choice: where to begin, which GPU comes next, by which port to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leg {
    /// Begins at a GPU; with several hosts, at a port and then at a GPU.
    Begin,
    /// Goes to a GPU that the channel has not passed.
    Visit(Aim),
    /// Sends to the network, and stays at its GPU.
    Send(Exit),
    /// Returns to the first GPU. The channel is complete.
    Close,
    /// Goes nowhere more. The channel is complete.
    End,
}

/// What the choice of the next GPU looks at beside the path there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aim {
    /// Nothing else.
    Near,
    /// The channel leaves from that GPU, so it should be close to the port.
    Port,
    /// The channel leaves later, so GPUs close to the port are kept for then.
    PortLater,
}

/// By which port a channel may leave, and how much of its speed that takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// Any port that crossing allows.
    Free,
    /// The port by which it came.
    Return,
    /// Any port that crossing allows, with half of the speed.
    HalfFree,
    /// The port of the first half, with the other half.
    HalfSame,
}

/// The legs of a channel through `gpus` GPUs (at least one), each with the number of GPUs passed before it.
pub(super) fn itinerary(pattern: Pattern, gpus: usize, several_hosts: bool) -> Vec<(Leg, usize)> {
    // The exits, each with the number of GPUs passed before it.
    let exits: &[(usize, Exit)] = match pattern {
        _ if !several_hosts => &[],
        Pattern::Ring => &[(gpus, Exit::Free)],
        Pattern::SplitTree => &[(2, Exit::Free)],
        Pattern::BalancedTree => &[(1, Exit::HalfFree), (2, Exit::HalfSame)],
        _ => &[(1, Exit::Return)],
    };
    let mut legs = vec![(Leg::Begin, 0)];
    for passed in 1..=gpus {
        legs.extend(exits.iter().filter(|(at, _)| *at == passed).map(|&(_, exit)| (Leg::Send(exit), passed)));
        if passed < gpus {
            let aim = match exits.iter().map(|&(at, _)| at).find(|&at| at > passed) {
                None => Aim::Near,
                Some(at) if at == passed + 1 => Aim::Port,
                Some(_) => Aim::PortLater,
            };
            legs.push((Leg::Visit(aim), passed));
        }
    }
    let closed = pattern == Pattern::Ring && !several_hosts;
    legs.push((if closed { Leg::Close } else { Leg::End }, gpus));
    legs
}

#[cfg(test)]
mod tests {
    use super::*;
    use Leg::*;

    fn itinerary(pattern: Pattern, gpus: usize, several_hosts: bool) -> Vec<Leg> {
        super::itinerary(pattern, gpus, several_hosts).into_iter().map(|l| l.0).collect()
    }

    #[test]
    fn shapes() {
        let near = Visit(Aim::Near);
        assert_eq!(itinerary(Pattern::Ring, 3, false), [Begin, near, near, Close]);
        assert_eq!(itinerary(Pattern::BalancedTree, 2, false), [Begin, near, End]);
        let (later, port) = (Visit(Aim::PortLater), Visit(Aim::Port));
        assert_eq!(itinerary(Pattern::Ring, 3, true), [Begin, later, port, Send(Exit::Free), End]);
        assert_eq!(
            itinerary(Pattern::BalancedTree, 3, true),
            [Begin, Send(Exit::HalfFree), port, Send(Exit::HalfSame), near, End]
        );
        assert_eq!(itinerary(Pattern::Tree, 2, true), [Begin, Send(Exit::Return), near, End]);
        assert_eq!(itinerary(Pattern::SplitTree, 3, true), [Begin, port, Send(Exit::Free), near, End]);
        assert_eq!(itinerary(Pattern::Ring, 1, true), [Begin, Send(Exit::Free), End]);
    }
}
