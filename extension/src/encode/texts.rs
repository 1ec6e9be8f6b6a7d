//! Arrays of texts, whose elements are replaced by what a model makes of them.
#![allow(unsafe_code)]

use std::cell::Cell;

use pgrx::pg_sys::{self, Datum};
use pgrx::{PgSqlErrorCode, varlena};

use crate::pg::errors::raise_hint;

/// An argument of type `text[]`.
pub struct Texts<'a> {
    array: *mut pg_sys::ArrayType,
    elements: &'a mut [Datum],
    nulls: &'a mut [bool],
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
                0 => (&mut [][..], &mut [][..]),
                _ => (
                    std::slice::from_raw_parts_mut(elements, count as usize),
                    std::slice::from_raw_parts_mut(nulls, count as usize),
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

    /// Has `make` put a value for each text that is not null, in their order. Texts are read ahead of what
    /// takes their places.
    pub fn replace(
        &mut self,
        make: impl FnOnce(&mut dyn Iterator<Item = &'a [u8]>, &mut dyn FnMut(Datum)),
    ) {
        let places = Cell::from_mut(&mut *self.elements).as_slice_of_cells();
        let nulls = &*self.nulls;
        let present = || {
            let places = places.iter().zip(nulls);
            places.filter(|(_, null)| !**null).map(|(place, _)| place)
        };
        // SAFETY: elements that are not null are texts inside the array, which outlives the call.
        let mut texts = present().map(|place| unsafe { text(place.get()) });
        let mut results = present();
        make(&mut texts, &mut |value| {
            results.next().expect("as many as texts").set(value);
        });
    }

    /// An array of the argument's shape with what has taken the places of its elements, of the type that the
    /// function returns.
    ///
    /// # Safety
    /// The call that the argument is of; each text was replaced by a value of that type.
    pub unsafe fn result(self, fcinfo: pg_sys::FunctionCallInfo) -> Datum {
        // SAFETY: the result has the shape of the argument, whose dimensions and bounds follow its
        // header (ARR_DIMS, ARR_LBOUND in array.h); `elements` and `nulls` have one entry for each
        // element; the catalogue knows the type's properties.
        unsafe {
            let returned = pg_sys::get_func_rettype((*(*fcinfo).flinfo).fn_oid);
            let element = pg_sys::get_element_type(returned);
            if self.elements.is_empty() {
                return Datum::from(pg_sys::construct_empty_array(element));
            }
            let (mut length, mut by_value, mut alignment) = (0, false, 0);
            pg_sys::get_typlenbyvalalign(element, &mut length, &mut by_value, &mut alignment);
            let ndim = (*self.array).ndim;
            let dims = self.array.add(1).cast::<i32>();
            let result = pg_sys::construct_md_array(
                self.elements.as_mut_ptr(),
                self.nulls.as_mut_ptr(),
                ndim,
                dims,
                dims.add(ndim as usize),
                element,
                i32::from(length),
                by_value,
                alignment,
            );
            Datum::from(result)
        }
    }
}

/// Elements of an array, nulls among them: the server takes arrays apart and puts them together without
/// checking for interrupts: half a second for this many.
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
