//! Registered memory that is kept from one call to the next. Ranks of a host read it in place; new memory for each call
//! would take longer than the call does.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nd_comm::prelude::{Buffer, Communicator, Element};

use crate::error::Result;

/// Of each element type the longest buffer so far.
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
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(TypeId::of::<T>(), Box::new(buffer));
        result
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
    }
}
