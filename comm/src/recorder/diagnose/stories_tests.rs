//! What errors tell, against what calls alone would: files as ranks wrote them when hosts were cut off or stopped.

use super::super::file::{Call, Dump, Kind, Outcome};
use super::super::standstill::{Is, Missing, Standstill};
use super::tests::{S, call, finished, one};
use super::{Finding, Verdict, diagnose};

/// `per` ranks on each of `hosta`, `hostb`, …
fn on_hosts(mut dump: Dump, per: usize) -> Dump {
    let host = |rank: usize| format!("host{}", char::from(b'a' + (rank / per) as u8));
    dump.host = host(dump.rank);
    dump.ranks.iter_mut().for_each(|p| p.host = host(p.rank));
    dump
}

fn story(number: u32, entered: &[usize], missing: &[(usize, Is)]) -> Standstill {
    Standstill {
        call: Call { done_ns: None, entered_ns: 0, bytes: 0, outcome: Outcome::Failed, ..call(number, 8) },
        after_ns: 2 * S,
        entered: entered.to_vec(),
        missing: missing
            .iter()
            .map(|&(rank, is)| Missing { rank, is, last: None, finished: false })
            .collect(),
        more_missing: 0,
    }
}

/// Of rank `rank` of `n`, `per` on a host: its time was up after 2 s in call `number`, and its error is this.
fn times_out(rank: usize, n: usize, per: usize, number: u32, awaited: &[usize], told: &Standstill) -> Dump {
    let dump = finished(rank, n, number - 1).waits(2, awaited, Some(Kind::Timeout), None);
    tells(on_hosts(dump, per), told)
}

fn tells(mut dump: Dump, told: &Standstill) -> Dump {
    dump.failure.as_mut().unwrap().standstill = Some(told.clone());
    dump
}

/// A rank of 4, two on a host, that stood still and was told by rank 0 when it went on: it was in its call for so long.
fn goes_on(rank: usize, number: u32, lasted_ns: u64, told: &Standstill) -> Dump {
    let mut dump = finished(rank, 4, number - 1).waits(0, &[], Some(Kind::Told), Some(0));
    dump.current.as_mut().unwrap().lasted_ns = lasted_ns;
    if lasted_ns == 0 {
        // It was short, and its beginning was not looked up.
        dump.calls.last_mut().unwrap().entered_ns = 0;
    }
    tells(on_hosts(dump, 2), told)
}

#[track_caller]
fn findings(dumps: &[Dump]) -> Vec<Finding> {
    let mut found = diagnose(dumps);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0).findings
}

/// The cable between two hosts was pulled; rank 3 has done its part of call 5 already.
fn cut() -> [Dump; 4] {
    let a = story(5, &[0, 1], &[(2, Is::Unheard), (3, Is::Unheard)]);
    let b = story(5, &[2, 3], &[(0, Is::Unheard), (1, Is::Absent)]);
    [
        times_out(0, 4, 2, 5, &[2], &a),
        times_out(1, 4, 2, 5, &[3], &a),
        times_out(2, 4, 2, 5, &[0], &b),
        times_out(3, 4, 2, 6, &[2], &b),
    ]
}

#[test]
fn hosts_that_do_not_hear_each_other_are_named_with_their_ranks() {
    let (verdict, culprits, number, text) = one(&cut());
    assert_eq!((verdict, culprits, number), (Verdict::Parted, vec![], 5));
    assert_eq!(
        text,
        "Host hosta (ranks 0 and 1) and host hostb (ranks 2 and 3) do not hear each other: ranks 0 and 1 waited 2.0 s for \
         ranks 2 and 3 in call 5, all_reduce(8 × float, sum); ranks 2 and 3 waited 2.0 s for ranks 0 and 1 in call 5, \
         all_reduce(8 × float, sum). There are ranks alive on both sides, so look at the network between them: cables, \
         switches, bridges, firewalls."
    );
    // One file of each side will do.
    let [a, _, _, b] = cut();
    let (verdict, _, _, text) = one(&[a, b]);
    assert!(verdict == Verdict::Parted, "{text}");
    assert!(
        text.starts_with("Host hosta (ranks 0 and 1) and host hostb (ranks 2 and 3) do not hear"),
        "{text}"
    );
    // Hosts may have the same name.
    let alike = cut().map(|dump| on_hosts(dump, 4));
    let (verdict, _, _, text) = one(&alike);
    assert!(verdict == Verdict::Parted, "{text}");
    assert!(
        text.starts_with("Ranks 0 and 1 (hosta) and ranks 2 and 3 (hosta) do not hear each other"),
        "{text}"
    );
}

#[test]
fn a_cut_in_the_middle_of_a_call_is_one_too() {
    let a = story(5, &[0, 1, 2, 3], &[(2, Is::Silent), (3, Is::Silent)]);
    let b = story(5, &[0, 1, 2, 3], &[(0, Is::Silent)]);
    let dumps = [
        times_out(0, 4, 2, 5, &[2], &a),
        times_out(1, 4, 2, 5, &[0, 3], &a),
        times_out(2, 4, 2, 5, &[0], &b),
        times_out(3, 4, 2, 5, &[2], &b),
    ];
    let (verdict, culprits, _, text) = one(&dumps);
    assert_eq!((verdict, culprits), (Verdict::Parted, vec![]));
    assert!(
        text.starts_with("Host hosta (ranks 0 and 1) and host hostb (ranks 2 and 3) do not hear"),
        "{text}"
    );
}

#[test]
fn a_third_host_is_cut_off_from_two() {
    let near = story(5, &[0, 1, 2, 3], &[(4, Is::Unheard), (5, Is::Unheard)]);
    let far = story(4, &[4, 5], &[(0, Is::Unheard), (1, Is::Unheard), (2, Is::Unheard), (3, Is::Unheard)]);
    let mut dumps: Vec<Dump> = (0..4).map(|r| times_out(r, 6, 2, 5, &[4], &near)).collect();
    dumps.extend([4, 5].map(|r| times_out(r, 6, 2, 4, &[0], &far)));
    let (verdict, culprits, number, text) = one(&dumps);
    assert_eq!((verdict, culprits, number), (Verdict::Parted, vec![], 4));
    assert!(
        text.starts_with(
            "Ranks 0 to 3 (hosta and hostb) and host hostc (ranks 4 and 5) do not hear each other"
        ),
        "{text}"
    );
}

#[test]
fn a_host_without_files_that_is_not_heard_may_be_down() {
    let [a, b, ..] = cut();
    let (verdict, culprits, number, text) = one(&[a, b]);
    assert_eq!((verdict, culprits, number), (Verdict::Parted, vec![2, 3], 5));
    assert_eq!(
        text,
        "Nothing is heard of host hostb (ranks 2 and 3): ranks 0 and 1 waited 2.0 s for ranks 2 and 3 in call 5, \
         all_reduce(8 × float, sum), and what was sent there was not even acknowledged. There is no file of any rank \
         there: the host is down, or the network to it is cut."
    );
}

#[test]
fn a_host_that_stood_still_is_not_a_link() {
    let told = story(5, &[0, 1], &[(2, Is::Absent), (3, Is::Absent)]);
    // When rank 3 entered was not looked up before it failed: rank 2 on its host tells where it was.
    let dumps = [
        times_out(0, 4, 2, 5, &[2], &told),
        times_out(1, 4, 2, 5, &[3], &told),
        goes_on(2, 5, 4 * S, &told),
        goes_on(3, 5, 0, &told),
    ];
    let (verdict, culprits, number, text) = one(&dumps);
    assert_eq!((verdict, culprits, number), (Verdict::Unresponsive, vec![2, 3], 5));
    assert!(
        text.starts_with(
            "Rank 2 (hostb, pid 102) and rank 3 (hostb, pid 103), all ranks of host hostb, stood still: ranks 0 and 1 \
             waited 2.0 s for them in call 5, all_reduce(8 × float, sum), and got no answer."
        ),
        "{text}"
    );
    assert!(text.ends_with("Rank 2 was in this call for 4.0 s by its own clock."), "{text}");
    // They may still be in the call before, which the others have done.
    let behind =
        [dumps[0].clone(), dumps[1].clone(), goes_on(2, 4, 4 * S, &told), goes_on(3, 4, 4 * S, &told)];
    let (verdict, culprits, number, text) = one(&behind);
    assert_eq!((verdict, culprits, number), (Verdict::Unresponsive, vec![2, 3], 5));
    assert!(text.contains("Rank 3 was in call 4, all_reduce(8 × float, sum) for 4.0 s"), "{text}");
    // Or have stood in the call before, which took the others no time, and finished it when they went on.
    let mut held = [goes_on(2, 5, 0, &told), goes_on(3, 5, S / 1000, &told)];
    held.iter_mut().for_each(|dump| dump.calls[3].done_ns = Some(dump.calls[3].entered_ns + 4 * S));
    let [two, three] = held;
    let (verdict, culprits, _, text) = one(&[dumps[0].clone(), dumps[1].clone(), two, three]);
    assert_eq!((verdict, culprits), (Verdict::Unresponsive, vec![2, 3]));
    assert!(
        text.contains("Rank 3 was in call 4, all_reduce(8 × float, sum) for 4.0 s by its own clock, which"),
        "{text}"
    );
    // Where nothing tells, both may be: and nothing is said of when they entered.
    let unclear = [dumps[0].clone(), dumps[1].clone(), goes_on(2, 5, 0, &told), goes_on(3, 5, 0, &told)];
    let (verdict, culprits, _, text) = one(&unclear);
    assert_eq!((verdict, culprits), (Verdict::Late, vec![2, 3]));
    assert!(text.contains("came too late to call 5, all_reduce(8 × float, sum), or stood still: "), "{text}");
    assert!(!text.contains("entered call 5"), "{text}");
}

#[test]
fn a_rank_that_stood_still_in_a_call_is_named_by_those_who_waited() {
    // Rank 1 waits for others too, since they have given up meanwhile.
    let told = story(5, &[0, 1, 2, 3], &[(1, Is::Silent)]);
    let mut still = goes_on(1, 5, 26 * S / 10, &told);
    still.current.as_mut().unwrap().awaited = vec![2, 3];
    let dumps = [
        times_out(0, 4, 4, 5, &[1, 2, 3], &told),
        on_hosts(still, 4),
        times_out(2, 4, 4, 5, &[1], &told),
        times_out(3, 4, 4, 5, &[1], &told),
    ];
    let (verdict, culprits, number, text) = one(&dumps);
    assert_eq!((verdict, culprits, number), (Verdict::Unresponsive, vec![1], 5));
    assert!(
        text.starts_with(
            "Rank 1 (hosta, pid 101) stood still: ranks 0, 2 and 3 waited 2.0 s for it in call 5"
        ),
        "{text}"
    );
    assert!(text.ends_with("It was in this call for 2.6 s by its own clock."), "{text}");
}

#[test]
fn who_has_entered_and_left_no_file_is_in_the_call() {
    // Ranks 1 and 3 are a call ahead: they had got what they needed.
    let told = story(5, &[0, 1, 2, 3, 4], &[(2, Is::Silent)]);
    let dump = |rank, number, awaited| times_out(rank, 5, 5, number, &[awaited], &told);
    let dumps = [dump(0, 5, 2), dump(1, 6, 0), dump(3, 6, 2), dump(4, 5, 0)];
    let (verdict, culprits, number, text) = one(&dumps);
    assert_eq!((verdict, culprits, number), (Verdict::Silent, vec![2], 5));
    let expected = "Rank 2 (hosta, pid 102) left no file, and ranks 0, 1, 3 and 4 waited 2.0 s for it in call 5, \
                    all_reduce(8 × float, sum): it has entered this call and not answered since, so it is stopped or \
                    stuck, or killed from outside.";
    assert_eq!(text, expected);
    // Files of older versions do not have the error's content as data.
    let older = dumps.map(|mut dump| {
        dump.failure.as_mut().unwrap().standstill = None;
        dump
    });
    let (verdict, culprits, number, text) = one(&older);
    assert_eq!((verdict, culprits, number), (Verdict::Silent, vec![2], 5));
    assert!(
        text.contains("ranks 0 and 4 waited 2.0 s")
            && text.contains("it has entered this call and not answered since"),
        "{text}"
    );
    assert!(!text.contains("not in this call") && !text.contains("took part"), "{text}");
}

#[test]
fn who_is_stopped_as_well_is_not_forgotten() {
    let told = story(5, &[0, 1, 2, 3, 5], &[(4, Is::Absent)]);
    let dumps = [1, 2, 3, 5].map(|rank| times_out(rank, 6, 6, 5, &[4], &told));
    let found = findings(&dumps);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_eq!((found[0].verdict, &found[0].culprits[..]), (Verdict::Silent, &[4][..]));
    assert!(found[0].text.contains("it is not in this call"), "{found:#?}");
    assert_eq!((found[1].verdict, &found[1].culprits[..]), (Verdict::Silent, &[0][..]));
    assert_eq!(
        found[1].text,
        "Rank 0 (hosta, pid 100) left no file either (rank 0 had entered call 5, all_reduce(8 × float, sum)), though others \
         of the same host did: it is stopped or stuck, or ended from outside before it could write one."
    );
    // Files of another host may only not have been copied.
    let elsewhere = dumps.map(|dump| on_hosts(dump, 1));
    assert_eq!(findings(&elsewhere).len(), 1);
    // Nor is the root of a broadcast needed once it has sent all.
    let broadcast = [1, 2, 3, 5].map(|rank| {
        let mut told = told.clone();
        told.call.collective = "broadcast".into();
        let mut dump = times_out(rank, 6, 6, 5, &[4], &told);
        dump.current.as_mut().unwrap().call.collective = "broadcast".into();
        dump.calls[4].collective = "broadcast".into();
        dump
    });
    assert_eq!(findings(&broadcast).len(), 1);
}

#[test]
fn ranks_that_find_no_way_did_not_fail_by_themselves() {
    // Two hosts of three ranks, cut when they first connected: ranks 1 to 4 heard of it inside their hosts.
    let dump = |rank: usize, kind, peer, error: &str| {
        let mut dump = finished(rank, 6, 0).waits(4, &[(rank + 3) % 6], Some(kind), Some(peer));
        dump.failure.as_mut().unwrap().error = error.into();
        on_hosts(dump, 3)
    };
    let told = |rank, peer| dump(rank, Kind::Told, peer, "gave up");
    let dumps = [
        dump(0, Kind::Other, 3, "rank 0: no way from rank 0 to rank 3: timed out"),
        told(1, 3),
        told(2, 3),
        told(3, 2),
        told(4, 2),
        dump(5, Kind::Other, 2, "rank 5: no way from rank 5 to rank 2: timed out"),
    ];
    let (verdict, culprits, number, text) = one(&dumps);
    assert_eq!((verdict, culprits, number), (Verdict::Parted, vec![], 1));
    assert!(
        text.starts_with(
            "Host hosta (ranks 0 to 2) and host hostb (ranks 3 to 5) do not hear each other: rank 0 did not reach rank 3 \
             within 4.0 s in call 1, all_reduce(8 × float, sum); rank 5 did not reach rank 2 within 4.0 s in call 1,"
        ),
        "{text}"
    );
    assert!(text.ends_with("What rank 0 saw: rank 0: no way from rank 0 to rank 3: timed out."), "{text}");
    // Where the time of one side is up first, its errors tell the same.
    let up = story(1, &[0, 1, 2], &[(3, Is::Unheard), (4, Is::Unheard), (5, Is::Absent)]);
    let mut mixed = dumps.clone();
    (0..3).for_each(|rank| mixed[rank] = times_out(rank, 6, 3, 1, &[rank + 3], &up));
    let (verdict, culprits, _, text) = one(&mixed);
    assert_eq!((verdict, culprits), (Verdict::Parted, vec![]));
    assert!(
        text.starts_with("Host hosta (ranks 0 to 2) and host hostb (ranks 3 to 5) do not hear"),
        "{text}"
    );
    // With the files of one host alone, the other one is named.
    let (verdict, culprits, _, text) = one(&dumps[..3]);
    assert_eq!((verdict, culprits), (Verdict::Parted, vec![3]));
    assert!(
        text.starts_with("Rank 3 (hostb, pid 103) cannot be reached: rank 0 found no way to it in call 1"),
        "{text}"
    );
    // Hosts of the same name.
    let alike: Vec<Dump> = dumps.iter().cloned().map(|dump| on_hosts(dump, 6)).collect();
    let (verdict, _, _, text) = one(&alike);
    assert_eq!(verdict, Verdict::Parted);
    assert!(text.contains("rank 3") && text.contains("rank 2"), "{text}");
    // Something else that goes wrong on a rank is its own.
    let own = finished(2, 6, 0).waits(4, &[], Some(Kind::Other), None);
    assert_eq!(one(&[own, told(0, 2)]).0, Verdict::Failed);
}

#[test]
fn connections_that_were_lost_both_ways_are_a_cut() {
    // The deadline was longer than the connections lasted.
    let lost =
        |rank: usize, peer| on_hosts(finished(rank, 4, 4).waits(9, &[peer], Some(Kind::Lost), Some(peer)), 2);
    let told =
        |rank: usize, peer| on_hosts(finished(rank, 4, 4).waits(9, &[peer], Some(Kind::Told), Some(peer)), 2);
    let (verdict, culprits, _, text) = one(&[lost(0, 2), told(1, 2), told(2, 1), lost(3, 1)]);
    assert_eq!((verdict, culprits), (Verdict::Parted, vec![]));
    assert!(text.starts_with("Host hosta (ranks 0 and 1) and host hostb (ranks 2 and 3) do not"), "{text}");
    // Who dies is still who dies.
    let (verdict, culprits, ..) = one(&[lost(0, 2), told(1, 2), lost(3, 2)]);
    assert_eq!((verdict, culprits), (Verdict::Lost, vec![2]));
}

#[test]
fn who_drops_a_communicator_that_has_failed_did_not_leave() {
    let told = story(5, &[0, 1], &[(2, Is::Absent), (3, Is::Absent)]);
    let left = finished(2, 4, 4).waits(4, &[0], Some(Kind::Left), Some(0));
    let dumps = [
        times_out(0, 4, 2, 5, &[2], &told),
        times_out(1, 4, 2, 5, &[3], &told),
        on_hosts(left, 2),
        goes_on(3, 5, 4 * S, &told),
    ];
    let (verdict, culprits, _, text) = one(&dumps);
    assert_eq!((verdict, culprits), (Verdict::Unresponsive, vec![2, 3]), "{text}");
}

#[test]
fn what_only_later_versions_tell_is_no_obstacle() {
    let told = story(5, &[0], &[(1, Is::Absent)]);
    let dump = times_out(0, 2, 1, 5, &[1], &told);
    let text = String::from_utf8(dump.to_json().unwrap()).unwrap();
    let later = text.replace("\"is\":\"absent\"", "\"is\":\"asleep\"");
    assert_ne!(later, text);
    let read = Dump::parse(later.as_bytes()).unwrap();
    assert_eq!(read.failure.as_ref().unwrap().standstill.as_ref().unwrap().missing[0].is, Is::Unknown);
    assert_eq!(one(&[read]).1, [1]);
}

#[test]
fn who_failed_in_another_communicator_and_ended_is_held_up_there() {
    // Rank 3 waited for rank 1 in a part of the world, and ended.
    let told = story(5, &[0, 2], &[(1, Is::Absent), (3, Is::Gone)]);
    let part = story(2, &[1], &[(0, Is::Absent)]);
    let mut half = finished(1, 2, 1).waits(2, &[0], Some(Kind::Timeout), None);
    half.communicator = "world-1c1".into();
    half.world_rank = 3;
    half.ranks.iter_mut().for_each(|p| p.world_rank = 2 * p.rank + 1);
    let dumps =
        [times_out(0, 4, 4, 5, &[1, 3], &told), times_out(2, 4, 4, 5, &[1, 3], &told), tells(half, &part)];
    let found = diagnose(&dumps);
    let world = found.iter().find(|d| d.communicator == "world").unwrap();
    assert_eq!(world.findings.len(), 1, "{world:#?}");
    let Finding { verdict, culprits, text, .. } = &world.findings[0];
    assert_eq!((*verdict, &culprits[..]), (Verdict::Silent, &[1][..]));
    assert!(text.contains("rank 3 is held up in call 2"), "{text}");
    // Who has no file anywhere is gone.
    let found = findings(&dumps[..2]);
    assert_eq!((found[0].verdict, &found[0].culprits[..]), (Verdict::Lost, &[3][..]));
    assert_eq!((found[1].verdict, &found[1].culprits[..]), (Verdict::Silent, &[1][..]));
}
