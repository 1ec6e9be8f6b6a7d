//! Arrays that are written element by element.
#![allow(unsafe_code)]

use std::ffi::c_void;

use pgrx::pg_sys::{self, Datum};
use pgrx::varlena;

/// An array of elements of variable or fixed length that are aligned to 4 bytes or less.
///
/// ```text
/// offset 0  ArrayType (src/include/utils/array.h)
///       16  dimensions and lower bounds, an int32 of each for each
///           a bit for each element, 1 where it is not null, if there are nulls
///           the elements that are not null, from a multiple of 8 on (MAXALIGN)
/// ```
pub struct Growing {
    array: *mut pg_sys::ArrayType,
    /// Where the next element goes.
    end: usize,
    size: usize,
}

const ALIGNMENT: usize = pg_sys::MAXIMUM_ALIGNOF as usize;

impl Growing {
    /// An array of the shape of another one, whose elements that are not null take as many bytes together; in the current memory
    /// context. Raises a SQL error where that is more than a value can have.
    ///
    /// # Safety
    /// A plain array, with as many `nulls` as it has elements.
    pub unsafe fn like(
        shape: *const pg_sys::ArrayType,
        nulls: &[bool],
        element: pg_sys::Oid,
        bytes: usize,
    ) -> Self {
        // SAFETY: by contract dimensions and bounds follow the header; what is allocated begins with the bytes of the header.
        unsafe {
            if nulls.is_empty() {
                let array = pg_sys::construct_empty_array(element);
                let size = varlena::varsize_4b(array.cast());
                return Self {
                    array,
                    end: size,
                    size,
                };
            }
            let ndim = (*shape).ndim as usize;
            let bounds = size_of::<pg_sys::ArrayType>() + 2 * ndim * size_of::<i32>();
            let has_nulls = nulls.contains(&true);
            let bitmap = if has_nulls {
                nulls.len().div_ceil(8)
            } else {
                0
            };
            let header = (bounds + bitmap).next_multiple_of(ALIGNMENT);
            let size = header + bytes;
            let array = pg_sys::palloc(size).cast::<pg_sys::ArrayType>();
            let start = array.cast::<u8>();
            start.write_bytes(0, header);
            start.copy_from_nonoverlapping(shape.cast(), bounds);
            varlena::set_varsize_4b(array.cast(), size as i32);
            (*array).dataoffset = if has_nulls { header as i32 } else { 0 };
            (*array).elemtype = element;
            let bits = std::slice::from_raw_parts_mut(start.add(bounds), bitmap);
            for (byte, nulls) in bits.iter_mut().zip(nulls.chunks(8)) {
                let bit = |(at, null): (usize, &bool)| u8::from(!null) << at;
                *byte = nulls.iter().enumerate().map(bit).sum();
            }
            Self {
                array,
                end: header,
                size,
            }
        }
    }

    /// The place of the next element, of which the caller writes every byte.
    pub fn next(&mut self, size: usize) -> *mut u8 {
        assert!(size <= self.size - self.end, "an array of fewer bytes");
        // SAFETY: the place lies inside the array.
        let place = unsafe { self.array.cast::<u8>().add(self.end) };
        self.end += size;
        place
    }

    /// The array, all of whose elements are written.
    pub fn finish(self) -> Datum {
        assert!(self.end == self.size, "an array of more bytes");
        Datum::from(self.array.cast::<c_void>())
    }
}
