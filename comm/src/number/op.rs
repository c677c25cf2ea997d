//! [`ReduceOp`].

use std::fmt;
use std::str::FromStr;

use super::DataType;

/// How values are combined.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReduceOp {
    /// a + b; integers wrap.
    Sum,
    /// a × b; integers wrap.
    Product,
    /// The smaller; NaN if any operand is; −0 is below +0.
    Min,
    /// The greater; NaN if any operand is; +0 is above −0.
    Max,
    /// The sum, divided by the number of ranks before its only rounding. Integers: the sum wraps, the division
    /// truncates towards zero.
    Avg,
    /// Every input is first multiplied by this factor and rounded, then summed.
    PreMulSum(f64),
    /// Bitwise and; integers only.
    BitAnd,
    /// Bitwise or; integers only.
    BitOr,
    /// Bitwise exclusive or; integers only.
    BitXor,
}

impl ReduceOp {
    /// The factor of a [`ReduceOp::PreMulSum`] that was given by name alone.
    pub const DEFAULT_FACTOR: f64 = 1.0;

    /// Every operation, by code; the factor is [`ReduceOp::DEFAULT_FACTOR`].
    pub const ALL: [ReduceOp; 9] = [
        ReduceOp::Sum,
        ReduceOp::Product,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::PreMulSum(ReduceOp::DEFAULT_FACTOR),
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
    ];

    /// A number for the wire, from 1; it does not change, and does not tell factors apart.
    pub const fn code(self) -> u8 {
        match self {
            ReduceOp::Sum => 1,
            ReduceOp::Product => 2,
            ReduceOp::Min => 3,
            ReduceOp::Max => 4,
            ReduceOp::Avg => 5,
            ReduceOp::PreMulSum(_) => 6,
            ReduceOp::BitAnd => 7,
            ReduceOp::BitOr => 8,
            ReduceOp::BitXor => 9,
        }
    }

    /// The name on the command line and in tables: nccl-tests', and `band`, `bor`, `bxor` as MPI says.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Product => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::PreMulSum(_) => "mulsum",
            ReduceOp::BitAnd => "band",
            ReduceOp::BitOr => "bor",
            ReduceOp::BitXor => "bxor",
        }
    }

    /// Whether it works on bits rather than on numbers.
    pub const fn is_bitwise(self) -> bool {
        matches!(self, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor)
    }

    /// Whether it is defined for this type: bitwise operations only for integers.
    pub const fn supports(self, data_type: DataType) -> bool {
        !(self.is_bitwise() && data_type.is_float())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// By [`ReduceOp::name`], in upper or lower case. `mulsum` alone has the factor [`ReduceOp::DEFAULT_FACTOR`];
/// `mulsum:0.5` gives one.
impl FromStr for ReduceOp {
    type Err = UnknownReduceOp;

    fn from_str(s: &str) -> Result<ReduceOp, UnknownReduceOp> {
        let lower = s.to_ascii_lowercase();
        let found = match lower.split_once(':') {
            Some(("mulsum", factor)) => factor.parse().ok().map(ReduceOp::PreMulSum),
            Some(_) => None,
            None => ReduceOp::ALL.into_iter().find(|op| op.name() == lower),
        };
        found.ok_or_else(|| UnknownReduceOp(s.to_owned()))
    }
}

/// A name that is no [`ReduceOp`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown operation '{0}': use sum, prod, min, max, avg, mulsum, mulsum:FACTOR, band, bor or bxor")]
pub struct UnknownReduceOp(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_codes_differ() {
        for (i, op) in ReduceOp::ALL.into_iter().enumerate() {
            assert_eq!(op.name().parse(), Ok(op));
            assert_eq!(usize::from(op.code()), i + 1);
        }
        assert_eq!("MulSum:0.25".parse(), Ok(ReduceOp::PreMulSum(0.25)));
        for bad in ["", "plus", "sum:2", "mulsum:", "mulsum:x"] {
            assert!(bad.parse::<ReduceOp>().is_err(), "{bad}");
        }
    }

    #[test]
    fn bits_are_for_integers() {
        assert!(ReduceOp::BitXor.supports(DataType::U8) && !ReduceOp::BitXor.supports(DataType::BF16));
        assert!(DataType::ALL.into_iter().all(|t| ReduceOp::Max.supports(t)));
    }
}
