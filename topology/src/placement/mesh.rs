//! The axes of a mesh.

use crate::{Error, Result};

/// One axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// `dp_replicate`, `dp_shard`, `cp`, `tp`.
    pub name: String,
    /// Ranks along it.
    pub size: usize,
}

/// Axes, outermost first; the last has consecutive ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    /// The axes; those of size 1 are left out.
    pub axes: Vec<Axis>,
}

/// The axes there are, outermost first, with other names that people use for them.
const KNOWN: [(&str, &[&str]); 4] = [
    ("dp_replicate", &["dp", "dp_replicate_size", "replicate"]),
    ("dp_shard", &["fsdp", "dp_shard_size", "shard"]),
    ("cp", &["cp_size", "context_parallel_size"]),
    ("tp", &["tp_size", "tensor_parallel_size"]),
];

impl Mesh {
    /// Reads `tp=8,cp=2,dp_shard=8,dp_replicate=4`, in any order, for `world` ranks. One size may be -1: what is left.
    ///
    /// # Errors
    /// [`Error::Mesh`] for an unknown or repeated axis, a size that is no number, and a product other than `world`.
    pub fn parse(text: &str, world: usize) -> Result<Mesh> {
        let mut sizes: [Option<i64>; 4] = [None; 4];
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (name, size) = part
                .split_once('=')
                .ok_or_else(|| Error::Mesh(format!("`{part}` is not axis=size, such as tp=8")))?;
            let name = name.trim();
            let axis = KNOWN.iter().position(|(n, others)| *n == name || others.contains(&name)).ok_or_else(
                || Error::Mesh(format!("no axis `{name}`; there are dp_replicate, dp_shard, cp and tp")),
            )?;
            let size: i64 = size.trim().parse().map_err(|_| {
                Error::Mesh(format!("size `{}` of {name} is not a whole number", size.trim()))
            })?;
            if size == 0 || size < -1 {
                return Err(Error::Mesh(format!(
                    "{name}={size}; a size is at least 1, or -1 for what is left"
                )));
            }
            if sizes[axis].replace(size).is_some() {
                return Err(Error::Mesh(format!("axis {} is given twice", KNOWN[axis].0)));
            }
        }
        Self::fill(sizes, world)
    }

    fn fill(mut sizes: [Option<i64>; 4], world: usize) -> Result<Mesh> {
        let open: Vec<usize> = (0..4).filter(|&i| sizes[i] == Some(-1)).collect();
        if open.len() > 1 {
            return Err(Error::Mesh("two axes are -1; only one can take what is left".into()));
        }
        let given: Vec<(usize, i64)> =
            (0..4).filter_map(|i| sizes[i].filter(|&s| s > 0).map(|s| (i, s))).collect();
        let product = given.iter().try_fold(1i64, |p, (_, s)| p.checked_mul(*s));
        let shown: Vec<String> = given.iter().map(|(i, s)| format!("{}={s}", KNOWN[*i].0)).collect();
        let shown = if shown.is_empty() { "nothing".to_owned() } else { shown.join(" × ") };
        let product =
            product.ok_or_else(|| Error::Mesh(format!("{shown} is more ranks than can be counted")))?;
        let world = world as i64;
        match open.first() {
            Some(&i) if world % product == 0 && world >= product => sizes[i] = Some(world / product),
            Some(&i) => {
                return Err(Error::Mesh(format!(
                    "{shown} = {product} does not divide {world} ranks, so {} cannot be filled",
                    KNOWN[i].0
                )));
            }
            None if product == world => {}
            None => {
                let hint = if world % product == 0 {
                    format!("; there is room for {} times as many, say dp_replicate=-1", world / product)
                } else {
                    String::new()
                };
                return Err(Error::Mesh(format!(
                    "the mesh {shown} = {product} ranks, and there are {world}; choose sizes whose product is {world}{hint}"
                )));
            }
        }
        let axes = (0..4)
            .filter_map(|i| {
                sizes[i].filter(|&s| s > 1).map(|s| Axis { name: KNOWN[i].0.into(), size: s as usize })
            })
            .collect();
        Ok(Mesh { axes })
    }

    /// Ranks.
    pub fn world(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }

    /// Size of an axis, 1 if it is not there.
    pub fn size(&self, name: &str) -> usize {
        self.axes.iter().find(|a| a.name == name).map_or(1, |a| a.size)
    }

    /// How far apart neighbours along an axis are in rank order.
    pub fn stride(&self, axis: usize) -> usize {
        self.axes[axis + 1..].iter().map(|a| a.size).product()
    }

    /// The groups of an axis: each a list of ranks.
    pub fn groups(&self, axis: usize) -> Vec<Vec<usize>> {
        let (size, stride) = (self.axes[axis].size, self.stride(axis));
        let first = |g: usize| g / stride * stride * size + g % stride;
        (0..self.world() / size).map(|g| (0..size).map(|i| first(g) + i * stride).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_fixed_and_ones_vanish() {
        let mesh = Mesh::parse("tp=4, cp=1, dp_shard=2", 8).unwrap();
        let names: Vec<&str> = mesh.axes.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names, ["dp_shard", "tp"]);
        assert_eq!(mesh.groups(1)[0], [0, 1, 2, 3]);
        assert_eq!(mesh.groups(0)[1], [1, 5]);
        assert_eq!(Mesh::parse("tp=2,dp_shard=-1", 16).unwrap().size("dp_shard"), 8);
    }

    #[test]
    fn the_numbers_are_named() {
        let error = |t: &str, w| Mesh::parse(t, w).unwrap_err().to_string();
        let e = error("tp=8,dp_shard=3", 16);
        assert!(e.contains("dp_shard=3 × tp=8 = 24") && e.contains("16"), "{e}");
        assert!(error("tp=4", 16).contains("4 times as many"));
        assert!(error("pp=4", 16).contains("dp_replicate"));
        assert!(error("tp=0", 16).contains("tp=0"));
        assert!(error("tp=x", 16).contains("`x`"));
        assert!(error("tp=2,tp=8", 16).contains("twice"));
        assert!(error("tp=-1,cp=-1", 16).contains("two axes"));
        assert!(error("tp=5,cp=-1", 16).contains("does not divide"));
        assert!(error("tp", 16).contains("tp=8"));
        assert!(error("tp=9223372036854775807,cp=9", 16).contains("more ranks"));
    }
}
