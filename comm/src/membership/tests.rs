//! Ranks that crash, sleep, start late or never, over a network that delays, reorders, repeats and loses.

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

/// How often anything may happen before a run counts as one that does not end.
const LIMIT: usize = 20_000;

/// What may go wrong in a run.
#[derive(Debug, Clone, Copy)]
struct Weather {
    /// How many ranks crash, at most.
    crashes: usize,
    /// How many messages are lost, at most.
    losses: usize,
    /// Whether ranks are suspected although they are there.
    impatient: bool,
    /// Whether ranks may never take part.
    absent: bool,
}

struct World {
    random: SmallRng,
    ranks: Vec<Option<Member>>,
    crashed: Vec<bool>,
    absent: Vec<bool>,
    /// By rank, of whose crash it knows.
    knows: Vec<Vec<bool>>,
    flying: Vec<(usize, usize, Message)>,
    suspected: bool,
    /// What this one says and is told mostly comes late.
    slow: usize,
}

impl World {
    fn new(size: usize, seed: u64, weather: Weather) -> World {
        let mut random = SmallRng::seed_from_u64(seed);
        let absent = (0..size).map(|_| weather.absent && random.random_ratio(1, 4)).collect();
        World {
            random,
            ranks: (0..size).map(|_| None).collect(),
            crashed: vec![false; size],
            absent,
            knows: vec![vec![false; size]; size],
            flying: Vec::new(),
            suspected: false,
            slow: seed as usize % (2 * size),
        }
    }

    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn pick(&mut self) -> usize {
        let size = self.size();
        self.random.random_range(0..size)
    }

    fn start(&mut self, rank: usize) {
        if self.ranks[rank].is_none() && !self.crashed[rank] && !self.absent[rank] {
            let seed = [rank as u8; 32];
            self.ranks[rank] = Some(Member::new(rank, self.size(), vec![rank as u8], seed));
            self.collect(rank);
        }
    }

    fn with(&mut self, rank: usize, event: impl FnOnce(&mut Member)) {
        if let Some(member) = self.ranks[rank].as_mut().filter(|_| !self.crashed[rank]) {
            event(member);
            self.collect(rank);
        }
    }

    fn collect(&mut self, rank: usize) {
        let messages = self.ranks[rank].as_mut().map(Member::messages).unwrap_or_default();
        self.flying.extend(messages.into_iter().map(|(to, message)| (rank, to, message)));
    }

    /// Delivers any one message, which may remain on its way to come again.
    fn deliver(&mut self, again: bool) {
        if self.flying.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.flying.len());
        let (from, to, message) = self.flying[at].clone();
        if (from == self.slow || to == self.slow) && self.random.random_ratio(7, 8) {
            return;
        }
        // Who has not started finds it when it does.
        if self.ranks[to].is_none() && !self.crashed[to] && !self.absent[to] {
            return;
        }
        if !again {
            self.flying.swap_remove(at);
        }
        self.with(to, |member| member.handle(from, message));
    }

    /// Some rank learns of a crash; whether there was one to learn of.
    fn learn(&mut self) -> bool {
        let size = self.size();
        let offset = self.pick();
        let next = (0..size * size).map(|i| (i + offset) % (size * size)).find(|&i| {
            let (rank, other) = (i / size, i % size);
            self.crashed[other]
                && !self.knows[rank][other]
                && self.ranks[rank].is_some()
                && !self.crashed[rank]
        });
        let Some(i) = next else { return false };
        self.knows[i / size][i % size] = true;
        self.with(i / size, |member| member.dead(i % size));
        true
    }

    fn chaos(&mut self, steps: usize, weather: Weather) {
        let (mut crashes, mut losses) = (weather.crashes, weather.losses);
        for _ in 0..steps {
            let rank = self.pick();
            match self.random.random_range(0..20) {
                0..3 => self.start(rank),
                3 if crashes > 0 => {
                    crashes -= 1;
                    // Who has decided is the only one to know.
                    let knows = |r: &usize| self.ranks[*r].as_ref().is_some_and(|m| m.outcome().is_some());
                    let victim = (0..self.size()).find(knows).unwrap_or(rank);
                    self.crashed[victim] = true;
                }
                4 if losses > 0 && !self.flying.is_empty() => {
                    losses -= 1;
                    let at = self.random.random_range(0..self.flying.len());
                    self.flying.swap_remove(at);
                }
                5 if weather.impatient => {
                    self.suspected = true;
                    self.with(rank, Member::overdue);
                }
                6 => self.with(rank, Member::remind),
                7 | 8 => {
                    self.learn();
                }
                9 => self.deliver(true),
                _ => self.deliver(false),
            }
        }
    }

    /// Nothing goes wrong from here on: everybody who ever will has started, and what happened becomes known.
    fn calm(&mut self) {
        (0..self.size()).for_each(|rank| self.start(rank));
        let mut reminded = None;
        for _ in 0..LIMIT {
            if self.open().is_empty() {
                return;
            }
            if self.flying.is_empty() && !self.learn() {
                let (open, steps) = (self.open(), self.steps());
                if reminded == Some(steps) {
                    // The lowest is the first whose patience ends.
                    self.suspected = true;
                    self.with(open[0], Member::overdue);
                }
                open.iter().for_each(|&rank| self.with(rank, Member::remind));
                reminded = Some(steps);
            }
            self.deliver(false);
        }
        panic!("no end after {LIMIT} steps: {:#?}", self.ranks);
    }

    /// Ranks that live, take part, and have no outcome.
    fn open(&self) -> Vec<usize> {
        let open = |&rank: &usize| {
            !self.crashed[rank] && self.ranks[rank].as_ref().is_some_and(|member| member.outcome().is_none())
        };
        (0..self.size()).filter(open).collect()
    }

    fn steps(&self) -> u64 {
        self.ranks.iter().flatten().map(Member::steps).sum()
    }

    fn living(&self) -> Vec<(usize, &Outcome)> {
        let outcome = |rank: usize| Some((rank, self.ranks[rank].as_ref()?.outcome()?));
        (0..self.size()).filter(|&rank| !self.crashed[rank]).filter_map(outcome).collect()
    }

    /// What must hold whatever happened.
    fn check(&self) {
        let mut decisions = self.living().into_iter().filter_map(|(_, outcome)| match outcome {
            Outcome::Decided(proposal) => Some(proposal),
            Outcome::Hopeless { .. } => None,
        });
        let Some(first) = decisions.next() else { return };
        assert!(decisions.all(|other| other == first), "two decisions: {:#?}", self.living());
        let ranks = first.ranks();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        for member in &first.members {
            assert!(self.ranks[member.rank].is_some(), "{} never took part", member.rank);
            assert_eq!(member.card, [member.rank as u8]);
        }
    }
}

fn run(size: usize, seed: u64, steps: usize, weather: Weather) -> World {
    let mut world = World::new(size, seed, weather);
    world.chaos(steps, weather);
    world.calm();
    world.check();
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(5000), ..ProptestConfig::default() })]

    /// All who decide decide the same, and everybody ends, whatever happens.
    #[test]
    fn agreement_in_all_weathers(
        size in 1..8usize,
        seed: u64,
        steps in 0..400usize,
        crashes in 0..4usize,
        losses in 0..20usize,
        absent: bool,
    ) {
        run(size, seed, steps, Weather { crashes, losses, impatient: true, absent });
    }

    /// Where nobody is suspected, all who live go on together, however many crash.
    #[test]
    fn nobody_is_left_out_without_a_reason(
        size in 1..8usize,
        seed: u64,
        steps in 0..400usize,
        crashes in 0..8usize,
        losses in 0..20usize,
    ) {
        let world = run(size, seed, steps, Weather { crashes, losses, impatient: false, absent: false });
        prop_assume!(!world.suspected);
        for (rank, outcome) in world.living() {
            prop_assert!(matches!(outcome, Outcome::Decided(p) if p.has(rank)), "{rank}: {outcome:?}");
        }
    }
}

#[test]
fn a_lower_ballot_than_was_promised_is_refused_and_its_leader_gives_way() {
    let (low, high) = (Ballot { round: 1, rank: 0 }, Ballot { round: 2, rank: 2 });
    let proposal = Proposal::new(vec![Offer { rank: 1, card: vec![] }], &[0; 32], low);
    let mut member = Member::new(1, 3, vec![], [0; 32]);
    member.handle(2, Message::Ask { ballot: high, dead: vec![] });
    member.messages();
    member.handle(0, Message::Ask { ballot: low, dead: vec![] });
    member.handle(0, Message::Propose { ballot: low, proposal });
    let refused = Message::Refuse { promised: high };
    assert_eq!(member.messages(), [(0, refused.clone()), (0, refused.clone())]);
    assert!(member.gathers(), "it accepted nothing");
    // A leader, too, accepts nothing in its own ballot once it follows a higher one: it begins again above that.
    let mut leader = Member::new(0, 3, vec![], [0; 32]);
    leader.messages();
    leader.handle(2, Message::Ask { ballot: high, dead: vec![] });
    let asks = leader.messages().into_iter().filter_map(|(_, message)| match message {
        Message::Ask { ballot, .. } => Some(ballot),
        _ => None,
    });
    assert!(asks.max().is_some_and(|ballot| ballot > high));
}

#[test]
fn a_proposal_that_was_taken_over_is_decided_by_enough_ranks_only() {
    let a = Ballot { round: 0, rank: 3 };
    let all = Proposal::new((0..4).map(|rank| Offer { rank, card: vec![] }).collect(), &[7; 32], a);
    let mut member = Member::new(1, 4, vec![], [0; 32]);
    member.overdue();
    member.messages();
    let promise = |accepted| Message::Promise {
        ballot: Ballot { round: 1, rank: 1 },
        accepted,
        card: vec![],
        dead: vec![],
    };
    member.handle(2, promise(Some((a, all.clone()))));
    member.handle(3, promise(None));
    member.overdue();
    assert!(
        member
            .messages()
            .iter()
            .any(|m| matches!(&m.1, Message::Propose { proposal, .. } if *proposal == all))
    );
    // Ranks 2 and 3 fall silent: one of four has accepted.
    member.overdue();
    assert!(matches!(member.outcome(), Some(Outcome::Hopeless { present, .. }) if present == &[1]));
}

#[test]
fn what_cannot_have_been_said_is_passed_over() {
    let ballot = Ballot { round: u64::MAX, rank: 9 };
    let of = |ranks: &[usize]| {
        Proposal::new(ranks.iter().map(|&rank| Offer { rank, card: vec![] }).collect(), &[0; 32], ballot)
    };
    let mut member = Member::new(1, 3, vec![], [0; 32]);
    for wrong in [of(&[]), of(&[0, 3]), of(&[1, 0]), of(&[1, 1])] {
        member.handle(0, Message::Propose { ballot, proposal: wrong.clone() });
        member.handle(2, Message::Decided { proposal: wrong });
    }
    member.handle(7, Message::Ask { ballot, dead: vec![] });
    member.handle(1, Message::Ask { ballot, dead: vec![] });
    assert!(member.messages().is_empty() && member.outcome().is_none());
    member.handle(0, Message::Ask { ballot, dead: vec![1, 2, 3, 99] });
    assert_eq!(member.buried(), [2]);
    member.handle(0, Message::Refuse { promised: ballot });
    member.overdue();
}

#[test]
fn the_lowest_leads_and_a_silent_rank_is_left_out_when_it_is_overdue() {
    let mut world = World::new(3, 1, Weather { crashes: 0, losses: 0, impatient: false, absent: false });
    world.absent[2] = true;
    [0, 1].into_iter().for_each(|rank| world.start(rank));
    while !world.flying.is_empty() {
        world.deliver(false);
    }
    let leader = world.ranks[0].as_ref().expect("started");
    assert!(leader.leads() && leader.gathers());
    assert_eq!(leader.awaited(), [2]);
    world.with(0, Member::overdue);
    world.calm();
    let Some((_, Outcome::Decided(proposal))) = world.living().first().cloned() else { panic!("undecided") };
    assert_eq!(proposal.ranks(), [0, 1]);
}

#[test]
fn half_without_the_lowest_ends_with_an_error_for_all_of_them() {
    let mut world = World::new(4, 1, Weather { crashes: 0, losses: 0, impatient: false, absent: false });
    world.absent[..2].fill(true);
    world.calm();
    let hopeless = Outcome::Hopeless { present: vec![2, 3], dead: vec![] };
    assert_eq!(world.living(), [(2, &hopeless), (3, &hopeless)]);
}

#[test]
fn a_proposal_that_may_be_decided_is_taken_over() {
    let (a, b) = (Ballot { round: 1, rank: 0 }, Ballot { round: 2, rank: 1 });
    let member = |rank| Member::new(rank, 3, vec![rank as u8], [rank as u8; 32]);
    let (mut second, mut third) = (member(1), member(2));
    let all = Proposal::new((0..3).map(|rank| Offer { rank, card: vec![rank as u8] }).collect(), &[7; 32], a);
    third.handle(0, Message::Ask { ballot: a, dead: vec![] });
    third.handle(0, Message::Propose { ballot: a, proposal: all.clone() });
    third.messages();
    second.handle(0, Message::Ask { ballot: a, dead: vec![] });
    second.dead(0);
    third.handle(1, Message::Ask { ballot: b, dead: vec![0] });
    for (_, promise) in third.messages() {
        second.handle(2, promise);
    }
    let proposed = second.messages().into_iter().any(|(to, m)| {
        to == 2 && matches!(m, Message::Propose { proposal, ballot } if proposal == all && ballot == b)
    });
    assert!(proposed, "rank 0 may have decided with rank 2");
    // Whoever sat out an earlier proposal knows nothing of this one's salt.
    assert_ne!(Proposal::new(vec![], &[7; 32], a).salt, Proposal::new(vec![], &[7; 32], b).salt);
}

#[test]
fn others_ballots_give_the_one_that_is_to_lead_no_more_time() {
    let ask = |round, rank| Message::Ask { ballot: Ballot { round, rank }, dead: vec![] };
    let mut member = Member::new(1, 3, vec![], [0; 32]);
    let before = member.steps();
    // Rank 2 does not know whether rank 1 is there, and tries again and again.
    for round in 1..5 {
        member.handle(2, ask(round, 2));
        assert!(member.messages().iter().any(|(to, m)| *to == 2 && matches!(m, Message::Promise { .. })));
        assert_eq!((member.steps(), member.awaited()), (before, vec![0]));
    }
    member.handle(0, ask(9, 0));
    assert!(member.steps() > before);
}
