//! Memory that peers reach without a copy, and buffers that an asynchronous call can own.
#![allow(unsafe_code)] // typed views of registered memory

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use nd_transport::Window;

use crate::number::Element;

/// `len()` elements of registered memory, zero at first: ranks of the same host read them in place. Used like a
/// slice; freed when dropped. Outlives its communicator.
pub struct Buffer<T: Element> {
    window: Window,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// The window must have room for `len` elements.
    pub(crate) fn new(window: Window, len: usize) -> Buffer<T> {
        assert!(window.len() >= (len * size_of::<T>()) as u64);
        Buffer { window, len, elements: PhantomData }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: page-aligned memory of at least `len` elements that only this buffer's owner writes; all bit
        // patterns are values of every element type. Peers read it only while a call of the owner is going on.
        unsafe { std::slice::from_raw_parts(self.window.ptr().as_ptr().cast(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.window.ptr().as_ptr().cast(), self.len) }
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("offset", &self.window.offset()).finish()
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for Vec<T> {}
    impl<T> Sealed for Box<[T]> {}
    impl<T: super::Element> Sealed for super::Buffer<T> {}
}

/// A buffer that an asynchronous call takes and gives back: its elements stay where they are when it is moved.
pub trait Owned<T: Element>: sealed::Sealed + Send + 'static {
    /// Its elements.
    fn elements(&self) -> &[T];
    /// Its elements.
    fn elements_mut(&mut self) -> &mut [T];
}

macro_rules! owned {
    ($($buffer:ty),*) => {$(
        impl<T: Element> Owned<T> for $buffer {
            fn elements(&self) -> &[T] {
                self
            }
            fn elements_mut(&mut self) -> &mut [T] {
                self
            }
        }
    )*};
}
owned!(Vec<T>, Box<[T]>, Buffer<T>);
