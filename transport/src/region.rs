//! A rank's own memory that its peers may write, read or map.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use crate::fork::Forked;
use crate::host::process_start;
use crate::sys::{HUGE_PAGE, Mapping, PAGE};
use crate::{Error, Result};

/// Bytes at the start of a region that belong to the transports.
const HEADER: u64 = PAGE as u64;
/// Where a region's first endpoint has its sleep word (see [`crate::bell`]); later ones have theirs in windows.
pub(crate) const SLEEP: u64 = 0;
/// Offset of this rank's address for the cross-memory probe, and of the nonce found there.
pub(crate) const PROBE_ADDRESS: u64 = 128;
pub(crate) const PROBE_NONCE: u64 = 136;

/// Offset in the first region of a mapping of a word that all who map it have in common.
const COMMON: usize = 256;
/// Offset of a word for each rank of the host, by its place, that it sets when it has no more use for this region.
const DONE: u64 = 1024;

/// One rank's region: a part of the mapping that all ranks of a host share (or of a mapping of its own). Offsets in
/// it are what peers know its memory by.
#[derive(Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
    start: usize,
    len: u64,
    /// The memory belongs to the process that made it; a child of fork shares it, and must leave it alone.
    forked: Forked,
    free: Mutex<BTreeMap<u64, u64>>,
    /// Ranges that were taken out of the shared memory, and whether there are any.
    detached: Mutex<Vec<Range<u64>>>,
    any_detached: AtomicBool,
    /// By its offset, how long each window is, and whether it is exposed.
    windows: RwLock<BTreeMap<u64, (u64, bool)>>,
    watcher: OnceLock<Watcher>,
    /// Windows that nobody here needs any more and peers may still put into.
    left: Mutex<Vec<Left>>,
    /// Of a peer's region, who else uses it.
    shared: Option<Shared>,
}

/// Is told which window is being given back.
struct Watcher(Box<dyn Fn(u64) + Send + Sync>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

/// The processes of a host that share a memory file, by their places in it, and where one of them is.
#[derive(Debug, Clone)]
pub(crate) struct Neighbours {
    /// Their numbers, and when they started.
    pub processes: Arc<[(u32, u64)]>,
    /// This one's place.
    pub me: usize,
}

/// Whose region it is.
#[derive(Debug)]
struct Shared {
    neighbours: Neighbours,
    owner: usize,
}

impl Neighbours {
    fn gone(&self, place: usize) -> bool {
        let (pid, started) = self.processes[place];
        process_start(pid) != Some(started)
    }
}

/// What to give back, each so many bytes from there on, once all these counters have been raised.
#[derive(Debug)]
struct Left {
    windows: Vec<(u64, u64)>,
    counters: Vec<u64>,
}

impl Region {
    pub(crate) fn new(mapping: Arc<Mapping>, start: usize, len: u64) -> Arc<Region> {
        Region::with(mapping, start, len, None)
    }

    /// That of the peer with that place. When the peer is gone, its memory is given back by whoever is the last on this
    /// host to have a use for it: what others may be reading in a call that began before must not change.
    pub(crate) fn of_peer(
        mapping: Arc<Mapping>,
        start: usize,
        len: u64,
        (owner, neighbours): (usize, Neighbours),
    ) -> Arc<Region> {
        Region::with(mapping, start, len, Some(Shared { neighbours, owner }))
    }

    fn with(mapping: Arc<Mapping>, start: usize, len: u64, shared: Option<Shared>) -> Arc<Region> {
        assert!(len > HEADER);
        Arc::new(Region {
            mapping,
            start,
            len,
            forked: Forked::here(),
            free: Mutex::new(BTreeMap::from([(HEADER, len - HEADER)])),
            detached: Mutex::default(),
            any_detached: AtomicBool::new(false),
            windows: RwLock::default(),
            watcher: OnceLock::new(),
            left: Mutex::default(),
            shared,
        })
    }

    /// Reserves `len` bytes, zeroed, at a multiple of 4096 (of 2 MiB from that size on). Peers may map them; with
    /// `exposed` they may also put into them.
    pub fn alloc(self: &Arc<Region>, len: u64, exposed: bool) -> Result<Window> {
        let limit = || Error::Limit {
            what: "registered memory".into(),
            needed: format!("{len} bytes"),
            limit: format!("{} bytes of address space per rank", self.len),
            remedy:
                "free buffers, use plain memory for this one, or raise `ulimit -v` and `-f` if they are set"
                    .into(),
        };
        if self.forked.since() {
            return Err(Error::Forked);
        }
        self.give_back_left();
        let size = len.max(1).checked_next_multiple_of(PAGE as u64).ok_or_else(limit)?;
        // From that size on huge pages fit.
        let align = if size >= HUGE_PAGE as u64 { HUGE_PAGE } else { PAGE };
        let at = self.take(size, align as u64).ok_or_else(limit)?;
        self.windows.write().unwrap_or_else(PoisonError::into_inner).insert(at, (size, exposed));
        Ok(Window { region: self.clone(), at, len, size })
    }

    fn take(&self, size: u64, align: u64) -> Option<u64> {
        let mut free = self.free();
        let (hole, hole_len, at) = free.iter().find_map(|(&hole, &len)| {
            let at = hole.next_multiple_of(align);
            (at.checked_add(size)? <= hole + len).then_some((hole, len, at))
        })?;
        free.remove(&hole);
        if at > hole {
            free.insert(hole, at - hole);
        }
        let rest = hole + hole_len - (at + size);
        if rest > 0 {
            free.insert(at + size, rest);
        }
        Some(at)
    }

    fn give_back(&self, at: u64, size: u64) {
        if self.forked.since() {
            return;
        }
        self.windows.write().unwrap_or_else(PoisonError::into_inner).remove(&at);
        // Before anybody else can have this memory.
        if let Some(Watcher(watcher)) = self.watcher.get() {
            watcher(at);
        }
        // What is not shared can be no window of anybody again, nor can what is around it.
        if self.detaches(at, size) {
            return;
        }
        self.mapping.release(self.start + at as usize, size as usize);
        let mut free = self.free();
        let (mut at, mut size) = (at, size);
        if let Some((&before, &len)) = free.range(..at).next_back()
            && before + len == at
        {
            free.remove(&before);
            (at, size) = (before, len + size);
        }
        if let Some(len) = free.remove(&(at + size)) {
            size += len;
        }
        free.insert(at, size);
    }

    /// Gives back what peers have put the last of into.
    fn give_back_left(&self) {
        let raised =
            |left: &mut Left| left.counters.iter().all(|at| self.counter(*at).load(Ordering::Acquire) > 0);
        let mut all = locked(&self.left);
        let done: Vec<Left> = all.extract_if(.., raised).collect();
        drop(all);
        done.iter().flat_map(|left| &left.windows).for_each(|(at, size)| self.give_back(*at, *size));
    }

    fn free(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        locked(&self.free)
    }

    /// The address of `len` bytes from `offset` on, if they lie inside.
    pub fn within(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| self.at(offset, len))
    }

    /// The address of `len` bytes from `offset` on; the caller knows that they lie inside.
    pub fn at(&self, offset: u64, len: u64) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "{offset}+{len} of {}", self.len);
        self.mapping.at(self.start + offset as usize, len as usize)
    }

    /// The address of `len` bytes from `offset` on, if a peer may put there: all inside one exposed window.
    pub fn exposed(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let (_, _, exposed) = self.window(offset, len)?;
        exposed.then(|| self.at(offset, len))
    }

    /// The window in which these bytes lie, all of them: its offset, its length in whole pages, and whether it is exposed.
    pub(crate) fn window(&self, offset: u64, len: u64) -> Option<(u64, u64, bool)> {
        let windows = self.windows.read().unwrap_or_else(PoisonError::into_inner);
        let (&at, &(size, exposed)) = windows.range(..=offset).next_back()?;
        let end = offset.checked_add(len)?;
        (end <= at + size).then_some((at, size, exposed))
    }

    /// Calls `f` with the offset and the length in whole pages of each window that peers may put into, none of which is given
    /// back meanwhile, until it fails.
    pub(crate) fn for_exposed(&self, mut f: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
        let windows = self.windows.read().unwrap_or_else(PoisonError::into_inner);
        windows.iter().filter(|(_, (_, exposed))| *exposed).try_for_each(|(&at, &(size, _))| f(at, size))
    }

    /// Has `watcher` told of each window that is given back, before its memory is. Only one can be.
    pub(crate) fn watch(&self, watcher: impl Fn(u64) + Send + Sync + 'static) {
        let _ = self.watcher.set(Watcher(Box::new(watcher)));
    }

    /// The counter at `offset` (a multiple of 8), if a peer may raise it.
    pub fn exposed_counter(&self, offset: u64) -> Option<&AtomicU64> {
        (offset.is_multiple_of(8)).then(|| self.exposed(offset, 8))??;
        Some(self.counter(offset))
    }

    /// The counter at `offset`, a multiple of 8.
    pub fn counter(&self, offset: u64) -> &AtomicU64 {
        assert!(offset + 8 <= self.len);
        self.mapping.word64(self.start + offset as usize)
    }

    /// Sets a bit of a word that all regions of the mapping have in common; whether nobody had set it.
    pub(crate) fn raise(&self, bit: u32) -> bool {
        self.mapping.word64(COMMON).fetch_or(1 << bit, Ordering::AcqRel) & (1 << bit) == 0
    }

    pub(crate) fn word(&self, offset: u64) -> &AtomicU32 {
        self.mapping.word32(self.start + offset as usize)
    }

    /// The offset of memory that lies in this region, registered memory that is; none for any other memory.
    pub fn offset_of(&self, ptr: *const u8, len: usize) -> Option<u64> {
        let first = (ptr as usize).checked_sub(self.mapping.base_address() + self.start)? as u64;
        let inside = first.checked_add(len as u64)? <= self.len;
        (inside && !self.detaches(first, len as u64)).then_some(first)
    }

    /// Whether some of this region is no longer shared: what was known of the place of buffers may have changed.
    #[inline]
    pub fn any_detached(&self) -> bool {
        self.any_detached.load(Ordering::Acquire)
    }

    fn detaches(&self, at: u64, len: u64) -> bool {
        let overlaps = |range: &Range<u64>| range.start < at + len && at < range.end;
        self.any_detached() && locked(&self.detached).iter().any(overlaps)
    }

    /// Takes the pages of these bytes out of the shared memory, with what they hold, because a peer that may still write
    /// there cannot be waited for: their owner keeps them as plain memory. Windows begin at pages, so of other windows
    /// nothing is taken; a call that uses another part of the same page meanwhile would have to be over before.
    pub fn detach(&self, at: u64, len: u64) -> Result<()> {
        let (first, end) = (at / PAGE as u64 * PAGE as u64, (at + len).next_multiple_of(PAGE as u64));
        // Known as plain memory even where that fails.
        locked(&self.detached).push(first..end);
        self.any_detached.store(true, Ordering::Release);
        self.mapping.detach(self.start + first as usize, (end - first) as usize)
    }

    /// Bytes that windows occupy at present.
    pub fn used(&self) -> u64 {
        self.give_back_left();
        self.len - HEADER - self.free().values().sum::<u64>()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(Shared { neighbours, owner }) = &self.shared else { return };
        let done = |place: usize| {
            let at = DONE + 4 * place as u64;
            (at < HEADER).then(|| self.word(at))
        };
        let (Some(own), false) = (done(neighbours.me), self.forked.since()) else { return };
        own.store(1, Ordering::SeqCst);
        let others =
            (0..neighbours.processes.len()).filter(|place| place != owner && *place != neighbours.me);
        let through = |place: usize| {
            done(place).is_some_and(|word| word.load(Ordering::SeqCst) > 0) || neighbours.gone(place)
        };
        if neighbours.gone(*owner) && others.into_iter().all(through) {
            self.mapping.release(self.start, self.len as usize);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reserved bytes of a region; given back when dropped.
#[derive(Debug)]
pub struct Window {
    region: Arc<Region>,
    at: u64,
    len: u64,
    size: u64,
}

impl Window {
    /// Its offset in the region.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Its length in bytes, as asked for.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it was asked for without any bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its first byte.
    #[inline]
    pub fn ptr(&self) -> NonNull<u8> {
        self.region.at(self.at, self.size)
    }

    /// The region it lies in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Has huge pages lie under its first `len` bytes, as far as whole ones fit and the system has them: these bytes take
    /// memory from then on, whether they are touched or not.
    pub fn back_by_huge_pages(&self, len: u64) {
        let start = self.region.start + self.at as usize;
        self.region.mapping.back_by_huge_pages(start, len.min(self.size) as usize);
    }

    /// Gives it back, and `also` the other one, once all of `counters`, offsets in the region, have been raised; until then
    /// peers that map them may put into them, which must not meet what comes there next.
    pub fn leave(self, also: Option<Window>, counters: Vec<u64>) {
        let region = self.region.clone();
        let given = |mut window: Window| (window.at, std::mem::take(&mut window.size));
        let windows = [Some(self), also].into_iter().flatten().map(given).collect();
        locked(&region.left).push(Left { windows, counters });
        region.give_back_left();
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // None is left of one that goes later.
        if self.size > 0 {
            self.region.give_back(self.at, self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory_file;

    fn region(len: usize) -> Arc<Region> {
        let file = memory_file(len as u64).unwrap();
        Region::new(Arc::new(Mapping::new(&file, len).unwrap()), 0, len as u64)
    }

    #[test]
    fn freed_neighbours_merge_and_read_as_zero() {
        let r = region(16 * PAGE);
        let windows: Vec<_> = (0..15).map(|_| r.alloc(PAGE as u64, false).unwrap()).collect();
        assert!(r.alloc(1, false).is_err());
        r.counter(windows[3].offset()).store(7, Ordering::Relaxed);
        assert_eq!(r.used(), 15 * PAGE as u64);
        drop(windows);
        assert_eq!(r.used(), 0);
        let all = r.alloc(15 * PAGE as u64, false).unwrap();
        assert_eq!(r.counter(all.offset() + 3 * PAGE as u64).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn huge_pages_lie_under_whole_units_and_change_nothing() {
        let r = region(8 * HUGE_PAGE);
        let (small, large) = (r.alloc(PAGE as u64, false).unwrap(), r.alloc(5 << 20, false).unwrap());
        let words = [0, 3 << 20, (5 << 20) - 8].map(|at| large.offset() + at);
        words.iter().for_each(|at| r.counter(*at).store(*at, Ordering::Relaxed));
        let huge = |window: &Window| huge_pages(window.ptr().as_ptr() as usize);
        small.back_by_huge_pages(u64::MAX);
        assert_eq!(huge(&small), Some(0));
        large.back_by_huge_pages(large.len());
        words.iter().for_each(|at| assert_eq!(r.counter(*at).load(Ordering::Relaxed), *at));
        assert_eq!(r.counter(large.offset() + 8).load(Ordering::Relaxed), 0);
        assert_eq!(large.ptr().as_ptr() as usize % HUGE_PAGE, 0);
        if system_has_huge_pages() {
            assert_eq!(huge(&large), Some(2));
        }
        let at = large.offset();
        drop(large);
        assert_eq!(r.counter(at).load(Ordering::Relaxed), 0);
    }

    /// How many there are in the mapping that holds this address.
    fn huge_pages(address: usize) -> Option<usize> {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let holds = |line: &&str| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let ends = range.map(|(from, to)| [from, to].map(|end| usize::from_str_radix(end, 16)));
            matches!(ends, Some([Ok(from), Ok(to)]) if (from..to).contains(&address))
        };
        let of_mapping = maps.lines().skip_while(|line| !holds(line));
        let kib = of_mapping.filter_map(|line| line.strip_prefix("ShmemPmdMapped:")).next()?;
        Some(kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024 / HUGE_PAGE)
    }

    /// Whether shared memory can have them for the asking.
    fn system_has_huge_pages() -> bool {
        let allowed = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
        let new = (numbers.next(), numbers.next()) >= (Some(6), Some(1));
        let has = new && allowed.is_ok_and(|allowed| !allowed.contains("[deny]"));
        if !has {
            eprintln!("skipped huge pages: needs Linux 6.1 or later that has them for shared memory");
        }
        has
    }

    #[test]
    fn what_peers_may_put_into_is_given_back_after_their_last_word() {
        let r = region(16 * PAGE);
        let window = r.alloc(100, true).unwrap();
        let at = window.offset();
        let raise = |offset| r.counter(offset).store(1, Ordering::Release);
        let other = r.alloc(PAGE as u64, false).unwrap();
        window.leave(Some(other), vec![at, at + 64]);
        raise(at);
        assert_eq!(r.used(), 2 * PAGE as u64);
        assert_ne!(r.alloc(100, true).unwrap().offset(), at);
        raise(at + 64);
        assert_eq!(r.used(), 0);
        assert_eq!(r.counter(at).load(Ordering::Relaxed), 0);
        let window = r.alloc(100, true).unwrap();
        window.leave(None, vec![]);
        assert_eq!(r.used(), 0);
    }

    #[test]
    fn more_than_there_is_is_refused_whatever_its_size() {
        let r = region(16 * PAGE);
        for len in [15 * PAGE as u64 + 1, 1 << 50, u64::MAX - 5000, u64::MAX - 1, u64::MAX] {
            assert!(matches!(r.alloc(len, false), Err(Error::Limit { .. })), "{len}");
        }
    }

    #[test]
    fn peers_reach_exposed_windows_only() {
        let r = region(16 * PAGE);
        let hidden = r.alloc(100, false).unwrap();
        let open = r.alloc(100, true).unwrap();
        assert!(r.exposed(hidden.offset(), 1).is_none());
        assert!(r.exposed(open.offset(), PAGE as u64).is_some());
        assert!(r.exposed(open.offset() + 1, PAGE as u64).is_none());
        assert!(r.exposed(u64::MAX, 2).is_none());
        assert!(r.exposed_counter(open.offset() + 4).is_none());
        let at = open.offset();
        drop(open);
        assert!(r.exposed(at, 1).is_none());
    }

    #[test]
    fn what_is_detached_keeps_its_bytes_and_sees_no_others() {
        let len = 16 * PAGE;
        let file = memory_file(len as u64).unwrap();
        let ours = Region::new(Arc::new(Mapping::new(&file, len).unwrap()), 0, len as u64);
        let theirs = Mapping::new(&file, len).unwrap();
        let (window, next) = (ours.alloc(3 * PAGE as u64, false).unwrap(), ours.alloc(8, false).unwrap());
        let (before, inside) = (window.offset(), window.offset() + PAGE as u64 + 8);
        ours.counter(inside).store(5, Ordering::Relaxed);
        assert!(!ours.any_detached());
        for _ in 0..2 {
            ours.detach(inside, PAGE as u64 - 16).unwrap();
        }
        assert!(ours.any_detached());
        for offset in [before, inside, next.offset()] {
            theirs.word64(offset as usize).store(9, Ordering::Relaxed);
        }
        let found = [before, inside, next.offset()].map(|at| ours.counter(at).load(Ordering::Relaxed));
        assert_eq!(found, [9, 5, 9]);
        // Its owner goes on with it as plain memory; what is around it is known as before.
        ours.counter(inside).store(6, Ordering::Relaxed);
        assert_eq!(theirs.word64(inside as usize).load(Ordering::Relaxed), 9);
        let known =
            |at: usize, len: usize| ours.offset_of(window.ptr().as_ptr().wrapping_add(at), len).is_some();
        assert!(known(0, PAGE) && known(2 * PAGE, PAGE));
        assert!(!known(0, PAGE + 1) && !known(2 * PAGE - 1, 2) && !known(0, 3 * PAGE));
        // Nobody gets it afterwards.
        let at = window.offset();
        drop(window);
        let all: Vec<_> = std::iter::from_fn(|| ours.alloc(1, false).ok()).collect();
        assert_eq!(all.len(), 15 - 4);
        assert!(all.iter().all(|w| w.offset() < at || w.offset() >= at + 3 * PAGE as u64));
    }

    #[test]
    fn the_memory_of_a_dead_process_is_given_back_by_the_last_who_used_it() {
        let len = 16 * PAGE as u64;
        let file = memory_file(len).unwrap();
        let map = || Arc::new(Mapping::new(&file, len as usize).unwrap());
        // A process that is no more, and two places of this one.
        let here = (std::process::id(), process_start(std::process::id()).unwrap());
        let of = |dead: (u32, u64), me| {
            let processes = [dead, here, here].into();
            Region::of_peer(map(), 0, len, (0, Neighbours { processes, me }))
        };
        let owner = Region::new(map(), 0, len);
        let held = || owner.counter(8 * PAGE as u64).load(Ordering::Relaxed);
        for (dead, left) in [(here, 7), ((here.0, here.1 + 1), 0)] {
            owner.counter(8 * PAGE as u64).store(7, Ordering::Relaxed);
            (1..3).for_each(|place| owner.word(DONE + 4 * place).store(0, Ordering::Relaxed));
            let (first, second) = (of(dead, 1), of(dead, 2));
            drop(first);
            assert_eq!(held(), 7, "somebody else may be reading");
            drop(second);
            assert_eq!(held(), left, "{dead:?}");
        }
    }

    #[test]
    fn what_lies_outside_has_no_address() {
        let r = region(16 * PAGE);
        let len = 16 * PAGE as u64;
        assert!(r.within(0, len).is_some() && r.within(len, 0).is_some());
        assert!(r.within(1, len).is_none() && r.within(len, 1).is_none() && r.within(u64::MAX, 2).is_none());
    }

    #[test]
    fn registered_memory_is_recognised_by_its_address() {
        let r = region(16 * PAGE);
        let w = r.alloc(100, false).unwrap();
        assert_eq!(r.offset_of(w.ptr().as_ptr(), 100), Some(w.offset()));
        assert_eq!(r.offset_of([0u8; 4].as_ptr(), 4), None);
    }
}
