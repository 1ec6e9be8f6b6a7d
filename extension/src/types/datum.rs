//! The datum of an embedding.
//!
//! ```text
//! offset 0  int32  varlena header
//!        4  int16  dimensions, 1 to 16,000
//!        6  int16  unused, 0
//!        8  elements: f32 (embedding) or f16 (halfembedding)
//! ```
//!
//! This is `struct Vector` of pgvector's `vector.h` and `struct HalfVector` of its `halfvec.h`.
//! The type's alignment is 4, which suits both elements.
#![allow(unsafe_code)]

use super::errors::OrReport;
use crate::pg::errors::raise;
use crate::pg::fmgr::Call;
use laser_vector::{Element, f16};
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Datum as LivingDatum, FromDatum, IntoDatum};
use pgrx::pg_sys::{self, Datum};
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{PgSqlErrorCode, varlena};
use std::marker::PhantomData;

#[repr(C)]
struct Header {
    varlena: i32,
    dimensions: i16,
    unused: i16,
}

const HEADER: usize = size_of::<Header>();
const _: () = assert!(HEADER == 8 && align_of::<Header>() == 4);

/// The largest datum stays far below the varlena limit of 1 GB.
const _: () = assert!(HEADER + laser_vector::MAX_DIMENSIONS * 4 < 1 << 20);

/// An embedding read from a datum. It borrows the datum where that is stored plainly, and owns a
/// detoasted copy, which is freed with it, where it is not.
#[derive(Debug)]
pub struct Values<'a, E: Element> {
    header: *const Header,
    copied: bool,
    life: PhantomData<&'a E>,
}

/// An `embedding` datum.
#[allow(dead_code)]
pub type Embedding<'a> = Values<'a, f32>;
/// A `halfembedding` datum.
#[allow(dead_code)]
pub type HalfEmbedding<'a> = Values<'a, f16>;

impl<E: Element> Values<'_, E> {
    /// Reads a datum, detoasting it where needed.
    ///
    /// # Safety
    /// `datum` is a non-null datum of the SQL type with elements `E` (or one that is binary
    /// coercible to it) and lives as long as the result's lifetime.
    #[inline]
    pub unsafe fn from_raw(datum: Datum) -> Self {
        let stored = datum.cast_mut_ptr::<pg_sys::varlena>();
        // SAFETY: a non-null varlena datum, by contract.
        let plain = unsafe { varlena::varatt_is_4b_u(stored) };
        let flat = if plain {
            stored
        } else {
            // SAFETY: as above; the copy is a plain varlena.
            unsafe { pg_sys::pg_detoast_datum(stored) }
        };
        let values = Self {
            header: flat.cast(),
            copied: flat != stored,
            life: PhantomData,
        };
        // SAFETY: a plain varlena has its size in its header.
        let size = unsafe { varlena::varsize_4b(flat) };
        // A wrong size means a damaged page or a cast that lies about the layout; reading beyond
        // the datum must not follow from either.
        if size < HEADER || size != HEADER + values.dimensions() * E::SIZE {
            damaged::<E>(size);
        }
        values
    }

    /// The number of dimensions.
    #[inline]
    pub fn dimensions(&self) -> usize {
        // SAFETY: `header` points to a plain datum that lives as long as `self`.
        unsafe { (*self.header).dimensions as u16 as usize }
    }

    /// As many elements as the value has dimensions.
    #[inline]
    pub fn as_slice(&self) -> &[E] {
        // SAFETY: from_raw() checked that the datum holds that many elements after its header,
        // at an address that is a multiple of 4.
        unsafe { std::slice::from_raw_parts(self.header.add(1).cast(), self.dimensions()) }
    }

    /// The address of the plain datum, to be returned as a result of the function that received
    /// it; a detoasted copy is then left to its memory context.
    pub fn into_datum(self) -> Datum {
        let datum = Datum::from(self.header);
        std::mem::forget(self);
        datum
    }
}

impl Call {
    /// An argument that is an embedding with elements `E`.
    ///
    /// # Safety
    /// The SQL declaration gives the argument that type.
    #[inline]
    pub unsafe fn values<E: Element>(&self, index: usize) -> Values<'_, E> {
        // SAFETY: by contract, and arguments live as long as the call.
        unsafe { Values::from_raw(self.datum(index)) }
    }
}

impl<E: Element> Drop for Values<'_, E> {
    #[inline]
    fn drop(&mut self) {
        // While a panic unwinds the memory context may already be on its way out.
        if self.copied && !std::thread::panicking() {
            // SAFETY: pg_detoast_datum() allocated the copy and nothing else refers to it.
            unsafe { pg_sys::pfree(self.header.cast_mut().cast()) };
        }
    }
}

#[cold]
fn damaged<E: Element>(size: usize) -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_DATA_CORRUPTED,
        format!(
            "damaged value of type {}: its {size} bytes do not fit its dimensions",
            E::KIND
        ),
    )
}

/// The bytes of a datum with elements `E`.
pub const fn datum_size<E: Element>(dimensions: usize) -> usize {
    HEADER + dimensions * E::SIZE
}

/// Writes the header of a datum, and gives the place of its elements.
///
/// # Safety
/// [`datum_size`] bytes at an address that is a multiple of 4, to which nothing else refers.
unsafe fn begin<E: Element>(place: *mut u8, dimensions: usize) -> *mut E {
    let header = place.cast::<Header>();
    // SAFETY: by contract.
    unsafe {
        varlena::set_varsize_4b(header.cast(), datum_size::<E>(dimensions) as i32);
        (*header).dimensions = dimensions as i16;
        (*header).unused = 0;
        header.add(1).cast()
    }
}

/// Allocates a datum of `dimensions` zeros in the current memory context and lets `fill` write
/// its elements.
///
/// The caller answers for 1 to 16,000 dimensions and finite elements.
pub(super) fn build<E: Element>(dimensions: usize, fill: impl FnOnce(&mut [E])) -> Datum {
    debug_assert!((1..=laser_vector::MAX_DIMENSIONS).contains(&dimensions));
    // SAFETY: palloc0() returns that many zeroed bytes, aligned for any type, or raises an error. Zero
    // bytes are valid elements.
    unsafe {
        let place = pg_sys::palloc0(datum_size::<E>(dimensions)).cast::<u8>();
        let elements = begin(place, dimensions);
        fill(std::slice::from_raw_parts_mut(elements, dimensions));
        Datum::from(place)
    }
}

/// Writes a datum to a place that there is for it; raises the errors of [`new_values`].
///
/// # Safety
/// [`datum_size`] bytes at an address that is a multiple of 4, to which nothing else refers.
pub unsafe fn write_values<E: Element>(place: *mut u8, values: &[E]) {
    laser_vector::check(values).or_report();
    // SAFETY: by contract; the values lie elsewhere.
    unsafe {
        let elements = begin::<E>(place, values.len());
        elements.copy_from_nonoverlapping(values.as_ptr(), values.len());
    }
}

/// Makes a datum in the current memory context; raises a SQL error for elements that are not
/// finite and for no or too many dimensions.
pub fn new_values<E: Element>(values: &[E]) -> Datum {
    laser_vector::check(values).or_report();
    build(values.len(), |out: &mut [E]| out.copy_from_slice(values))
}

/// Makes an `embedding`; see [`new_values`].
#[allow(dead_code)]
pub fn new_embedding(values: &[f32]) -> Datum {
    new_values(values)
}

/// Makes a `halfembedding`; see [`new_values`].
#[allow(dead_code)]
pub fn new_half_embedding(values: &[f16]) -> Datum {
    new_values(values)
}

impl<E: Element> FromDatum for Values<'_, E> {
    unsafe fn from_polymorphic_datum(
        datum: Datum,
        is_null: bool,
        _type_oid: pg_sys::Oid,
    ) -> Option<Self> {
        // SAFETY: by the contract of this function the datum is of the type.
        (!is_null).then(|| unsafe { Self::from_raw(datum) })
    }
}

// SAFETY: the datum lives as long as the call, and its type is that of the SQL declaration.
unsafe impl<'fcx, E: Element> ArgAbi<'fcx> for Values<'fcx, E> {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: by the contract of this function the argument is of the type.
        match unsafe { arg.unbox_arg_using_from_datum() } {
            Some(values) => values,
            None => raise(
                PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
                format!("argument of type {} must not be null", E::KIND),
            ),
        }
    }
}

/// An embedding to be returned from a function; checked as by [`new_values`].
#[derive(Debug, Clone, PartialEq)]
pub struct OwnedValues<E: Element>(pub Vec<E>);

/// An `embedding` to be returned.
#[allow(dead_code)]
pub type OwnedEmbedding = OwnedValues<f32>;
/// A `halfembedding` to be returned.
#[allow(dead_code)]
pub type OwnedHalfEmbedding = OwnedValues<f16>;

impl<E: Element> IntoDatum for OwnedValues<E> {
    fn into_datum(self) -> Option<Datum> {
        Some(new_values(&self.0))
    }

    /// The type has no fixed OID: it is looked up on the search path.
    fn type_oid() -> pg_sys::Oid {
        pgrx::regtypein(E::KIND)
    }
}

// SAFETY: the datum is a new one of the declared type.
unsafe impl<E: Element> BoxRet for OwnedValues<E> {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> LivingDatum<'fcx> {
        // SAFETY: a new datum in the memory context of the call.
        unsafe { fcinfo.return_raw_datum(new_values(&self.0)) }
    }
}

macro_rules! translatable {
    ($($type:ty, $ident:literal;)*) => {$(
        // SAFETY: only names for generated SQL, which this project does not use.
        unsafe impl<E: Element> SqlTranslatable for $type {
            const TYPE_IDENT: &'static str = $ident;
            const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
            const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> =
                Ok(SqlMappingRef::literal(E::KIND));
            const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
                Ok(ReturnsRef::One(SqlMappingRef::literal(E::KIND)));
        }
    )*};
}

translatable! {
    Values<'_, E>, "laser::types::Values";
    OwnedValues<E>, "laser::types::OwnedValues";
}
