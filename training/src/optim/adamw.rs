//! AdamW (arXiv 1711.05101) on shards.

use crate::shard::ShardView;

/// What the update depends on besides the learning rate; the defaults are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// How slowly the means of the gradients and of their squares change.
    pub betas: (f64, f64),
    /// Added to the root of the mean square.
    pub eps: f64,
    /// By which part of itself, times the learning rate, a parameter that decays shrinks in a step.
    pub weight_decay: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 }
    }
}

/// The optimizer's state for the shards of one rank: two means in f32 for each element. Every element is updated by itself, in
/// f32, in the order of operations of PyTorch's `torch.optim.AdamW`, so that neither sharding nor bucketing changes a bit.
#[derive(Debug, Clone, Default)]
pub struct AdamW {
    options: Options,
    steps: i32,
    moments: Vec<Moments>,
}

/// Of one shard.
#[derive(Debug, Clone, Default)]
struct Moments {
    mean: Vec<f32>,
    square: Vec<f32>,
}

impl AdamW {
    /// A new optimizer; memory is taken at the first step.
    pub fn new(options: Options) -> AdamW {
        AdamW { options, steps: 0, moments: Vec::new() }
    }

    /// Steps that were made.
    pub fn steps(&self) -> u64 {
        self.steps as u64
    }

    /// Bytes of the means.
    pub fn bytes(&self) -> usize {
        self.moments.iter().map(|m| (m.mean.len() + m.square.len()) * size_of::<f32>()).sum()
    }

    /// The two means of a shard, which are none before the first step.
    pub fn means(&self, shard: usize) -> [&[f32]; 2] {
        self.moments.get(shard).map_or([&[], &[]], |moments| [&moments.mean, &moments.square])
    }

    /// Goes on after so many steps, with the means of shards of these lengths: zeros that are to be filled.
    pub fn go_on(&mut self, steps: u64, lens: &[usize]) -> impl Iterator<Item = [&mut [f32]; 2]> {
        self.steps = steps.min(i32::MAX as u64) as i32;
        let zeros = |&len: &usize| Moments { mean: vec![0.0; len], square: vec![0.0; len] };
        self.moments = lens.iter().map(zeros).collect();
        self.moments.iter_mut().map(|moments| [&mut moments.mean[..], &mut moments.square[..]])
    }

    /// Updates the masters by their gradients, each multiplied by `factor` first (clipping, loss scale), at this learning rate.
    /// Shards come in the same order at every step.
    pub fn step(&mut self, shards: &mut [ShardView<'_>], lr: f64, factor: f64) {
        self.steps += 1;
        self.moments.resize_with(shards.len().max(self.moments.len()), Moments::default);
        let update = Update::new(&self.options, lr, factor, self.steps);
        for (shard, moments) in shards.iter_mut().zip(&mut self.moments) {
            moments.mean.resize(shard.master.len(), 0.0);
            moments.square.resize(shard.master.len(), 0.0);
            for piece in shard.pieces {
                let range = piece.range.clone();
                update.apply(
                    piece.decays,
                    &mut shard.master[range.clone()],
                    &shard.gradient[range.clone()],
                    &mut moments.mean[range.clone()],
                    &mut moments.square[range],
                );
            }
        }
    }
}

/// The numbers of one step, rounded to f32 where PyTorch rounds them.
struct Update {
    factor: f32,
    decay: f32,
    /// 1 - beta1, beta2, 1 - beta2.
    mean: f32,
    keep: f32,
    square: f32,
    /// √(1 - beta2^step), eps, -lr / (1 - beta1^step).
    root: f32,
    eps: f32,
    size: f32,
}

impl Update {
    fn new(options: &Options, lr: f64, factor: f64, step: i32) -> Update {
        let (beta1, beta2) = options.betas;
        Update {
            factor: factor as f32,
            decay: (1.0 - lr * options.weight_decay) as f32,
            mean: (1.0 - beta1) as f32,
            keep: beta2 as f32,
            square: (1.0 - beta2) as f32,
            root: (1.0 - beta2.powi(step)).sqrt() as f32,
            eps: options.eps as f32,
            size: (-(lr / (1.0 - beta1.powi(step)))) as f32,
        }
    }

    fn apply(
        &self,
        decays: bool,
        master: &mut [f32],
        gradient: &[f32],
        mean: &mut [f32],
        square: &mut [f32],
    ) {
        let decay = if decays { self.decay } else { 1.0 };
        for (((w, g), m), v) in master.iter_mut().zip(gradient).zip(mean).zip(square) {
            let g = g * self.factor;
            *m += (g - *m) * self.mean;
            *v = *v * self.keep + self.square * g * g;
            let root = v.sqrt() / self.root + self.eps;
            *w = *w * decay + self.size * *m / root;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{pieces, view};
    use super::*;

    /// Five steps on three elements, the last of which does not decay; also in two shards.
    fn run(cuts: &[usize]) -> Vec<f32> {
        let mut master = vec![1.0f32, -2.0, 0.5];
        let mut optimizer = AdamW::new(Options { weight_decay: 0.1, ..Options::default() });
        for step in 0..5 {
            let mut gradient: Vec<f32> =
                master.iter().map(|w| w * w * 0.1 + 0.01 * step as f32 - 0.02).collect();
            let mut views = Vec::new();
            let all: Vec<_> = cuts
                .windows(2)
                .map(|c| pieces(&[0, 2, 3], c[0]..c[1], |parameter| (parameter == 0, true)))
                .collect();
            let (mut w, mut g) = (&mut master[..], &mut gradient[..]);
            for (cut, pieces) in cuts.windows(2).zip(&all) {
                let (a, rest) = w.split_at_mut(cut[1] - cut[0]);
                let (b, others) = g.split_at_mut(cut[1] - cut[0]);
                (w, g) = (rest, others);
                views.push(view(a, b, pieces));
            }
            optimizer.step(&mut views, 0.01 / f64::from(step + 1), 0.5);
        }
        assert_eq!((optimizer.steps(), optimizer.bytes()), (5, 24));
        master
    }

    #[test]
    fn as_in_f64_and_the_same_bits_in_any_sharding() {
        let whole = run(&[0, 3]);
        assert_eq!(whole, run(&[0, 1, 3]));
        let mut exact = [1.0f64, -2.0, 0.5];
        let (mut m, mut v) = ([0.0; 3], [0.0; 3]);
        for step in 0..5 {
            let lr = 0.01 / f64::from(step + 1);
            for i in 0..3 {
                let g = (exact[i] * exact[i] * 0.1 + 0.01 * f64::from(step) - 0.02) * 0.5;
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.999 * v[i] + 0.001 * g * g;
                let t = step + 1;
                let (mean, square) = (m[i] / (1.0 - 0.9f64.powi(t)), v[i] / (1.0 - 0.999f64.powi(t)));
                if i < 2 {
                    exact[i] -= lr * 0.1 * exact[i];
                }
                exact[i] -= lr * mean / (square.sqrt() + 1e-8);
            }
        }
        for (got, want) in whole.iter().zip(exact) {
            assert!((f64::from(*got) / want - 1.0).abs() < 1e-6, "{got} {want}");
        }
    }

    #[test]
    fn small_updates_reach_masters() {
        // In bf16 a step of 1e-5 would leave 1 as it is.
        let (mut master, mut gradient) = (vec![1.0f32; 64], vec![1e-3; 64]);
        let pieces = pieces(&[0, 64], 0..64, |_| (false, true));
        let mut optimizer = AdamW::new(Options::default());
        for _ in 0..10 {
            optimizer.step(&mut [view(&mut master, &mut gradient, &pieces)], 1e-5, 1.0);
        }
        assert!(master.iter().all(|w| (w - 0.9999).abs() < 2e-6), "{}", master[0]);
    }
}
