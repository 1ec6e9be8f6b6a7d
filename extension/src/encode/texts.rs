//! Arrays of texts, and arrays of what a model makes of them.
#![allow(unsafe_code)]

use laser_vector::Element;
use pgrx::pg_sys::{self, Datum};
use pgrx::{PgSqlErrorCode, varlena};

use crate::pg::arrays::Growing;
use crate::pg::errors::raise_hint;
use crate::types::{datum_size, write_values};

/// What a model makes of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// An `embedding` of each.
    Embeddings,
    /// A number of each, of type `real`.
    Scores,
}

impl Made {
    fn size(self, values: &[f32]) -> usize {
        match self {
            Self::Embeddings => datum_size::<f32>(values.len()),
            Self::Scores => f32::SIZE,
        }
    }

    /// # Safety
    /// [`Made::size`] bytes at an address that is a multiple of 4, to which nothing else refers.
    unsafe fn write(self, place: *mut u8, values: &[f32]) {
        // SAFETY: by contract.
        unsafe {
            match self {
                Self::Embeddings => write_values(place, values),
                Self::Scores => place.cast::<f32>().write(values[0]),
            }
        }
    }
}

/// An argument of type `text[]`.
pub struct Texts<'a> {
    array: *mut pg_sys::ArrayType,
    elements: &'a [Datum],
    nulls: &'a [bool],
}

impl<'a> Texts<'a> {
    /// # Safety
    /// The argument exists, is not null and is declared as `text[]`; the result is used while the call lasts.
    pub unsafe fn of_argument(fcinfo: pg_sys::FunctionCallInfo, at: usize) -> Self {
        // SAFETY: by contract; elements have the properties of `text` (variable length, aligned to int).
        unsafe {
            let argument = (*fcinfo).args.as_slice((*fcinfo).nargs as usize)[at].value;
            let array =
                pg_sys::pg_detoast_datum(argument.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
            let dims = array.add(1).cast::<i32>();
            check_length(pg_sys::ArrayGetNItems((*array).ndim, dims));
            let mut elements = std::ptr::null_mut();
            let mut nulls = std::ptr::null_mut();
            let mut count = 0;
            pg_sys::deconstruct_array(
                array,
                pg_sys::TEXTOID,
                -1,
                false,
                pg_sys::TYPALIGN_INT as std::ffi::c_char,
                &mut elements,
                &mut nulls,
                &mut count,
            );
            let (elements, nulls) = match count {
                0 => (&[][..], &[][..]),
                _ => (
                    std::slice::from_raw_parts(elements, count as usize),
                    std::slice::from_raw_parts(nulls, count as usize),
                ),
            };
            Self {
                array,
                elements,
                nulls,
            }
        }
    }

    /// Texts that are not null.
    pub fn len(&self) -> usize {
        self.nulls.iter().filter(|null| !**null).count()
    }

    /// An array of the argument's shape with what `make` hands over for each text that is not null, in their order, all of as
    /// many numbers as the first.
    ///
    /// Each is written where it stays. To make room for a gigabyte and to put it together at once, as the server does, takes a
    /// second, in which nothing hears a cancel, and twice the memory.
    ///
    /// # Safety
    /// The call that the argument is of, which returns an array of what is `made`.
    pub unsafe fn map(
        &self,
        fcinfo: pg_sys::FunctionCallInfo,
        made: Made,
        make: impl FnOnce(&mut dyn Iterator<Item = &'a [u8]>, &mut dyn FnMut(&[f32])),
    ) -> Datum {
        // SAFETY: by contract; the catalogue knows the type. The argument's array is of this shape.
        let begin = |bytes| unsafe {
            let returned = pg_sys::get_func_rettype((*(*fcinfo).flinfo).fn_oid);
            Growing::like(
                self.array,
                self.nulls,
                pg_sys::get_element_type(returned),
                bytes,
            )
        };
        let present = self.elements.iter().zip(self.nulls);
        let present = present.filter(|(_, null)| !**null);
        // SAFETY: elements that are not null are texts inside the array, which outlives the call.
        let mut texts = present.map(|(element, _)| unsafe { text(*element) });
        let mut array = None;
        make(&mut texts, &mut |values| {
            let size = made.size(values);
            let array = array.get_or_insert_with(|| begin(self.len() * size));
            // SAFETY: sizes are multiples of 4, and so are the addresses.
            unsafe { made.write(array.next(size), values) };
        });
        array.unwrap_or_else(|| begin(0)).finish()
    }
}

/// Elements of an array, nulls among them: the server takes arrays apart without checking for interrupts.
const MAX_ELEMENTS: i32 = 4 << 20;

fn check_length(elements: i32) {
    if elements > MAX_ELEMENTS {
        raise_hint(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            format!("array of {elements} texts is too long, the limit is {MAX_ELEMENTS}"),
            "Call the function on parts of the array, or on the rows of unnest().",
        );
    }
}

/// The bytes of a `text`; a detoasted copy is left to the memory context of the call.
///
/// # Safety
/// The datum is a non-null `text` that outlives the result.
pub unsafe fn text<'a>(datum: Datum) -> &'a [u8] {
    // SAFETY: a varlena datum, detoasted before its bytes are read.
    unsafe {
        let flat = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
        std::slice::from_raw_parts(
            varlena::vardata_any(flat).cast::<u8>(),
            varlena::varsize_any_exhdr(flat),
        )
    }
}
