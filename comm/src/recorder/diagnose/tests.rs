//! Files as ranks would write them, and what they come to.

use proptest::prelude::*;

use super::super::file::{Call, Current, Dump, FORMAT, Failure, Kind, Outcome, Side, VERSION};
use super::super::identity::Peer;
use super::super::standstill::{Is, Missing, Standstill};
use super::{Diagnosis, Verdict, diagnose};

pub(super) const S: u64 = 1_000_000_000;

fn peers(n: usize) -> Vec<Peer> {
    (0..n).map(|r| Peer { rank: r, world_rank: r, host: format!("node{r}"), pid: 100 + r as u32 }).collect()
}

pub(super) fn call(number: u32, count: u64) -> Call {
    Call {
        call: number,
        collective: "all_reduce".into(),
        data_type: Some("float".into()),
        op: Some("sum".into()),
        count,
        root: None,
        peer: None,
        counts_hash: None,
        algorithm: Some("ring".into()),
        bytes: 4 * count,
        entered_ns: u64::from(number) * S,
        done_ns: Some(u64::from(number) * S + S / 2),
        outcome: Outcome::Done,
    }
}

/// A rank of `n` that has finished so many calls.
pub(super) fn finished(rank: usize, n: usize, calls: u32) -> Dump {
    Dump {
        format: FORMAT.into(),
        version: VERSION,
        program: "0".into(),
        job: "job".into(),
        communicator: "world".into(),
        rank,
        world_size: n,
        world_rank: rank,
        host: format!("node{rank}"),
        pid: 100 + rank as u32,
        made_unix_ns: 1_700_000_000 * S,
        written_ns: 100 * S,
        failure: None,
        current: None,
        forgotten: 0,
        calls: (1..=calls).map(|i| call(i, 8)).collect(),
        ranks: peers(n),
    }
}

impl Dump {
    /// And waits in the next call for others.
    pub(super) fn waits(
        mut self,
        seconds: u64,
        awaited: &[usize],
        kind: Option<Kind>,
        peer: Option<usize>,
    ) -> Dump {
        let number = self.entered() + 1;
        self.calls.push(Call { done_ns: None, outcome: Outcome::Failed, ..call(number, 8) });
        self.current = Some(Current {
            call: self.calls[number as usize - 1].clone(),
            lasted_ns: seconds * S,
            awaited: awaited.to_vec(),
            heard: Vec::new(),
        });
        self.failure = kind.map(|kind| Failure {
            kind,
            error: format!("{kind:?}"),
            peer,
            sides: Vec::new(),
            standstill: None,
        });
        self
    }
}

#[track_caller]
pub(super) fn one(dumps: &[Dump]) -> (Verdict, Vec<usize>, u32, String) {
    let mut found = diagnose(dumps);
    assert_eq!(found.len(), 1, "{found:#?}");
    let Diagnosis { findings, .. } = found.remove(0);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    let f = findings[0].clone();
    (f.verdict, f.culprits, f.call, f.text)
}

#[test]
fn a_rank_that_has_not_entered() {
    let timeout = Some(Kind::Timeout);
    let dumps = [
        finished(0, 4, 2).waits(10, &[1], timeout, None),
        finished(1, 4, 2),
        finished(2, 4, 2).waits(10, &[1], timeout, None),
        finished(3, 4, 2).waits(9, &[2], Some(Kind::Told), Some(0)),
    ];
    let (verdict, culprits, number, text) = one(&dumps);
    assert_eq!((verdict, culprits, number), (Verdict::NotEntered, vec![1], 3));
    assert_eq!(
        text,
        "Rank 1 (node1, pid 101) has not entered call 3, all_reduce(8 × float, sum), in which ranks 0, 2 and 3 have \
         waited 10.0 s for it. The last that it finished is call 2, all_reduce(8 × float, sum), at 2023-11-14 22:13:22 \
         UTC by its own clock, 97.5 s before it wrote its file."
    );
}

#[test]
fn a_rank_that_came_too_late() {
    let mut late = finished(1, 3, 2).waits(0, &[0, 2], Some(Kind::Told), Some(0));
    late.calls[2].entered_ns = 40 * S;
    let timeout = Some(Kind::Timeout);
    let dumps = [
        finished(0, 3, 2).waits(10, &[1], timeout, None),
        late,
        finished(2, 3, 2).waits(10, &[0, 1], Some(Kind::Told), Some(0)),
    ];
    let (verdict, culprits, number, text) = one(&dumps);
    assert_eq!((verdict, culprits, number), (Verdict::Late, vec![1], 3));
    assert!(text.starts_with(
        "Rank 1 (node1, pid 101) came too late to call 3, all_reduce(8 × float, sum): ranks 0 and 2 had waited 10.0 s"
    ));
    assert!(text.ends_with("and entered call 3 37.5 s later."), "{text}");
}

#[test]
fn a_chain_is_followed_to_whom_all_wait_for() {
    // A ring: each waits for the one before it, and rank 3 has no file.
    let timeout = Some(Kind::Timeout);
    let dumps: Vec<Dump> =
        [0, 1, 2, 4, 5].map(|r| finished(r, 6, 7).waits(5, &[(r + 5) % 6], timeout, None)).into();
    let (verdict, culprits, number, text) = one(&dumps);
    assert_eq!((verdict, culprits, number), (Verdict::Silent, vec![3], 8));
    assert!(
        text.contains(
            "Rank 3 (node3, pid 103) left no file, and ranks 0 to 2, 4 and 5 waited 5.0 s for it in call 8,"
        ),
        "{text}"
    );
    assert!(text.ends_with("It took part in call 7, all_reduce(8 × float, sum)."), "{text}");
}

#[test]
fn a_message_that_is_awaited_before_the_call_counts() {
    // Ranks 0 and 3 wait in call 3 for rank 1, which waits for a message of rank 2 in between.
    let timeout = Some(Kind::Timeout);
    let mut receives = finished(1, 4, 2);
    let message = Call {
        call: 0,
        collective: "recv".into(),
        op: None,
        peer: Some(2),
        done_ns: None,
        outcome: Outcome::Running,
        ..call(3, 8)
    };
    receives.calls.push(message.clone());
    receives.current = Some(Current { call: message, lasted_ns: 9 * S, awaited: vec![2], heard: vec![] });
    let dumps = [
        finished(0, 4, 2).waits(9, &[1], timeout, None),
        receives,
        finished(3, 4, 2).waits(9, &[1], timeout, None),
    ];
    let (verdict, culprits, _, _) = one(&dumps);
    assert_eq!((verdict, culprits), (Verdict::Silent, vec![2]));
}

#[test]
fn the_first_to_be_lost_is_named() {
    let lost = Some(Kind::Lost);
    let mut early = finished(0, 4, 4).waits(0, &[2], lost, Some(2));
    early.failure.as_mut().unwrap().error = "rank 2 on node2 is lost: its process 102 is gone".into();
    // Rank 3 went because of rank 2, and says so; rank 1 lost both.
    let dumps = [
        early,
        finished(1, 4, 4).waits(0, &[3], lost, Some(3)),
        finished(3, 4, 4).waits(0, &[2], lost, Some(2)),
    ];
    let (verdict, culprits, number, text) = one(&dumps);
    assert_eq!((verdict, culprits, number), (Verdict::Lost, vec![2], 5));
    assert!(text.starts_with(
        "Rank 2 (node2, pid 102) is gone: ranks 0 and 3 lost it in call 5, all_reduce(8 × float, sum). What was seen: \
         rank 2 on node2 is lost: its process 102 is gone. It took part in call 4,"
    ));
    // Without the file of rank 3 it might have been that one, but fewer say so.
    let (_, culprits, _, text) = one(&[dumps[0].clone(), dumps[1].clone(), {
        let mut also = dumps[0].clone();
        also.rank = 3;
        also
    }]);
    assert_eq!(culprits, [2], "{text}");
}

#[test]
fn different_calls_name_both_sides() {
    let wrong = |rank| {
        let mut dump = finished(rank, 4, 2).waits(0, &[0], Some(Kind::Mismatch), None);
        dump.calls[2] = Call { collective: "all_gather".into(), op: None, ..dump.calls[2].clone() };
        dump
    };
    let right = |rank| finished(rank, 4, 2).waits(0, &[1], Some(Kind::Mismatch), None);
    let (verdict, culprits, number, text) = one(&[right(0), wrong(1), right(2), right(3)]);
    assert_eq!((verdict, culprits, number), (Verdict::Mismatch, vec![1], 3));
    assert_eq!(
        text,
        "Ranks called different things as call 3: rank 1 (node1, pid 101) called all_gather(8 × float); ranks 0, 2 and 3 \
         called all_reduce(8 × float, sum). The collective differs; every rank must make the same calls in the same \
         order."
    );
    // The rank that was wrong left no file: the others' errors tell.
    let mut told = right(0);
    let side = |rank: usize, call: &Call| Side { rank, call: call.clone() };
    let sides = vec![side(0, &told.calls[2]), side(1, &wrong(1).calls[2])];
    told.failure.as_mut().unwrap().sides = sides;
    let (verdict, culprits, _, _) = one(&[told, right(2)]);
    assert_eq!((verdict, culprits), (Verdict::Mismatch, vec![1]));
    // Each kind of difference has its word.
    let base = right(0);
    for (change, word) in [
        (Call { count: 9, ..call(3, 8) }, "The count differs"),
        (Call { op: Some("max".into()), ..call(3, 8) }, "The operation differs"),
        (Call { data_type: Some("double".into()), count: 9, ..call(3, 8) }, "The type and the count differ"),
        (Call { root: Some(3), ..call(3, 8) }, "The root differs"),
        (
            Call { algorithm: Some("direct".into()), ..call(3, 8) },
            "The algorithm, which follows from the settings, differs",
        ),
    ] {
        let mut other = right(1);
        other.calls[2] = change;
        let (verdict, _, _, text) = one(&[base.clone(), other]);
        assert!(verdict == Verdict::Mismatch && text.contains(word), "{text}");
    }
}

#[test]
fn who_left_failed_or_is_stuck() {
    let (verdict, culprits, _, text) = one(&[finished(0, 2, 4).waits(0, &[1], Some(Kind::Left), Some(1))]);
    assert_eq!((verdict, culprits), (Verdict::Left, vec![1]));
    assert!(text.contains("dropped its communicator, while rank 0 still waits for it in call 5"), "{text}");

    let told = |rank| finished(rank, 3, 1).waits(0, &[2], Some(Kind::Told), Some(2));
    let own = finished(2, 3, 1).waits(0, &[], Some(Kind::Other), None);
    let (verdict, culprits, _, text) = one(&[told(0), told(1), own]);
    assert_eq!((verdict, culprits), (Verdict::Failed, vec![2]));
    assert!(text.contains("failed by itself in call 2"), "{text}");

    let timeout = Some(Kind::Timeout);
    let (verdict, culprits, _, text) = one(&[
        finished(0, 2, 1).waits(5, &[1], timeout, None),
        finished(1, 2, 1).waits(4, &[0], timeout, None),
    ]);
    assert_eq!((verdict, culprits), (Verdict::Stuck, vec![]));
    assert!(text.contains("Nobody is missing") && text.contains("The last to enter was rank 1"), "{text}");

    let (verdict, _, _, text) = one(&[finished(0, 3, 6), finished(2, 3, 5)]);
    assert_eq!(verdict, Verdict::Fine);
    assert_eq!(
        text,
        "Nothing wrong found: ranks 0 and 2 made 5 to 6 calls, and none of them failed or waits."
    );
}

#[test]
fn communicators_in_different_orders_are_found() {
    let timeout = Some(Kind::Timeout);
    let in_other = |dump: Dump| Dump { communicator: "world-1c0".into(), ..dump };
    // Rank 0 waits in one communicator for rank 1, which waits in another for rank 0.
    let dumps = [
        finished(0, 2, 1).waits(5, &[1], timeout, None),
        in_other(finished(1, 2, 3).waits(5, &[0], timeout, None)),
    ];
    let found = diagnose(&dumps);
    assert_eq!(found.len(), 2);
    for diagnosis in &found {
        let text = &diagnosis.findings[0].text;
        assert!(text.contains(" is held up in call ") && text.contains("in different orders"), "{text}");
    }
}

#[test]
fn two_jobs_are_two() {
    let other = Dump { job: "another".into(), ..finished(0, 2, 1) };
    assert_eq!(diagnose(&[finished(0, 2, 1), other]).len(), 2);
    // Two files of one rank: the one that tells of a failure counts.
    let (verdict, ..) =
        one(&[finished(0, 2, 1).waits(1, &[1], Some(Kind::Lost), Some(1)), finished(0, 2, 1)]);
    assert_eq!(verdict, Verdict::Lost);
    assert_eq!(diagnose(&[]), []);
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::Timeout,
        Kind::Mismatch,
        Kind::Length,
        Kind::Lost,
        Kind::Left,
        Kind::Told,
        Kind::Aborted,
        Kind::Other,
    ])
}

fn any_call() -> impl Strategy<Value = Call> {
    let numbers = (0u32..6, 0u64..3, any::<u64>(), any::<Option<u64>>(), any::<Option<u32>>());
    let names = prop::sample::select(vec!["all_reduce", "barrier", "send", "recv", "x\u{1b}[2J", ""]);
    (numbers, names).prop_map(|((number, count, entered_ns, done_ns, peer), name)| Call {
        collective: name.into(),
        entered_ns,
        done_ns,
        peer,
        root: peer,
        ..call(number, count)
    })
}

fn any_standstill() -> impl Strategy<Value = Standstill> {
    let is =
        prop::sample::select(vec![Is::Absent, Is::Unheard, Is::Silent, Is::Gone, Is::Elsewhere, Is::Unknown]);
    let missing = (0usize..9, is, prop::option::of(any_call()), any::<bool>())
        .prop_map(|(rank, is, last, finished)| Missing { rank, is, last, finished });
    let ranks = prop::collection::vec(0usize..9, 0..4);
    let parts = (any_call(), any::<u64>(), ranks, prop::collection::vec(missing, 0..4), 0usize..2);
    parts.prop_map(|(call, after_ns, entered, missing, more_missing)| Standstill {
        call,
        after_ns,
        entered,
        missing,
        more_missing,
    })
}

fn any_dump() -> impl Strategy<Value = Dump> {
    let ranks = || prop::collection::vec(0usize..9, 0..4);
    let whose = (0usize..5, 0usize..7, prop::sample::select(vec!["a", "b"]), any::<u64>(), any::<u64>());
    let current = (any_call(), any::<u64>(), ranks(), ranks());
    let failure =
        (any_kind(), prop::option::of(0usize..9), prop::collection::vec((0usize..9, any_call()), 0..3));
    let failure = (failure, prop::option::of(any_standstill()));
    let calls = prop::collection::vec(any_call(), 0..5);
    (whose, prop::option::of(current), prop::option::of(failure), calls).prop_map(
        |(whose, current, failure, calls)| {
            let (rank, world_rank, communicator, made_unix_ns, written_ns) = whose;
            Dump {
                communicator: communicator.into(),
                world_rank,
                made_unix_ns,
                written_ns,
                current: current.map(|(call, lasted_ns, awaited, heard)| Current {
                    call,
                    lasted_ns,
                    awaited,
                    heard,
                }),
                failure: failure.map(|((kind, peer, sides), standstill)| Failure {
                    kind,
                    error: "why".into(),
                    peer,
                    sides: sides.into_iter().map(|(rank, call)| Side { rank, call }).collect(),
                    standstill,
                }),
                calls,
                ..finished(rank, 5, 0)
            }
        },
    )
}

proptest! {
    #[test]
    fn any_files_give_an_answer(dumps in prop::collection::vec(any_dump(), 0..8)) {
        for diagnosis in diagnose(&dumps) {
            prop_assert!(!diagnosis.findings.is_empty());
            for finding in diagnosis.findings {
                prop_assert!(!finding.text.is_empty());
                prop_assert!(finding.culprits.iter().all(|r| *r < diagnosis.world_size), "{}", finding.text);
            }
        }
    }

    #[test]
    fn what_is_written_is_read(dump in any_dump()) {
        prop_assert_eq!(Dump::parse(&dump.to_json().unwrap()).unwrap(), dump);
    }

    #[test]
    fn cut_or_changed_files_are_refused_or_read(dump in any_dump(), cut in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = dump.to_json().unwrap();
        let at = cut.index(bytes.len());
        prop_assert!(Dump::parse(&bytes[..at.min(bytes.len() - 2)]).is_err());
        bytes[at] = byte;
        if let Ok(read) = Dump::parse(&bytes) {
            diagnose(&[read, dump]);
        }
    }

    /// Whatever rank does not come and whatever files are missing, it is never someone else who is named.
    #[test]
    fn nobody_else_is_named(n in 2usize..9, absent in 0usize..9, kept in prop::collection::vec(any::<bool>(), 9)) {
        let absent = absent % n;
        let dumps: Vec<Dump> = (0..n)
            .filter(|r| *r != absent && kept[*r])
            .map(|r| finished(r, n, 3).waits(5, &[absent], Some(Kind::Timeout), None))
            .collect();
        for diagnosis in diagnose(&dumps) {
            prop_assert_eq!(&diagnosis.findings[0].culprits, &vec![absent]);
        }
    }
}
