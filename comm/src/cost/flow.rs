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
    resources: Vec<Resource>,
    bundles: Vec<Bundle>,
    known: HashMap<Vec<u64>, BundleId>,
    now: f64,
    /// Bundles whose number of transfers has changed.
    changed: Vec<BundleId>,
    ends: Ends,
    /// Scratch of [`Flows::share`]: the bundles and resources concerned.
    open: Vec<BundleId>,
    touched: Vec<u32>,
}

#[derive(Debug, Clone)]
struct Resource {
    capacity: f64,
    /// Bundles with transfers that use it.
    users: Vec<BundleId>,
    /// While rates are found: what is left, what the transfers without a rate take together for each byte per µs,
    /// and whether it is full.
    left: f64,
    load: f64,
    full: bool,
    seen: bool,
}

#[derive(Debug, Clone)]
struct Bundle {
    uses: Vec<(u32, f64)>,
    limit: f64,
    /// NaN while it is not found.
    rate: f64,
    /// Bytes served to each transfer since the bundle was last empty, at the moment `since`.
    served: f64,
    since: f64,
    /// Bytes served to all transfers, ever, at that moment.
    total: f64,
    /// Where `served` has to come, and whose transfer it is.
    transfers: BinaryHeap<Reverse<(u64, u64)>>,
    changed: bool,
    seen: bool,
}

/// When each bundle's next transfer ends, with the least at hand: a tree in an array, the bundles its leaves.
#[derive(Debug, Default, Clone)]
struct Ends {
    /// Node i has the nodes 2 i and 2 i + 1 below it; the first is not used.
    least: Vec<f64>,
}

impl Ends {
    fn set(&mut self, bundle: BundleId, at: f64) {
        let mut leaves = self.least.len() / 2;
        if bundle as usize >= leaves {
            let grown = (bundle as usize + 1).next_power_of_two().max(16);
            let old = std::mem::replace(&mut self.least, vec![f64::INFINITY; 2 * grown]);
            for (i, &at) in old[leaves..].iter().enumerate().filter(|(_, at)| at.is_finite()) {
                self.set(i as BundleId, at);
            }
            leaves = grown;
        }
        let mut node = leaves + bundle as usize;
        self.least[node] = at;
        while node > 1 {
            node /= 2;
            self.least[node] = self.least[2 * node].min(self.least[2 * node + 1]);
        }
    }

    fn first(&self) -> Option<(f64, BundleId)> {
        let at = *self.least.get(1)?;
        let mut node = 1;
        while node < self.least.len() / 2 {
            node = if self.least[2 * node] == at { 2 * node } else { 2 * node + 1 };
        }
        at.is_finite().then_some((at, (node - self.least.len() / 2) as BundleId))
    }
}

impl Bundle {
    fn catch_up(&mut self, now: f64) {
        let dt = now - self.since;
        self.since = now;
        if dt > 0.0 && !self.transfers.is_empty() {
            self.served += self.rate * dt;
            self.total += self.rate * dt * self.transfers.len() as f64;
        }
    }
}

impl Flows {
    /// A resource of this capacity; gives its number.
    pub fn resource(&mut self, capacity: f64) -> u32 {
        let users = Vec::new();
        self.resources.push(Resource { capacity, users, left: 0.0, load: 0.0, full: false, seen: false });
        (self.resources.len() - 1) as u32
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
            self.bundles.push(Bundle {
                uses: merged,
                limit,
                rate: f64::NAN,
                served: 0.0,
                since: 0.0,
                total: 0.0,
                transfers: BinaryHeap::new(),
                changed: false,
                seen: false,
            });
            (self.bundles.len() - 1) as BundleId
        })
    }

    /// The most that a transfer of this bundle gets with nobody else.
    pub fn alone(&self, bundle: BundleId) -> f64 {
        let bundle = &self.bundles[bundle as usize];
        let shares = bundle.uses.iter().map(|(r, w)| self.resources[*r as usize].capacity / w);
        shares.fold(bundle.limit, f64::min)
    }

    /// Starts a transfer of `bytes` (more than 0).
    pub fn start(&mut self, id: BundleId, bytes: f64, token: u64) {
        let b = &mut self.bundles[id as usize];
        b.catch_up(self.now);
        if b.transfers.is_empty() {
            b.served = 0.0;
            b.uses.iter().for_each(|(r, _)| self.resources[*r as usize].users.push(id));
        }
        // Positive floats are ordered as their bits.
        b.transfers.push(Reverse(((b.served + bytes).to_bits(), token)));
        self.change(id);
    }

    fn change(&mut self, id: BundleId) {
        if !std::mem::replace(&mut self.bundles[id as usize].changed, true) {
            self.changed.push(id);
        }
    }

    /// When the next transfer ends.
    pub fn next_end(&mut self) -> Option<f64> {
        self.share();
        self.ends.first().map(|(at, _)| at)
    }

    /// Lets time pass, no further than to the next end; the tokens of transfers that end go to `ended`.
    pub fn advance(&mut self, to: f64, ended: &mut Vec<u64>) {
        self.now = to;
        while let Some((_, id)) = self.ends.first().filter(|(at, _)| *at <= to + INSTANT) {
            // Until rates are found anew.
            self.ends.set(id, f64::INFINITY);
            let b = &mut self.bundles[id as usize];
            b.catch_up(to);
            while let Some(&Reverse((end, token))) = b.transfers.peek() {
                if f64::from_bits(end) - b.served > b.rate * INSTANT {
                    break;
                }
                b.transfers.pop();
                ended.push(token);
            }
            if b.transfers.is_empty() {
                for (r, _) in &b.uses {
                    let users = &mut self.resources[*r as usize].users;
                    if let Some(at) = users.iter().position(|u| *u == id) {
                        users.swap_remove(at);
                    }
                }
            }
            self.change(id);
        }
    }

    /// How much of each resource is in use at present, 0 to 1.
    pub fn in_use(&mut self) -> Vec<f64> {
        self.share();
        let use_of = |r: &Resource, i: u32| {
            let of = |b: &Bundle| {
                let weights = b.uses.iter().filter(|u| u.0 == i).map(|u| u.1);
                weights.sum::<f64>() * b.rate * b.transfers.len() as f64
            };
            r.users.iter().map(|&b| of(&self.bundles[b as usize])).sum::<f64>() / r.capacity
        };
        self.resources.iter().zip(0..).map(|(r, i)| use_of(r, i)).collect()
    }

    /// How much of each resource was used, as µs of its whole capacity.
    pub fn busy(&mut self) -> Vec<f64> {
        let now = self.now;
        let mut used = vec![0.0; self.resources.len()];
        for b in &mut self.bundles {
            b.catch_up(now);
            b.uses.iter().for_each(|(r, w)| used[*r as usize] += w * b.total);
        }
        used.iter().zip(&self.resources).map(|(u, r)| u / r.capacity).collect()
    }

    /// Finds the rates of all transfers that share a resource with a bundle that has changed, or with one that shares
    /// one with it, and so on.
    fn share(&mut self) {
        if self.changed.is_empty() {
            return;
        }
        self.gather();
        let mut fixed = 0;
        while fixed < self.open.len() {
            let mut level = f64::INFINITY;
            for r in self.touched.iter().map(|&r| &self.resources[r as usize]).filter(|r| r.load > 0.0) {
                level = level.min(r.left.max(0.0) / r.load);
            }
            for b in self.open[fixed..].iter().map(|&b| &self.bundles[b as usize]) {
                level = level.min(b.limit);
            }
            let reached = level * (1.0 + 1e-12);
            for &r in &self.touched {
                let r = &mut self.resources[r as usize];
                r.full |= r.load > 0.0 && r.left.max(0.0) / r.load <= reached;
            }
            let first = fixed;
            for at in first..self.open.len() {
                let b = &mut self.bundles[self.open[at] as usize];
                let stops = |r: &(u32, f64)| self.resources[r.0 as usize].full;
                if b.limit > reached && !b.uses.iter().any(stops) {
                    continue;
                }
                b.rate = level.min(b.limit).max(f64::MIN_POSITIVE);
                for &(r, w) in &b.uses {
                    let r = &mut self.resources[r as usize];
                    r.load -= w * b.transfers.len() as f64;
                    r.left -= w * b.transfers.len() as f64 * b.rate;
                }
                self.open.swap(fixed, at);
                fixed += 1;
            }
            // What rounding leaves of a load that is gone must not count as one.
            for &r in &self.touched {
                let r = &mut self.resources[r as usize];
                if r.full || r.load < r.capacity * 1e-15 {
                    r.load = 0.0;
                }
            }
        }
        for &id in &self.open {
            let b = &mut self.bundles[id as usize];
            b.seen = false;
            if let Some(Reverse((end, _))) = b.transfers.peek() {
                let after = (f64::from_bits(*end) - b.served).max(0.0) / b.rate;
                self.ends.set(id, self.now + after);
            }
        }
        self.touched.iter().for_each(|&r| self.resources[r as usize].seen = false);
    }

    /// Puts what [`Flows::share`] is about into `open` and `touched`.
    fn gather(&mut self) {
        self.open.clear();
        self.touched.clear();
        for id in self.changed.drain(..) {
            let b = &mut self.bundles[id as usize];
            b.changed = false;
            if b.transfers.is_empty() {
                // Nothing is left of it but what it leaves to others.
                self.touched.extend(b.uses.iter().map(|u| u.0));
            } else if !b.seen {
                b.seen = true;
                self.open.push(id);
            }
        }
        // Those that were touched by what has ended come first.
        let ended = std::mem::take(&mut self.touched);
        for r in ended {
            self.reach(r);
        }
        let mut next = 0;
        while let Some(&id) = self.open.get(next) {
            next += 1;
            for i in 0..self.bundles[id as usize].uses.len() {
                self.reach(self.bundles[id as usize].uses[i].0);
            }
        }
        for &id in &self.open {
            let b = &mut self.bundles[id as usize];
            b.catch_up(self.now);
            b.rate = f64::NAN;
            for &(r, w) in &b.uses {
                self.resources[r as usize].load += w * b.transfers.len() as f64;
            }
        }
    }

    /// Opens all users of a resource.
    fn reach(&mut self, r: u32) {
        let resource = &mut self.resources[r as usize];
        if std::mem::replace(&mut resource.seen, true) {
            return;
        }
        (resource.left, resource.load, resource.full) = (resource.capacity, 0.0, false);
        self.touched.push(r);
        for &id in &resource.users {
            if !std::mem::replace(&mut self.bundles[id as usize].seen, true) {
                self.open.push(id);
            }
        }
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
