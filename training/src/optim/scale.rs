//! The scale of the loss under f16. *Pure.*

/// By what the loss is multiplied before the backward pass, so that small gradients do not vanish in f16, whose smallest number
/// is 6e-8. Halved, and the step skipped, when a gradient on any rank is not finite; doubled after 2,000 steps without that.
/// (Micikevicius et al., arXiv 1710.03740; the numbers are PyTorch's.) All ranks give it the same answers, so it is the same
/// everywhere.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScale {
    scale: f64,
    good: u32,
}

/// Steps after which a greater scale is tried.
const GROW_AFTER: u32 = 2000;
/// What the scale begins with, 2^16, and the most it grows to, 2^24: f16 ends at 65,504.
const FIRST: f64 = 65_536.0;
const MOST: f64 = 16_777_216.0;

impl LossScale {
    /// For f16.
    pub fn dynamic() -> LossScale {
        LossScale { scale: FIRST, good: 0 }
    }

    /// One that goes on with this scale, after so many steps since it last changed.
    pub fn after(scale: f64, good: u32) -> LossScale {
        LossScale { scale, good }
    }

    /// Steps since it last changed.
    pub fn good(&self) -> u32 {
        self.good
    }

    /// The scale, a power of two.
    pub fn get(&self) -> f64 {
        self.scale
    }

    /// After a step: whether all gradients of all ranks were finite. False if the scale is 1 already and cannot help.
    #[must_use]
    pub fn update(&mut self, finite: bool) -> bool {
        if finite {
            self.good += 1;
            if self.good == GROW_AFTER {
                self.good = 0;
                self.scale = (self.scale * 2.0).min(MOST);
            }
            return true;
        }
        self.good = 0;
        let helps = self.scale > 1.0;
        self.scale = (self.scale / 2.0).max(1.0);
        helps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn falls_at_once_and_rises_slowly() {
        let mut scale = LossScale::dynamic();
        assert!(scale.update(false));
        assert_eq!(scale.get(), 32_768.0);
        for _ in 0..GROW_AFTER - 1 {
            assert!(scale.update(true));
        }
        assert_eq!(scale.get(), 32_768.0);
        assert!(scale.update(true));
        assert_eq!(scale.get(), 65_536.0);
    }

    #[test]
    fn gives_up_where_it_cannot_help() {
        let mut scale = LossScale::dynamic();
        let times = (0..100).take_while(|_| scale.update(false)).count();
        assert_eq!((times, scale.get()), (16, 1.0));
    }
}
