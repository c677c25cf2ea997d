//! Rotary position embedding (Su et al., arXiv 2104.09864).

use std::f64::consts::TAU;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType, bail};
use serde::{Deserialize, Serialize};

use crate::kernel::{Rows, by_type, room};

/// How frequencies are stretched for sequences longer than the model was first trained for, as Hugging Face's
/// `rope_scaling` says it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum Scaling {
    /// Not at all.
    #[default]
    Default,
    /// All of them by one factor.
    Linear {
        /// By how much.
        factor: f64,
    },
    /// Llama 3's way: those whose wavelength is long by `factor`, short ones not at all, and those between by what lies
    /// between.
    Llama3 {
        /// By how much the long ones.
        factor: f64,
        /// A wavelength is long from `original_max_position_embeddings / low_freq_factor` positions on.
        low_freq_factor: f64,
        /// A wavelength is short up to `original_max_position_embeddings / high_freq_factor` positions.
        high_freq_factor: f64,
        /// The sequence length that the model was first trained for.
        original_max_position_embeddings: usize,
    },
}

/// The rotations of a model's heads, and those of the positions that were asked for last.
#[derive(Debug)]
pub struct Rope {
    frequencies: Vec<f64>,
    last: Mutex<Option<Arc<Rotations>>>,
}

impl Rope {
    /// Rotations for heads of `head_dim` channels: pair `i` turns by `theta^(-2i / head_dim)` a position, scaled.
    ///
    /// # Errors
    /// When `head_dim` is odd or 0, or a number is not usable.
    pub fn new(head_dim: usize, theta: f64, scaling: Scaling) -> Result<Rope> {
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            bail!("head_dim={head_dim}: rotary positions turn pairs of channels; it needs an even number");
        }
        if !(theta.is_finite() && theta > 0.0) {
            bail!("rope_theta={theta}: it needs a positive number, 10000 for example");
        }
        let frequency = |i| theta.powf(-((2 * i) as f64) / head_dim as f64);
        let frequencies = (0..head_dim / 2).map(|i| scaling.apply(frequency(i))).collect::<Result<_>>()?;
        Ok(Rope { frequencies, last: Mutex::new(None) })
    }

    /// The angle by which each pair of channels turns from one position to the next.
    pub(crate) fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    fn rotations(&self, positions: &[u32]) -> Arc<Rotations> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(rotations) if rotations.positions == positions => rotations.clone(),
            _ => last.insert(Arc::new(Rotations::new(&self.frequencies, positions))).clone(),
        }
    }
}

impl Scaling {
    fn apply(self, frequency: f64) -> Result<f64> {
        Ok(match self {
            Scaling::Default => frequency,
            Scaling::Linear { factor } if factor >= 1.0 => frequency / factor,
            Scaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } if factor >= 1.0 && low > 0.0 && high > low => {
                // How often the pair turns round within the original length.
                let turns = original as f64 * frequency / TAU;
                let unscaled = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (unscaled + (1.0 - unscaled) / factor)
            }
            _ => bail!(
                "rope_scaling: {}: factors are at least 1, and high_freq_factor is above low_freq_factor",
                serde_json::json!(self)
            ),
        })
    }
}

/// Turns the pairs of channels (`i`, `i + head_dim / 2`) of `x` `[batch, heads, positions, head_dim]`, as Hugging Face
/// lays them out, by their positions' angles. `x` may be strided, as long as a head's channels lie together; the result
/// lies in one piece.
///
/// # Errors
/// When `x` has another number of positions or channels.
pub fn rope(x: &Tensor, rope: &Rope, positions: &[u32]) -> Result<Tensor> {
    let (_, _, length, head_dim) = x.dims4()?;
    if (length, head_dim) != (positions.len(), 2 * rope.frequencies.len()) {
        bail!(
            "rope: {:?} for {} positions and heads of {} channels",
            x.dims(),
            positions.len(),
            2 * rope.frequencies.len()
        );
    }
    rows_together(x)?.apply_op1(Rotate { rotations: rope.rotations(positions), back: false })
}

fn rows_together(x: &Tensor) -> Result<Tensor> {
    if x.stride().last() == Some(&1) { Ok(x.clone()) } else { x.contiguous() }
}

/// Cosines and sines, those of a position together.
#[derive(Debug)]
struct Rotations {
    positions: Vec<u32>,
    cos: Vec<f64>,
    sin: Vec<f64>,
}

impl Rotations {
    fn new(frequencies: &[f64], positions: &[u32]) -> Rotations {
        let angles = positions.iter().flat_map(|&p| frequencies.iter().map(move |f| f64::from(p) * f));
        let (sin, cos) = angles.map(f64::sin_cos).unzip();
        Rotations { positions: positions.to_vec(), cos, sin }
    }
}

struct Rotate {
    rotations: Arc<Rotations>,
    /// Whether by the angles' negatives: what takes gradients back, as a rotation's transpose is its inverse.
    back: bool,
}

impl CustomOp1 for Rotate {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        by_type!(x.dtype(), self.name(), T => {
            Ok((T::to_cpu_storage_owned(self.apply::<T>(x.as_slice()?, layout)?), layout.shape().clone()))
        })
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let inverse = Rotate { rotations: self.rotations.clone(), back: !self.back };
        Ok(Some(rows_together(gradient)?.apply_op1_no_bwd(&inverse)?))
    }
}

impl Rotate {
    fn apply<T: Rows>(&self, x: &[T], layout: &Layout) -> Result<Vec<T>> {
        let (batch, heads, length, channels) = layout.shape().dims4()?;
        let strides = layout.stride();
        let half = channels / 2;
        let (mut cos, mut sin) = (room::<T::Real>(half), room::<T::Real>(half));
        let (mut x_room, mut y) = (room(channels), room::<T::Real>(channels));
        let mut out = vec![T::zero(); layout.shape().elem_count()];
        for position in 0..length {
            for i in 0..half {
                let sin_i = self.rotations.sin[position * half + i];
                cos[i] = WithDType::from_f64(self.rotations.cos[position * half + i]);
                sin[i] = WithDType::from_f64(if self.back { -sin_i } else { sin_i });
            }
            for row in 0..batch * heads {
                let (b, head) = (row / heads, row % heads);
                let from = layout.start_offset() + b * strides[0] + head * strides[1] + position * strides[2];
                let x = T::widen_row(&x[from..from + channels], &mut x_room);
                let (x0, x1) = x.split_at(half);
                let (y0, y1) = y.split_at_mut(half);
                for i in 0..half {
                    y0[i] = x0[i] * cos[i] - x1[i] * sin[i];
                    y1[i] = x1[i] * cos[i] + x0[i] * sin[i];
                }
                T::narrow_row(&y, &mut out[(row * length + position) * channels..][..channels]);
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::super::testing::*;
    use super::*;

    /// Turns each pair as a complex number.
    fn plain(x: &[f64], shape: [usize; 4], theta: f64, positions: &[u32]) -> Vec<f64> {
        let [_, _, length, channels] = shape;
        let half = channels / 2;
        let mut out = x.to_vec();
        for (row, (x, out)) in x.chunks(channels).zip(out.chunks_mut(channels)).enumerate() {
            for i in 0..half {
                let angle = f64::from(positions[row % length]) / theta.powf(i as f64 / half as f64);
                out[i] = x[i] * angle.cos() - x[i + half] * angle.sin();
                out[i + half] = x[i] * angle.sin() + x[i + half] * angle.cos();
            }
        }
        out
    }

    #[test]
    fn is_what_the_formula_says_in_every_type() {
        let (shape, positions) = ([2, 3, 4, 10], [0, 1, 5000, 77]);
        let table = Rope::new(10, 1e4, Scaling::Default).unwrap();
        let x = numbers(1, 240);
        for (dtype, tolerance) in TOLERANCES {
            let x = tensor(&x, &shape, dtype);
            let y = rope(&x, &table, &positions).unwrap();
            assert_eq!((y.dtype(), y.dims()), (dtype, &shape[..]));
            assert_close(&values(&y), &plain(&values(&x), shape, 1e4, &positions), tolerance);
        }
    }

    #[test]
    fn a_strided_operand_gives_the_same() {
        let table = Rope::new(6, 1e4, Scaling::Default).unwrap();
        let x = tensor(&numbers(2, 2 * 4 * 3 * 6), &[2, 4, 3, 6], DType::F32);
        let strided = x.transpose(1, 2).unwrap();
        let whole = strided.contiguous().unwrap();
        let [a, b] = [strided, whole].map(|x| rope(&x, &table, &[0, 1, 2, 9]).unwrap());
        assert_eq!(values(&a), values(&b));
        assert!(a.is_contiguous());
    }

    #[test]
    fn gradients_are_finite_differences() {
        let table = Rope::new(4, 100.0, Scaling::Default).unwrap();
        check_gradients(&[(numbers(3, 2 * 3 * 2 * 4), vec![2, 3, 2, 4])], |t| {
            rope(&t[0].transpose(1, 2)?, &table, &[0, 3, 1])
        });
    }

    #[test]
    fn tables_follow_the_positions() {
        let table = Rope::new(4, 100.0, Scaling::Default).unwrap();
        let x = tensor(&numbers(4, 8), &[1, 1, 2, 4], DType::F64);
        let first = values(&rope(&x, &table, &[0, 1]).unwrap());
        let other = values(&rope(&x, &table, &[5, 6]).unwrap());
        assert_ne!(first, other);
        assert_eq!(values(&rope(&x, &table, &[0, 1]).unwrap()), first);
    }

    #[test]
    fn llama_3_stretches_long_wavelengths_alone() {
        let scaling = Scaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        let plain = Rope::new(64, 5e5, Scaling::Default).unwrap().frequencies;
        let scaled = Rope::new(64, 5e5, scaling).unwrap().frequencies;
        for (&plain, &scaled) in plain.iter().zip(&scaled) {
            let wavelength = TAU / plain;
            if wavelength < 8192.0 / 4.0 {
                assert_eq!(scaled, plain);
            } else if wavelength > 8192.0 {
                assert!((scaled * 32.0 / plain - 1.0).abs() < 1e-12);
            } else {
                let smooth = (8192.0 / wavelength - 1.0) / 3.0;
                let expected = (1.0 - smooth) * plain / 32.0 + smooth * plain;
                assert!((scaled / expected - 1.0).abs() < 1e-12);
            }
        }
        assert!(scaled.iter().zip(&plain).any(|(s, p)| s != p && s * 31.0 > *p), "none lies between");
        let linear = Rope::new(64, 5e5, Scaling::Linear { factor: 4.0 }).unwrap().frequencies;
        assert!(linear.iter().zip(&plain).all(|(l, p)| l * 4.0 == *p));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_numbers() {
        let error = Rope::new(7, 1e4, Scaling::Default).unwrap_err().to_string();
        assert!(error.contains("head_dim=7"), "{error}");
        assert!(Rope::new(8, 1e4, Scaling::Linear { factor: 0.5 }).is_err());
        let table = Rope::new(8, 1e4, Scaling::Default).unwrap();
        let x = tensor(&numbers(1, 8), &[1, 1, 1, 8], DType::F32);
        let error = rope(&x, &table, &[0, 1]).unwrap_err().to_string();
        assert!(error.contains("2 positions"), "{error}");
    }
}
