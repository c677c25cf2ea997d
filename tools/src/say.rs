//! What commands say beside their output: a line of standard error, in one write. Ranks share the stream, and lines that
//! are written piece by piece, as `eprintln!` does it, are mixed.

use std::fmt::Display;
use std::io::Write;

/// Says it.
pub fn line(text: impl Display) {
    let text = format!("{text}\n");
    // Who cannot hear cannot be told so either.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// What went wrong.
pub fn error(what: impl Display) {
    line(format_args!("error: {what}"));
}

/// What may go wrong.
pub fn warning(what: impl Display) {
    line(format_args!("warning: {what}"));
}
