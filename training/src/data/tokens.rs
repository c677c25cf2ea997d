//! Tokens of a text, each in as few bytes as the largest of them needs. *Pure* but for mapped ones.

use super::mapped::Mapped;

/// Tokens of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokens {
    /// Of one byte.
    U8(Vec<u8>),
    /// Of two.
    U16(Vec<u16>),
    /// Of four.
    U32(Vec<u32>),
    /// In a file of [`Cache`](super::Cache)'s.
    Mapped(Mapped),
}

impl Tokens {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Tokens::U8(tokens) => tokens.len(),
            Tokens::U16(tokens) => tokens.len(),
            Tokens::U32(tokens) => tokens.len(),
            Tokens::Mapped(tokens) => tokens.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<u32> {
        match self {
            Tokens::U8(tokens) => tokens.get(index).map(|&token| token.into()),
            Tokens::U16(tokens) => tokens.get(index).map(|&token| token.into()),
            Tokens::U32(tokens) => tokens.get(index).copied(),
            Tokens::Mapped(tokens) => tokens.get(index),
        }
    }

    /// The first that is not below `vocabulary`, and where it is.
    pub fn beyond(&self, vocabulary: usize) -> Option<(usize, u32)> {
        let most = match self {
            Tokens::U8(_) => u8::MAX.into(),
            Tokens::U16(_) => u16::MAX.into(),
            Tokens::U32(_) => u32::MAX as usize,
            Tokens::Mapped(tokens) => tokens.largest() as usize,
        };
        if vocabulary > most {
            return None;
        }
        let mut tokens = (0..self.len()).filter_map(|index| Some((index, self.get(index)?)));
        tokens.find(|(_, token)| *token as usize >= vocabulary)
    }
}

impl From<Vec<u32>> for Tokens {
    fn from(tokens: Vec<u32>) -> Tokens {
        let largest = tokens.iter().max().copied().unwrap_or(0);
        if u8::try_from(largest).is_ok() {
            Tokens::U8(tokens.into_iter().map(|token| token as u8).collect())
        } else if u16::try_from(largest).is_ok() {
            Tokens::U16(tokens.into_iter().map(|token| token as u16).collect())
        } else {
            Tokens::U32(tokens)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_takes_as_few_bytes_as_the_largest_needs() {
        for (largest, width) in [(255, 1), (256, 2), (65_535, 2), (65_536, 4)] {
            let all = vec![7, largest, 3];
            let tokens = Tokens::from(all.clone());
            let found = match &tokens {
                Tokens::U8(_) => 1,
                Tokens::U16(_) => 2,
                _ => 4,
            };
            assert_eq!(found, width, "{largest}");
            let read: Vec<u32> = (0..tokens.len()).map(|i| tokens.get(i).unwrap()).collect();
            assert_eq!((read, tokens.get(3)), (all, None));
            assert_eq!(tokens.beyond(largest as usize), Some((1, largest)));
            assert_eq!(tokens.beyond(largest as usize + 1), None);
        }
        assert!(Tokens::from(Vec::new()).is_empty());
    }
}
