//! The arguments of the kernels in `kernels/transformer.cu`. `kernels/transformer.cuh` says what the fields point to; `T`
//! is the type of an element.
#![allow(missing_docs)]

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Attention<T> {
    pub projected: *const T,
    pub bias: *const f32,
    pub offsets: *const u32,
    pub relative: *const f32,
    pub mixed: *mut T,
    pub scale: f32,
    pub reach: u32,
    pub shared: u32,
    pub window: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Turn<T> {
    pub projected: *const T,
    pub query: *const f32,
    pub key: *const f32,
    pub cosines: *const f32,
    pub sines: *const f32,
    pub offsets: *const u32,
    pub out: *mut T,
    pub heads: u32,
    pub shared: u32,
    pub size: u32,
    pub scale: f32,
    pub epsilon: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Activate<T> {
    pub product: *const T,
    pub bias: *const f32,
    pub out: *mut T,
    pub rows: u32,
    pub width: u32,
    pub activation: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gate<T> {
    pub product: *const T,
    pub out: *mut T,
    pub rows: u32,
    pub width: u32,
    pub activation: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Normalize<T> {
    pub stream: *const f32,
    pub product: *const T,
    pub bias: *const f32,
    pub weight: *const f32,
    pub shift: *const f32,
    pub kept: *mut f32,
    pub out: *mut T,
    pub rows: u32,
    pub width: u32,
    pub epsilon: f32,
    pub normalized: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RootNormalize<T> {
    pub stream: *const f32,
    pub product: *const T,
    pub inner: *const f32,
    pub weight: *const f32,
    pub kept: *mut f32,
    pub out: *mut T,
    pub rows: u32,
    pub width: u32,
    pub epsilon: f32,
    pub normalized: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    pub states: *const f32,
    pub offsets: *const u32,
    pub out: *mut f32,
    pub width: u32,
    pub pooling: u32,
}
