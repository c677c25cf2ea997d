//! How busy the resources were.

use super::fabric::{Fabric, Resource};
use super::flow::Flows;

/// How busy one resource was.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Which.
    pub resource: Resource,
    /// What it is called.
    pub name: String,
    /// Its capacity, in bytes per µs where it is a link.
    pub capacity: f64,
    /// The part of the time for which it was busy, 0 to 1.
    pub busy: f64,
}

/// How busy the links of each kind were over time.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// µs of one step.
    pub step_us: f64,
    /// A row for each resource, the busiest first: its name, and its load in each step, 0 to 1.
    pub rows: Vec<(String, Vec<f64>)>,
}

/// The loads of a run of `us` µs, the busiest first.
pub(super) fn loads(flows: &mut Flows, named: &[Resource], fabric: &dyn Fabric, us: f64) -> Vec<Load> {
    let busy = flows.busy();
    let mut order: Vec<usize> = (0..named.len()).filter(|&i| busy[i] > 0.0).collect();
    order.sort_by(|&a, &b| busy[b].total_cmp(&busy[a]).then(named[a].cmp(&named[b])));
    order.truncate(MOST_LOADS);
    let load = |&i: &usize| Load {
        resource: named[i],
        name: fabric.name(named[i]),
        capacity: fabric.capacity(named[i]),
        busy: if us > 0.0 { (busy[i] / us).min(1.0) } else { 0.0 },
    };
    order.iter().map(load).collect()
}

/// The most resources that are reported.
const MOST_LOADS: usize = 1000;
/// The most rows of a timeline.
const MOST_ROWS: usize = 24;

/// Writes a timeline down while a run goes on.
pub(super) struct Recorder<'a> {
    named: &'a [Resource],
    fabric: &'a dyn Fabric,
    step_us: f64,
    steps: usize,
    at: f64,
    /// For each resource and step, µs of its capacity in use.
    used: Vec<Vec<f64>>,
}

impl<'a> Recorder<'a> {
    pub fn new(named: &'a [Resource], fabric: &'a dyn Fabric, us: f64, steps: usize) -> Recorder<'a> {
        let step_us = us.max(f64::MIN_POSITIVE) / steps as f64;
        Recorder { named, fabric, step_us, steps, at: 0.0, used: vec![vec![0.0; steps]; named.len()] }
    }

    /// Nothing changes until `until`.
    pub fn record(&mut self, until: f64, flows: &mut Flows) {
        let in_use = flows.in_use();
        while self.at < until {
            let step = ((self.at / self.step_us) as usize).min(self.steps - 1);
            let last = step + 1 == self.steps;
            let mut end = (step + 1) as f64 * self.step_us;
            if last || end > until {
                end = until;
            }
            // Rounding may leave the end of a step where it began.
            end = end.max(self.at + self.step_us * 1e-9);
            for (used, in_use) in self.used.iter_mut().zip(&in_use).filter(|(_, in_use)| **in_use > 0.0) {
                used[step] += in_use * (end - self.at);
            }
            self.at = end;
        }
    }

    pub fn finish(self) -> Timeline {
        let total = |used: &Vec<f64>| used.iter().sum::<f64>();
        let mut order: Vec<usize> = (0..self.named.len()).filter(|&i| total(&self.used[i]) > 0.0).collect();
        order.sort_by(|&a, &b| total(&self.used[b]).total_cmp(&total(&self.used[a])).then(a.cmp(&b)));
        order.truncate(MOST_ROWS);
        let row = |&i: &usize| {
            let loads = self.used[i].iter().map(|used| (used / self.step_us).min(1.0)).collect();
            (self.fabric.name(self.named[i]), loads)
        };
        Timeline { step_us: self.step_us, rows: order.iter().map(row).collect() }
    }
}
