//! Whole parameters, for export and for comparison.

use candle_core::{Device, Tensor};

use super::sharded::Sharded;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::model::{Model, Part};

impl<M: Model> Sharded<M> {
    /// A parameter as it is now, whole, in f32, on all ranks. All ranks ask for the same.
    ///
    /// # Errors
    /// [`Error::Config`] when there is none of this name; of communication.
    pub fn parameter(&mut self, name: &str) -> Result<Tensor> {
        let place = self.units.iter().enumerate().find_map(|(unit, u)| {
            let index = u.unit.parameters.iter().position(|p| p.name == name)?;
            Some((unit, index))
        });
        let Some((unit, index)) = place else {
            return Err(Error::Config(format!("no parameter is called {name}; Sharded::units lists them")));
        };
        self.together(|all| {
            let unit = &all.units[unit];
            let parameter = &unit.unit.parameters[index];
            let (layout, masters) = match parameter.frozen {
                false => (&unit.layout, &unit.masters),
                true => (&unit.frozen.layout, &unit.frozen.masters),
            };
            let range = layout.parameter(index);
            let mine = match &all.shard {
                None => masters[range].to_vec(),
                Some(group) => {
                    let mut whole = vec![0.0; layout.padded()];
                    group.all_gather(masters, &mut whole)?;
                    whole[range].to_vec()
                }
            };
            let whole = match parameter.part {
                Some(part) if all.groups.tp().size() > 1 => {
                    join(&mine, part, &parameter.shape, all.groups.tp())?
                }
                _ => mine,
            };
            Ok(Tensor::from_vec(whole, &*parameter.shape, &Device::Cpu)?)
        })
    }
}

/// The whole of which every rank of a group has a part along one dimension, of whatever length; parts may overlap.
fn join(mine: &[f32], part: Part, shape: &[usize], group: &Group) -> Result<Vec<f32>> {
    let mut parts = vec![0u64; 2 * group.size()];
    group.all_gather(&[part.start as u64, part.len as u64], &mut parts)?;
    let outer: usize = shape[..part.dim].iter().product();
    let inner: usize = shape[part.dim + 1..].iter().product();
    let longest = parts.chunks(2).map(|p| p[1] as usize).max().unwrap_or(0) * outer * inner;
    let mut send = mine.to_vec();
    send.resize(longest, 0.0);
    let mut all = vec![0.0; longest * group.size()];
    group.all_gather(&send, &mut all)?;
    let mut whole = vec![0.0; outer * shape[part.dim] * inner];
    for (rank, part_of) in parts.chunks(2).enumerate() {
        let (start, len) = (part_of[0] as usize * inner, part_of[1] as usize * inner);
        for row in 0..outer {
            let to = row * shape[part.dim] * inner + start;
            whole[to..to + len].copy_from_slice(&all[rank * longest + row * len..][..len]);
        }
    }
    Ok(whole)
}
