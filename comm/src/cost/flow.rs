//! Transfers that share resources, each getting as much as is fair: rates rise together until a resource is full or
//! a transfer has all it can use, then those of the others go on rising (max-min fairness).
//!
//! Transfers that use the same resources alike have the same rate at all times, so they are kept as one *bundle* with
//! a counter of bytes served to each; the next to end is the one that started with the fewest left.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::fabric::Use;

/// Number of a bundle.
pub(super) type BundleId = u32;

/// Two moments this close, in µs, are one.
pub(super) const INSTANT: f64 = 1e-7;

/// Transfers under way.
#[derive(Debug, Default, Clone)]
pub(super) struct Flows {
    capacity: Vec<f64>,
    bundles: Vec<Bundle>,
    known: HashMap<Vec<u64>, BundleId>,
    active: Vec<BundleId>,
    stale: bool,
    now: f64,
    /// Scratch of [`Flows::share`].
    left: Vec<f64>,
    load: Vec<f64>,
    touched: Vec<u32>,
}

#[derive(Debug, Clone)]
struct Bundle {
    uses: Vec<(u32, f64)>,
    limit: f64,
    rate: f64,
    /// Bytes served to each transfer since the bundle was last empty.
    served: f64,
    /// Bytes served to all transfers, ever.
    total: f64,
    /// Where `served` has to come, and whose transfer it is.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Flows {
    /// A resource of this capacity; gives its number.
    pub fn resource(&mut self, capacity: f64) -> u32 {
        self.capacity.push(capacity);
        self.left.push(0.0);
        self.load.push(0.0);
        (self.capacity.len() - 1) as u32
    }

    /// The bundle of transfers that use these resources and get at most `limit` bytes per µs.
    pub fn bundle(&mut self, uses: &[Use], limit: f64) -> BundleId {
        let mut merged: Vec<(u32, f64)> = Vec::with_capacity(uses.len());
        for &(resource, weight) in uses {
            match merged.iter_mut().find(|(r, _)| *r as usize == resource) {
                Some((_, w)) => *w += weight,
                None => merged.push((resource as u32, weight)),
            }
        }
        merged.sort_unstable_by_key(|u| u.0);
        let mut key: Vec<u64> = merged.iter().flat_map(|(r, w)| [u64::from(*r), w.to_bits()]).collect();
        key.push(limit.to_bits());
        *self.known.entry(key).or_insert_with(|| {
            let ends = BinaryHeap::new();
            self.bundles.push(Bundle { uses: merged, limit, rate: 0.0, served: 0.0, total: 0.0, ends });
            (self.bundles.len() - 1) as BundleId
        })
    }

    /// The most that a transfer of this bundle gets with nobody else.
    pub fn alone(&self, bundle: BundleId) -> f64 {
        let bundle = &self.bundles[bundle as usize];
        let shares = bundle.uses.iter().map(|(r, w)| self.capacity[*r as usize] / w);
        shares.fold(bundle.limit, f64::min)
    }

    /// Starts a transfer of `bytes` (more than 0).
    pub fn start(&mut self, bundle: BundleId, bytes: f64, token: u64) {
        let b = &mut self.bundles[bundle as usize];
        if b.ends.is_empty() {
            b.served = 0.0;
            self.active.push(bundle);
        }
        // Positive floats are ordered as their bits.
        b.ends.push(Reverse(((b.served + bytes).to_bits(), token)));
        self.stale = true;
    }

    /// When the next transfer ends.
    pub fn next_end(&mut self) -> Option<f64> {
        if std::mem::take(&mut self.stale) {
            self.share();
        }
        let end = |b: &Bundle| {
            let Reverse((end, _)) = b.ends.peek()?;
            Some((f64::from_bits(*end) - b.served).max(0.0) / b.rate)
        };
        let ends = self.active.iter().filter_map(|&b| end(&self.bundles[b as usize]));
        ends.min_by(f64::total_cmp).map(|after| self.now + after)
    }

    /// Lets time pass; the tokens of transfers that end go to `ended`.
    pub fn advance(&mut self, to: f64, ended: &mut Vec<u64>) {
        let dt = to - self.now;
        self.now = to;
        let bundles = &mut self.bundles;
        let stale = &mut self.stale;
        self.active.retain(|&id| {
            let b = &mut bundles[id as usize];
            b.served += b.rate * dt;
            b.total += b.rate * dt * b.ends.len() as f64;
            while let Some(&Reverse((end, token))) = b.ends.peek() {
                if f64::from_bits(end) - b.served > b.rate * INSTANT {
                    break;
                }
                b.ends.pop();
                ended.push(token);
                *stale = true;
            }
            !b.ends.is_empty()
        });
    }

    /// How much of each resource is in use at present, 0 to 1.
    pub fn in_use(&mut self) -> Vec<f64> {
        let mut used = vec![0.0; self.capacity.len()];
        for b in self.active.iter().map(|&b| &self.bundles[b as usize]) {
            b.uses.iter().for_each(|(r, w)| used[*r as usize] += w * b.rate * b.ends.len() as f64);
        }
        used.iter().zip(&self.capacity).map(|(u, c)| u / c).collect()
    }

    /// How much of each resource was used, as µs of its whole capacity.
    pub fn busy(&self) -> Vec<f64> {
        let mut used = vec![0.0; self.capacity.len()];
        for b in &self.bundles {
            b.uses.iter().for_each(|(r, w)| used[*r as usize] += w * b.total);
        }
        used.iter().zip(&self.capacity).map(|(u, c)| u / c).collect()
    }

    /// Gives every bundle its rate.
    fn share(&mut self) {
        self.touched.clear();
        for &id in &self.active {
            let b = &mut self.bundles[id as usize];
            b.rate = f64::NAN; // not yet fixed
            for &(r, w) in &b.uses {
                let r = r as usize;
                if self.load[r] == 0.0 {
                    self.touched.push(r as u32);
                    self.left[r] = self.capacity[r];
                }
                self.load[r] += w * b.ends.len() as f64;
            }
        }
        let mut open = self.active.len();
        while open > 0 {
            let shares = self.touched.iter().map(|&r| r as usize).filter(|&r| self.load[r] > 0.0);
            let full = shares.map(|r| self.left[r].max(0.0) / self.load[r]).fold(f64::INFINITY, f64::min);
            let unfixed = self.active.iter().map(|&b| &self.bundles[b as usize]);
            let most = unfixed.filter(|b| b.rate.is_nan()).map(|b| b.limit).fold(f64::INFINITY, f64::min);
            let level = full.min(most);
            let reached = level * (1.0 + 1e-12);
            let is_full: Vec<bool> = self
                .touched
                .iter()
                .map(|&r| self.load[r as usize] > 0.0)
                .zip(&self.touched)
                .map(|(loaded, &r)| loaded && self.left[r as usize].max(0.0) / self.load[r as usize] <= reached)
                .collect();
            // Marked by a negative remainder, which is looked up below.
            for (&r, _) in self.touched.iter().zip(&is_full).filter(|(_, full)| **full) {
                self.left[r as usize] = f64::NEG_INFINITY;
            }
            for &id in &self.active {
                let b = &mut self.bundles[id as usize];
                let stopped = b.limit <= reached
                    || b.uses.iter().any(|(r, _)| self.left[*r as usize] == f64::NEG_INFINITY);
                if b.rate.is_nan() && stopped {
                    b.rate = level.min(b.limit).max(f64::MIN_POSITIVE);
                    open -= 1;
                    let count = b.ends.len() as f64;
                    for &(r, w) in &b.uses {
                        let r = r as usize;
                        self.load[r] = (self.load[r] - w * count).max(0.0);
                        if self.left[r].is_finite() {
                            self.left[r] -= w * count * b.rate;
                        }
                    }
                }
            }
            for (&r, _) in self.touched.iter().zip(&is_full).filter(|(_, full)| **full) {
                self.load[r as usize] = 0.0;
                self.left[r as usize] = 0.0;
            }
        }
        self.touched.iter().for_each(|&r| self.load[r as usize] = 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs to the end; gives when each transfer ended.
    fn ends(flows: &mut Flows, count: usize) -> Vec<f64> {
        let mut at = vec![0.0; count];
        let mut ended = Vec::new();
        while let Some(end) = flows.next_end() {
            flows.advance(end, &mut ended);
            ended.drain(..).for_each(|token| at[token as usize] = end);
        }
        at
    }

    fn close(a: &[f64], b: &[f64]) -> bool {
        a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6)
    }

    #[test]
    fn what_one_cannot_use_the_others_get() {
        let mut flows = Flows::default();
        let (wide, narrow) = (flows.resource(10.0), flows.resource(2.0));
        let slow = flows.bundle(&[(wide as usize, 1.0), (narrow as usize, 1.0)], f64::INFINITY);
        let fast = flows.bundle(&[(wide as usize, 1.0)], 5.0);
        flows.start(slow, 20.0, 0); // 2 a µs
        flows.start(fast, 40.0, 1); // 4 a µs, then 5
        flows.start(fast, 80.0, 2);
        // At 10 the first two are through; the third has 40 left, and no more than 5 a µs.
        assert!(close(&ends(&mut flows, 3), &[10.0, 10.0, 18.0]));
        assert!(close(&flows.busy(), &[14.0, 10.0]));
    }

    #[test]
    fn late_comers_take_their_share() {
        let mut flows = Flows::default();
        let link = flows.resource(4.0);
        let bundle = flows.bundle(&[(link as usize, 1.0)], f64::INFINITY);
        let mut ended = Vec::new();
        flows.start(bundle, 8.0, 0);
        assert_eq!(flows.next_end(), Some(2.0));
        flows.advance(1.0, &mut ended);
        flows.start(bundle, 2.0, 1);
        assert_eq!(flows.next_end(), Some(2.0));
        assert!(close(&ends(&mut flows, 2), &[2.5, 2.0]));
    }

    #[test]
    fn a_weight_is_a_use_of_more() {
        let mut flows = Flows::default();
        let cpu = flows.resource(1.0);
        let heavy = flows.bundle(&[(cpu as usize, 0.5)], f64::INFINITY);
        assert_eq!(flows.alone(heavy), 2.0);
        flows.start(heavy, 6.0, 0);
        assert!(close(&ends(&mut flows, 1), &[3.0]));
    }
}
