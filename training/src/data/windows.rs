//! A text cut into sequences. *Pure.*

use std::ops::Range;

/// Sequences of `sequence` inputs and as many labels, each the token after its input: window `i` is the `sequence + 1` tokens
/// from `i · (sequence + 1)` on, so windows share no token. What is left at the end is a shorter window, if it has at least one
/// input and one label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    tokens: usize,
    sequence: usize,
}

impl Windows {
    /// Of a text of so many tokens.
    pub fn new(tokens: usize, sequence: usize) -> Windows {
        Windows { tokens, sequence }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        let each = self.sequence.saturating_add(1);
        (self.tokens / each + usize::from(self.tokens % each > 1)) as u64
    }

    /// The tokens of one.
    pub fn range(&self, window: u64) -> Range<usize> {
        let each = self.sequence.saturating_add(1);
        let start = window as usize * each;
        start..start.saturating_add(each).min(self.tokens)
    }

    /// Labels of all of them.
    pub fn labels(&self) -> u64 {
        (0..self.count()).map(|window| self.range(window).len() as u64 - 1).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_lie_one_after_the_other() {
        let windows = Windows::new(11, 3);
        assert_eq!((windows.count(), windows.labels()), (3, 8));
        assert_eq!([0, 1, 2].map(|w| windows.range(w)), [0..4, 4..8, 8..11]);
        // One token has no successor.
        assert_eq!(Windows::new(9, 3).count(), 2);
        assert_eq!([0, 1, 2].map(|tokens| Windows::new(tokens, 3).count()), [0, 0, 1]);
        assert_eq!(Windows::new(2, usize::MAX).count(), 1);
    }
}
