//! The register block in terms of intrinsics that a module names.

/// Defines `fn block_units(Block)` for vectors of `$lanes` sums, with `MR` and `NR` = 2 `$lanes` of
/// the module. It names `zero`, `load`, `store`, `spread`, `multiply_add(sum, a, b)` (the sum of each
/// lane's two products of 16 bits), and `store_scaled(to, sum, scale)`.
macro_rules! register_block {
    ($features:literal, $lanes:literal) => {
        #[target_feature(enable = $features)]
        fn block_units(block: Block<'_>) {
            let Block {
                a,
                b,
                c,
                first,
                last,
            } = block;
            let (a, b) = (a.as_chunks::<MR>().0, b.as_chunks::<NR>().0);
            assert!(c.len() >= (MR - 1) * TARGET_STRIPE + NR);
            let c = c.as_mut_ptr();
            let at = |row: usize, half: usize| c.wrapping_add(row * TARGET_STRIPE + half * $lanes);
            let mut sums = [[zero(); 2]; MR];
            if !first {
                for (row, sums) in sums.iter_mut().enumerate() {
                    for (half, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: within the block, whose length was asserted.
                        *sum = unsafe { load(at(row, half).cast()) };
                    }
                }
            }
            for (a, b) in a.iter().zip(b) {
                // SAFETY: NR pairs of four bytes are two vectors.
                let (low, high) = unsafe {
                    let b = b.as_ptr().cast::<Vector>();
                    (load(b.cast()), load(b.add(1).cast()))
                };
                for (pair, sums) in a.iter().zip(&mut sums) {
                    let pair = spread(bytemuck::cast(*pair));
                    sums[0] = multiply_add(sums[0], pair, low);
                    sums[1] = multiply_add(sums[1], pair, high);
                }
            }
            let scale = (1.0 / (SCALE * SCALE)) as f32;
            for (row, sums) in sums.iter().enumerate() {
                for (half, &sum) in sums.iter().enumerate() {
                    // SAFETY: within the block, whose length was asserted.
                    unsafe {
                        if last {
                            store_scaled(at(row, half), sum, scale);
                        } else {
                            store(at(row, half).cast(), sum);
                        }
                    }
                }
            }
        }
    };
}
