//! What fails on devices and on the way between them, and what all ranks then say: over devices of memory that fail when
//! told to (see [`nd_tests::mock`]). Each test starts this program again, where two ranks call collectives.
#![allow(unsafe_code)] // puts raw memory

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nd_tests::mock::Machine;
use nd_tests::mock::ranks::{self, ASKED, GID, HCA, LONG, MEMLOCK, ON, RANKS};
use nd_transport::{Endpoint, Error, Part, Result, Signal, Step};

/// Two ranks, each of which says how it fared.
#[test]
#[ignore = "is started by the other tests"]
fn ranks() {
    ranks::limit_locked_memory();
    ranks::run(ranks::asked);
}

/// Both ranks end with an error; what each of them says.
#[track_caller]
fn errors(machine: Machine) -> [String; RANKS] {
    let said = machine.variable(ON, "1").role("ranks");
    [0, 1].map(|rank| {
        let mark = format!("rank {rank}: error: ");
        let line = said.lines().find_map(|line| line.strip_prefix(&mark));
        line.unwrap_or_else(|| panic!("no error of rank {rank}: {said}")).to_owned()
    })
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

/// Bytes went by the devices; or none did, and so many warnings said why.
#[track_caller]
fn by_verbs(said: &str) {
    assert!(!said.contains("WARN") && !said.contains("sends: 0\n"), "{said}");
}

#[track_caller]
fn by_tcp(said: &str, words: &[&str]) {
    // Where the library cannot be used it reports nothing.
    assert!(!said.contains("\nsends: ") || said.contains("\nsends: 0\n"), "{said}");
    let warnings: Vec<_> = said.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), RANKS, "one of each rank: {said}");
    for word in words {
        assert!(warnings.iter().all(|line| line.contains(word)), "{word}: {said}");
    }
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// Where verbs may be used and cannot: TCP is, with one warning of each rank that has these words. Where they are asked
/// for: an error of each rank with them.
#[track_caller]
fn unusable(machine: impl Fn() -> Machine, words: &[&str]) {
    by_tcp(&right(machine().variable(ASKED, "auto")), &[&["TCP is used with rank"], words].concat());
    let errors = errors(machine());
    errors.iter().for_each(|error| has(error, words));
    // Who was being connected to meanwhile may have heard of the way's end only.
    let asked =
        |error: &String| error.contains("ND_TRANSPORT=verbs") && error.contains("use auto for TCP instead");
    assert!(errors.iter().any(asked), "{errors:?}");
}

/// A call of both ranks fails: rank 0's error, and that of rank 1, have these words.
#[track_caller]
fn fails(faults: &str, words: [&[&str]; RANKS]) {
    let errors = errors(Machine::new(2).faults(faults));
    for (error, words) in errors.iter().zip(words) {
        has(error, words);
        assert!(!error.contains("did not happen within"), "{faults}: {error}");
    }
}

#[test]
fn without_faults_all_is_right() {
    by_verbs(&right(Machine::new(2)));
    by_verbs(&right(Machine::new(2).variable(ASKED, "auto")));
    // Without functions that older libraries lack.
    by_verbs(&right(Machine::new(2).without("ibv_reg_dmabuf_mr")));
}

#[test]
fn ports_of_unlike_mtu_use_the_smaller() {
    by_verbs(&right(Machine::new(2).set("infiniband/mock1/ports/1/active_mtu", "1024")));
    by_verbs(&right(Machine::new(2).faults("mock0/query_port=mtu:256")));
}

#[test]
fn a_library_that_is_too_old_is_named_with_what_it_lacks() {
    for function in ["ibv_create_srq", "ibv_get_async_event"] {
        let old = || Machine::new(2).without(function);
        unusable(old, &["libibverbs.so.1 has no", function, "install a newer"]);
    }
}

#[test]
fn a_device_that_cannot_be_opened_is_named_with_its_reason() {
    for (call, errno) in [("open_device", "EACCES"), ("query_device", "EIO"), ("alloc_pd", "ENOMEM")] {
        let number = match errno {
            "EACCES" => "os error 13",
            "EIO" => "os error 5",
            _ => "os error 12",
        };
        unusable(|| Machine::new(2).faults(&format!("mock0/{call}={errno}")), &["mock0:1", number]);
    }
}

#[test]
fn what_cannot_be_made_is_told_to_both_ranks() {
    let calls = [
        "create_comp_channel",
        "create_cq",
        "create_srq",
        "post_srq_recv",
        "create_qp",
        "query_port",
        "query_gid",
        "modify_qp_init",
        "modify_qp_rtr",
        "modify_qp_rts",
    ];
    for call in calls {
        unusable(|| Machine::new(2).faults(&format!("mock1/{call}=EIO")), &["mock1", "os error 5"]);
    }
}

#[test]
fn locked_memory_that_is_too_little_is_told_with_its_limit() {
    let words = ["mock0", "64 KiB for all", "ulimit -l", "limits.conf", "LimitMEMLOCK"];
    // None can be registered; the first is; queues find none.
    for fault in ["reg_mr", "reg_mr#2+", "create_cq", "create_srq"] {
        let scarce = || Machine::new(2).faults(&format!("mock0/{fault}=ENOMEM")).variable(MEMLOCK, "65536");
        unusable(scarce, &words);
    }
    let all = || Machine::new(2).faults("mock0/reg_mr=ENOMEM").variable(MEMLOCK, "65536");
    unusable(all, &["mock0:1", "1048576 bytes"]);
}

#[test]
fn ports_that_cannot_be_used_are_named() {
    let down = |machine: Machine| {
        machine
            .set("infiniband/mock0/ports/1/state", "1: DOWN")
            .set("infiniband/mock0/ports/1/phys_state", "3: Disabled")
    };
    unusable(|| down(Machine::new(2)), &["no usable RDMA port", "mock0:1 down (Disabled)"]);
    // It went down since it was chosen.
    unusable(|| Machine::new(2).faults("mock0/query_port=down"), &["port mock0:1 is down", "nd-topo show"]);
    let layer = "infiniband/mock1/ports/1/link_layer";
    unusable(|| Machine::new(2).set(layer, "InfiniBand"), &["Ethernet ports", "InfiniBand ports"]);
    let unlike = || Machine::new(2).faults("mock0/query_port=infiniband");
    unusable(unlike, &["mock0:1", "mock1:1", "one is InfiniBand and the other is Ethernet", "ND_IB_HCA"]);
}

#[test]
fn settings_that_fit_nothing_list_what_there_is() {
    for asked in ["auto", "verbs"] {
        let error = |name: &str, value: &str| {
            let said = Machine::new(2).variable(ASKED, asked).variable(name, value).role("ranks");
            let line = said.lines().find_map(|line| line.strip_prefix("rank 0: error: "));
            line.unwrap_or_else(|| panic!("no error: {said}")).to_owned()
        };
        has(&error(HCA, "mlx9"), &["ND_IB_HCA `mlx9`", "mock0:1", "mock1:1"]);
        has(&error(GID, "7"), &["ND_IB_GID_INDEX", "7", "RoCE v2", "10.88.0.1"]);
    }
}

#[test]
fn a_way_that_is_closed_is_found_so() {
    // However often they connect.
    let probes = |fault: &str| format!("mock0/write={fault};mock1/write={fault}");
    for (fault, words) in [
        ("lost", ["status 12", "transport retry counter exceeded", "ND_IB_TIMEOUT"]),
        ("status:10", ["status 10", "remote access error", "see what that rank says"]),
        ("silence", ["was not answered within", "4791", "packets of this size"]),
        ("garble", ["byte 0 of a packet of 4096 bytes came", "wrong", "kernel's log"]),
    ] {
        let ports = ["mock0:1", "mock1:1"];
        unusable(|| Machine::new(2).faults(&probes(fault)), &[&words[..], &ports].concat());
    }
}

/// In a call, every status of a completion: on the rank that meets it with its number, its words and the port, on the other
/// with who it was.
#[test]
fn every_status_is_told_in_words_on_both_ranks() {
    let statuses = [
        (1, "local length error"),
        (2, "local queue pair operation error"),
        (4, "local protection error"),
        (5, "work request flushed"),
        (9, "remote invalid request"),
        (10, "remote access error"),
        (11, "remote operation error"),
        (12, "transport retry counter exceeded"),
        (13, "RNR retry counter exceeded"),
        (19, "fatal error"),
        (21, "general error"),
    ];
    for (status, words) in statuses {
        let number = format!("status {status}, ");
        let met = ["rank 1 on ", "is lost", &number, words, "on port mock0:1", "; "];
        for place in ["write#5", "send#40"] {
            fails(&format!("mock0/{place}=status:{status}"), [&met, &["rank 1"]]);
        }
    }
    let met = ["rank 0 on ", "is lost", "status 12, ", "on port mock1:1", "ND_IB_RETRY_CNT"];
    fails("mock1/write#5=lost", [&["rank "], &met]);
}

#[test]
fn devices_that_refuse_work_are_named() {
    fails(
        "mock0/post_send#50=ENOMEM",
        [&["rank 1 on ", "took no more work", "os error 12", "mock0:1"], &["rank "]],
    );
    let words = ["rank 0 on ", "receive queue on RDMA device mock1", "takes no more", "os error 12"];
    fails("mock1/post_srq_recv#40=ENOMEM", [&["rank "], &words]);
    let words = ["completion queue on RDMA device mock0 cannot be read", "os error 5"];
    fails("mock0/poll_cq#300=EIO", [&words, &["rank "]]);
    fails(
        "mock0/req_notify_cq=EIO",
        [&["RDMA device mock0", "completion events", "os error 5"], &["rank 0"]],
    );
}

#[test]
fn a_port_that_goes_down_in_a_call_is_named() {
    let errors = errors(Machine::new(2).faults("mock0/send#40=port_down"));
    // Either of the two may be the first to miss the other, and tells it.
    errors.iter().for_each(|error| has(error, &["rank ", "mock0:1"]));
    assert!(errors[0].contains("rank 1 on ") || errors[1].contains("rank 0 on "), "{errors:?}");
    assert!(errors.iter().any(|e| e.contains("status 12")), "{errors:?}");
}

#[test]
fn devices_and_queue_pairs_that_tell_of_their_end_are_named() {
    fails(
        "mock0/send#40=device_fatal",
        [&["RDMA device mock0 of this rank has failed", "ND_IB_HCA=^mock0"], &["rank "]],
    );
    // What is flushed, or what the device says.
    fails("mock0/send#40=pair_fatal", [&["rank 1 on ", "queue pair", "mock0:1"], &["rank "]]);
    // While the two are being joined.
    for rank in ["mock0", "mock1"] {
        let errors = errors(Machine::new(2).faults(&format!("{rank}/modify_qp_rts=pair_fatal")));
        errors.iter().for_each(|error| has(error, &["rank ", "mock"]));
        assert!(
            errors.iter().any(|error| error.contains("queue pair") && error.contains(rank)),
            "{errors:?}"
        );
    }
}

/// Memory that cannot be registered in a call is copied; nothing else changes.
#[test]
fn memory_that_cannot_be_registered_in_a_call_is_copied() {
    let said = right(Machine::new(2).faults("mock0/reg_mr#12+=ENOMEM"));
    assert!(!said.contains("sends: 0\n"), "{said}");
    let warnings = said.lines().filter(|line| line.contains("WARN")).count();
    assert!(warnings == 1 && said.contains("buffers are copied before they are sent"), "{said}");
}

/// Whatever it is that finds no room any more.
#[test]
fn however_little_memory_can_be_registered_all_goes_right() {
    for last in 1..=16 {
        let machine = Machine::new(2).faults(&format!("mock0/reg_mr#{last}+=ENOMEM"));
        right(machine.variable(ASKED, "auto"));
    }
}

#[test]
#[ignore = "is started by another test"]
fn one_of_whom_never_stops_sending() {
    let [one, two] = ranks::endpoints(ranks::asked).try_into().expect("two");
    let (one, two): (Endpoint, Endpoint) = (one.expect("it connects"), two.expect("it connects"));
    let window = two.region().alloc(4096, true).expect("a window");
    let link = one.link(1).expect("a link");
    // After so many the other one tells that it has taken them, and does so again and again.
    for value in 1..=64 {
        link.signal(Signal { at: window.offset(), value }).expect("a signal");
    }
    let counter = || two.region().counter(window.offset()).load(Ordering::Acquire);
    let there = || -> Result<Step> { Ok(if counter() == 64 { Step::Done } else { Step::Idle }) };
    std::thread::scope(|s| {
        s.spawn(|| {
            let never = one.wait(Duration::from_millis(300), || Ok::<_, Error>(Step::Idle), || Ok(()));
            assert!(!never.expect("no error"));
        });
        assert!(two.wait(LONG, there, || Ok(())).expect("no error"));
    });
    let mut ticks = 0;
    let tick = || {
        ticks += 1;
        Ok(())
    };
    let ended = one.wait(Duration::from_millis(500), || Ok::<_, Error>(Step::Idle), tick);
    assert!(!ended.expect("no error") && ticks > 0);
    println!("it ended");
}

#[test]
fn a_peer_that_never_stops_sending_does_not_keep_a_wait_from_its_end() {
    let said = Machine::new(2).faults("mock1/send#1=endless").role("one_of_whom_never_stops_sending");
    has(&said, &["it ended"]);
}

/// One after the other, as where only the time of each counts.
#[test]
#[ignore = "is started by another test"]
fn send_short_messages_to_and_fro() {
    let [one, two] = ranks::endpoints(ranks::asked).try_into().expect("two");
    let ends: [Endpoint; 2] = [one.expect("it connects"), two.expect("it connects")];
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

/// What a message costs is calls of the library: one that sends it, and one for many that give receive buffers back.
#[test]
fn a_short_message_takes_one_call_to_send_and_less_to_receive() {
    let said = Machine::new(2).role("send_short_messages_to_and_fro");
    let count = |what: &str| -> u64 {
        let number = said.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(": "));
        number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {what}: {said}"))
    };
    let (sends, posts, receive_posts) = (count("sends"), count("posts"), count("receive posts"));
    assert!((SHORT_MESSAGES..SHORT_MESSAGES + 100).contains(&sends), "{sends}");
    assert!(posts <= sends + 10, "{posts} calls for {sends} messages");
    // A device's first buffers take some calls as well.
    assert!(receive_posts < sends / 8 + 200, "{receive_posts} calls for {sends} messages");
}

/// The nearest ports are on fabrics that do not meet; others do.
#[test]
fn farther_ports_are_used_where_the_nearest_do_not_meet_and_that_is_said() {
    let node = |machine: Machine, device: usize, near: bool| {
        machine.set(&format!("infiniband/mock{device}/device/numa_node"), if near { "0" } else { "1" })
    };
    let of = |machine: Machine, device: usize, subnet: &str| {
        let port = format!("infiniband/mock{device}/ports/1");
        let machine = machine.set(&format!("{port}/link_layer"), "InfiniBand");
        machine.address(device, 0, &format!("{subnet}::{}", device + 1)).without_address(device, 1)
    };
    // Rank 0 has mock0 near and mock2 far, rank 1 has mock1 near and mock3 far.
    let mut machine = Machine::new(4).variable(HCA, "=mock0,mock2;=mock1,mock3").variable(ASKED, "auto");
    for (device, near, subnet) in
        [(0, true, "fe80"), (1, true, "fec0"), (2, false, "fe81"), (3, false, "fe81")]
    {
        machine = of(node(machine, device, near), device, subnet);
    }
    let said = right(machine.nodes(2));
    has(
        &said,
        &[
            "RDMA port mock2:1 is used with mock3:1 of rank 1",
            "RDMA port mock3:1 is used with mock2:1 of rank 0",
        ],
    );
    assert!(!said.contains("sends: 0\n") && !said.contains("TCP is used"), "{said}");
}
