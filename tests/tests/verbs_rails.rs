//! Two ranks that use several ports at once, over devices of memory that fail when told to (see [`nd_tests::mock`]): each
//! carries its share, what was put comes before its signal whichever is slow, and what fails is named.
#![allow(unsafe_code)] // puts raw memory

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nd_comm::number::ReduceOp;
use nd_tests::mock::Machine;
use nd_tests::mock::ranks::{self, ASKED, LONG, ON, RANKS};
use nd_tests::worlds::each;
use nd_transport::{Config, Endpoint, Part, Result, Signal, Step};

const DEVICES: &str = "DEVICES";
/// The setting of rank 0, of rank 1.
const MOST: &str = "MOST_RAILS";

/// Rank 0 has the devices with even numbers, rank 1 the others.
fn config(rank: usize) -> Config {
    let mut config = ranks::config(rank);
    let count = std::env::var(DEVICES).ok().and_then(|n| n.parse().ok()).unwrap_or(2 * RANKS);
    let own: Vec<String> = (rank..count).step_by(RANKS).map(|device| format!("mock{device}")).collect();
    config.verbs.hca = format!("={}", own.join(","));
    let most = std::env::var(MOST).unwrap_or_default();
    config.verbs.rails = most.split(';').nth(rank).and_then(|n| n.parse().ok()).unwrap_or(config.verbs.rails);
    config
}

fn pair() -> [Endpoint; 2] {
    let mut both = ranks::endpoints(config).into_iter().map(|e| e.expect("it connects"));
    [both.next().expect("one"), both.next().expect("another")]
}

/// Two ranks, each of which says how it fared.
#[test]
#[ignore = "is started by the other tests"]
fn ranks() {
    ranks::run(config);
}

/// Devices for so many rails.
fn rails(count: usize) -> Machine {
    Machine::new(RANKS * count).variable(DEVICES, &(RANKS * count).to_string())
}

/// Every result is right; what was said.
#[track_caller]
fn right(machine: Machine) -> String {
    let said = machine.role("ranks");
    for rank in 0..RANKS {
        assert!(said.contains(&format!("\nrank {rank}: right")), "{said}");
    }
    said
}

/// Bytes that the writes of a device carried.
#[track_caller]
fn bytes_by(said: &str, device: usize) -> u64 {
    let mark = format!("bytes by mock{device}: ");
    said.lines().find_map(|line| line.strip_prefix(&mark)?.parse().ok()).unwrap_or(0)
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// A call of both ranks fails: rank 0's error, and that of rank 1, have these words.
#[track_caller]
fn fails(faults: &str, words: [&[&str]; RANKS]) {
    let said = rails(2).faults(faults).variable(ON, "1").role("ranks");
    for (rank, words) in words.iter().enumerate() {
        let mark = format!("rank {rank}: error: ");
        let error = said.lines().find_map(|line| line.strip_prefix(&mark));
        let error = error.unwrap_or_else(|| panic!("{faults}: no error of rank {rank}: {said}"));
        has(error, words);
        assert!(!error.contains("did not happen within"), "{faults}: {error}");
    }
}

#[test]
fn without_faults_all_rails_carry_something_and_all_is_right() {
    for count in 1..=3 {
        let said = right(rails(count));
        assert!(!said.contains("WARN"), "{said}");
        for device in 0..2 * count {
            assert!(bytes_by(&said, device) > 0, "mock{device} of {count} rails: {said}");
        }
    }
}

/// The lower of both settings counts.
#[test]
fn as_many_ports_are_used_as_both_are_to() {
    for (most, used) in [("1;3", 1), ("2;1", 1), ("2;3", 2), ("3;4", 3)] {
        let said = right(rails(3).variable(MOST, most));
        let carry = (0..6).filter(|&device| bytes_by(&said, device) > PACKET).count();
        assert_eq!(carry, 2 * used, "{most}: {said}");
    }
}

/// What tries a rail.
const PACKET: u64 = 4096;

#[test]
#[ignore = "is started by another test"]
fn one_long_sum() {
    let world = ranks::world(RANKS, config);
    each(&world, |comm| {
        let mut x = comm.alloc::<u32>(LONG_SUM / 4).expect("memory");
        x.fill(comm.rank() as u32 + 1);
        comm.all_reduce(&mut x, ReduceOp::Sum).expect("a sum");
        assert!(x.iter().all(|x| *x == 3));
    });
}

/// Bytes.
const LONG_SUM: usize = 16 << 20;

#[test]
fn each_rail_carries_its_share_of_a_long_sum() {
    for count in 2..=3 {
        let said = rails(count).role("one_long_sum");
        for rank in 0..RANKS {
            let bytes: Vec<u64> = (0..count).map(|rail| bytes_by(&said, 2 * rail + rank) - PACKET).collect();
            let (least, most) = (bytes.iter().min().expect("some"), bytes.iter().max().expect("some"));
            // All of them together are what one rank sends, and none is ahead of another by more than one put.
            assert!(bytes.iter().sum::<u64>() >= LONG_SUM as u64 / 2, "{bytes:?}");
            assert!(most - least <= 128 << 10, "rank {rank}: {bytes:?}");
        }
    }
}

#[test]
#[ignore = "is started by another test"]
fn a_signal_follows_what_was_put_by_all_rails() {
    let [one, two] = pair();
    const LEN: usize = 600_000;
    let window = two.region().alloc(4096 + LEN as u64, true).expect("a window");
    let (at, data) = (window.offset(), window.offset() + 4096);
    let link = one.link(1).expect("a link");
    let there = |value: u64| {
        let seen = || two.region().counter(at).load(Ordering::Acquire) == value;
        let look = || -> Result<Step> { Ok(if seen() { Step::Done } else { Step::Idle }) };
        assert!(two.wait(LONG, look, || Ok(())).expect("no error"), "no signal");
        let place = two.region().at(data, LEN as u64);
        // SAFETY: inside a window that nobody writes before the next round.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), LEN) }.to_vec()
    };
    for round in 1..=20u64 {
        // On all rails; on one, over part of that; on all again, over both; as a message, over these; as several messages,
        // since it is over part of that one.
        let marks = [1, 2, 3, 4, 5].map(|i| (round * 5 + i) as u8);
        let puts = [(0, LEN), (100_000, 150_000), (50_000, 400_000), (150_000, 900), (150_500, 300_000)];
        let memory: Vec<Vec<u8>> = puts.iter().zip(marks).map(|((_, len), mark)| vec![mark; *len]).collect();
        let mut wanted = vec![0; LEN];
        for ((from, len), bytes) in puts.iter().zip(&memory) {
            wanted[*from..from + len].copy_from_slice(bytes);
        }
        let tickets: Vec<_> = puts
            .iter()
            .zip(&memory)
            .map(|((from, _), bytes)| {
                // SAFETY: all of it outlives the puts, which are flushed below.
                unsafe { link.put(&[Part::of(bytes)], data + *from as u64, None) }.expect("a put")
            })
            .collect();
        link.signal(Signal { at, value: round }).expect("a signal");
        let seen = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                // What the signal waits for is heard by who sends it.
                let flushed = || seen.load(Ordering::Acquire) && tickets.iter().all(|t| link.flushed(*t));
                let look = || -> Result<Step> { Ok(if flushed() { Step::Done } else { Step::Idle }) };
                assert!(one.wait(LONG, look, || Ok(())).expect("no error"), "not flushed");
            });
            let came = there(round);
            seen.store(true, Ordering::Release);
            let wrong = came.iter().zip(&wanted).position(|(came, wanted)| came != wanted);
            assert_eq!(wrong, None, "round {round}");
        });
    }
    println!("in order");
}

/// Each of two ports of 200 Gb/s serves two of 100 Gb/s.
#[test]
fn fast_ports_serve_several_slow_ones() {
    let fast = |machine: Machine, device: usize| {
        machine.set(&format!("infiniband/mock{device}/ports/1/rate"), "200 Gb/sec (4X HDR)")
    };
    let down = |machine: Machine, device: usize| {
        machine.set(&format!("infiniband/mock{device}/ports/1/state"), "1: DOWN")
    };
    let said = right(down(down(fast(fast(rails(4), 1), 3), 5), 7));
    for device in [0, 1, 2, 3, 4, 6] {
        assert!(bytes_by(&said, device) > PACKET, "mock{device} in {said}");
    }
}

/// Whichever rail is slow, with what it writes or with the word that it is written.
#[test]
fn what_was_put_comes_before_its_signal_whichever_rail_is_slow() {
    let slow = |faults: &str| {
        let said = rails(3).faults(faults).role("a_signal_follows_what_was_put_by_all_rails");
        has(&said, &["in order"]);
    };
    slow("");
    for device in ["mock0", "mock2", "mock4"] {
        slow(&format!("{device}/write=late:30"));
        slow(&format!("{device}/send=late:30"));
    }
    slow("mock2/write=late:9;mock4/write=late:25;mock2/send=late:4");
}

#[test]
fn sums_are_right_whichever_rail_is_slow() {
    for device in 0..4 {
        right(rails(2).faults(&format!("mock{device}/write=late:20;mock{device}/send=late:5")));
    }
}

/// A rail that cannot be made, or is closed, is left out, with the reason once on each rank; the other one carries all.
#[test]
fn a_rail_that_does_not_work_is_left_out_and_that_is_said() {
    let left_out = |faults: &str, rail: [usize; 2], words: &[&str]| {
        let said = right(rails(2).faults(faults));
        let warnings: Vec<_> = said.lines().filter(|line| line.contains("WARN")).collect();
        assert_eq!(warnings.len(), RANKS, "{faults}: one of each rank: {said}");
        let port = format!("mock{}", rail[0]);
        let other = format!("mock{}", rail[1]);
        for warning in warnings {
            has(warning, &["1 of 2 rails are used with rank"]);
            has(warning, words);
            assert!(warning.contains(&port) || warning.contains(&other), "{warning}");
        }
        let kept = 2 - rail[0];
        for device in [kept, kept + 1] {
            assert!(bytes_by(&said, device) > PACKET, "mock{device} in {said}");
        }
        for device in rail {
            assert!(bytes_by(&said, device) <= PACKET, "mock{device} in {said}");
        }
    };
    for rail in [[0, 1], [2, 3]] {
        let [here, there] = rail;
        for (fault, words) in [
            ("lost", ["status 12", "transport retry counter exceeded"]),
            ("silence", ["was not answered within", "4791"]),
            ("garble", ["byte 0 of a packet of 4096 bytes came", "wrong"]),
        ] {
            // However often they connect.
            left_out(&format!("mock{here}/write={fault};mock{there}/write={fault}"), rail, &words);
        }
        for call in ["create_cq", "create_srq", "create_qp", "query_gid", "modify_qp_rtr", "modify_qp_rts"] {
            left_out(&format!("mock{there}/{call}=EIO"), rail, &["os error 5"]);
        }
        left_out(&format!("mock{here}/query_port=down"), rail, &["is down"]);
        left_out(
            &format!("mock{here}/query_port=infiniband"),
            rail,
            &["one is InfiniBand and the other is Ethernet"],
        );
    }
}

/// Where none works, as with one port: TCP, or an error.
#[test]
fn without_a_rail_that_works_tcp_is_used() {
    let closed = || rails(2).faults("mock1/modify_qp_rtr=EIO;mock2/create_qp=ENOMEM");
    let said = right(closed().variable(ASKED, "auto"));
    let warnings: Vec<_> = said.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), RANKS, "{said}");
    warnings.iter().for_each(|warning| has(warning, &["TCP is used with rank", "os error 5", "os error 12"]));
    let said = closed().variable(ON, "1").role("ranks");
    for rank in 0..RANKS {
        has(&said, &[&format!("rank {rank}: error: ")]);
    }
    has(&said, &["ND_TRANSPORT=verbs, but", "use auto for TCP instead"]);
}

/// What fails on any rail fails the two ranks, with its name.
#[test]
fn what_fails_on_the_second_rail_is_named() {
    for (status, words) in [(10, "remote access error"), (12, "transport retry counter exceeded")] {
        let number = format!("status {status}, ");
        for place in ["write#5", "send#4"] {
            let met = ["rank 1 on ", "is lost", &number, words, "on port mock2:1"];
            fails(&format!("mock2/{place}=status:{status}"), [&met, &["rank 1"]]);
        }
    }
    fails(
        "mock2/post_send#9=ENOMEM",
        [&["rank 1 on ", "took no more work", "os error 12", "mock2:1"], &["rank "]],
    );
    let words = ["completion queue on RDMA device mock2 cannot be read", "os error 5"];
    fails("mock2/poll_cq#300=EIO", [&words, &["rank "]]);
    fails("mock2/send#4=device_fatal", [&["RDMA device mock2 of this rank has failed"], &["rank "]]);
    fails("mock2/send#4=pair_fatal", [&["rank 1 on ", "queue pair", "mock2:1"], &["rank "]]);
    fails("mock2/send#4=port_down", [&["rank ", "mock2:1"], &["rank "]]);
}

#[test]
fn however_little_memory_can_be_registered_all_goes_right() {
    for last in 1..=12 {
        right(rails(2).faults(&format!("mock2/reg_mr#{last}+=ENOMEM")));
    }
}

/// Short messages go on one rail, and cost what they cost where there is no other.
#[test]
#[ignore = "is started by another test"]
fn send_short_messages_to_and_fro() {
    let ends = pair();
    println!("\n{}", ends[0].link(1).expect("a link").describe());
    let windows = [0, 1].map(|rank: usize| ends[rank].region().alloc(4096, true).expect("a window"));
    for value in 1..=SHORT_MESSAGES / 2 {
        for from in [0, 1] {
            let (link, at) = (ends[from].link(1 - from).expect("a link"), windows[1 - from].offset());
            let bytes = value.to_le_bytes();
            // SAFETY: so short that they are copied.
            unsafe { link.put(&[Part::of(&bytes)], at + 8, Some(Signal { at, value })) }.expect("a put");
            ends[from].progress().expect("no error");
            let began = Instant::now();
            while ends[1 - from].region().counter(at).load(Ordering::Acquire) != value {
                ends[1 - from].progress().expect("no error");
                assert!(began.elapsed() < LONG, "nothing came");
            }
        }
    }
}

const SHORT_MESSAGES: u64 = 2000;

#[test]
fn a_short_message_takes_one_call_however_many_rails_there_are() {
    let said = rails(3).role("send_short_messages_to_and_fro");
    has(&said, &["\nverbs 3 rails: mock0:1, mock2:1, mock4:1 to mock1:1, mock3:1, mock5:1"]);
    let count = |what: &str| -> u64 {
        let number = said.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(": "));
        number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {what}: {said}"))
    };
    let (sends, posts) = (count("sends"), count("posts"));
    assert!((SHORT_MESSAGES..SHORT_MESSAGES + 100).contains(&sends), "{sends}");
    assert!(posts <= sends + 20, "{posts} calls for {sends} messages");
}
