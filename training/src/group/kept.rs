//! Registered memory that is kept from one call to the next. Ranks of a host read it in place; new memory for each call
//! would take longer than the call does.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nd_comm::prelude::{Buffer, Communicator, Element};

use crate::error::Result;

/// Of each element type the longest buffer so far; or the last one, where calls take whole buffers.
#[derive(Clone, Default)]
pub(super) struct Kept(Arc<Mutex<HashMap<TypeId, Box<dyn Any + Send>>>>);

impl Kept {
    /// Calls `f` with `len` elements, of any content.
    pub fn with<T: Element, R>(
        &self,
        comm: &Communicator,
        len: usize,
        f: impl FnOnce(&mut [T]) -> Result<R>,
    ) -> Result<R> {
        let kept = self.take::<T>().filter(|buffer| buffer.len() >= len);
        let mut buffer = match kept {
            Some(buffer) => buffer,
            None => comm.alloc(len.max(1))?,
        };
        let result = f(&mut buffer[..len]);
        self.put(buffer);
        result
    }

    /// A buffer of exactly `len` elements, of any content: the one that was [put](Kept::put) here last, if it is as long.
    pub fn exactly<T: Element>(&self, comm: &Communicator, len: usize) -> Result<Buffer<T>> {
        match self.take::<T>().filter(|buffer| buffer.len() == len) {
            Some(buffer) => Ok(buffer),
            None => Ok(comm.alloc(len)?),
        }
    }

    /// Keeps a buffer for the next time.
    pub fn put<T: Element>(&self, buffer: Buffer<T>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(TypeId::of::<T>(), Box::new(buffer));
    }

    fn take<T: Element>(&self) -> Option<Buffer<T>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&TypeId::of::<T>()).and_then(|buffer| buffer.downcast().ok()).map(|buffer| *buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_is_kept() {
        let comm = Communicator::local(1).unwrap().remove(0);
        let kept = Kept::default();
        let address =
            |len| kept.with(&comm, len, |x: &mut [f32]| Ok((x.as_ptr() as usize, x.len()))).unwrap();
        let long = address(1000);
        assert_eq!(address(10), (long.0, 10));
        assert_eq!(address(1000), long);
        assert_eq!(kept.with(&comm, 3000, |x: &mut [f64]| Ok(x.len())).unwrap(), 3000);
        assert_eq!(address(1000), long);
        assert_eq!(address(5000).1, 5000);
        let whole = Kept::default();
        let first = whole.exactly::<f32>(&comm, 10).unwrap();
        let address = first.as_ptr();
        whole.put(first);
        let again = whole.exactly::<f32>(&comm, 10).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (address, 10));
        whole.put(again);
        assert_eq!(whole.exactly::<f32>(&comm, 9).unwrap().len(), 9);
    }
}
