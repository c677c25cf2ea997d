//! Memory of other devices, such as GPUs, by dma-buf: over devices of memory ([`nd_tests::mock`]), which map what they are
//! given, and in a virtual machine, whose kernel's RDMA device refuses it. The processor cannot touch that memory at the
//! addresses by which it is put: whoever tries ends with a signal.
#![allow(unsafe_code)] // maps and puts raw memory

use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nd_tests::machines;
use nd_tests::mock::{self, Machine};
use nd_tests::worlds::{Kind, endpoints};
use nd_transport::{
    Abilities, DmaBuf, DmaBufRegistration, Endpoint, Error, Link, Part, Signal, Ticket, Window,
};

const LONG: Duration = Duration::from_secs(60);
/// Bytes of a device's memory.
const LEN: usize = 4 << 20;

fn map(len: usize, protection: i32, flags: i32, fd: i32) -> *mut u8 {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(null_mut(), len, protection, flags, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    at.cast()
}

/// Stands for a GPU's memory.
struct Device {
    file: OwnedFd,
    /// By this it is put and granted.
    address: *mut u8,
    /// Where a test looks at it.
    seen: *mut u8,
}

impl Device {
    fn new() -> Device {
        let file = rustix::fs::memfd_create("device", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, LEN as u64).expect("its length");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Device {
            address: map(LEN, libc::PROT_NONE, none, -1),
            seen: map(LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd),
            file,
        }
    }

    fn export(&self) -> DmaBuf {
        let fd = self.file.try_clone().expect("a descriptor");
        DmaBuf { fd, offset: 0, len: LEN as u64, address: self.address as u64 }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= LEN);
        self.address.wrapping_add(offset)
    }

    fn part(&self, offset: usize, len: usize) -> Part {
        Part { ptr: self.at(offset), len }
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= LEN);
        // SAFETY: inside the mapping; what devices write was waited for.
        unsafe { std::slice::from_raw_parts(self.seen.add(offset), len) }.to_vec()
    }

    fn fill(&self, of: impl Fn(usize) -> u8) {
        // SAFETY: inside the mapping, and no device reads it yet.
        (0..LEN).for_each(|i| unsafe { self.seen.add(i).write(of(i)) });
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: both were mapped so, and are used no more.
        unsafe {
            libc::munmap(self.address.cast(), LEN);
            libc::munmap(self.seen.cast(), LEN);
        }
    }
}

/// Moves both ranks until something holds.
#[track_caller]
fn until(ends: &[Endpoint], holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        for end in ends {
            end.progress().expect("no error");
        }
        assert!(began.elapsed() < LONG, "it did not happen");
    }
}

fn counter(end: &Endpoint, at: u64) -> u64 {
    end.region().counter(at).load(Ordering::Acquire)
}

fn link(end: &Endpoint) -> &dyn Link {
    &**end.link(1 - end.rank()).expect("a link")
}

#[track_caller]
fn put(end: &Endpoint, parts: &[Part], at: u64, signal: Option<Signal>) -> Ticket {
    // SAFETY: callers wait for the signal, or until it is flushed.
    unsafe { link(end).put(parts, at, signal) }.expect("a put")
}

fn registered(end: &Endpoint, device: &Device) -> DmaBufRegistration {
    end.register_dma_buf(device.export()).expect("a registration")
}

/// Two ranks, each with a device's memory; all of that of rank 1 but the first 5 bytes is granted to rank 0.
struct World {
    ends: Vec<Endpoint>,
    kept: Vec<DmaBufRegistration>,
    source: Device,
    target: Device,
    granted: u64,
    /// The offset of rank 1's window, and of its counter.
    window: u64,
    counter: u64,
    _held: Window,
}

const BEFORE: usize = 5;

fn byte(i: usize) -> u8 {
    (i * 31 % 251) as u8
}

impl World {
    fn new() -> World {
        let ends = endpoints(&Kind::Verbs, 2);
        let (source, target) = (Device::new(), Device::new());
        source.fill(byte);
        let kept = vec![registered(&ends[0], &source), registered(&ends[1], &target)];
        let told = ends[0].region().alloc(8, true).expect("a window");
        let window = ends[1].region().alloc(1 << 20, true).expect("a window");
        // SAFETY: it stays until the endpoints are gone.
        let granted =
            unsafe { link(&ends[1]).land(target.at(BEFORE), (LEN - BEFORE) as u64) }.expect("a place");
        link(&ends[1]).signal(Signal { at: told.offset(), value: 1 }).expect("a signal");
        until(&ends, || counter(&ends[0], told.offset()) == 1);
        let (counter, at) = (window.offset(), window.offset() + 4096);
        World { ends, kept, source, target, granted, window: at, counter, _held: window }
    }

    /// Rank 0 puts; returns once rank 1 has it.
    #[track_caller]
    fn put(&self, parts: &[Part], at: u64) {
        let value = counter(&self.ends[1], self.counter) + 1;
        put(&self.ends[0], parts, at, Some(Signal { at: self.counter, value }));
        until(&self.ends, || counter(&self.ends[1], self.counter) == value);
    }

    fn in_window(&self, offset: usize, len: usize) -> Vec<u8> {
        let at = self.ends[1].region().at(self.window + offset as u64, len as u64);
        // SAFETY: inside the window, after a signal.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), len) }.to_vec()
    }
}

#[test]
#[ignore = "is started by another test"]
fn moves_memory_of_devices() {
    let world = World::new();
    let World { ends, source, target, .. } = &world;
    assert!(link(&ends[0]).abilities().contains(Abilities::DMA_BUF));
    assert_eq!(world.kept[0].addresses(), source.at(0) as u64..source.at(LEN) as u64);
    // Of lengths that would go in one message, in several, and in pieces: between devices, and to and from host memory.
    for (i, len) in [1, 8, 256, 257, 1248, 1249, 70_000, 2_500_000].into_iter().enumerate() {
        world.put(&[source.part(i * 7, len)], world.granted + 11 + i as u64);
        assert!(target.bytes(BEFORE + 11 + i, len) == source.bytes(i * 7, len), "{len} bytes");
        let len = len.min(1_000_000);
        world.put(&[source.part(i * 7, len)], world.window + 40);
        assert!(world.in_window(40, len) == source.bytes(i * 7, len), "{len} bytes to the host");
        let host: Vec<u8> = (0..len).map(|at| byte(at + 1000 * i)).collect();
        world.put(&[Part::of(&host)], world.granted + 3);
        assert!(target.bytes(BEFORE + 3, len) == host, "{len} bytes from the host");
    }
    // Parts of both kinds; short ones of the host may be reused at once.
    for at in [world.granted + 100, world.window + 100] {
        let (mut short, long) = ([7u8; 200], [8u8; 1000]);
        let value = counter(&ends[1], world.counter) + 1;
        let parts =
            [Part::of(&short), source.part(9, 60), Part::of(&[]), source.part(0, 3000), Part::of(&long)];
        put(&ends[0], &parts, at, Some(Signal { at: world.counter, value }));
        short.fill(0);
        std::hint::black_box(&short);
        until(ends, || counter(&ends[1], world.counter) == value);
        let came =
            if at < world.granted { world.in_window(100, 4260) } else { target.bytes(BEFORE + 100, 4260) };
        let sent = [vec![7; 200], source.bytes(9, 60), source.bytes(0, 3000), vec![8; 1000]].concat();
        assert!(came == sent, "at {at:#x}");
    }
    println!("\nall is right");
}

#[test]
#[ignore = "is started by another test"]
fn keeps_order_and_ends() {
    let world = World::new();
    let World { ends, source, target, .. } = &world;
    // The device's write does not overtake the message that is to be placed before it.
    for round in 0..3 {
        let short = vec![100 + round; 500];
        put(&ends[0], &[Part::of(&short)], world.window + 300, None);
        world.put(&[source.part(50, 2000)], world.window);
        assert!(world.in_window(0, 2000) == source.bytes(50, 2000), "round {round}");
    }
    // What lies there in part is refused, and nothing of it is sent.
    let host = [1u8; 8];
    let across = Part { ptr: source.at(LEN - 4), len: 8 };
    // SAFETY: it is refused.
    let refused = unsafe { link(&ends[0]).put(&[Part::of(&host), across], world.window, None) };
    let said = refused.expect_err("only a part").to_string();
    assert!(said.contains("only some of them") && said.contains(&LEN.to_string()), "{said}");
    world.put(&[source.part(0, 8)], world.window + 4000);
    assert!(world.in_window(0, 2000) == source.bytes(50, 2000));
    // A registration that ends leaves what is on its way alone; what is left of it is seen by whoever started this program.
    let again = Device::new();
    again.fill(|i| byte(i + 1));
    let registration = registered(&ends[0], &again);
    let ticket = put(&ends[0], &[again.part(0, 3_000_000)], world.granted, None);
    drop(registration);
    until(ends, || link(&ends[0]).flushed(ticket));
    world.put(&[], world.window);
    assert!(target.bytes(BEFORE, 3_000_000) == again.bytes(0, 3_000_000));
    // What was withdrawn is written no more, whatever the length.
    link(&ends[1]).withdraw(world.granted);
    ends[1].progress().expect("no error");
    let told = ends[0].region().alloc(8, true).expect("a window");
    link(&ends[1]).signal(Signal { at: told.offset(), value: 1 }).expect("a signal");
    until(ends, || counter(&ends[0], told.offset()) == 1);
    for len in [10, 100_000] {
        world.put(&[source.part(0, len)], world.granted);
    }
    assert!(target.bytes(BEFORE, 3_000_000) == again.bytes(0, 3_000_000));
    // Once a rank has given up it speaks by TCP.
    ends[0].give_up();
    // SAFETY: it is refused.
    let refused = unsafe { link(&ends[0]).put(&[source.part(0, 8)], world.window, None) };
    assert!(matches!(&refused, Err(Error::DmaBuf { why, .. }) if why.contains("TCP")), "{refused:?}");
    println!("\nall is right");
}

/// A peer that would have this rank's processor write there is refused.
#[test]
#[ignore = "is started by another test"]
fn takes_no_message_for_a_device() {
    let world = World::new();
    let World { ends, granted, .. } = &world;
    // Without the mark that it is another device's memory.
    put(&ends[0], &[Part::of(&[1; 8])], *granted & !(1 << 62), None);
    let began = Instant::now();
    let error = loop {
        let _ = ends[0].progress();
        match ends[1].progress() {
            Err(e) => break e,
            Ok(_) => assert!(began.elapsed() < LONG, "no error"),
        }
    };
    assert!(matches!(&error, Error::Protocol { rank: 0, what } if what.contains("8 bytes")), "{error}");
    println!("\nall is right");
}

#[test]
fn memory_of_devices_is_put_and_granted() {
    for role in ["moves_memory_of_devices", "keeps_order_and_ends", "takes_no_message_for_a_device"] {
        // The two ranks share the devices: one rail, or several.
        for devices in [2, 4, 8] {
            let said = Machine::new(devices).role(role);
            assert!(said.contains("\nall is right\n"), "{devices} devices: {said}");
        }
    }
}

/// Host memory goes as ever.
#[track_caller]
fn goes_on(ends: &[Endpoint]) {
    let window = ends[1].region().alloc(8192, true).expect("a window");
    let (at, host) = (window.offset(), vec![5u8; 5000]);
    put(&ends[0], &[Part::of(&host)], at + 8, Some(Signal { at, value: 1 }));
    until(ends, || counter(&ends[1], at) == 1);
}

#[test]
#[ignore = "is started by another test"]
fn is_refused() {
    let ends = endpoints(&Kind::Verbs, 2);
    let device = Device::new();
    for _ in 0..2 {
        match ends[0].register_dma_buf(device.export()) {
            Ok(_) => println!("\nregistered"),
            Err(e) => println!("\nrefused: {e}"),
        }
    }
    goes_on(&ends);
}

#[test]
fn what_is_missing_is_named_with_what_to_do() {
    let refused = |machine: Machine, words: &[&str]| {
        let said = machine.role("is_refused");
        let line =
            said.lines().find(|line| line.starts_with("refused: ")).unwrap_or_else(|| panic!("{said}"));
        for word in
            [&["registering a dma-buf of 4194304 bytes with RDMA device mock", "host memory"], words].concat()
        {
            assert!(line.contains(word), "{word}: {line}");
        }
        said.lines().filter(|line| line.starts_with("refused: ")).count()
    };
    let two = || Machine::new(2);
    assert_eq!(refused(two().without("ibv_reg_dmabuf_mr"), &["has no ibv_reg_dmabuf_mr", "rdma-core 34"]), 2);
    let words = ["its driver registers none", "os error 95", "Linux 5.12", "ND_IB_HCA"];
    assert_eq!(refused(two().faults("reg_dmabuf_mr=EOPNOTSUPP"), &words), 2);
    // The device is asked once whether it can; then what it says of this memory is told, and others may do.
    assert_eq!(refused(two().faults("reg_dmabuf_mr#2=EOPNOTSUPP"), &words), 1);
    assert_eq!(
        refused(two().faults("reg_dmabuf_mr#2=EINVAL"), &["os error 22", "descriptor is a dma-buf"]),
        1
    );
}

#[test]
fn links_that_take_none_say_which_do() {
    if machines::inside() || mock::root().is_some() {
        return;
    }
    for (kind, name) in [(Kind::Local, "local"), (Kind::Shm, "shm"), (Kind::Tcp, "tcp")] {
        let ends = endpoints(&kind, 2);
        assert!(!link(&ends[0]).abilities().contains(Abilities::DMA_BUF));
        let said = ends[0].register_dma_buf(Device::new().export()).expect_err("no verbs").to_string();
        let why = format!("no link of rank 0 goes by verbs (they go by {name})");
        for word in [&*why, "ND_TRANSPORT=auto or verbs", "nd-topo paths", "host memory"] {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
}

#[test]
fn a_kernel_whose_device_takes_none_says_so() {
    machines::again("a_kernel_whose_device_takes_none_says_so", &["soft_roce"]);
}

#[test]
fn soft_roce_refuses_and_goes_on() {
    if !machines::inside() {
        return;
    }
    let ends = endpoints(&Kind::Verbs, 2);
    let said =
        ends[0].register_dma_buf(Device::new().export()).expect_err("Soft-RoCE takes none").to_string();
    for word in ["RDMA device rxe0", "its driver registers none", "Linux 5.12", "host memory"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    goes_on(&ends);
}
