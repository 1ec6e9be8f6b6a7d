//! What a process may run out of: memory whose size depends on data, and [threads].
//!
//! `Vec::with_capacity`, `vec![x; n]` and `push` abort the process when there is no memory, and a
//! backend that aborts takes the whole server with it. Whatever is as large as somebody's data is
//! made here instead, where the lack of memory is an error like others.
//!
//! An allocator that has a last resort for those that cannot cope (the extension's ends the session
//! instead of the server) asks [`attempting`] whether the one that it has no memory for can.

pub mod heap;
pub mod room;
pub mod threads;

use std::cell::Cell;
use std::collections::TryReserveError;
use std::fmt;
use std::thread::LocalKey;

/// An allocation of this many bytes has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The bytes that were asked for; `usize::MAX` for more than can be counted.
    pub bytes: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory: failed on a request of {} bytes",
            self.bytes
        )
    }
}

impl std::error::Error for OutOfMemory {}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, OutOfMemory>;

/// How many calls of a kind a thread is in.
type Depth = LocalKey<Cell<u32>>;

/// Calls `f`, one deeper until it returns or unwinds.
fn within<T>(depth: &'static Depth, f: impl FnOnce() -> T) -> T {
    struct End(&'static Depth);
    impl Drop for End {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }
    depth.set(depth.get() + 1);
    let _end = End(depth);
    f()
}

/// Whether the calling thread is in such a call; a thread that ends, and has lost the variable, is in none.
fn is_within(depth: &'static Depth) -> bool {
    depth.try_with(|depth| depth.get() > 0) == Ok(true)
}

thread_local! {
    /// Calls of [`attempt`] that this thread is in.
    static ATTEMPTS: Cell<u32> = const { Cell::new(0) };
}

/// Calls `f`, whose requests for memory may fail: it looks at the result of each.
pub fn attempt<T>(f: impl FnOnce() -> T) -> T {
    within(&ATTEMPTS, f)
}

thread_local! {
    /// Calls of [`unchecked`] that this thread is in.
    static UNCHECKED: Cell<u32> = const { Cell::new(0) };
}

/// Calls `f`, code of a library that maps memory without looking whether it got it. Who makes mappings for it (the
/// extension) asks [`is_unchecked`] before it returns that there was none.
pub fn unchecked<T>(f: impl FnOnce() -> T) -> T {
    within(&UNCHECKED, f)
}

/// Whether the calling thread is in [`unchecked`].
pub fn is_unchecked() -> bool {
    is_within(&UNCHECKED)
}

/// Whether the calling thread is in [`attempt`].
pub fn attempting() -> bool {
    is_within(&ATTEMPTS)
}

/// Makes room in a collection; `bytes` is what to say that there was none for.
pub fn reserve(
    bytes: usize,
    reserve: impl FnOnce() -> std::result::Result<(), TryReserveError>,
) -> Result<()> {
    attempt(reserve).map_err(|_| OutOfMemory { bytes })
}

fn bytes_of<T>(n: usize) -> usize {
    n.saturating_mul(size_of::<T>())
}

/// As `Vec::with_capacity`.
///
/// # Errors
/// No memory.
pub fn with_capacity<T>(n: usize) -> Result<Vec<T>> {
    let mut made = Vec::new();
    reserve(bytes_of::<T>(n), || made.try_reserve_exact(n))?;
    Ok(made)
}

/// As `vec![value; n]`.
///
/// # Errors
/// No memory.
pub fn filled<T: Copy>(value: T, n: usize) -> Result<Vec<T>> {
    let mut made = with_capacity(n)?;
    made.resize(n, value);
    Ok(made)
}

/// A copy of a slice.
///
/// # Errors
/// No memory.
pub fn copied<T: Copy>(slice: &[T]) -> Result<Vec<T>> {
    let mut made = with_capacity(slice.len())?;
    made.extend_from_slice(slice);
    Ok(made)
}

/// As `Iterator::collect`.
///
/// # Errors
/// No memory.
pub fn collect<T>(values: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    let mut made = Vec::new();
    extend(&mut made, values)?;
    Ok(made)
}

/// As `Vec::push`.
///
/// # Errors
/// No memory; the vector is what it was.
#[inline]
pub fn push<T>(to: &mut Vec<T>, value: T) -> Result<()> {
    if to.len() == to.capacity() {
        grow(to, 1)?;
    }
    to.push(value);
    Ok(())
}

/// As `Vec::extend`.
///
/// # Errors
/// No memory; what came before is in the vector.
pub fn extend<T>(to: &mut Vec<T>, values: impl IntoIterator<Item = T>) -> Result<()> {
    let values = values.into_iter();
    let least = values.size_hint().0;
    if least > to.capacity() - to.len() {
        grow(to, least)?;
    }
    for value in values {
        push(to, value)?;
    }
    Ok(())
}

/// As `Vec::extend_from_slice`.
///
/// # Errors
/// No memory; the vector is what it was.
pub fn extend_from_slice<T: Copy>(to: &mut Vec<T>, values: &[T]) -> Result<()> {
    if values.len() > to.capacity() - to.len() {
        grow(to, values.len())?;
    }
    to.extend_from_slice(values);
    Ok(())
}

/// Makes room for `more` values: twice of what there is, or at least that.
#[cold]
fn grow<T>(to: &mut Vec<T>, more: usize) -> Result<()> {
    let bytes = bytes_of::<T>(to.len().saturating_add(more));
    reserve(bytes, || {
        to.try_reserve(more).or_else(|_| to.try_reserve_exact(more))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than any machine's addresses.
    const MUCH: usize = 1 << 60;

    #[test]
    fn no_memory_is_an_error() {
        let expected = OutOfMemory { bytes: MUCH };
        assert_eq!(with_capacity::<u8>(MUCH), Err(expected));
        assert_eq!(filled(0u8, MUCH), Err(expected));
        assert_eq!(
            filled(0u64, 4 * MUCH),
            Err(OutOfMemory { bytes: usize::MAX })
        );
        struct Endless;
        impl Iterator for Endless {
            type Item = u8;
            fn next(&mut self) -> Option<u8> {
                Some(1)
            }
            fn size_hint(&self) -> (usize, Option<usize>) {
                (MUCH, None)
            }
        }
        assert_eq!(collect(Endless), Err(expected));
    }

    #[test]
    fn values_are_kept() {
        let mut all = filled(7u32, 3).unwrap();
        push(&mut all, 8).unwrap();
        extend(&mut all, [1, 2]).unwrap();
        extend_from_slice(&mut all, &[3]).unwrap();
        assert_eq!(all, [7, 7, 7, 8, 1, 2, 3]);
        assert_eq!(copied(&all).unwrap(), all);
        assert_eq!(
            collect(all.iter().copied().filter(|v| *v == 7)).unwrap(),
            [7; 3]
        );
    }

    #[test]
    fn what_is_unchecked_ends_when_it_unwinds() {
        assert!(!is_unchecked());
        unchecked(|| assert!(is_unchecked()));
        let panicked = std::panic::catch_unwind(|| unchecked(|| panic!("on purpose")));
        assert!(panicked.is_err() && !is_unchecked());
    }

    #[test]
    fn an_attempt_ends_when_it_unwinds() {
        assert!(!attempting());
        attempt(|| assert!(attempting()));
        let panicked = std::panic::catch_unwind(|| attempt(|| panic!("on purpose")));
        assert!(panicked.is_err() && !attempting());
    }
}
