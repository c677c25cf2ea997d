//! The short form of `make torture`: each fault over each kind of link, and some more deaths; and cases that went wrong.

use std::process::Command;

fn torture(arguments: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let out = Command::new(env!("CARGO_BIN_EXE_torture"))
        .args(arguments)
        .arg("--keep")
        .arg(folder.path())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&out.stdout);
    // Its files end with the test; what it says names what is wrong, and the seed.
    assert!(out.status.success(), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
    println!("{said}");
}

#[test]
fn survivors_learn_who_it_was_and_nothing_is_left() {
    torture(&["--kills", "24", "--others", "1"]);
}

/// A rank that gives up before it has met a peer sends what waits for that one, or not, but never from memory that it has
/// given back.
#[test]
fn what_is_sent_while_a_rank_gives_up_is_what_was_put() {
    let case = ["--fault", "abort", "--over", "mix", "--case", "3787568944752273202"];
    torture(&[&case[..], &["--times", "10"]].concat());
}
