//! RDMA devices that are nothing but memory and fail when told to (`mock-ibverbs`), for what no real device can be made to
//! do. A test starts its own program again with that library in place of rdma-core's, where ranks are threads.

pub mod ranks;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How a program that is started again may take at most.
const LIMIT: Duration = Duration::from_secs(120);

/// Where devices are described, in a program that has them.
pub fn root() -> Option<PathBuf> {
    std::env::var_os(mock_ibverbs::ROOT).map(PathBuf::from)
}

/// Devices, and the library that opens them.
#[derive(Debug)]
pub struct Machine {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

impl Machine {
    /// With so many devices: RoCE ports of 100 Gb/s, each with a link-local and an IPv4 address, joined to one another.
    pub fn new(devices: usize) -> Machine {
        let folder = tempfile::tempdir().expect("a folder");
        let built = std::env::current_exe().expect("this program").with_file_name("libmock_ibverbs.so");
        let lib = folder.path().join("lib");
        fs::create_dir(&lib).expect("a folder");
        fs::copy(&built, lib.join("libibverbs.so.1")).unwrap_or_else(|e| panic!("{}: {e}", built.display()));
        fs::create_dir_all(folder.path().join("sys/devices")).expect("a folder");
        let machine = Machine { folder, variables: Vec::new() };
        (0..devices).fold(machine, Machine::device)
    }

    fn device(self, number: usize) -> Machine {
        let port = format!("infiniband/mock{number}/ports/1");
        self.set(&format!("infiniband/mock{number}/node_type"), "1: CA")
            .set(&format!("{port}/state"), "4: ACTIVE")
            .set(&format!("{port}/phys_state"), "5: LinkUp")
            .set(&format!("{port}/link_layer"), "Ethernet")
            .set(&format!("{port}/rate"), "100 Gb/sec (4X EDR)")
            .set(&format!("{port}/lid"), &format!("{:#x}", number + 1))
            .set(&format!("{port}/active_mtu"), "4096")
            .address(number, 0, &format!("fe80::{}", number + 1))
            .address(number, 1, &format!("::ffff:10.88.0.{}", number + 1))
            .set(&format!("net/mocknet{number}/mtu"), "4200")
    }

    /// A device's port has this address too, framed as RoCE v2.
    pub fn address(self, device: usize, index: usize, gid: &str) -> Machine {
        let port = format!("infiniband/mock{device}/ports/1");
        self.set(&format!("{port}/gids/{index}"), gid)
            .set(&format!("{port}/gid_attrs/types/{index}"), "RoCE v2")
            .set(&format!("{port}/gid_attrs/ndevs/{index}"), &format!("mocknet{device}"))
    }

    /// It has no address with that index.
    pub fn without_address(self, device: usize, index: usize) -> Machine {
        let port = self.folder.path().join(format!("sys/class/infiniband/mock{device}/ports/1"));
        fs::remove_file(port.join(format!("gids/{index}"))).expect("an address");
        self
    }

    /// With so many NUMA nodes, of which the first has all cores.
    pub fn nodes(self, nodes: usize) -> Machine {
        let cores = ["ffffffff"; 32].join(",");
        for node in 0..nodes {
            let folder = self.folder.path().join(format!("sys/devices/system/node/node{node}"));
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("cpumap"), if node == 0 { &cores } else { "0" }).expect("a file");
        }
        self
    }

    /// A file below `/sys/class` says something else.
    pub fn set(self, file: &str, text: &str) -> Machine {
        let path = self.folder.path().join("sys/class").join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, format!("{text}\n")).expect("a file");
        self
    }

    /// The library has no function of that name, as one that is too old.
    pub fn without(self, function: &str) -> Machine {
        let library = self.folder.path().join("lib/libibverbs.so.1");
        let mut bytes = fs::read(&library).expect("the library");
        let name = [b"\0", function.as_bytes(), b"\0"].concat();
        let places: Vec<_> =
            (0..bytes.len() - name.len()).filter(|&i| bytes[i..].starts_with(&name)).collect();
        assert!(!places.is_empty(), "there is no {function}");
        // What is looked for is not found under another name.
        places.into_iter().for_each(|at| bytes[at + 1] = b'x');
        fs::write(&library, bytes).expect("the library");
        self
    }

    /// With these faults; see [`mock_ibverbs::faults`].
    pub fn faults(self, faults: &str) -> Machine {
        self.variable(mock_ibverbs::FAULTS, faults)
    }

    /// With a variable in its environment.
    pub fn variable(mut self, name: &str, value: &str) -> Machine {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Starts this program again with such arguments; all that it said, and how much was [sent](mock_ibverbs::REPORT).
    /// Panics if it fails, or leaves anything on a device, or does what no program may do.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        let program = std::env::current_exe().expect("this program");
        let file = |name: &str| self.folder.path().join(name);
        let create = |path: &Path| fs::File::create(path).expect("a file");
        let (out, err, report) = (file("out"), file("err"), file("report"));
        let mut child = Command::new(program)
            .args(arguments)
            .env("LD_LIBRARY_PATH", file("lib"))
            .env(mock_ibverbs::ROOT, file("sys"))
            .env(mock_ibverbs::REPORT, &report)
            .env("ND_RECORDER_DIR", "none")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(create(&out))
            .stderr(create(&err))
            .spawn()
            .expect("it starts");
        let said = || [&out, &err].map(|path| fs::read_to_string(path).unwrap_or_default()).concat();
        let until = Instant::now() + LIMIT;
        let status = loop {
            match child.try_wait().expect("its state") {
                Some(status) => break status,
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    let _ = child.kill();
                    let _ = child.wait();
                    panic!("it does not end:\n{}", said());
                }
            }
        };
        let report = fs::read_to_string(&report).unwrap_or_default();
        let said = format!("{}\n{report}", said());
        assert!(
            status.success() && !report.contains("left:") && !report.contains("misuse:"),
            "{status}\n{said}"
        );
        said
    }

    /// Starts the ignored test `role` of this program; all that it said.
    #[track_caller]
    pub fn role(&self, role: &str) -> String {
        self.run(&["--exact", role, "--ignored", "--nocapture", "--test-threads=1"])
    }
}

/// Runs other tests of this program over two such devices, where all worlds are [`Verbs`](crate::worlds::Kind::Verbs): those
/// whose names contain one of `only`, or all.
#[track_caller]
pub fn again(this: &str, only: &[&str]) {
    again_over(2, this, only);
}

/// The same, and once more over eight devices, of which each of two to four ranks has several, and uses them at once.
#[track_caller]
pub fn again_by_rails(this: &str, only: &[&str]) {
    again_over(2, this, only);
    again_over(8, this, only);
}

#[track_caller]
fn again_over(devices: usize, this: &str, only: &[&str]) {
    if root().is_some() || crate::machines::inside() {
        return;
    }
    let said = Machine::new(devices).run(&[&["--test-threads", "1", "--skip", this], only].concat());
    let passed = said.lines().any(|line| line.contains("test result: ok.") && !line.contains(" 0 passed"));
    assert!(passed, "over {devices} devices: {said}");
}
