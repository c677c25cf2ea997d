//! The short form of `make torture`: each fault over each kind of link, and some more deaths.

use std::process::Command;

#[test]
fn survivors_learn_who_it_was_and_nothing_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = Command::new(env!("CARGO_BIN_EXE_torture"))
        .args(["--kills", "24", "--others", "1", "--keep"])
        .arg(folder.path())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&out.stdout);
    // Its files end with the test; what it says names what is wrong, and the seed.
    assert!(out.status.success(), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
    println!("{said}");
}
