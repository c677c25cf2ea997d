use proptest::prelude::*;

use super::*;
use crate::exec::stamp::Stamp;
use crate::number::DataType;

fn collective(sequence: u32, collective: Collective) -> Called {
    let stamp = Stamp {
        sequence,
        collective: collective as u8,
        data_type: DataType::F32 as u8,
        count: 8,
        ..Stamp::default()
    };
    Called { stamp, ..Called::default() }
}

fn single(peer: u32, sends: bool) -> Called {
    Called { peer, sends, ..collective(0, Collective::SendRecv) }
}

/// A rank that waits for `awaited` in this call, and has finished the one before.
fn waits(call: Called, awaited: &[usize]) -> Whereabouts {
    let sequence = call.stamp.sequence;
    let seen = |rank: &usize| Seen {
        rank: *rank,
        heard: sequence.checked_sub(1).map(|s| collective(s, Collective::Barrier)),
        finished: None,
    };
    Whereabouts {
        after: Duration::from_secs(2),
        entered: sequence,
        call,
        finished: sequence.checked_sub(1).map(|s| collective(s, Collective::Barrier)),
        awaited: awaited.iter().map(seen).collect(),
        heard: Vec::new(),
    }
}

fn of(world_size: usize, said: &[(usize, Whereabouts)]) -> Standstill {
    Standstill::of(world_size, &said.iter().cloned().collect(), &BTreeMap::new())
}

#[test]
fn who_has_not_come_is_missing() {
    let call = collective(17, Collective::AllReduce);
    let found = of(4, &[(0, waits(call, &[1])), (2, waits(call, &[1])), (3, waits(call, &[]))]);
    assert_eq!((found.call, found.rank, &found.entered[..]), (call, 0, &[0, 2, 3][..]));
    let last = Some(collective(16, Collective::Barrier));
    assert_eq!(found.missing, [Missing { rank: 1, is: Is::Absent, last, finished: false }]);
    let text = found.to_string();
    assert_eq!(
        text,
        "all_reduce(8 × float) as call 17 did not finish within 2.0 s; rank 0, rank 2, rank 3 have entered it; rank 1 \
         has not: the last call in which it was heard is barrier() as call 16"
    );
    // Where its memory can be seen, it is known what it has finished.
    let mut sees = waits(call, &[1]);
    sees.awaited[0].finished = Some(collective(16, Collective::Gather));
    let found = of(4, &[(0, sees), (3, waits(call, &[]))]);
    // Nobody has heard of rank 2 either, and nobody can be done before all have come.
    assert_eq!(found.missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [1, 2]);
    assert!(found.to_string().contains("it finished is gather"), "{found}");
}

#[test]
fn who_has_come_and_does_not_answer_is_silent() {
    let call = collective(3, Collective::AllReduce);
    let mut hears = waits(call, &[]);
    hears.heard = vec![1];
    let found = of(3, &[(0, hears.clone()), (2, waits(call, &[1]))]);
    assert_eq!((&found.entered[..], found.missing[0].is), (&[0, 1, 2][..], Is::Silent));
    let once = "; rank 0, rank 2 have entered it; rank 1 has entered it and does not answer since";
    assert!(found.to_string().contains(once), "{found}");
    let soon = Standstill { after: Duration::from_micros(1500), ..found };
    assert!(soon.to_string().contains("within 1.5 ms; "), "{soon}");
    // Nobody waits for it: it has done its part.
    let found = of(3, &[(0, hears), (2, waits(call, &[]))]);
    assert_eq!((&found.entered[..], &found.missing[..]), (&[0, 1, 2][..], &[][..]));
    assert!(found.to_string().ends_with("nobody is missing: it needs longer, or never ends"), "{found}");
}

#[test]
fn who_is_gone_is_missing_even_when_nobody_waits_for_it() {
    let call = collective(3, Collective::AllReduce);
    let hears = Whereabouts { heard: vec![1], ..waits(call, &[2]) };
    let gone = BTreeMap::from([(1, Fate::Gone)]);
    let found = Standstill::of(4, &BTreeMap::from([(0, hears.clone()), (3, hears)]), &gone);
    assert_eq!((&found.entered[..], found.missing[0].is), (&[0, 1, 3][..], Is::Gone));
    assert!(found.to_string().contains("; rank 1 is gone without a word: "), "{found}");
    assert!(found.to_string().contains("; rank 2 has not: "), "{found}");
}

#[test]
fn who_is_cut_off_may_have_entered() {
    let call = collective(3, Collective::AllReduce);
    let said =
        BTreeMap::from([(0, waits(call, &[1])), (1, Whereabouts { heard: vec![4], ..waits(call, &[2]) })]);
    let silent =
        BTreeMap::from([(2, Fate::Unheard), (3, Fate::Unknown), (4, Fate::Unheard), (5, Fate::Unheard)]);
    let found = Standstill::of(6, &said, &silent);
    assert_eq!(
        found.missing.iter().map(|m| (m.rank, m.is)).collect::<Vec<_>>(),
        [(2, Is::Unheard), (3, Is::Absent), (5, Is::Unheard)]
    );
    let text = found.to_string();
    assert!(
        text.contains("; rank 2 was not heard, nor does its host acknowledge what it is sent: the last call"),
        "{text}"
    );
    assert!(text.contains("; rank 3 has not: "), "{text}");
}

#[test]
fn who_needs_nothing_from_others_may_have_done_its_part_unheard() {
    let call = collective(3, Collective::Broadcast);
    let found = of(4, &[(0, waits(call, &[3]))]);
    assert_eq!(found.missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [3]);
}

#[test]
fn the_first_call_counts() {
    let (late, early) = (collective(9, Collective::Barrier), collective(8, Collective::Reduce));
    let found = of(3, &[(0, waits(late, &[1])), (1, waits(early, &[2]))]);
    assert_eq!((found.call, found.rank, &found.entered[..]), (early, 1, &[0, 1][..]));
    assert_eq!(found.missing.iter().map(|m| (m.rank, m.is)).collect::<Vec<_>>(), [(2, Is::Absent)]);
    // One that is in a send or receive meanwhile.
    let elsewhere = Whereabouts { entered: 7, ..waits(single(1, true), &[1]) };
    let found = of(3, &[(0, elsewhere), (1, waits(early, &[0])), (2, waits(early, &[0]))]);
    assert_eq!(found.missing[0].is, Is::In(single(1, true)));
    assert!(found.to_string().contains("rank 0 is in send(8 × float to rank 1) instead"), "{found}");
}

#[test]
fn calls_keep_their_order_where_numbers_begin_anew() {
    // The last number that there is, and the first.
    let (early, late) = (collective(u32::MAX, Collective::Reduce), collective(1, Collective::Barrier));
    let found = of(3, &[(0, waits(late, &[1])), (1, waits(early, &[2]))]);
    assert_eq!((found.call, found.rank, &found.entered[..]), (early, 1, &[0, 1][..]));
    // What rank 2 was heard in last, and what it finished last.
    let sees = |heard, finished| {
        let mut waits = waits(late, &[2]);
        (waits.awaited[0].heard, waits.awaited[0].finished) = (Some(heard), finished);
        waits
    };
    for order in [[early, late], [late, early]] {
        let [one, other] = order;
        let found = of(3, &[(0, sees(one, None)), (1, sees(other, None))]);
        let silent = Missing { rank: 2, is: Is::Silent, last: Some(late), finished: false };
        assert_eq!(found.missing, [silent]);
        let found = of(3, &[(0, sees(late, Some(one))), (1, sees(late, Some(other)))]);
        assert_eq!((found.missing[0].last, found.missing[0].finished), (Some(late), true));
    }
}

#[test]
fn two_that_wait_for_each_other() {
    let found = of(3, &[(0, waits(single(2, false), &[2])), (2, waits(single(0, false), &[0]))]);
    assert_eq!((found.rank, &found.entered[..]), (0, &[0][..]));
    assert_eq!(
        found.missing.iter().map(|m| (m.rank, m.is)).collect::<Vec<_>>(),
        [(2, Is::In(single(0, false)))]
    );
    let found = of(3, &[(0, waits(single(2, false), &[2]))]);
    assert_eq!(found.missing[0].is, Is::Absent);
}

fn any_called() -> impl Strategy<Value = Called> {
    any::<[u64; 3]>().prop_filter_map("a call", |words| {
        Called::from_words([words[0], words[1], words[2]]).filter(|c| c.stamp.collective != 0)
    })
}

proptest! {
    #[test]
    fn what_is_told_is_read(
        after in 0u64..1 << 60,
        entered: u32,
        call in any_called(),
        finished in proptest::option::of(any_called()),
        awaited in proptest::collection::vec((0usize..1 << 30, proptest::option::of(any_called())), 0..=AWAITED),
        heard in proptest::collection::btree_set(0usize..LISTED, 0..20),
    ) {
        let awaited = awaited.into_iter().map(|(rank, heard)| Seen { rank, heard, finished }).collect();
        let told = Whereabouts {
            after: Duration::from_nanos(after), entered, call, finished, awaited, heard: heard.into_iter().collect(),
        };
        prop_assert_eq!(Whereabouts::decode(&told.encode()), told);
    }

    #[test]
    fn what_follows_is_read(
        call in any_called(),
        rank in 0usize..1 << 30,
        more_missing in 0usize..1 << 30,
        missing in proptest::collection::vec((0usize..1 << 30, 0usize..5, any_called(), any::<bool>()), 0..=MISSING),
        entered in proptest::collection::btree_set(0usize..LISTED, 0..20),
    ) {
        let missing = missing.into_iter().map(|(rank, is, call, finished)| Missing {
            rank,
            is: [Is::Absent, Is::Silent, Is::In(call), Is::Gone, Is::Unheard][is],
            last: finished.then_some(call),
            finished,
        });
        let told = Standstill {
            call, rank, after: Duration::from_millis(7), entered: entered.into_iter().collect(),
            missing: missing.collect(), more_missing, names: BTreeMap::new(),
        };
        prop_assert_eq!(Standstill::decode(&told.encode()), told);
    }

    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), REPORT)) {
        let told = Standstill::decode(bytes[8..].try_into().unwrap());
        prop_assert!(!told.to_string().is_empty());
        let said = Whereabouts::decode(bytes[..WHEREABOUTS].try_into().unwrap());
        let found = Standstill::of(4, &BTreeMap::from([(1, said.clone()), (3, said)]), &BTreeMap::new());
        prop_assert!(found.fits(4) && !found.to_string().is_empty());
    }
}
