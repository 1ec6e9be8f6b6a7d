//! The element types of embeddings.

use half::f16;

/// An element of an embedding: `f32` or IEEE half precision.
pub trait Element: bytemuck::Pod + PartialOrd + Default + Send + Sync + std::fmt::Debug {
    /// The SQL name of the type made of these elements.
    const KIND: &'static str;
    /// Bytes of one element.
    const SIZE: usize = size_of::<Self>();
    /// Widens the element, exactly.
    fn to_f32(self) -> f32;
    /// Rounds to the nearest element; infinite where the value is too large.
    fn from_f32(value: f32) -> Self;
    /// Rounds to the nearest element in one step; infinite where the value is too large.
    fn from_f64(value: f64) -> Self;
    /// Neither NaN nor infinite.
    fn is_finite(self) -> bool;
    /// Not a number.
    fn is_nan(self) -> bool;
    /// Appends the element in network order.
    fn put(self, out: &mut Vec<u8>);
    /// Reads an element in network order from [`Element::SIZE`] bytes.
    fn get(bytes: &[u8]) -> Self;
    /// The inner product of two slices of one length.
    fn dot(a: &[Self], b: &[Self]) -> f32;
    /// The squared Euclidean distance of two slices of one length.
    fn l2_squared(a: &[Self], b: &[Self]) -> f32;
    /// `[a·b, a·a, b·b]` in one pass.
    fn cosine_sums(a: &[Self], b: &[Self]) -> [f32; 3];
    /// The sum of absolute differences.
    fn l1(a: &[Self], b: &[Self]) -> f32;
}

impl Element for f32 {
    const KIND: &'static str = "embedding";

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        f32::is_nan(self)
    }

    #[inline(always)]
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }

    #[inline(always)]
    fn get(bytes: &[u8]) -> Self {
        f32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn dot(a: &[Self], b: &[Self]) -> f32 {
        crate::kernels::f32_dot(a, b)
    }

    fn l2_squared(a: &[Self], b: &[Self]) -> f32 {
        crate::kernels::f32_l2_squared(a, b)
    }

    fn cosine_sums(a: &[Self], b: &[Self]) -> [f32; 3] {
        crate::kernels::f32_cosine_sums(a, b)
    }

    fn l1(a: &[Self], b: &[Self]) -> f32 {
        crate::kernels::f32_l1(a, b)
    }
}

impl Element for f16 {
    const KIND: &'static str = "halfembedding";

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        f16::from_f64(value)
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        f16::is_finite(self)
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        f16::is_nan(self)
    }

    #[inline(always)]
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }

    #[inline(always)]
    fn get(bytes: &[u8]) -> Self {
        f16::from_be_bytes([bytes[0], bytes[1]])
    }

    fn dot(a: &[Self], b: &[Self]) -> f32 {
        crate::kernels::f16_dot(a, b)
    }

    fn l2_squared(a: &[Self], b: &[Self]) -> f32 {
        crate::kernels::f16_l2_squared(a, b)
    }

    fn cosine_sums(a: &[Self], b: &[Self]) -> [f32; 3] {
        crate::kernels::f16_cosine_sums(a, b)
    }

    fn l1(a: &[Self], b: &[Self]) -> f32 {
        crate::kernels::f16_l1(a, b)
    }
}
