use std::sync::Arc;

use nd_topology::cluster::{Cluster, Network, NetworkKind};
use nd_topology::library;

use super::cluster::ClusterFabric;
use super::fabric::{Fabric, Resource, Route, Use, Work};
use super::{Estimate, Options, Unpredictable, estimate};
use crate::number::DataType;
use crate::schedule::{Alias, Collective, Counts, Layout, Shape, algorithms, by_name};

/// Ranks on a bus: a cable each way for every rank into one switch without limits.
struct Star {
    ranks: usize,
    us: f64,
    work: f64,
}

impl Fabric for Star {
    fn world_size(&self) -> usize {
        self.ranks
    }

    fn route(&self, from: usize, to: usize, _: u64, uses: &mut Vec<Use>) -> Route {
        uses.extend([(from, 1.0), (self.ranks + to, 1.0)]);
        let rate = f64::INFINITY;
        let (overhead, send_us, recv_us) = (0.0, 0.0, 0.0);
        let latency_us = self.us;
        Route { rate, overhead, latency_us, send_us, recv_us, pull: false, window: u64::MAX, chunk: 64 }
    }

    fn work(&self, _: usize, work: &Work<'_>, _: &mut Vec<Use>) -> f64 {
        if work.terms == 1 { f64::INFINITY } else { self.work }
    }

    fn capacity(&self, _: Resource) -> f64 {
        1000.0
    }

    fn name(&self, resource: Resource) -> String {
        format!("cable {resource}")
    }

    fn period(&self) -> usize {
        1
    }

    fn folded(&self, resource: Resource) -> (Resource, usize) {
        (resource / self.ranks * self.ranks, self.ranks)
    }
}

fn shape(collective: Collective, count: u64, layout: Arc<Layout>) -> Shape {
    Shape { collective, counts: Counts::Equal(count), root: 0, alias: Alias::None, layout, piece: 48 << 10 }
}

fn predict(name: &str, shape: &Shape, fabric: &dyn Fabric, options: Options) -> Result<Estimate, Unpredictable> {
    estimate(by_name(name).unwrap(), shape, DataType::F32, fabric, options)
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-6 * b.abs(), "{a} is not {b}");
}

/// Formulas of Thakur, Rabenseifner and Gropp 2005, table 2: α for a message, 1/1000 µs a byte, γ for the work.
#[test]
fn the_books_formulas_come_out() {
    let n = 8usize;
    let layout = Arc::new(Layout::single_host(n));
    let count = 1u64 << 20;
    let bytes = (count * 4) as f64;
    let (wire, us) = (bytes / 1000.0, 5.0);
    let free = Star { ranks: n, us, work: f64::INFINITY };
    let all_reduce = shape(Collective::AllReduce, count, layout.clone());
    let at = |name: &str, shape: &Shape| predict(name, shape, &free, Options::default()).unwrap().us;
    let one_piece = Shape { piece: u64::MAX, ..all_reduce.clone() };
    let steps = (n - 1) as f64;
    near(at("ring", &one_piece), 2.0 * steps * us + 2.0 * steps / n as f64 * wire);
    near(at("direct", &all_reduce), 2.0 * us + 2.0 * steps / n as f64 * wire);
    near(at("oneshot", &all_reduce), us + steps * wire);
    near(at("doubling", &all_reduce), 3.0 * us + 3.0 * wire);
    near(at("halving", &one_piece), 6.0 * us + 2.0 * steps / n as f64 * wire);
    let gather = shape(Collective::AllGather, count / n as u64, layout.clone());
    near(at("direct", &gather), us + steps / n as f64 * wire);
    near(at("bruck", &gather), 3.0 * us + steps / n as f64 * wire);
    // The tree of three levels passes everything three times from the root.
    let broadcast = Shape { piece: u64::MAX, ..shape(Collective::Broadcast, count, layout) };
    near(at("direct", &broadcast), us + steps * wire);
}

#[test]
fn work_on_a_long_message_goes_on_while_it_comes() {
    let layout = Arc::new(Layout::single_host(2));
    let reduce = shape(Collective::Reduce, 1 << 20, layout);
    let bytes = f64::from(4 << 20);
    let at = |work: f64| {
        let star = Star { ranks: 2, us: 5.0, work };
        predict("direct", &reduce, &star, Options::default()).unwrap().us
    };
    // Faster than the wire: only the last chunk of 64 bytes is left. Slower: all but what came before the first chunk.
    near(at(2000.0), bytes / 1000.0 + 5.0 + 64.0 / 2000.0);
    near(at(500.0), 64.0 / 1000.0 + 5.0 + bytes / 500.0);
}

#[test]
fn the_bottleneck_is_named() {
    let layout = Arc::new(Layout::single_host(4));
    let star = Star { ranks: 4, us: 0.0, work: f64::INFINITY };
    let broadcast = shape(Collective::Broadcast, 1 << 20, layout);
    let e = predict("direct", &broadcast, &star, Options::default()).unwrap();
    assert_eq!(e.loads[0].name, "cable 0");
    near(e.loads[0].busy, 1.0);
    assert!(e.loads[1..].iter().all(|l| (l.busy - 1.0 / 3.0).abs() < 1e-6), "{:?}", e.loads);
}

fn clusters() -> Vec<Cluster> {
    let cluster = |machine: &str, hosts, per_leaf, kind, over| {
        let network = Network { kind, oversubscription: over, switch_us: 1.0, nvlink_domain: 1 };
        Cluster::uniform("c", library::machine(machine).unwrap(), hosts, network, per_leaf).unwrap()
    };
    vec![
        cluster("dgx-h100", 1, usize::MAX, NetworkKind::LeafSpine, 1.0),
        cluster("dgx-h100", 4, usize::MAX, NetworkKind::LeafSpine, 1.0),
        cluster("dgx-a100", 6, 2, NetworkKind::Rails, 2.0),
        cluster("dgx-1", 4, 2, NetworkKind::LeafSpine, 3.0),
        // Ports of one leaf that are not equal meet in the spine, whose links all hosts share.
        cluster("dgx-h100", 3, usize::MAX, NetworkKind::Rails, 4.0),
    ]
}

#[test]
fn what_stands_for_many_takes_as_long_as_all_of_them() {
    use Collective::*;
    let mut fewer = 0;
    for cluster in clusters() {
        let fabric = ClusterFabric::new(cluster);
        let n = fabric.world_size() as u64;
        for collective in [AllReduce, ReduceScatter, AllGather, Broadcast, Reduce, AllToAll, Barrier] {
            for count in [64 * 12 * n, (48 << 10) * n, (96 << 10) * n] {
                // All parts and pieces can be cut among hosts and ranks into equal ones of whole cache lines.
                let count = if collective == AllReduce { count } else { count / n };
                let shape = shape(collective, count, fabric.layout());
                for algorithm in algorithms().iter().filter(|a| a.supports(&shape)) {
                    let run = |every_rank| {
                        let options = Options { every_rank, ..Options::default() };
                        estimate(*algorithm, &shape, DataType::F32, &fabric, options).unwrap()
                    };
                    let (few, all) = (run(false), run(true));
                    let what = format!("{} {collective:?} {count} among {n}", algorithm.name());
                    assert!((few.us - all.us).abs() <= 1e-6 * all.us, "{what}: {} and {} µs", few.us, all.us);
                    if few.us > 0.0 && !all.loads.is_empty() {
                        assert!((few.loads[0].busy - all.loads[0].busy).abs() < 1e-6, "{what}");
                    }
                    fewer += usize::from(few.ranks < all.ranks);
                }
            }
        }
    }
    assert!(fewer > 90, "{fewer}");
}

#[test]
fn too_much_is_refused() {
    let fabric = ClusterFabric::new(clusters().remove(1));
    let shape = shape(Collective::AllReduce, 1 << 20, fabric.layout());
    let options = Options { limit: 100, ..Options::default() };
    let refused = predict("ring", &shape, &fabric, options).unwrap_err();
    assert!(matches!(refused, Unpredictable::TooLong { limit: 100, .. }), "{refused}");
}
