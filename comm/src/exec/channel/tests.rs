use nd_transport::{Config, Endpoint, Window, local};

use super::super::layout::LANE;
use super::*;

/// Two ranks with one lane between them; `memory` is registered, `LEN` bytes on each.
pub struct Pair {
    pub channels: [Channel; 2],
    pub memory: [Window; 2],
    _ends: Vec<(Endpoint, Window)>,
}

pub const LEN: u64 = 64 << 10;

pub fn pair() -> Pair {
    let endpoints = local::group(2, &Config::default()).unwrap();
    let memory = [0, 1].map(|r: usize| endpoints[r].region().alloc(LEN, false).unwrap());
    let ends: Vec<_> = endpoints
        .into_iter()
        .map(|endpoint| {
            let inbox = endpoint.region().alloc(LANE, true).unwrap();
            (endpoint, inbox)
        })
        .collect();
    let channels = [0, 1].map(|r: usize| {
        // SAFETY: the window lives as long as the pair.
        let own = unsafe { LaneMemory::new(ends[r].1.ptr()) };
        Channel::new(ends[r].0.link(1 - r).unwrap().clone(), own, ends[1 - r].1.offset(), LANE)
    });
    Pair { channels, memory, _ends: ends }
}

impl Pair {
    /// Rank 0 lets rank 1 store its next message but `ahead`.
    fn grant(&mut self, ahead: u64, len: u64, returns: bool) -> Open {
        let (to, at) = (self.memory[0].ptr().as_ptr(), self.memory[0].offset());
        // SAFETY: the memory lives as long as the pair.
        unsafe { self.channels[0].grant(ahead, (to, Some(at)), (len, returns)) }.unwrap().unwrap()
    }
}

#[test]
fn who_has_claimed_is_waited_for_and_who_has_not_comes_too_late() {
    let mut pair = pair();
    let Open::Mapped { message, at, len } = pair.grant(0, LEN, false) else { panic!("a link that maps") };
    assert_eq!((message, at, len), (1, pair.memory[0].offset(), LEN));
    let [ours, theirs] = &mut pair.channels;
    // Of another length, or another message: not this one.
    assert_eq!(theirs.claim(LEN - 8, None), None);
    assert_eq!(theirs.claim(LEN, None), Some(pair.memory[0].ptr().as_ptr()));
    assert_eq!(theirs.claim(LEN, None), None);
    assert!(!ours.revoke(message));
    theirs.stored();
    assert!(ours.revoke(message));
    theirs.begin();
    pair.grant(1, LEN, false);
    let [ours, theirs] = &mut pair.channels;
    assert!(ours.revoke(2));
    assert_eq!(theirs.claim(LEN, None), None);
}

#[test]
fn what_is_still_read_may_be_stored_only_by_who_reads_it_for_that() {
    let mut pair = pair();
    pair.grant(0, LEN, true);
    let offset = pair.memory[0].offset();
    let theirs = &pair.channels[1];
    let window = |offset, len| Some(Body::Window { offset, len });
    for term in [None, window(offset + 64, LEN), window(offset, LEN - 64)] {
        assert_eq!(theirs.claim(LEN, term), None);
    }
    assert!(theirs.claim(LEN, window(offset, LEN)).is_some());
}

#[test]
fn a_grant_of_memory_that_is_not_there_is_none() {
    let pair = pair();
    let [ours, theirs] = &pair.channels;
    let inbox = ours.mapped.as_ref().unwrap();
    for at in [u64::MAX - 8, 1 << 60] {
        inbox.grant(grant(1)).offer(1, at, LEN);
        assert_eq!(theirs.claim(LEN, None), None);
    }
}

#[test]
fn a_peer_that_has_taken_more_than_there_was_is_an_error() {
    let data = [7u8; 8];
    let body = Body::Here { ptr: data.as_ptr(), len: 8 };
    for credit in [DESCRIPTORS + 1, u64::MAX] {
        let mut pair = pair();
        let theirs = pair.channels[1].mapped.unwrap();
        let ours = &mut pair.channels[0];
        // SAFETY: copied at once.
        let post = |ours: &mut Channel| unsafe { ours.post(&Stamp::default(), body) };
        for _ in 0..DESCRIPTORS {
            assert!(ours.has_room(&body));
            post(ours).unwrap();
        }
        assert!(!ours.has_room(&body));
        theirs.set(CREDIT, credit);
        assert!(ours.has_room(&body));
        let e = post(ours).unwrap_err().to_string();
        assert!(e.contains("rank 1") && e.contains(&format!("taken {credit} messages of 32")), "{e}");
    }
}
