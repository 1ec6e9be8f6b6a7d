//! The arguments of the kernels in `kernels/lstm.cu`.

/// `Forward` of `kernels/lstm.cuh`, which says what the fields point to; `T` is the type of an
/// element.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Forward<T> {
    pub products: *const T,
    pub recurrent: *const T,
    pub bias: *const f32,
    pub offsets: *const u32,
    pub states: *mut T,
    pub cell: *mut f32,
    pub arrivals: *mut u32,
    pub pooled: *mut f32,
    pub argmax: *mut u32,
    pub gates: *mut T,
    pub cells: *mut f32,
    pub hidden: u32,
    pub steps: u32,
    pub pooling: u32,
}

// Derived they would ask T for the same.
impl<T> Clone for Forward<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Forward<T> {}

/// `Backward` of `kernels/lstm.cuh`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Backward<T> {
    pub recurrent: *const T,
    pub offsets: *const u32,
    pub gates: *const T,
    pub cells: *const f32,
    pub d_states: *const T,
    pub d_pooled: *const f32,
    pub argmax: *const u32,
    pub d_products: *mut T,
    pub d_cell: *mut f32,
    pub arrivals: *mut u32,
    pub hidden: u32,
    pub steps: u32,
    pub pooling: u32,
}

impl<T> Clone for Backward<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Backward<T> {}
