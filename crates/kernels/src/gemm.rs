//! f32 products with a matrix that was packed once: `C = A Wᵀ (+ bias)`.
//!
//! The weights are kept in panels of [`PANEL`] output columns, the inner dimension running fastest
//! but one, so that a micro-kernel reads them in order; nothing is packed per call, which is what
//! makes products with few rows (one LSTM step, one sentence) cheap. The weights may be stored as
//! f32 or as bf16; the arithmetic is f32 either way.
#![allow(unsafe_code)]

use std::ops::Range;

use half::bf16;

use super::Isa;
use super::arena::{Arena, Block};

/// Output columns of a panel.
pub const PANEL: usize = 16;

/// Inner dimension of one pass over a panel: 256 x 16 f32 stay in the first-level cache.
const K_BLOCK: usize = 256;

/// Rows of A of one pass over all panels: they stay in the second-level cache.
const M_BLOCK: usize = 120;

#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Line32([f32; 16]);

#[repr(C, align(32))]
#[derive(Clone, Copy, bytemuck::Zeroable)]
struct Line16([bf16; 16]);

/// Element type of packed weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// 32-bit floats.
    F32,
    /// Brain floats: half the memory traffic, relative error up to 2^-9 per weight.
    Bf16,
}

enum Data {
    F32(Block<Line32>),
    Bf16(Block<Line16>),
    /// f32 that change from call to call ([`Packed::fill`]).
    Scratch(Vec<Line32>),
}

/// A matrix W of `columns()` x `depth()` (row-major [n, k] as in PyTorch) in panels.
pub struct Packed {
    n: usize,
    k: usize,
    data: Data,
}

impl Packed {
    /// Packs `n` rows of length `k`. `row(j, buffer)` fills `buffer` with row j and returns true,
    /// or returns false for a row of zeros.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn new(
        arena: &Arena,
        n: usize,
        k: usize,
        storage: Storage,
        mut row: impl FnMut(usize, &mut [f32]) -> bool,
    ) -> laser_memory::Result<Self> {
        let panels = n.div_ceil(PANEL);
        let mut data = match storage {
            Storage::F32 => Data::F32(arena.zeroed(panels * k)?),
            Storage::Bf16 => Data::Bf16(arena.zeroed(panels * k)?),
        };
        // The rows of one panel; then its lines, in order.
        let mut rows = vec![0f32; PANEL * k];
        for panel in 0..panels {
            for lane in 0..PANEL {
                let (j, buffer) = (panel * PANEL + lane, &mut rows[lane * k..(lane + 1) * k]);
                if j >= n || !row(j, buffer) {
                    buffer.fill(0.0);
                }
            }
            let line = |p: usize| std::array::from_fn(|lane| rows[lane * k + p]);
            let at = panel * k..(panel + 1) * k;
            match &mut data {
                Data::F32(lines) => {
                    let lines = lines[at].iter_mut().zip(0..);
                    lines.for_each(|(to, p)| *to = Line32(line(p)));
                }
                Data::Bf16(lines) => {
                    let lines = lines[at].iter_mut().zip(0..);
                    lines.for_each(|(to, p)| *to = Line16(line(p).map(bf16::from_f32)));
                }
                Data::Scratch(_) => unreachable!("made above"),
            }
        }
        Ok(Self { n, k, data })
    }

    /// A matrix of f32 without rows, to be [filled](Self::fill).
    pub(super) fn empty() -> Self {
        Self {
            n: 0,
            k: 0,
            data: Data::Scratch(Vec::new()),
        }
    }

    /// Becomes a matrix of `n` x `k`, in the memory it has if that is enough. `panel(i, lines)` fills
    /// panel i: line p holds element p of 16 rows. Lines have any contents before.
    ///
    /// # Panics
    /// Unless it was made [empty](Self::empty).
    pub(super) fn fill(
        &mut self,
        n: usize,
        k: usize,
        mut panel: impl FnMut(usize, &mut [[f32; PANEL]]),
    ) {
        let Data::Scratch(lines) = &mut self.data else {
            panic!("a matrix that was made empty");
        };
        lines.resize(n.div_ceil(PANEL) * k, Line32([0.0; PANEL]));
        for (i, lines) in lines.chunks_exact_mut(k.max(1)).enumerate() {
            panel(i, bytemuck::cast_slice_mut(lines));
        }
        (self.n, self.k) = (n, k);
    }

    /// Packs a row-major matrix [n, k].
    #[cfg(test)]
    fn from_rows(n: usize, k: usize, storage: Storage, data: &[f32]) -> Self {
        assert_eq!(data.len(), n * k, "matrix [n, k]");
        Self::new(&Arena::default(), n, k, storage, |j, buffer| {
            buffer.copy_from_slice(&data[j * k..(j + 1) * k]);
            true
        })
        .expect("memory")
    }

    /// Output columns n.
    pub fn columns(&self) -> usize {
        self.n
    }

    /// Inner dimension k.
    pub fn depth(&self) -> usize {
        self.k
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match &self.data {
            Data::F32(lines) => std::mem::size_of_val(&lines[..]),
            Data::Scratch(lines) => std::mem::size_of_val(&lines[..]),
            Data::Bf16(lines) => std::mem::size_of_val(&lines[..]),
        }
    }

    /// Pointer to the first element of a panel.
    pub(super) fn panel(&self, panel: usize) -> PanelPtr {
        debug_assert!(panel < self.n.div_ceil(PANEL));
        match &self.data {
            Data::F32(lines) => PanelPtr::F32(lines[panel * self.k..].as_ptr().cast()),
            Data::Scratch(lines) => PanelPtr::F32(lines[panel * self.k..].as_ptr().cast()),
            Data::Bf16(lines) => PanelPtr::Bf16(lines[panel * self.k..].as_ptr().cast()),
        }
    }
}

/// Start of a panel's data.
#[derive(Clone, Copy)]
pub(super) enum PanelPtr {
    F32(*const f32),
    Bf16(*const bf16),
}

impl PanelPtr {
    /// The panel from inner index `p` on.
    ///
    /// # Safety
    /// `p` must not exceed the depth of the matrix.
    unsafe fn skip(self, p: usize) -> Self {
        // SAFETY: the panel holds depth x PANEL elements.
        unsafe {
            match self {
                Self::F32(b) => Self::F32(b.add(p * PANEL)),
                Self::Bf16(b) => Self::Bf16(b.add(p * PANEL)),
            }
        }
    }
}

/// What the product is added to.
#[derive(Clone, Copy)]
pub enum Start<'a> {
    /// Zero: the product overwrites the output.
    Zero,
    /// One value per output column.
    Bias(&'a [f32]),
    /// The present contents of C.
    Accumulate,
}

/// # Panics
/// Unless `a` holds m rows of length k with stride `lda`.
pub(super) fn check_rows(m: usize, k: usize, a: &[f32], lda: usize) {
    assert!(lda >= k, "stride of A");
    assert!(m == 0 || a.len() >= (m - 1) * lda + k, "A");
}

/// # Panics
/// Unless `c` holds m rows of n columns with stride `ldc`, and a bias has n values.
pub(super) fn check_output(m: usize, n: usize, start: Start<'_>, c: &[f32], ldc: usize) {
    assert!(ldc >= n, "stride of C");
    assert!(m == 0 || c.len() >= (m - 1) * ldc + n, "C");
    if let Start::Bias(bias) = start {
        assert!(bias.len() >= n, "bias");
    }
}

/// Some panels of a matrix, and a part of its inner dimension.
#[derive(Clone)]
pub(super) struct Part<'a> {
    pub matrix: &'a Packed,
    pub panels: Range<usize>,
    pub depth: Range<usize>,
}

impl<'a> Part<'a> {
    /// All of a matrix.
    fn whole(matrix: &'a Packed) -> Self {
        Self {
            matrix,
            panels: 0..matrix.n.div_ceil(PANEL),
            depth: 0..matrix.k,
        }
    }
}

/// `C[m, n] = A[m, k] Wᵀ`, plus what `start` says. `a` has rows of stride `lda`, `c` of `ldc`.
///
/// # Panics
/// If a slice is too short for the sizes given.
#[allow(clippy::too_many_arguments)]
pub fn matmul(
    isa: Isa,
    m: usize,
    a: &[f32],
    lda: usize,
    w: &Packed,
    start: Start<'_>,
    c: &mut [f32],
    ldc: usize,
) {
    matmul_part(isa, m, a, lda, &Part::whole(w), start, c, ldc);
}

/// As [`matmul`] with a part of a matrix, whose columns and inner dimension count from its beginning.
///
/// # Panics
/// If the matrix has no such part, or a slice is too short for the sizes given.
#[allow(clippy::too_many_arguments)]
pub(super) fn matmul_part(
    isa: Isa,
    m: usize,
    a: &[f32],
    lda: usize,
    w: &Part<'_>,
    start: Start<'_>,
    c: &mut [f32],
    ldc: usize,
) {
    let Part {
        matrix,
        panels: within,
        depth,
    } = w;
    assert!(
        within.start <= within.end && within.end <= matrix.n.div_ceil(PANEL),
        "panels"
    );
    assert!(depth.start <= depth.end && depth.end <= matrix.k, "depth");
    let n = (within.end * PANEL)
        .min(matrix.n)
        .saturating_sub(within.start * PANEL);
    let k = depth.len();
    if m == 0 || n == 0 {
        return;
    }
    check_rows(m, k, a, lda);
    check_output(m, n, start, c, ldc);
    let rows_per_tile = tile_rows(isa);
    // The bias of the last, partly filled panel, and its results, go through these.
    let mut tail_bias = [0f32; PANEL];
    let tail = n % PANEL;
    if let (Start::Bias(bias), true) = (start, tail > 0) {
        tail_bias[..tail].copy_from_slice(&bias[n - tail..n]);
    }
    let mut tail_c = [0f32; 12 * PANEL];
    let mut m0 = 0;
    while m0 < m {
        let m1 = (m0 + M_BLOCK).min(m);
        let mut k0 = 0;
        loop {
            let k1 = (k0 + K_BLOCK).min(k);
            let mut panel = 0;
            while panel < n.div_ceil(PANEL) {
                let full = (panel + 1) * PANEL <= n;
                // Whole panels in tiles as wide as they get.
                let panels = match (n / PANEL).saturating_sub(panel) {
                    0 => 1,
                    whole => whole.min(tile_panels(isa)),
                };
                // SAFETY: k0 <= k, so that this is within the depth of the matrix.
                let b = unsafe { matrix.panel(within.start + panel).skip(depth.start + k0) };
                let mut r = m0;
                while r < m1 {
                    let rows = rows_per_tile.min(m1 - r);
                    let at = r * ldc + panel * PANEL;
                    let (init, ldi) = if k0 > 0 || matches!(start, Start::Accumulate) {
                        if full {
                            (c[at..].as_ptr(), ldc)
                        } else {
                            for i in 0..rows {
                                let from = &c[at + i * ldc..at + i * ldc + tail];
                                tail_c[i * PANEL..i * PANEL + tail].copy_from_slice(from);
                            }
                            (tail_c.as_ptr(), PANEL)
                        }
                    } else if let Start::Bias(bias) = start {
                        let bias = if full {
                            bias[panel * PANEL..].as_ptr()
                        } else {
                            tail_bias.as_ptr()
                        };
                        (bias, 0)
                    } else {
                        (std::ptr::null(), 0)
                    };
                    let (out, ldo) = if full {
                        (c[at..].as_mut_ptr(), ldc)
                    } else {
                        (tail_c.as_mut_ptr(), PANEL)
                    };
                    // SAFETY: the bounds of a, c, bias and the panels were checked above; a tile
                    // covers `rows` rows below m and columns that exist in c or in tail_c.
                    unsafe {
                        let a = a.as_ptr().add(r * lda + k0);
                        let b = Panels {
                            first: b,
                            count: panels,
                            stride: matrix.k * PANEL,
                        };
                        tile(isa, rows, k1 - k0, a, lda, b, init, ldi, out, ldo);
                    }
                    if !full {
                        for i in 0..rows {
                            let from = &tail_c[i * PANEL..i * PANEL + tail];
                            c[at + i * ldc..at + i * ldc + tail].copy_from_slice(from);
                        }
                    }
                    r += rows;
                }
                panel += panels;
            }
            k0 = k1;
            if k0 >= k {
                break;
            }
        }
        m0 = m1;
    }
}

/// Rows of the largest tile.
pub(super) fn tile_rows(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 12,
        Isa::Avx2 => 6,
        Isa::Portable => 4,
    }
}

/// Panels of the largest tile: two of AVX-512's, so that its loads do not limit it.
pub(super) fn tile_panels(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 2,
        Isa::Avx2 | Isa::Portable => 1,
    }
}

/// Neighbouring panels.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub first: PanelPtr,
    pub count: usize,
    /// Elements from one panel to the next.
    pub stride: usize,
}

/// One tile: `out[r, j] = init[r, j] + sum_p a[r, p] b[p, j]` for r below `rows` and the columns j of
/// the panels. A null `init` stands for zeros; `ldi` = 0 repeats one row of it.
///
/// # Safety
/// `1 <= rows <= tile_rows(isa)`, `1 <= b.count <= tile_panels(isa)`, the machine has `isa`, and all
/// pointers are valid for the rows, strides and k given; `init` may equal `out`.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn tile(
    isa: Isa,
    rows: usize,
    k: usize,
    a: *const f32,
    lda: usize,
    b: Panels,
    init: *const f32,
    ldi: usize,
    out: *mut f32,
    ldo: usize,
) {
    macro_rules! by_rows {
        (@call [$($kernel:ident)::+ $(, $v:literal, $stride:expr)?], $r:literal, $b:expr) => {
            $($kernel)::+::<$r $(, $v)?>(k, a, lda, $b $(, $stride)?, init, ldi, out, ldo)
        };
        ($kernel:tt, $b:expr; $($r:literal)*) => {
            match rows {
                $($r => by_rows!(@call $kernel, $r, $b),)*
                _ => unreachable!("tile rows"),
            }
        };
    }
    #[cfg(target_arch = "x86_64")]
    macro_rules! by_panels {
        ($kernel:ident, $first:expr) => {
            match b.count {
                1 => {
                    by_rows!([x86::avx512::$kernel, 1, 0], $first; 1 2 3 4 5 6 7 8 9 10 11 12)
                }
                _ => by_rows!(
                    [x86::avx512::$kernel, 2, b.stride], $first; 1 2 3 4 5 6 7 8 9 10 11 12
                ),
            }
        };
    }
    debug_assert!((1..=tile_panels(isa)).contains(&b.count));
    // SAFETY: passed on from the caller. A panel is one vector of AVX-512 and two of AVX2.
    unsafe {
        match (isa, b.first) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, PanelPtr::F32(first)) => by_panels!(f32s, first),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, PanelPtr::Bf16(first)) => by_panels!(bf16s, first),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, PanelPtr::F32(b)) => by_rows!([x86::avx2::f32s, 2, 8], b; 1 2 3 4 5 6),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, PanelPtr::Bf16(b)) => by_rows!([x86::avx2::bf16s, 2, 8], b; 1 2 3 4 5 6),
            (_, PanelPtr::F32(b)) => by_rows!([portable_f32], b; 1 2 3 4),
            (_, PanelPtr::Bf16(b)) => by_rows!([portable_bf16], b; 1 2 3 4),
        }
    }
}

macro_rules! portable {
    ($name:ident, $element:ty, $convert:expr) => {
        /// # Safety
        /// As [`tile`].
        #[allow(clippy::too_many_arguments)]
        unsafe fn $name<const R: usize>(
            k: usize,
            a: *const f32,
            lda: usize,
            b: *const $element,
            init: *const f32,
            ldi: usize,
            out: *mut f32,
            ldo: usize,
        ) {
            // SAFETY: the caller vouches for rows, strides and k.
            unsafe {
                let mut acc = [[0f32; PANEL]; R];
                if !init.is_null() {
                    for (r, acc) in acc.iter_mut().enumerate() {
                        init.add(r * ldi)
                            .copy_to_nonoverlapping(acc.as_mut_ptr(), PANEL);
                    }
                }
                for p in 0..k {
                    let mut line = [0f32; PANEL];
                    for (lane, x) in line.iter_mut().enumerate() {
                        *x = $convert(*b.add(p * PANEL + lane));
                    }
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let x = *a.add(r * lda + p);
                        for lane in 0..PANEL {
                            acc[lane] += x * line[lane];
                        }
                    }
                }
                for (r, acc) in acc.iter().enumerate() {
                    out.add(r * ldo)
                        .copy_from_nonoverlapping(acc.as_ptr(), PANEL);
                }
            }
        }
    };
}
portable!(portable_f32, f32, |x: f32| x);
portable!(portable_bf16, bf16, |x: bf16| x.to_f32());

#[cfg(target_arch = "x86_64")]
mod x86 {
    use half::bf16;

    use super::PANEL;

    /// Lines of a panel that are asked for ahead of their use.
    const AHEAD: usize = 16;

    /// Tiles of V vectors of `$lanes` floats, in terms of intrinsics that the module names.
    macro_rules! tile {
        ($name:ident, $features:literal, $lanes:literal, $element:ty, $load_line:expr) => {
            /// # Safety
            /// As [`super::super::tile`] with V vectors, which lie `stride` elements apart in the
            /// panels, and with the module's instructions.
            #[target_feature(enable = $features)]
            #[allow(clippy::too_many_arguments)]
            pub(in super::super) unsafe fn $name<const R: usize, const V: usize>(
                k: usize,
                a: *const f32,
                lda: usize,
                b: *const $element,
                stride: usize,
                init: *const f32,
                ldi: usize,
                out: *mut f32,
                ldo: usize,
            ) {
                // SAFETY: the caller vouches for panels, rows, strides and k.
                unsafe {
                    let mut acc = [[zero(); V]; R];
                    if !init.is_null() {
                        for (r, acc) in acc.iter_mut().enumerate() {
                            *acc = std::array::from_fn(|v| load(init.add(r * ldi + v * $lanes)));
                        }
                    }
                    let mut b = b;
                    let mut a = a;
                    for _ in 0..k {
                        // With few rows the weights come from beyond the second-level cache.
                        for v in (0..V).filter(|v| v * $lanes % PANEL == 0) {
                            let ahead = b.wrapping_add(v * stride + AHEAD * PANEL);
                            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                        }
                        let line: [Vector; V] =
                            std::array::from_fn(|v| $load_line(b.add(v * stride)));
                        for (r, acc) in acc.iter_mut().enumerate() {
                            let x = spread(*a.add(r * lda));
                            for v in 0..V {
                                acc[v] = fmadd(x, line[v], acc[v]);
                            }
                        }
                        a = a.add(1);
                        b = b.add(PANEL);
                    }
                    for (r, acc) in acc.iter().enumerate() {
                        for (v, acc) in acc.iter().enumerate() {
                            store(out.add(r * ldo + v * $lanes), *acc);
                        }
                    }
                }
            }
        };
    }

    pub(super) mod avx2 {
        use std::arch::x86_64::{
            __m256 as Vector, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm256_castsi256_ps,
            _mm256_cvtepu16_epi32, _mm256_fmadd_ps as fmadd, _mm256_loadu_ps as load,
            _mm256_set1_ps as spread, _mm256_setzero_ps as zero, _mm256_slli_epi32,
            _mm256_storeu_ps as store,
        };

        use super::{AHEAD, PANEL, bf16};

        tile!(f32s, "avx2,fma", 8, f32, |b: *const f32| load(b));
        tile!(bf16s, "avx2,fma", 8, bf16, |b: *const bf16| {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(b.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        });
    }

    pub(super) mod avx512 {
        use std::arch::x86_64::{
            __m512 as Vector, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm512_castsi512_ps,
            _mm512_cvtepu16_epi32, _mm512_fmadd_ps as fmadd, _mm512_loadu_ps as load,
            _mm512_set1_ps as spread, _mm512_setzero_ps as zero, _mm512_slli_epi32,
            _mm512_storeu_ps as store,
        };

        use super::{AHEAD, PANEL, bf16};

        tile!(f32s, "avx512f", 16, f32, |b: *const f32| load(b));
        tile!(bf16s, "avx512f", 16, bf16, |b: *const bf16| {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(b.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(m: usize, n: usize, k: usize, a: &[f32], lda: usize, w: &[f32]) -> Vec<f32> {
        let mut c = vec![0f32; m * n];
        for i in 0..m {
            for j in 0..n {
                let sum: f64 = (0..k)
                    .map(|p| f64::from(a[i * lda + p]) * f64::from(w[j * k + p]))
                    .sum();
                c[i * n + j] = sum as f32;
            }
        }
        c
    }

    fn values(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed | 1;
        (0..len)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn equals_naive_product(
            m in 1usize..30, n in 1usize..70, k in 0usize..600, pad in 0usize..3, seed: u64,
            start in 0usize..3,
        ) {
            let lda = k + pad;
            let a = values(m * lda + k, seed);
            let w = values(n * k, seed ^ 1);
            let bias = values(n, seed ^ 2);
            for storage in [Storage::F32, Storage::Bf16] {
                let mut rounded = w.clone();
                if storage == Storage::Bf16 {
                    rounded.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
                }
                let expected = naive(m, n, k, &a, lda, &rounded);
                let packed = Packed::from_rows(n, k, storage, &w);
                for &isa in Isa::all() {
                    let mut c = values(m * n, seed ^ 3);
                    let before = c.clone();
                    let start = [Start::Zero, Start::Bias(&bias), Start::Accumulate][start];
                    matmul(isa, m, &a, lda, &packed, start, &mut c, n);
                    for i in 0..m * n {
                        let base = match start {
                            Start::Zero => 0.0,
                            Start::Bias(b) => b[i % n],
                            Start::Accumulate => before[i],
                        };
                        let (x, y) = (c[i], expected[i] + base);
                        prop_assert!((x - y).abs() < 1e-5 + 2e-6 * k as f32, "{isa:?} {storage:?} {i}: {x} {y}");
                    }
                }
            }
        }

        #[test]
        fn a_part_of_a_matrix_is_a_matrix(
            m in 1usize..20, n in 1usize..100, k in 1usize..600, seed: u64,
            panels in (0usize..8, 0usize..8), depth in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            let sorted = |(a, b): (usize, usize)| a.min(b)..a.max(b);
            let panels = sorted((panels.0.min(n.div_ceil(PANEL)), panels.1.min(n.div_ceil(PANEL))));
            let depth = sorted((depth.0.index(k + 1), depth.1.index(k + 1)));
            let (w, a) = (values(n * k, seed), values(m * k, seed ^ 1));
            let columns = (panels.start * PANEL).min(n)..(panels.end * PANEL).min(n);
            let rows: Vec<f32> = columns
                .clone()
                .flat_map(|j| &w[j * k..][depth.clone()])
                .copied()
                .collect();
            let (columns, inner) = (columns.len(), depth.len());
            let expected = naive(m, columns, inner, &a, inner, &rows);
            let matrix = &Packed::from_rows(n, k, Storage::F32, &w);
            for &isa in Isa::all() {
                let mut c = vec![9f32; m * columns];
                let part = Part { matrix, panels: panels.clone(), depth: depth.clone() };
                matmul_part(isa, m, &a, inner, &part, Start::Zero, &mut c, columns);
                for (x, y) in c.iter().zip(&expected) {
                    prop_assert!((x - y).abs() < 1e-5 + 2e-6 * k as f32, "{isa:?}: {x} {y}");
                }
            }
        }
    }
}
