//! Puts with memory of other devices on either side: the processor touches none of it, so nothing of them goes in messages.
#![allow(unsafe_code)] // memory lent by Link::put

use super::Queue;
use crate::link::{INLINE_PART, Part, Signal};
use crate::verbs::keys::Keys;
use crate::verbs::wire::PAYLOAD;
use crate::{Error, sys};

impl Queue {
    /// Adds a put where there is such memory.
    ///
    /// # Errors
    /// When a part is registered in part, or cannot be with this queue pair's device: nothing of the put was added then.
    ///
    /// # Safety
    /// As for [`Queue::put`]; parts of such memory stay valid whatever their length.
    #[cold]
    pub(super) unsafe fn put_by_device(
        &mut self,
        parts: &[Part],
        at: u64,
        signal: Option<Signal>,
    ) -> Result<(), Error> {
        let memory = |part: &Part| {
            let found = self.lanes[0].device().exports().find(part.ptr as u64, part.len as u64)?;
            // Whichever rail it goes on.
            found
                .iter()
                .try_for_each(|e| self.lanes.iter().try_for_each(|l| e.with(l.device()).map(drop)))?;
            Ok(found)
        };
        let memories = parts.iter().map(memory).collect::<Result<Vec<_>, Error>>()?;
        let into_device = Keys::is_device(at);
        if !into_device && memories.iter().all(Option::is_none) {
            // SAFETY: the caller's promise.
            unsafe { self.put_by_processor(parts, at, signal) };
            return Ok(());
        }
        let mut to = at;
        for (part, memory) in parts.iter().zip(memories).filter(|(part, _)| part.len > 0) {
            if memory.is_none() && !into_device && part.len <= PAYLOAD {
                // SAFETY: the caller's promise.
                unsafe { self.message(std::slice::from_ref(part), to, None) };
            } else {
                let own = (memory.is_none() && part.len <= INLINE_PART).then(|| copied(part));
                let part = own.as_deref().map_or(*part, Part::of);
                let first = self.ops.len();
                self.lend(&part, to, memory);
                if let Some(super::Op::Write(write)) = self.ops.get_mut(first) {
                    write.own = own;
                }
            }
            to += part.len as u64;
        }
        if signal.is_some() {
            // SAFETY: no parts.
            unsafe { self.message(&[], 0, signal) };
        }
        Ok(())
    }
}

/// A copy of a short part.
fn copied(part: &Part) -> Box<[u8]> {
    let mut bytes = vec![0; part.len];
    // SAFETY: valid by the promise of whoever puts it.
    unsafe { sys::copy(part.ptr, bytes.as_mut_ptr(), part.len) };
    bytes.into()
}
