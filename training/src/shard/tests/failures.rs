//! Errors: which, and that they reach all ranks.

use std::time::{Duration, Instant};

use super::*;
use crate::error::Error;

/// Fails in a stage, on one rank.
struct Failing {
    inner: Perceptron,
    fails: bool,
    /// Whether it is the backward pass that fails.
    backward: bool,
}

impl Model for Failing {
    type Batch = Pairs;

    fn units(&self) -> Vec<Unit> {
        self.inner.units()
    }

    fn stages(&self) -> Vec<usize> {
        self.inner.stages()
    }

    fn forward(
        &self,
        stage: usize,
        weights: &[Tensor],
        input: Option<&Tensor>,
        batch: &Pairs,
    ) -> Result<Tensor> {
        let output = self.inner.forward(stage, weights, input, batch)?;
        match (self.fails && stage == 1, self.backward) {
            (false, _) => Ok(output),
            (true, false) => Err(Error::Config("out of luck".into())),
            (true, true) => Ok(output.detach()),
        }
    }
}

fn groups(comm: &Communicator, mesh: &str) -> Groups {
    let order: Vec<_> = (0..comm.world_size()).collect();
    Groups::new(comm, Mesh::parse(mesh, comm.world_size()).unwrap(), &order).unwrap()
}

#[test]
fn an_error_of_one_rank_ends_the_others_at_once() {
    for (mesh, zero, backward) in [
        ("dp_shard=4", 3, false),
        ("dp_shard=4", 3, true),
        ("dp_replicate=4", 0, false),
        ("dp_shard=2,dp_replicate=2", 2, true),
    ] {
        let world = worlds::world(&Kind::Local, 4, &Chooser::default());
        let start = Instant::now();
        let errors = worlds::each(&world, |comm| {
            let groups = groups(comm, mesh);
            let model = Failing { inner: perceptron(), fails: comm.rank() == 2, backward };
            let policy = Policy { zero, ..Policy::default() };
            let mut sharded = Sharded::new(model, &groups, policy, &fill).unwrap();
            let first =
                (0..3).find_map(|step| sharded.backward(&pairs(&perceptron(), step, 0), 1.0, true).err());
            let first = first.expect("the failure reaches all ranks");
            let again = sharded.evaluate(&pairs(&perceptron(), 0, 0)).unwrap_err().to_string();
            assert!(again.contains("earlier call"), "{again}");
            first
        });
        assert!(start.elapsed() < Duration::from_secs(30), "nobody waits for the deadline of 60 s");
        for (rank, error) in errors.iter().enumerate() {
            let text = error.to_string();
            match (rank, backward) {
                (2, false) => assert!(text.contains("out of luck"), "{text}"),
                (2, true) => assert!(text.contains("stage 1") && text.contains("backward pass"), "{text}"),
                _ => assert!(
                    matches!(error, Error::Comm(nd_comm::Error::Aborted { .. })),
                    "rank {rank}: {text}"
                ),
            }
        }
    }
}

#[test]
fn an_error_while_the_first_values_are_filled_in_ends_the_others_too() {
    let world = worlds::world(&Kind::Local, 2, &Chooser::default());
    worlds::each(&world, |comm| {
        let groups = groups(comm, "dp_shard=2");
        let failing = |parameter: &Parameter, range: Range<usize>, out: &mut [f32]| match comm.rank() {
            1 => Err(Error::Config("no such file".into())),
            _ => fill(parameter, range, out),
        };
        match Sharded::new(perceptron(), &groups, Policy::default(), &failing) {
            Err(error) => assert!(comm.rank() == 1 && error.to_string() == "no such file", "{error}"),
            Ok(mut sharded) => {
                let error = sharded.backward(&pairs(&perceptron(), 0, 0), 1.0, true).unwrap_err();
                assert!(matches!(error, Error::Comm(nd_comm::Error::Aborted { .. })), "{error}");
            }
        }
    });
}

/// Every part of each of these is in the message.
fn refused(model: Perceptron, policy: Policy, says: &[&str]) {
    let world = worlds::world(&Kind::Local, 4, &Chooser::default());
    let errors = worlds::each(&world, |comm| {
        let groups = groups(comm, "dp_shard=4");
        let model = Perceptron { widths: model.widths.clone(), ..model };
        Sharded::new(model, &groups, policy, &fill).err().expect("it is refused").to_string()
    });
    for part in says {
        assert!(errors.iter().all(|error| error.contains(part)), "{errors:?} do not say {part}");
    }
}

#[test]
fn settings_that_mean_nothing_are_refused_with_those_that_do() {
    let policy = Policy::default();
    refused(perceptron(), Policy { zero: 4, ..policy }, &["zero=4", "3 (FSDP)"]);
    refused(perceptron(), Policy { compute: DType::U8, ..policy }, &["compute=u8", "bf16"]);
    refused(perceptron(), Policy { reduce: DType::F64, ..policy }, &["reduce=f64", "bf16"]);
    refused(perceptron(), Policy { bucket_bytes: 0, ..policy }, &["bucket_bytes=0"]);
    refused(perceptron(), Policy { reshard: Reshard::Groups(3), ..policy }, &["groups of 3", "divisor of 4"]);
}

#[test]
fn a_model_whose_stages_and_units_do_not_fit_is_refused() {
    struct Odd(Vec<usize>, Vec<&'static str>);
    impl Model for Odd {
        type Batch = ();
        fn units(&self) -> Vec<Unit> {
            let unit = |name: &&str| Unit {
                name: format!("unit {name}"),
                parameters: vec![Parameter::whole(*name, &[2], Init::Ones)],
                keep: false,
            };
            self.1.iter().map(unit).collect()
        }
        fn stages(&self) -> Vec<usize> {
            self.0.clone()
        }
        fn forward(&self, _: usize, weights: &[Tensor], _: Option<&Tensor>, (): &()) -> Result<Tensor> {
            Ok(weights[0].clone())
        }
    }
    let world = worlds::world(&Kind::Local, 1, &Chooser::default());
    let groups = groups(&world[0], "");
    let refused = |odd| Sharded::new(odd, &groups, Policy::default(), &fill).err().unwrap().to_string();
    assert!(refused(Odd(vec![0, 2], vec!["a", "b"])).contains("unit 2"));
    assert!(refused(Odd(vec![0], vec!["a", "b"])).contains("unit b"));
    assert!(refused(Odd(vec![0, 1], vec!["a", "a"])).contains("called a"));
    let mut vector = Sharded::new(Odd(vec![0], vec!["a"]), &groups, Policy::default(), &fill).unwrap();
    assert!(vector.evaluate(&()).unwrap_err().to_string().contains("one number"));
}
