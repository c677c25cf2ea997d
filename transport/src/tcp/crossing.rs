//! Which of two ranks' attempts becomes their one connection. Pure.
//!
//! Either rank may try at any time, and both may at once. An attempt takes these steps, and can fail at each:
//!
//! 1. it **reaches** the peer's port, and both sides prove that they know the secret: now both directions work;
//! 2. it **asks**: it says who it is;
//! 3. the peer **welcomes** it, or says that the two attempts have **crossed**;
//! 4. it **confirms**, and from then on it is the connection: for the one that tried at once, for the peer as soon as it
//!    hears so.
//!
//! The lower rank decides: it never has both asked and welcomed.
//!
//! | | the peer asks | its own attempt has reached the peer |
//! |---|---|---|
//! | lower rank, idle or on its way | welcomes | asks |
//! | lower rank, has asked | crossed | |
//! | lower rank, has welcomed | crossed | gives way |
//! | higher rank | welcomes, unless it has welcomed already | asks |
//! | either, once there is a connection | crossed | gives way |
//!
//! So only one is confirmed: the lower rank confirms nothing while a welcome of it stands, and the higher rank confirms
//! only what was welcomed. And an attempt that is still on its way, to an address that never answers or through a
//! network that lets nothing pass, holds up nobody: the peer's own is welcomed meanwhile.
//!
//! Whoever hears that they crossed expects the peer, and tries again when it does not come. A welcome ends with the attempt
//! that it was for.

/// One rank's view of its own attempt and the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Crossing {
    lower: bool,
    own: Own,
    /// The peer has asked and is welcome.
    welcomed: bool,
    /// The peer said that they crossed.
    expects: bool,
    stage: Stage,
}

/// How far this rank's own attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Own {
    Idle,
    /// Nobody has seen it yet.
    OnItsWay,
    Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Apart,
    Together,
    /// There was a connection, and there will be no other.
    Over,
}

/// What a rank does next that wants a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It tries: [`Crossing::begin`].
    Try,
    /// The peer said that it comes: it is given a while.
    Expect,
    /// An attempt goes on.
    Wait,
    /// There is a connection.
    Use,
    /// There was one.
    Leave,
}

/// How an attempt of this rank ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was welcomed, and is confirmed.
    Confirmed,
    /// The peer's holds.
    Crossed,
    /// For any other reason.
    Failed,
}

impl Crossing {
    /// Of rank `me` with `peer`.
    pub fn new(me: usize, peer: usize) -> Crossing {
        Crossing { lower: me < peer, own: Own::Idle, welcomed: false, expects: false, stage: Stage::Apart }
    }

    /// What to do for a connection.
    pub fn next(&self) -> Next {
        match self.stage {
            Stage::Together => Next::Use,
            Stage::Over => Next::Leave,
            Stage::Apart if self.welcomed || self.own != Own::Idle => Next::Wait,
            Stage::Apart if self.expects => Next::Expect,
            Stage::Apart => Next::Try,
        }
    }

    /// This rank tries; [`Crossing::ended`] follows.
    pub fn begin(&mut self) {
        (self.own, self.expects) = (Own::OnItsWay, false);
    }

    /// Whether this rank's attempt, which has reached the peer, may ask; otherwise it is to end as crossed.
    pub fn ask(&mut self) -> bool {
        let may = self.stage == Stage::Apart && !(self.lower && self.welcomed);
        if may {
            self.own = Own::Asked;
        }
        may
    }

    /// This rank's attempt has ended.
    pub fn ended(&mut self, how: Ended) {
        self.own = Own::Idle;
        self.expects = how == Ended::Crossed;
        if how == Ended::Confirmed && self.stage == Stage::Apart {
            self.stage = Stage::Together;
        }
    }

    /// The peer asks: whether it is welcome; if so, [`Crossing::welcome_ended`] follows.
    pub fn asked(&mut self) -> bool {
        let crossed = self.welcomed || (self.lower && self.own == Own::Asked);
        let welcome = self.stage == Stage::Apart && !crossed;
        self.welcomed |= welcome;
        welcome
    }

    /// The peer that was welcome has confirmed, or failed.
    pub fn welcome_ended(&mut self, confirmed: bool) {
        (self.welcomed, self.expects) = (false, false);
        if confirmed && self.stage == Stage::Apart {
            self.stage = Stage::Together;
        }
    }

    /// Whether the peer's attempt is the connection, or may be in a moment.
    pub fn comes(&self) -> bool {
        self.welcomed || self.stage == Stage::Together
    }

    /// Whether attempts are of no use any more.
    pub fn is_settled(&self) -> bool {
        self.stage != Stage::Apart
    }

    /// The connection is over.
    pub fn end(&mut self) {
        self.stage = Stage::Over;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// An attempt on its way between two ranks, and where its last word is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    enum Attempt {
        None,
        /// Not at the peer's port yet.
        OnItsWay,
        /// Its question travels.
        Asks,
        /// The answer travels; whether it is a welcome.
        Answered(bool),
        /// The confirmation travels.
        Confirmed,
    }

    /// Two ranks, the lower first; each with its attempt, whether one before is welcome although it broke, the times that
    /// it may still begin one, and which attempt it holds (its own: true).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    struct World {
        ranks: [Crossing; 2],
        attempts: [Attempt; 2],
        broken: [bool; 2],
        tries: [u8; 2],
        holds: [Option<bool>; 2],
    }

    /// What the network does.
    #[derive(Debug, Clone, Copy)]
    struct Network {
        /// Attempts that reach the other's port, by who tries.
        opens: [bool; 2],
        /// Attempts may break at any time before they are confirmed.
        breaks: bool,
    }

    impl World {
        fn new(tries: [u8; 2]) -> World {
            let ranks = [Crossing::new(3, 7), Crossing::new(7, 3)];
            World { ranks, attempts: [Attempt::None; 2], broken: [false; 2], tries, holds: [None; 2] }
        }

        fn hold(&mut self, rank: usize, own: bool) {
            assert_eq!(self.holds[rank], None, "one connection is enough: {self:?}");
            self.holds[rank] = Some(own);
        }

        fn ended(mut self, from: usize, how: Ended) -> World {
            self.attempts[from] = Attempt::None;
            self.ranks[from].ended(how);
            self
        }

        /// All that may happen next.
        fn successors(&self, network: Network) -> Vec<World> {
            let mut all = Vec::new();
            for (from, to) in [(0, 1), (1, 0)] {
                let mut world = *self;
                match self.attempts[from] {
                    Attempt::None => {
                        let next = self.ranks[from].next();
                        if matches!(next, Next::Try | Next::Expect) && self.tries[from] > 0 {
                            world.tries[from] -= 1;
                            world.ranks[from].begin();
                            world.attempts[from] = Attempt::OnItsWay;
                            all.push(world);
                        }
                    }
                    Attempt::OnItsWay if self.ranks[from].is_settled() => {
                        all.push(world.ended(from, Ended::Failed));
                    }
                    Attempt::OnItsWay if network.opens[from] => {
                        if world.ranks[from].ask() {
                            world.attempts[from] = Attempt::Asks;
                            all.push(world);
                        } else {
                            all.push(world.ended(from, Ended::Crossed));
                        }
                    }
                    Attempt::OnItsWay => {}
                    Attempt::Asks => {
                        world.attempts[from] = Attempt::Answered(world.ranks[to].asked());
                        all.push(world);
                    }
                    Attempt::Answered(true) => {
                        world.ranks[from].ended(Ended::Confirmed);
                        world.hold(from, true);
                        world.attempts[from] = Attempt::Confirmed;
                        all.push(world);
                    }
                    Attempt::Answered(false) => all.push(world.ended(from, Ended::Crossed)),
                    Attempt::Confirmed => {
                        world.ranks[to].welcome_ended(true);
                        world.hold(to, false);
                        world.attempts[from] = Attempt::None;
                        all.push(world);
                    }
                }
                // The peer learns of it later.
                if self.broken[from] {
                    let mut world = *self;
                    world.ranks[to].welcome_ended(false);
                    world.broken[from] = false;
                    all.push(world);
                }
                if network.breaks && !matches!(self.attempts[from], Attempt::None | Attempt::Confirmed) {
                    let mut world = self.ended(from, Ended::Failed);
                    all.extend((self.attempts[from] != Attempt::Answered(true)).then_some(world));
                    let welcome = match self.attempts[from] {
                        // The question arrives nevertheless.
                        Attempt::Asks => world.ranks[to].asked(),
                        before => before == Attempt::Answered(true),
                    };
                    world.broken[from] |= welcome;
                    all.extend(welcome.then_some(world));
                }
            }
            all
        }

        /// Both hold the same connection, and nothing else goes on.
        fn is_good(&self) -> bool {
            matches!(self.holds, [Some(one), Some(other)] if one != other)
                && self.ranks.iter().all(|rank| rank.next() == Next::Use && !rank.welcomed)
        }
    }

    /// Every order in which things can happen; the worlds in which nothing more can.
    fn ends(tries: [u8; 2], network: Network) -> Vec<World> {
        let (mut seen, mut left, mut ends) = (HashSet::new(), vec![World::new(tries)], Vec::new());
        while let Some(world) = left.pop() {
            if seen.insert(world) {
                let [low, high] = world.holds;
                assert!(!(low.is_some() && low == high), "each holds another one: {world:?}");
                let next = world.successors(network);
                if next.is_empty() {
                    ends.push(world);
                }
                left.extend(next);
            }
        }
        assert!(!ends.is_empty());
        ends
    }

    #[test]
    fn two_that_try_at_once_end_with_one_connection() {
        for tries in [[1, 0], [0, 1], [1, 1], [2, 2], [1, 4], [4, 1]] {
            for end in ends(tries, Network { opens: [true; 2], breaks: false }) {
                assert!(end.is_good(), "{end:?}");
            }
        }
    }

    #[test]
    fn the_one_whose_way_works_is_not_held_up_by_the_other() {
        for opens in [[false, true], [true, false]] {
            for end in ends([2, 2], Network { opens, breaks: false }) {
                assert!(end.is_good(), "{opens:?}: {end:?}");
            }
        }
    }

    #[test]
    fn attempts_that_break_never_leave_two_connections_or_a_wait_without_end() {
        for opens in [[true, true], [false, true], [true, false]] {
            for end in ends([3, 3], Network { opens, breaks: true }) {
                let stuck = |rank: usize| end.attempts[rank] == Attempt::OnItsWay && !opens[rank];
                let waits = |rank: usize| end.ranks[rank].next() == Next::Wait && !stuck(rank);
                assert!(end.is_good() || end.holds == [None; 2], "{end:?}");
                assert!(!waits(0) && !waits(1), "{end:?}");
            }
        }
    }

    #[test]
    fn what_is_over_stays_so() {
        let mut rank = Crossing::new(0, 1);
        rank.begin();
        assert!(rank.ask());
        rank.end();
        rank.ended(Ended::Confirmed);
        assert_eq!(rank.next(), Next::Leave);
        assert!(!rank.asked() && !rank.ask() && rank.is_settled() && !rank.comes());
    }
}
