//! Sorting that can be stopped.

use std::cmp::Ordering;

use crate::Error;

/// Told now and then that the work goes on; its error ends it.
pub type Watch<'a> = &'a dyn Fn() -> Result<(), Error>;

/// A [`Watch`] that never ends the work.
pub fn unwatched() -> Result<(), Error> {
    Ok(())
}

/// Items that are sorted or visited between two calls of a [`Watch`]: a few milliseconds.
pub(crate) const STEP: usize = 1 << 16;

/// Sorts by merging, and asks `watch` between the steps.
///
/// # Errors
/// No memory, or those of `watch`.
pub fn sort_by<T: Copy>(
    items: &mut Vec<T>,
    order: impl Fn(&T, &T) -> Ordering,
    watch: Watch<'_>,
) -> Result<(), Error> {
    for part in items.chunks_mut(STEP) {
        watch()?;
        part.sort_unstable_by(&order);
    }
    let mut width = STEP;
    if width >= items.len() {
        return Ok(());
    }
    let mut merged = laser_memory::with_capacity(items.len())?;
    while width < items.len() {
        merged.clear();
        for pair in items.chunks(2 * width) {
            let (mut a, mut b) = pair.split_at(width.min(pair.len()));
            while let (Some(first), Some(second)) = (a.first(), b.first()) {
                if merged.len() % STEP == 0 {
                    watch()?;
                }
                if order(second, first) == Ordering::Less {
                    merged.push(*second);
                    b = &b[1..];
                } else {
                    merged.push(*first);
                    a = &a[1..];
                }
            }
            merged.extend_from_slice(a);
            merged.extend_from_slice(b);
        }
        std::mem::swap(items, &mut merged);
        width *= 2;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn numbers(n: u64) -> Vec<u64> {
        (0..n)
            .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40)
            .collect()
    }

    #[test]
    fn any_number_of_items_is_sorted() {
        for n in [0, 1, 2, STEP as u64, STEP as u64 + 1, 5 * STEP as u64 + 7] {
            let (mut items, mut expected) = (numbers(n), numbers(n));
            sort_by(&mut items, u64::cmp, &unwatched).unwrap();
            expected.sort_unstable();
            assert!(items == expected, "{n}");
        }
    }

    #[test]
    fn it_stops_when_told() {
        for steps in 0..8 {
            let left = Cell::new(steps);
            let watch = || match left.get() {
                0 => Err(Error::Cancelled),
                n => {
                    left.set(n - 1);
                    Ok(())
                }
            };
            let result = sort_by(&mut numbers(4 * STEP as u64), u64::cmp, &watch);
            assert!(matches!(result, Err(Error::Cancelled)), "{steps}");
        }
    }
}
