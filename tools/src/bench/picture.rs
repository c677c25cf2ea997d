//! What a rank's buffers hold before a call, and what they must hold after it.

use nd_comm::schedule::Collective;

use super::sample::{BLOCK, Recipe, Sample};

/// What a span of a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A rank's input from an element on.
    Input {
        /// Whose.
        rank: usize,
        /// From which element of it.
        start: usize,
    },
    /// The reduction of all inputs, from an element on.
    Reduced {
        /// From which element.
        start: usize,
    },
    /// Something that no rank has as its input; it must stay.
    Guard,
    /// It does not matter.
    Any,
}

/// Spans one after the other, each with its length.
pub type Spans = Vec<(usize, Content)>;

/// Before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// The separate input, before and after. Empty for a call in place, and where there is none.
    pub send: Spans,
    /// The output, or the only buffer, before.
    pub before: Spans,
    /// After.
    pub after: Spans,
}

/// Elements behind the end of each buffer that must not change.
pub const MARGIN: usize = 64;

/// Which call.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The collective.
    pub collective: Collective,
    /// Whether input and output are one buffer.
    pub in_place: bool,
    /// How many ranks.
    pub ranks: usize,
    /// Which one this is.
    pub rank: usize,
    /// The root, where there is one.
    pub root: usize,
    /// Elements, of a rank's part where there are parts.
    pub count: usize,
}

/// What `case.rank`'s buffers hold.
pub fn picture(case: &Case) -> Picture {
    let &Case { collective, in_place, ranks: n, rank, root, count: c } = case;
    let input = |rank, start| Content::Input { rank, start };
    let (own, here) = (input(rank, 0), rank == root);
    let reduced = |start| Content::Reduced { start };
    let each = |f: &dyn Fn(usize) -> Content| -> Spans { (0..n).map(|r| (c, f(r))).collect() };
    // Input and output as if they were apart; `before` as it is in place.
    let (send, before, after): (Spans, Spans, Spans) = match collective {
        Collective::AllReduce => (vec![(c, own)], vec![(c, own)], vec![(c, reduced(0))]),
        Collective::Reduce => {
            let kept = if in_place { own } else { Content::Guard };
            (vec![(c, own)], vec![(c, own)], vec![(c, if here { reduced(0) } else { kept })])
        }
        Collective::Broadcast => {
            let mine = if here { own } else { Content::Guard };
            (vec![(c, mine)], vec![(c, mine)], vec![(c, input(root, 0))])
        }
        Collective::AllGather => {
            let before = each(&|r| if r == rank { own } else { Content::Guard });
            (vec![(c, own)], before, each(&|r| input(r, 0)))
        }
        Collective::Gather if here => {
            let before = each(&|r| if r == rank { own } else { Content::Guard });
            (vec![(c, own)], before, each(&|r| input(r, 0)))
        }
        Collective::Gather => {
            let kept = if in_place { vec![(c, own)] } else { vec![(c * n, Content::Guard)] };
            (vec![(c, own)], vec![(c, own)], kept)
        }
        Collective::ReduceScatter => {
            let whole = vec![(c * n, own)];
            let part = (c, reduced(rank * c));
            let after = if in_place { each(&|_| Content::Any) } else { vec![part] };
            let after =
                after.into_iter().enumerate().map(|(r, s)| if in_place && r == rank { part } else { s });
            (whole.clone(), whole, after.collect())
        }
        Collective::Scatter => {
            let whole = vec![(c * n, own)];
            let part = vec![(c, input(root, rank * c))];
            match (in_place, here) {
                (true, true) => (whole.clone(), whole.clone(), whole),
                (_, true) => (whole.clone(), whole, part),
                (_, false) => (vec![(c * n, Content::Guard)], vec![(c, Content::Guard)], part),
            }
        }
        Collective::AllToAll => {
            let whole = vec![(c * n, own)];
            (whole.clone(), whole, each(&|q| input(q, rank * c)))
        }
        Collective::SendRecv => (vec![(c, own)], vec![], vec![(c, input((rank + n - 1) % n, 0))]),
        Collective::Barrier => (vec![], vec![], vec![]),
    };
    let len: usize = after.iter().map(|(len, _)| len).sum();
    match in_place {
        true => Picture { send: vec![], before, after },
        false => Picture { send, before: vec![(len, Content::Guard)], after },
    }
}

/// Writes `spans`, and behind them guards to the end of `buffer` or [`MARGIN`] elements.
pub fn fill<T: Sample>(recipe: &Recipe, spans: &Spans, buffer: &mut [T]) {
    walk(spans, buffer.len(), |at, len, content| match content {
        Content::Any => {}
        content => write(recipe, content, at, 0, &mut buffer[at..at + len]),
    });
}

/// Counts the elements that are not as `spans` say, or no longer guards behind them.
pub fn wrong<T: Sample>(recipe: &Recipe, spans: &Spans, buffer: &[T]) -> u64 {
    let mut wrong = 0;
    let mut expected = [T::default(); BLOCK];
    walk(spans, buffer.len(), |at, len, content| {
        if content == Content::Any {
            return;
        }
        for (i, found) in buffer[at..at + len].chunks(BLOCK).enumerate() {
            let expected = &mut expected[..found.len()];
            write(recipe, content, at, i * BLOCK, expected);
            wrong += found.iter().zip(&*expected).map(|(a, b)| u64::from(!a.same(*b))).sum::<u64>();
        }
    });
    wrong
}

fn walk(spans: &Spans, room: usize, mut f: impl FnMut(usize, usize, Content)) {
    let mut at = 0;
    for (len, content) in spans {
        f(at, *len, *content);
        at += len;
    }
    f(at, MARGIN.min(room - at), Content::Guard);
}

/// The elements of a span that lies at `at`, from its `offset`-th on.
fn write<T: Sample>(recipe: &Recipe, content: Content, at: usize, offset: usize, out: &mut [T]) {
    match content {
        Content::Input { rank, start } => recipe.input(rank, (start + offset) as u64, out),
        Content::Reduced { start } => recipe.reduced((start + offset) as u64, out),
        Content::Guard => {
            recipe.of_bits().input(usize::MAX - 1, (at + offset) as u64, out);
        }
        Content::Any => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Collective; 10] = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::SendRecv,
        Collective::Barrier,
    ];

    fn len(spans: &Spans) -> usize {
        spans.iter().map(|(len, _)| len).sum()
    }

    #[test]
    fn before_and_after_have_one_length() {
        for collective in ALL {
            for in_place in [false, true] {
                for (rank, root) in [(0, 0), (1, 0), (2, 2), (0, 2)] {
                    let case = Case { collective, in_place, ranks: 3, rank, root, count: 5 };
                    let p = picture(&case);
                    if in_place && collective == Collective::SendRecv {
                        continue;
                    }
                    assert_eq!(len(&p.before), len(&p.after), "{case:?}");
                    assert!(!in_place || p.send.is_empty(), "{case:?}");
                }
            }
        }
    }

    #[test]
    fn some_by_hand() {
        use Content::*;
        let of = |collective, in_place, rank| {
            picture(&Case { collective, in_place, ranks: 2, rank, root: 1, count: 3 })
        };
        let p = of(Collective::ReduceScatter, true, 1);
        assert_eq!(p.after, [(3, Any), (3, Reduced { start: 3 })]);
        let p = of(Collective::Gather, false, 0);
        assert_eq!((p.send, p.after), (vec![(3, Input { rank: 0, start: 0 })], vec![(6, Guard)]));
        let p = of(Collective::Gather, true, 1);
        assert_eq!(p.before, [(3, Guard), (3, Input { rank: 1, start: 0 })]);
        assert_eq!(p.after, [(3, Input { rank: 0, start: 0 }), (3, Input { rank: 1, start: 0 })]);
        let p = of(Collective::Scatter, false, 0);
        assert_eq!(p.after, [(3, Input { rank: 1, start: 0 })]);
        let p = of(Collective::AllToAll, false, 1);
        assert_eq!(p.after, [(3, Input { rank: 0, start: 3 }), (3, Input { rank: 1, start: 3 })]);
        let p = of(Collective::Reduce, false, 0);
        assert_eq!(p.after, [(3, Guard)]);
    }

    #[test]
    fn every_wrong_element_is_counted() {
        let recipe = Recipe::new::<u32>(None, 2, 9);
        let spans =
            vec![(2000, Content::Input { rank: 1, start: 4 }), (5, Content::Any), (10, Content::Guard)];
        let mut buffer = vec![0u32; 2100];
        fill(&recipe, &spans, &mut buffer);
        assert_eq!(wrong(&recipe, &spans, &buffer), 0);
        // In each span, in the one that does not matter, in the margin, and beyond it.
        for at in [0, 1999, 2002, 2010, 2016, 2078, 2079] {
            buffer[at] ^= 1;
        }
        assert_eq!(wrong(&recipe, &spans, &buffer), 5);
    }
}
