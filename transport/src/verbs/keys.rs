//! By what two ranks write into each other's memory: keys that were given, and keys that were got. Pure but for the
//! registrations that end with what was given.
//!
//! Keys have small numbers. An offset from [`FIRST`] on names a byte of what one of them stands for: the number in the upper
//! bits, how far from the first byte in the lower ones. One more bit says that it is another device's memory, so that the
//! peer sends nothing there that a processor would have to place.

use std::sync::Arc;

use nd_topology::rdma::MOST_RAILS;

use super::sys::Memory;
use super::wire::Key;

/// The first offset that stands for memory by a key's number; those of a region are far below.
pub const FIRST: u64 = 1 << 63;
/// In such an offset: memory of another device.
const DEVICE: u64 = 1 << 62;
/// Bits of an offset that say how far from the first byte.
const DISTANCE: u32 = 48;
/// Numbers are below this.
const NUMBERS: u32 = 1 << 14;

/// A number that is free is not given again before so many others were: a peer that gave up may still send to what it
/// stood for.
const APART: usize = 256;

/// The registration of some memory on each rail; none where there are fewer.
pub type Registered = [Option<Arc<Memory>>; MOST_RAILS];

/// The keys of peers for them.
pub fn keys_of(memories: &Registered) -> [u32; MOST_RAILS] {
    memories.each_ref().map(|memory| memory.as_ref().map_or(0, |memory| memory.remote_key()))
}

/// Memory of this rank that a peer may write.
#[derive(Debug)]
pub struct Given {
    base: usize,
    len: u64,
    keys: [u32; MOST_RAILS],
    /// The offset of the window that it is.
    window: Option<u64>,
    /// Another device's memory: no processor writes there.
    device: bool,
    /// The registrations of the caller's own memory.
    _memories: Registered,
}

impl Given {
    /// A window.
    pub fn window(base: *mut u8, len: u64, keys: [u32; MOST_RAILS], at: u64) -> Given {
        let _memories = Registered::default();
        Given { base: base as usize, len, keys, window: Some(at), device: false, _memories }
    }

    /// Memory of the caller.
    pub fn plain(base: *mut u8, len: u64, memories: Registered) -> Given {
        Given { device: false, ..Given::exported(base, len, memories) }
    }

    /// Memory of another device, which the caller has registered.
    pub fn exported(base: *mut u8, len: u64, memories: Registered) -> Given {
        let keys = keys_of(&memories);
        Given { base: base as usize, len, keys, window: None, device: true, _memories: memories }
    }

    /// The peer's keys.
    pub fn keys(&self) -> [u32; MOST_RAILS] {
        self.keys
    }
}

/// Where to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// The offset of the first byte of what the key stands for.
    pub begins: u64,
    /// The peer's address of that byte.
    pub address: u64,
    /// What the devices ask for, on each rail.
    pub keys: [u32; MOST_RAILS],
}

/// Nothing was ever given there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Never;

/// The keys of two ranks.
#[derive(Debug, Default)]
pub struct Keys {
    given: Vec<Option<Given>>,
    /// Where to look for a free number.
    next: usize,
    got: Vec<Option<Key>>,
    /// The offset for which the peer was asked for a key and has not answered yet.
    asked: Option<u64>,
}

fn split(at: u64) -> (usize, u64) {
    (((at & (DEVICE - 1)) >> DISTANCE) as usize, at & ((1 << DISTANCE) - 1))
}

impl Keys {
    /// The offset of the byte that is so far from the first of what this number stands for.
    pub fn offset(number: u32, distance: u64) -> u64 {
        FIRST | u64::from(number) << DISTANCE | distance
    }

    /// The same of another device's memory, from its first byte on.
    pub fn device_offset(number: u32) -> u64 {
        Keys::offset(number, 0) | DEVICE
    }

    /// Whether an offset names another device's memory.
    #[inline]
    pub fn is_device(at: u64) -> bool {
        at & (FIRST | DEVICE) == FIRST | DEVICE
    }

    /// How to write `len` bytes to an offset; none if there is no key for it.
    ///
    /// # Errors
    /// What is there ends before.
    pub fn of(&self, at: u64, len: u64) -> Result<Option<Reach>, String> {
        let (key, begins, from) = if at >= FIRST {
            let (number, distance) = split(at);
            (self.got.get(number).and_then(Option::as_ref), at - distance, distance)
        } else {
            let covers = |key: &&Key| key.window.is_some_and(|begins| begins <= at && at < begins + key.len);
            let key = self.got.iter().flatten().find(covers);
            let begins = key.and_then(|key| key.window).unwrap_or_default();
            (key, begins, at - begins)
        };
        let Some(key) = key else { return Ok(None) };
        match from.checked_add(len) {
            Some(end) if end <= key.len => Ok(Some(Reach { begins, address: key.address, keys: key.keys })),
            _ => Err(format!("a put of {len} bytes to offset {at:#x}, beyond the end of what is there")),
        }
    }

    /// Whether the peer is now to be asked for the key for an offset.
    pub fn ask(&mut self, at: u64) -> bool {
        self.asked.replace(at) != Some(at)
    }

    /// The peer gives a key.
    ///
    /// # Errors
    /// Why no peer of ours would give it.
    pub fn learn(&mut self, key: Key) -> Result<(), String> {
        let ends = |at: u64| at.checked_add(key.len);
        let fits = ends(key.address).is_some()
            && key.len <= 1 << DISTANCE
            && key.window.is_none_or(|at| ends(at).is_some_and(|end| end <= FIRST));
        if !fits || key.number >= NUMBERS {
            return Err(format!("a key that no memory can have: {key:x?}"));
        }
        if key.window.is_some() {
            self.asked = None;
        }
        let number = key.number as usize;
        if self.got.len() <= number {
            self.got.resize_with(number + 1, || None);
        }
        self.got[number] = Some(key);
        Ok(())
    }

    /// The peer takes a key back.
    pub fn forget(&mut self, number: u32) {
        if let Some(key) = self.got.get_mut(number as usize) {
            *key = None;
        }
    }

    /// Gives the peer a key: its number, and whether the peer is to be told.
    pub fn give(&mut self, new: Given) -> (u32, bool) {
        let same =
            |g: &Option<Given>| g.as_ref().is_some_and(|g| g.window.is_some() && g.window == new.window);
        let number = match self.given.iter().position(same) {
            Some(number) => {
                let old = self.given[number].as_ref();
                if old.is_some_and(|old| (old.base, old.len, old.keys) == (new.base, new.len, new.keys)) {
                    return (number as u32, false);
                }
                number
            }
            None => self.free(),
        };
        self.given[number] = Some(new);
        (number as u32, true)
    }

    /// A number that stands for nothing, and has not for as long as can be.
    fn free(&mut self) -> usize {
        let is_free = |number: &usize| self.given[*number].is_none();
        let all = self.given.len();
        let found = match all < APART {
            true => None,
            false => (self.next..all).chain(0..self.next).find(is_free),
        };
        let number = found.unwrap_or_else(|| {
            self.given.push(None);
            all
        });
        self.next = (number + 1) % self.given.len();
        number
    }

    /// The memory of `len` bytes at an offset from [`FIRST`] on; none if it was withdrawn. Another device's is never given for
    /// the processor to write.
    pub fn given(&self, at: u64, len: u64) -> Result<Option<*mut u8>, Never> {
        let (number, distance) = split(at);
        let Some(given) = self.given.get(number).ok_or(Never)? else { return Ok(None) };
        match distance.checked_add(len) {
            Some(end) if end <= given.len && !given.device => {
                Ok(Some((given.base + distance as usize) as *mut u8))
            }
            _ => Err(Never),
        }
    }

    /// Takes back memory of the caller; the number that the peer is to be told of. Windows stay.
    pub fn withdraw(&mut self, at: u64) -> Option<u32> {
        let (number, _) = split(at);
        let given = self.given.get_mut(number)?;
        let plain = given.as_ref().is_some_and(|given| given.window.is_none());
        plain.then(|| {
            *given = None;
            number as u32
        })
    }

    /// Takes back the windows, by offset and keys, that are no more; their numbers.
    pub fn take_back(&mut self, gone: impl Fn(u64, &[u32; MOST_RAILS]) -> bool) -> Vec<u32> {
        let mut numbers = Vec::new();
        for (number, given) in self.given.iter_mut().enumerate() {
            if given.as_ref().is_some_and(|g| g.window.is_some_and(|at| gone(at, &g.keys))) {
                *given = None;
                numbers.push(number as u32);
            }
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32, window: Option<u64>, len: u64) -> Key {
        Key { number, window, address: 0x7000_0000, len, keys: keys(100 + number) }
    }

    fn keys(first: u32) -> [u32; MOST_RAILS] {
        std::array::from_fn(|rail| first + 1000 * rail as u32)
    }

    /// What a peer still sends to withdrawn memory is thrown away, not taken for what came after it.
    #[test]
    fn numbers_do_not_come_again_soon() {
        let mut keys = Keys::default();
        let stays = keys.give(Given::plain(0x1000 as *mut u8, 64, Registered::default())).0;
        let mut last = std::collections::HashMap::new();
        for turn in 0..3 * APART {
            let (number, _) = keys.give(Given::plain(0x2000 as *mut u8, 64, Registered::default()));
            assert_ne!(number, stays);
            if let Some(before) = last.insert(number, turn) {
                assert!(turn - before >= APART - 1, "{number} after {}", turn - before);
            }
            let at = Keys::offset(number, 0);
            assert!(keys.given(at, 64).is_ok_and(|memory| memory.is_some()));
            assert_eq!(keys.withdraw(at), Some(number));
            assert_eq!(keys.given(at, 64), Ok(None));
        }
        assert_eq!(last.len(), APART - 1);
    }

    #[test]
    fn only_what_was_given_and_only_whole() {
        let mut keys = Keys::default();
        let window = Given::window(0x1000 as *mut u8, 64, [7; MOST_RAILS], 4096);
        let (number, new) = keys.give(window);
        assert!(new);
        let at = Keys::offset(number, 0);
        assert_eq!(keys.given(at + 8, 56), Ok(Some(0x1008 as *mut u8)));
        assert_eq!(keys.given(at + 8, 57), Err(Never));
        assert_eq!(keys.given(Keys::offset(number + 1, 0), 0), Err(Never));
        assert_eq!(keys.given(u64::MAX, 2), Err(Never));
        // The same again, and another window at the same offset.
        assert_eq!(keys.give(Given::window(0x1000 as *mut u8, 64, [7; MOST_RAILS], 4096)), (number, false));
        assert_eq!(keys.give(Given::window(0x1000 as *mut u8, 64, [7, 7, 7, 8], 4096)), (number, true));
        assert_eq!(keys.withdraw(at), None, "windows stay");
        assert_eq!(keys.take_back(|at, keys| (at, keys[3]) == (4096, 7)), Vec::<u32>::new());
        assert_eq!(keys.take_back(|at, keys| (at, keys[3]) == (4096, 8)), [number]);
        assert_eq!(keys.given(at, 8), Ok(None));
    }

    #[test]
    fn windows_are_found_by_their_offsets_and_others_by_their_numbers() {
        let mut keys = Keys::default();
        assert_eq!(keys.of(5000, 10), Ok(None));
        assert!(keys.ask(5000) && !keys.ask(5000));
        keys.learn(key(3, Some(4096), 4096)).unwrap();
        assert!(keys.ask(5000), "an answer has come");
        let reach = Reach { begins: 4096, address: 0x7000_0000, keys: self::keys(103) };
        assert_eq!(keys.of(5000, 10), Ok(Some(reach)));
        assert_eq!(keys.of(8192, 1), Ok(None));
        assert!(keys.of(8191, 2).is_err());
        keys.learn(key(0, None, 100)).unwrap();
        let at = Keys::offset(0, 60);
        assert_eq!(
            keys.of(at, 40),
            Ok(Some(Reach { begins: at - 60, address: 0x7000_0000, keys: self::keys(100) }))
        );
        assert!(keys.of(at, 41).is_err());
        assert_eq!(keys.of(0, 1), Ok(None), "it has no offset in the region");
        keys.forget(0);
        keys.forget(99);
        assert_eq!(keys.of(at, 40), Ok(None));
    }

    #[test]
    fn keys_that_nobody_can_have_are_refused() {
        let mut keys = Keys::default();
        assert!(keys.learn(key(NUMBERS, None, 1)).is_err());
        assert!(keys.learn(key(0, Some(FIRST - 4), 5)).is_err());
        assert!(keys.learn(key(0, None, u64::MAX)).is_err());
        assert!(keys.learn(Key { address: u64::MAX, ..key(0, None, 1) }).is_err());
        assert_eq!(keys.of(FIRST, 0), Ok(None));
    }
}
