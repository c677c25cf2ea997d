//! Virtual machines with RDMA (Soft-RoCE), for what needs verbs. `ndvm` lies in `../shared/vm` beside the checkout, or
//! `ND_VM` names it. A test runs there what it is given, or, by [`again`], its own program once more.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{Need, skip};

/// Tells the program that it runs inside.
const INSIDE: &str = "INSIDE_RDMA_MACHINE";

/// Seconds after which a machine is ended in any case.
const LIMIT: &str = "280";

/// Whether this program runs in such a machine.
pub fn inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// A tool for such machines; says that the test is skipped where there is none.
pub fn ndvm(test: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vm/ndvm");
    let ndvm = std::env::var_os("ND_VM").map_or_else(beside, PathBuf::from);
    if !ndvm.is_file() {
        skip(test, Need::VirtualMachine);
        return None;
    }
    if !Command::new(&ndvm).arg("check").output().is_ok_and(|o| o.status.success()) {
        eprintln!("`{} check` says something is missing; run its install-deps", ndvm.display());
        skip(test, Need::VirtualMachine);
        return None;
    }
    Some(ndvm)
}

/// Runs a command in machines; `options` are ndvm's.
pub fn run(ndvm: &Path, options: &[&str], command: &[&str]) -> Output {
    let mut ndvm = Command::new(ndvm);
    ndvm.args(["run", "--timeout", LIMIT]).args(options).arg("--").args(["env", &format!("{INSIDE}=1")]);
    ndvm.args(command).output().unwrap_or_else(|e| panic!("ndvm: {e}"))
}

/// What a test goes through: less inside, where everything takes ten times as long.
pub fn fewer<T: Clone>(all: &[T], inside_machines: &[T]) -> Vec<T> {
    if inside() { inside_machines.to_vec() } else { all.to_vec() }
}

/// Runs other tests of this program in a machine, where all worlds are [`Verbs`](crate::worlds::Kind::Verbs): those whose
/// names contain one of `only`, or all. Panics if one fails.
pub fn again(this: &str, only: &[&str]) {
    again_with(this, &[], only);
}

/// The same, with options of ndvm's.
pub fn again_with(this: &str, options: &[&str], only: &[&str]) {
    if inside() || crate::mock::root().is_some() {
        return;
    }
    let Some(ndvm) = ndvm(this) else { return };
    let program = std::env::current_exe().unwrap_or_else(|e| panic!("this program's path: {e}"));
    let program = program.display().to_string();
    let mut command = vec![program.as_str(), "--test-threads", "1", "--skip", this];
    command.extend(only);
    let out = run(&ndvm, options, &command);
    let said = String::from_utf8_lossy(&out.stdout);
    let passed = said.lines().any(|line| line.contains("test result: ok.") && !line.contains(" 0 passed"));
    assert!(out.status.success() && passed, "{said}\n{}", String::from_utf8_lossy(&out.stderr));
}
