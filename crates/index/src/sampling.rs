//! Samples from all over many things that are in step with nothing in their order.
//!
//! Rows come in turn from several sources, in batches, by hours: every n-th of them may be of one kind.

/// Every index below `nodes`, again and again, scattered by Weyl's sequence of the golden ratio: any first few of them lie
/// evenly among the nodes.
pub fn scattered(nodes: usize) -> impl Iterator<Item = u32> {
    let place = |i: u32| u64::from(i.wrapping_mul(0x9e37_79b9));
    (0..u32::MAX).map(move |i| ((place(i) * nodes as u64) >> u32::BITS) as u32)
}

/// From one state of SplitMix64 to the next.
pub const SPLIT_MIX_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What SplitMix64 (Steele, Lea & Flood 2014) gives for a state: numbers that look random, the same ones every time.
pub fn split_mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Which of `total` things are in a sample of `wanted`, ascending: one of each of `wanted` strata of equal size. All of
/// them where there are no more.
pub fn stratified(total: usize, wanted: usize) -> impl Iterator<Item = usize> {
    let wanted = wanted.min(total);
    let start = move |stratum: usize| (stratum as u128 * total as u128 / wanted as u128) as usize;
    (0..wanted).map(move |stratum| {
        let size = start(stratum + 1) - start(stratum);
        let fraction = split_mix((stratum as u64 + 1).wrapping_mul(SPLIT_MIX_STEP)) >> u32::BITS;
        start(stratum) + ((fraction * size as u64) >> u32::BITS) as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Among rows of `period` sources in turn, each source has its share of a sample.
    #[test]
    fn samples_are_in_step_with_nothing() {
        for (total, wanted) in [(8192, 256), (100_000, 8192), (3000, 128), (1_000_000, 1000)] {
            let chosen: Vec<usize> = stratified(total, wanted).collect();
            assert_eq!(chosen.len(), wanted);
            assert!(chosen.is_sorted_by(|a, b| a < b) && chosen[wanted - 1] < total);
            for period in 2..=64 {
                let mut counts = vec![0; period];
                chosen.iter().for_each(|at| counts[at % period] += 1);
                let share = wanted as f64 / period as f64;
                for count in counts {
                    let off = (f64::from(count) - share).abs();
                    assert!(
                        off <= 4.5 * share.sqrt(),
                        "{total} {wanted} {period}: {count}, {share}"
                    );
                }
            }
        }
    }

    #[test]
    fn few_things_are_all_taken() {
        assert!(stratified(10, 256).eq(0..10));
        assert_eq!(stratified(0, 256).count(), 0);
        assert_eq!(stratified(10, 0).count(), 0);
    }
}
