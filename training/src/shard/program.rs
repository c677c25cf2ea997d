//! In which order a micro-batch uses its units, and what happens to their weights after each use. *Pure.*

use super::policy::{Policy, Reshard};
use crate::model::Unit;

/// A stage of one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// Which stage.
    pub stage: usize,
    /// Whether it is differentiated, rather than computed.
    pub backward: bool,
    /// The unit whose weights it needs.
    pub unit: usize,
    /// Whether the weights are let go afterwards.
    pub free: bool,
    /// Whether a part of the weights stays to gather them from again, when they are gathered for this use.
    pub part: bool,
    /// Whether weights have to be gathered for a later use.
    pub more: bool,
    /// Whether the unit's gradients are complete afterwards.
    pub complete: bool,
}

/// Forward through all stages and back.
pub fn training(stages: &[usize], units: &[Unit], policy: &Policy) -> Vec<Use> {
    let forward = (0..stages.len()).map(|stage| (stage, false));
    let backward = (0..stages.len()).rev().map(|stage| (stage, true));
    plan(forward.chain(backward).collect(), stages, units, policy)
}

/// Forward through all stages.
pub fn evaluation(stages: &[usize], units: &[Unit], policy: &Policy) -> Vec<Use> {
    plan((0..stages.len()).map(|stage| (stage, false)).collect(), stages, units, policy)
}

/// The units in the order in which their gradients become complete.
pub fn completed(program: &[Use]) -> Vec<usize> {
    program.iter().filter(|u| u.complete).map(|u| u.unit).collect()
}

fn plan(order: Vec<(usize, bool)>, stages: &[usize], units: &[Unit], policy: &Policy) -> Vec<Use> {
    let unit_at = |i: usize| stages[order[i].0];
    let next = |i: usize| (i + 1..order.len()).find(|&j| unit_at(j) == unit_at(i));
    let stays = |i: usize| policy.reshard == Reshard::Never || units[unit_at(i)].keep;
    let free = |i: usize| match next(i) {
        _ if policy.zero < 3 => false,
        None => true,
        Some(j) => j > i + 1 && !stays(i),
    };
    // The use after which weights that are gathered for use `i` are let go.
    let freed = |i: usize| {
        let mut at = i;
        while !free(at) {
            at = next(at)?;
        }
        Some(at)
    };
    let groups = matches!(policy.reshard, Reshard::Groups(_));
    let step = |i: usize| Use {
        stage: order[i].0,
        backward: order[i].1,
        unit: unit_at(i),
        free: free(i),
        more: false,
        part: groups && freed(i).is_some_and(|j| next(j).is_some()),
        complete: order[i].1 && next(i).is_none(),
    };
    let mut program: Vec<_> = (0..order.len()).map(step).collect();
    // A use is one that weights are gathered for if it is the unit's first, or they were let go after the one before.
    let mut more = false;
    for i in (0..program.len()).rev() {
        program[i].more = more;
        let before = (0..i).rev().find(|&j| program[j].unit == program[i].unit);
        more |= before.is_none_or(|j| program[j].free);
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(n: usize) -> Vec<Unit> {
        let unit = |i| Unit { name: format!("unit {i}"), parameters: Vec::new(), keep: false };
        (0..n).map(unit).collect()
    }

    /// How often each unit is gathered.
    fn gathers(program: &[Use], units: usize) -> Vec<usize> {
        let (mut there, mut count) = (vec![false; units], vec![0; units]);
        for step in program {
            if !std::mem::replace(&mut there[step.unit], !step.free) {
                count[step.unit] += 1;
            }
        }
        count
    }

    #[test]
    fn weights_are_gathered_twice_but_for_the_last_unit_which_is_needed_again_at_once() {
        let policy = Policy::default();
        let program = training(&[0, 1, 2], &units(3), &policy);
        assert_eq!(gathers(&program, 3), [2, 2, 1]);
        assert_eq!(completed(&program), [2, 1, 0]);
        assert!(program.last().unwrap().free);
        let more = |program: &[Use]| program.iter().filter(|u| u.more).count();
        assert_eq!(more(&program), 5, "for all but the last");
        let never = Policy { reshard: Reshard::Never, ..policy };
        let program = training(&[0, 1, 2], &units(3), &never);
        assert_eq!(gathers(&program, 3), [1, 1, 1]);
        assert_eq!(program.iter().filter(|u| u.free).count(), 3, "each is let go once");
        assert_eq!(more(&program), 2, "the last stage's weights are the last to come");
        assert_eq!(gathers(&evaluation(&[0, 1, 2], &units(3), &policy), 3), [1, 1, 1]);
    }

    #[test]
    fn a_unit_of_two_stages_is_complete_after_the_earlier() {
        let mut units = units(2);
        let program = training(&[0, 1, 0], &units, &Policy::default());
        assert_eq!(gathers(&program, 2), [3, 2]);
        assert_eq!(completed(&program), [1, 0]);
        units[0].keep = true;
        assert_eq!(gathers(&training(&[0, 1, 0], &units, &Policy::default()), 2), [1, 2]);
    }

    #[test]
    fn weights_of_zero_2_are_never_let_go() {
        let policy = Policy { zero: 2, ..Policy::default() };
        assert!(training(&[0, 1], &units(2), &policy).iter().all(|u| !u.free && !u.part));
    }

    #[test]
    fn parts_are_kept_of_what_is_let_go_and_needed_again() {
        let policy = Policy { reshard: Reshard::Groups(2), ..Policy::default() };
        let program = training(&[0, 1], &units(2), &policy);
        let parts: Vec<_> = program.iter().map(|u| u.part).collect();
        assert_eq!(parts, [true, false, false, false]);
        let tied = training(&[0, 1, 0], &units(2), &policy);
        assert_eq!(tied.iter().map(|u| u.part).collect::<Vec<_>>(), [true, true, true, true, false, false]);
    }
}
