//! The tile of integer sums in terms of intrinsics that a module names.

/// Defines `tile`, of V vectors of `$lanes` sums, for the module's `dot(sum, a, b)`, which adds the
/// products of each lane's four bytes.
macro_rules! integer_tile {
    ($features:literal, $lanes:literal, $vectors:literal) => {
        /// `out = init + A Wᵀ` for R rows of a block.
        ///
        /// # Safety
        /// The processor has the module's instructions. `a` holds R rows of `groups`, `b` a block's
        /// lines, `init` (unless null) and `out` its columns of R rows, `row` R factors and `zeros` as
        /// many steps of zero, `column` and `weights` one value a column.
        #[target_feature(enable = $features)]
        #[allow(clippy::too_many_arguments)]
        pub(in super::super) unsafe fn tile<const R: usize>(
            groups: usize,
            a: *const u32,
            b: *const u8,
            init: *const f32,
            ldi: usize,
            out: *mut f32,
            ldo: usize,
            row: *const f32,
            zeros: *const f32,
            column: *const f32,
            weights: *const f32,
        ) {
            const BYTES: usize = 4 * $lanes;
            // SAFETY: the caller vouches for the pointers.
            unsafe {
                let mut acc = [[zero(); $vectors]; R];
                for g in 0..groups {
                    let line: [Integers; $vectors] = std::array::from_fn(|v| {
                        load_integers(b.add((g * $vectors + v) * BYTES).cast())
                    });
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let x = spread_integer(*a.add(r * groups + g) as i32);
                        for v in 0..$vectors {
                            acc[v] = dot(acc[v], x, line[v]);
                        }
                    }
                }
                for (r, acc) in acc.iter().enumerate() {
                    let (row, zero) = (spread(*row.add(r)), spread(-*zeros.add(r)));
                    for (v, acc) in acc.iter().enumerate() {
                        let factor = mul(row, load(column.add($lanes * v)));
                        let sum = fmadd(zero, load(weights.add($lanes * v)), to_float(*acc));
                        let sum = if init.is_null() {
                            mul(sum, factor)
                        } else {
                            fmadd(sum, factor, load(init.add(r * ldi + $lanes * v)))
                        };
                        store(out.add(r * ldo + $lanes * v), sum);
                    }
                }
            }
        }
    };
}
