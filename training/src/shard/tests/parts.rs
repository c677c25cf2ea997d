//! Parameters of which ranks along `tp` have parts, or only a part of the gradient; and what an optimizer sees.

use super::*;
use crate::error::Error;
use crate::model::Part;

/// `sum(x · (rows, gains))`, with the rows of a matrix dealt out over `tp`, unevenly, and gains that all have.
struct Dealt {
    groups: Groups,
}

/// Rows of the matrix, and its columns.
const ROWS: usize = 5;
const COLUMNS: usize = 30;

impl Dealt {
    fn part(&self) -> Part {
        let (rank, size) = (self.groups.tp().rank(), self.groups.tp().size());
        let start = rank * ROWS / size;
        Part { dim: 0, start, len: (rank + 1) * ROWS / size - start }
    }
}

impl Model for Dealt {
    type Batch = f64;

    fn units(&self) -> Vec<Unit> {
        let part = Some(self.part());
        let rows = Parameter { part, ..Parameter::whole("rows", &[ROWS, COLUMNS], Init::Zeros) };
        let part = Some(Part { dim: 1, ..self.part() });
        let columns = Parameter { part, ..Parameter::whole("columns", &[COLUMNS, ROWS], Init::Zeros) };
        let over = Some(self.groups.tp().clone());
        let counts = self.groups.tp().rank() == 0;
        let gains =
            Parameter { partial_over: over, counts, ..Parameter::whole("gains", &[COLUMNS], Init::Zeros) };
        vec![Unit { name: "all".into(), parameters: vec![gains, rows, columns], keep: false }]
    }

    fn stages(&self) -> Vec<usize> {
        vec![0]
    }

    fn forward(&self, _: usize, weights: &[Tensor], _: Option<&Tensor>, batch: &f64) -> Result<Tensor> {
        let sums = weights.iter().map(|w| w.sum_all()).collect::<candle_core::Result<Vec<_>>>()?;
        Ok((((&sums[0] + &sums[1])? + &sums[2])? * *batch)?)
    }
}

#[test]
fn parts_of_gradients_are_added_up_and_parts_of_parameters_put_together() {
    for (mesh, zero, data) in
        [("dp_shard=2,tp=2", 3, 2), ("dp_shard=2,tp=2", 0, 2), ("tp=4", 1, 1), ("dp_replicate=2,tp=2", 2, 2)]
    {
        let world = worlds::world(&Kind::Local, 4, &Chooser::default());
        worlds::each(&world, |comm| {
            let order: Vec<_> = (0..4).collect();
            let mesh = Mesh::parse(mesh, 4).unwrap();
            let groups = Groups::new(comm, mesh, &order).unwrap();
            let policy = Policy { zero, ..Policy::default() };
            let mut sharded =
                Sharded::new(Dealt { groups: groups.clone() }, &groups, policy, &|p, range, out| {
                    // Each element of the whole is its own place.
                    let (shape, part) = (p.local_shape(), p.part);
                    out.iter_mut().zip(range).for_each(|(out, i)| {
                        let (row, column) = (i / shape[shape.len() - 1], i % shape[shape.len() - 1]);
                        *out = match part {
                            Some(Part { dim: 0, start, .. }) => ((row + start) * COLUMNS + column) as f32,
                            Some(Part { start, .. }) => (row * ROWS + column + start) as f32,
                            None => i as f32,
                        };
                    });
                    Ok(())
                })
                .unwrap();
            for (name, len) in [("rows", ROWS * COLUMNS), ("columns", ROWS * COLUMNS), ("gains", COLUMNS)] {
                let whole = sharded.parameter(name).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
                assert!(
                    whole.iter().enumerate().all(|(i, &v)| v == i as f32) && whole.len() == len,
                    "{name}"
                );
            }
            assert!(matches!(sharded.parameter("none"), Err(Error::Config(text)) if text.contains("none")));
            sharded.backward(&1.0, 0.5, true).unwrap();
            let (mut squares, mut counted) = (0.0, 0);
            for shard in sharded.shards() {
                for piece in shard.pieces {
                    // Gains have half from each rank of tp and of data parallelism; the others from the latter.
                    let over = if piece.parameter == 0 { groups.tp().size() } else { 1 };
                    let gradient = &shard.gradient[piece.range.clone()];
                    assert!(
                        gradient.iter().all(|&g| g == 0.5 * (data * over) as f32),
                        "{:?}",
                        &gradient[..1]
                    );
                    if piece.counts {
                        squares += gradient.iter().map(|&g| f64::from(g * g)).sum::<f64>();
                        counted += gradient.len() as u64;
                    }
                }
            }
            let (mut squares, mut counted) = ([squares], [counted]);
            for group in sharded.norm_groups() {
                group.all_reduce(&mut squares, nd_comm::prelude::ReduceOp::Sum).unwrap();
                group.all_reduce(&mut counted, nd_comm::prelude::ReduceOp::Sum).unwrap();
            }
            assert_eq!(counted[0] as usize, 2 * ROWS * COLUMNS + COLUMNS, "each element is counted once");
            let (each, gains) = (0.5 * data as f64, 0.5 * (data * groups.tp().size()) as f64);
            let expected = (2 * ROWS * COLUMNS) as f64 * each * each + COLUMNS as f64 * gains * gains;
            assert_eq!(squares[0], expected, "the norm is that of the whole model");
            sharded.updated().unwrap();
            assert!(sharded.shards().iter().all(|shard| shard.gradient.iter().all(|&g| g == 0.0)));
        });
    }
}
