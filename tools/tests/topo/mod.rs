//! `nd-topo` as a command, for the tests of it.

use std::process::{Command, Output};

/// Runs it.
pub fn nd_topo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nd-topo")).args(args).output().unwrap()
}

/// What it prints when all is well.
pub fn good(args: &[&str]) -> String {
    let out = nd_topo(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The one line that an error is.
pub fn bad(args: &[&str]) -> String {
    let out = nd_topo(args);
    assert_eq!(out.status.code(), Some(1), "{args:?}");
    assert!(out.stdout.is_empty(), "{args:?} printed {}", String::from_utf8_lossy(&out.stdout));
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(text.starts_with("error: ") && text.trim_end().lines().count() == 1, "{text}");
    text
}
