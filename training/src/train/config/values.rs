//! Values as texts, both ways.

use std::path::PathBuf;
use std::str::FromStr;

use candle_core::DType;

use crate::context_parallel::{Balance, Form};
use crate::data::Tokenizer;
use crate::shard::Reshard;

/// A parsed value, or what is wrong with the text and what to write.
pub type Parsed<T> = Result<T, String>;

/// As a key's value is written.
pub trait Show {
    /// Empty for none.
    fn show(&self) -> String;
}

macro_rules! shown {
    ($($type:ty),*) => {
        $(impl Show for $type {
            fn show(&self) -> String {
                self.to_string()
            }
        })*
    };
}

shown!(
    usize,
    u64,
    u8,
    bool,
    String,
    crate::data::End,
    crate::data::Order,
    crate::optim::Decay,
    crate::optim::Scaling
);

impl Show for f64 {
    /// As short as it can be read back: 3e-4, 0.1.
    fn show(&self) -> String {
        if *self != 0.0 && self.abs() < 1e-2 { format!("{self:e}") } else { self.to_string() }
    }
}

impl Show for (f64, f64) {
    fn show(&self) -> String {
        format!("{},{}", self.0, self.1)
    }
}

impl Show for Vec<String> {
    fn show(&self) -> String {
        self.join(",")
    }
}

impl Show for PathBuf {
    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl<T: Show> Show for Option<T> {
    fn show(&self) -> String {
        self.as_ref().map_or(String::new(), T::show)
    }
}

impl Show for DType {
    fn show(&self) -> String {
        self.as_str().to_owned()
    }
}

impl Show for Tokenizer {
    fn show(&self) -> String {
        match self {
            Tokenizer::Bytes => "bytes".into(),
            Tokenizer::File(path) => path.show(),
        }
    }
}

impl Show for Reshard {
    fn show(&self) -> String {
        match self {
            Reshard::Always => "always".into(),
            Reshard::Never => "never".into(),
            Reshard::Groups(size) => size.to_string(),
        }
    }
}

impl Show for Form {
    fn show(&self) -> String {
        match self {
            Form::Ring => "ring".into(),
            Form::AllGather => "all-gather".into(),
        }
    }
}

impl Show for Balance {
    fn show(&self) -> String {
        match self {
            Balance::Zigzag => "zigzag".into(),
            Balance::Contiguous => "contiguous".into(),
        }
    }
}

/// A whole number from `least` on.
fn whole<T: FromStr + PartialOrd + std::fmt::Display>(text: &str, least: T) -> Parsed<T> {
    match text.parse() {
        Ok(n) if n >= least => Ok(n),
        Ok(n) => Err(format!("{n} is less than {least}; write a whole number from {least} on")),
        Err(_) => Err(format!("is no whole number; write one from {least} on")),
    }
}

/// A whole number from 1 on.
pub fn positive(text: &str) -> Parsed<usize> {
    whole(text, 1)
}

/// The same, for a value that may be left out.
pub fn some(text: &str) -> Parsed<Option<usize>> {
    positive(text).map(Some)
}

/// Steps, from 1 on.
pub fn steps(text: &str) -> Parsed<u64> {
    whole(text, 1)
}

/// A whole number from 0 on.
pub fn count(text: &str) -> Parsed<u64> {
    whole(text, 0)
}

/// A number in a range, of which the end may be open.
fn number(text: &str, least: f64, below: f64) -> Parsed<f64> {
    match text.parse::<f64>() {
        Ok(n) if n >= least && n < below => Ok(n),
        Ok(n) if below.is_infinite() => Err(format!("{n} is out of range; write a number from {least} on")),
        Ok(n) => Err(format!("{n} is out of range; write a number from {least} to below {below}")),
        Err(_) => Err("is no number; write one such as 3e-4 or 0.1".into()),
    }
}

/// From 0 on.
pub fn amount(text: &str) -> Parsed<f64> {
    number(text, 0.0, f64::INFINITY)
}

/// From 0 to below 1.
pub fn part(text: &str) -> Parsed<f64> {
    number(text, 0.0, 1.0)
}

/// Two parts.
pub fn betas(text: &str) -> Parsed<(f64, f64)> {
    match text.split(',').collect::<Vec<_>>()[..] {
        [first, second] => Ok((part(first.trim())?, part(second.trim())?)),
        ref numbers => Err(format!("is {} numbers, not two; write such as 0.9,0.95", numbers.len())),
    }
}

/// `true` or `false`.
pub fn flag(text: &str) -> Parsed<bool> {
    match text {
        "true" | "yes" | "1" | "on" => Ok(true),
        "false" | "no" | "0" | "off" => Ok(false),
        _ => Err("is neither true nor false".into()),
    }
}

/// Names, with commas between them.
pub fn names(text: &str) -> Parsed<Vec<String>> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    Ok(names.map(str::to_owned).collect())
}

/// Anything but nothing.
pub fn text(text: &str) -> Parsed<String> {
    if text.is_empty() { Err("is empty".into()) } else { Ok(text.to_owned()) }
}

/// What is put after documents.
pub fn end(text: &str) -> Parsed<crate::data::End> {
    text.parse()
}

/// A file or folder; none for an empty text.
pub fn path(text: &str) -> Parsed<Option<PathBuf>> {
    Ok((!text.is_empty()).then(|| text.into()))
}

/// Axes with their sizes, which are judged when the number of ranks is known.
pub fn mesh(text: &str) -> Parsed<String> {
    match text.split(',').all(|axis| axis.trim().is_empty()) {
        true => Err("names no axis; write such as dp_shard=2,tp=2".into()),
        false => Ok(text.to_owned()),
    }
}

/// One of the types that can be computed in.
pub fn dtype(text: &str) -> Parsed<DType> {
    match text {
        "f32" | "float32" => Ok(DType::F32),
        "bf16" | "bfloat16" => Ok(DType::BF16),
        "f16" | "float16" => Ok(DType::F16),
        _ => Err("is none of f32, bf16, f16".into()),
    }
}

/// How much is sharded.
pub fn zero(text: &str) -> Parsed<u8> {
    match text.parse() {
        Ok(stage @ 0..=3) => Ok(stage),
        _ => Err("is none of 0 (DDP), 1, 2, 3 (FSDP)".into()),
    }
}

/// When weights are let go.
pub fn reshard(text: &str) -> Parsed<Reshard> {
    match text {
        "always" | "true" => Ok(Reshard::Always),
        "never" | "false" => Ok(Reshard::Never),
        _ => match text.parse() {
            Ok(size) if size > 0 => Ok(Reshard::Groups(size)),
            _ => Err("is none of always, never, and a number of ranks".into()),
        },
    }
}

/// How ranks of cp see each other's keys and values.
pub fn form(text: &str) -> Parsed<Form> {
    match text {
        "ring" => Ok(Form::Ring),
        "all-gather" | "allgather" => Ok(Form::AllGather),
        _ => Err("is neither ring nor all-gather".into()),
    }
}

/// How sequences are dealt out.
pub fn balance(text: &str) -> Parsed<Balance> {
    match text {
        "zigzag" => Ok(Balance::Zigzag),
        "contiguous" => Ok(Balance::Contiguous),
        _ => Err("is neither zigzag nor contiguous".into()),
    }
}

/// A name or a file; none for an empty text.
pub fn tokenizer(text: &str) -> Parsed<Option<Tokenizer>> {
    Ok((!text.is_empty()).then(|| Tokenizer::named(text)))
}

/// Bytes, such as 25M.
pub fn size(text: &str) -> Parsed<usize> {
    let (digits, unit) = text.split_at(text.trim_end_matches(['K', 'M', 'G', 'k', 'm', 'g']).len());
    let unit = match unit.to_ascii_uppercase().as_str() {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1usize << 30,
        _ => 0,
    };
    digits
        .parse::<usize>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .filter(|&n| n > 0)
        .ok_or_else(|| "is no size; write bytes, such as 64K or 25M (binary)".into())
}

/// The order of sequences.
pub fn order(text: &str) -> Parsed<crate::data::Order> {
    text.parse()
}

/// How the learning rate goes on.
pub fn decay(text: &str) -> Parsed<crate::optim::Decay> {
    text.parse()
}

/// How it grows with the batch.
pub fn scaling(text: &str) -> Parsed<crate::optim::Scaling> {
    text.parse()
}
