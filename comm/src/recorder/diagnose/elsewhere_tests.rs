//! Jobs with several communicators, of which one ends because another did.

use super::super::file::{Dump, Kind};
use super::tests::finished;
use super::{Verdict, diagnose};

/// Rank `members[rank]` of the world, in a communicator of these.
fn of(communicator: &str, members: &[usize], rank: usize, kind: Kind, peer: Option<usize>) -> Dump {
    let mut dump = finished(rank, members.len(), 3).waits(0, &[], Some(kind), peer);
    dump.communicator = communicator.into();
    (dump.world_rank, dump.pid) = (members[rank], 100 + members[rank] as u32);
    for peer in &mut dump.ranks {
        (peer.world_rank, peer.pid) = (members[peer.rank], 100 + members[peer.rank] as u32);
    }
    dump
}

/// By communicator, the verdict, the culprits by their numbers in the world, and the text.
fn found(dumps: &[Dump], members: &[(&str, &[usize])]) -> Vec<(Verdict, Vec<usize>, String)> {
    let diagnoses = diagnose(dumps);
    let one = |&(communicator, members): &(&str, &[usize])| {
        let diagnosis = diagnoses.iter().find(|d| d.communicator == communicator).unwrap();
        let [finding] = &diagnosis.findings[..] else { panic!("{diagnosis:#?}") };
        (finding.verdict, finding.culprits.iter().map(|&rank| members[rank]).collect(), finding.text.clone())
    };
    members.iter().map(one).collect()
}

/// Rank 2 of a mesh of 2 × 2 was killed. Rank 3 misses it in rows, rank 0 in columns; both end all that they are in, of which
/// rank 1 is told.
#[test]
fn who_ends_a_communicator_because_of_another_is_not_to_blame() {
    use Kind::{Aborted, Lost, Told};
    let (all, columns, rows) = ([0, 1, 2, 3], [[0, 2], [1, 3]], [[0, 1], [2, 3]]);
    let dumps = [
        of("rows1", &rows[1], 1, Lost, Some(0)),
        of("columns0", &columns[0], 0, Lost, Some(1)),
        of("columns1", &columns[1], 1, Aborted, None),
        of("columns1", &columns[1], 0, Told, Some(1)),
        of("rows0", &rows[0], 0, Aborted, None),
        of("rows0", &rows[0], 1, Aborted, None),
        of("all", &all, 0, Aborted, None),
        of("all", &all, 1, Aborted, None),
        of("all", &all, 3, Aborted, None),
    ];
    let members: [(&str, &[usize]); 5] = [
        ("rows1", &rows[1]),
        ("columns0", &columns[0]),
        ("columns1", &columns[1]),
        ("rows0", &rows[0]),
        ("all", &all),
    ];
    let [rows1, columns0, columns1, rows0, all] = &found(&dumps, &members)[..] else { panic!("five") };
    for lost in [rows1, columns0] {
        assert_eq!((lost.0, &lost.1[..]), (Verdict::Lost, &[2][..]), "{}", lost.2);
    }
    for (ended, culprits) in [(columns1, &[][..]), (rows0, &[]), (all, &[2])] {
        assert_eq!((ended.0, &ended.1[..]), (Verdict::Ended, culprits), "{}", ended.2);
        assert!(!ended.2.contains("by itself"), "{}", ended.2);
    }
    assert_eq!(
        columns1.2,
        "Nothing went wrong here first: rank 1 (rank 3 of the world, node1, pid 103) ended it because of communicator rows1: Lost."
    );
    assert!(
        rows0.2.contains("rank 0 (node0, pid 100) ended it because of communicator columns0: Lost."),
        "{}",
        rows0.2
    );
}

/// What came to a rank from elsewhere may have come there from elsewhere too.
#[test]
fn the_first_of_several_failures_is_found() {
    use Kind::{Aborted, Lost, Told};
    let dumps = [
        of("a", &[0, 1], 1, Lost, Some(0)),
        of("b", &[1, 2], 0, Aborted, None),
        of("b", &[1, 2], 1, Told, Some(0)),
        of("c", &[2, 3, 0], 0, Aborted, None),
        of("c", &[2, 3, 0], 1, Told, Some(0)),
    ];
    let members: [(&str, &[usize]); 3] = [("a", &[0, 1]), ("b", &[1, 2]), ("c", &[2, 3, 0])];
    let found: Vec<_> = found(&dumps, &members).into_iter().map(|f| (f.0, f.1)).collect();
    assert_eq!(found, [(Verdict::Lost, vec![0]), (Verdict::Ended, vec![]), (Verdict::Ended, vec![0])]);
}

/// Whoever ends one communicator of its own accord, or meets an error of its own, is to blame in all of them.
#[test]
fn who_fails_by_itself_is_still_said_to() {
    use Kind::{Aborted, Other, Told};
    for kind in [Aborted, Other] {
        let dumps = [
            of("a", &[0, 1], 1, kind, None),
            of("a", &[0, 1], 0, Told, Some(1)),
            of("b", &[1, 2], 0, Aborted, None),
            of("b", &[1, 2], 1, Told, Some(0)),
        ];
        for (verdict, culprits, text) in found(&dumps, &[("a", &[0, 1]), ("b", &[1, 2])]) {
            assert_eq!((verdict, culprits), (Verdict::Failed, vec![1]), "{text}");
            assert!(["failed by itself", "aborted it"].iter().any(|did| text.contains(did)), "{text}");
        }
    }
    // An error of its own is its own although something else failed as well.
    let dumps = [of("a", &[0, 1], 1, Kind::Lost, Some(0)), of("b", &[1, 2], 0, Other, None)];
    assert_eq!(found(&dumps, &[("b", &[1, 2])])[0].0, Verdict::Failed);
    // In a circle nobody is first.
    let circle = [
        of("a", &[0, 1], 0, Aborted, None),
        of("a", &[0, 1], 1, Told, Some(0)),
        of("b", &[1, 0], 0, Aborted, None),
        of("b", &[1, 0], 1, Told, Some(0)),
    ];
    assert!(found(&circle, &[("a", &[0, 1]), ("b", &[1, 0])]).iter().all(|f| f.1.is_empty()));
}

/// What failed first comes first, whatever it is called: others ended because of it, or waited in vain for whoever failed.
#[test]
fn the_first_failure_is_the_first_diagnosis() {
    use Kind::{Aborted, Told};
    let mut dumps = [
        of("a", &[0, 1], 0, Kind::Lost, Some(1)),
        of("b", &[0, 2], 0, Aborted, None),
        of("b", &[0, 2], 1, Told, Some(0)),
        of("c", &[0, 1], 0, Kind::Lost, Some(1)),
    ];
    dumps[0].written_ns += 3_000_000_000;
    let order: Vec<_> = diagnose(&dumps).into_iter().map(|d| d.communicator).collect();
    assert_eq!(order, ["c", "a", "b"]);
}

/// Rank 0 meets the death of rank 2 in columns and drops rows, where rank 1 waits for it.
#[test]
fn who_drops_a_communicator_because_of_another_is_not_to_blame() {
    let dumps = [of("columns", &[0, 2], 0, Kind::Lost, Some(1)), of("rows", &[0, 1], 1, Kind::Left, Some(0))];
    let [rows, columns] = &found(&dumps, &[("rows", &[0, 1]), ("columns", &[0, 2])])[..] else {
        panic!("two")
    };
    assert_eq!(
        (rows.0, &rows.1[..], columns.0, &columns.1[..]),
        (Verdict::Ended, &[][..], Verdict::Lost, &[2][..])
    );
    assert!(rows.2.contains("rank 0") && rows.2.contains("because of communicator columns"), "{}", rows.2);
    // Where nothing else failed it is.
    assert_eq!(found(&dumps[1..], &[("rows", &[0, 1])])[0].0, Verdict::Left);
}
