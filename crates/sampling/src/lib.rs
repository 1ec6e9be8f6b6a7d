//! Numbers that look random and are the same every time, and samples from all over many things that are in step with
//! nothing in their order.
//!
//! Rows come in turn from several sources, in batches, by hours: every n-th of them may be of one kind.

/// Every index below `nodes`, again and again, scattered: any first few of them lie evenly among the nodes, and each anywhere
/// in its part. These are van der Corput's numbers, scrambled as Owen does (Laine and Karras 2011, with Vegdahl's constants):
/// multiples of one number, as the golden ratio, would lie alike in all batches where there are as many batches as one of its
/// convergents has in the denominator.
pub fn scattered(nodes: usize) -> impl Iterator<Item = u32> {
    (0..u32::MAX).map(move |i| {
        let place = u64::from(scrambled(i).reverse_bits());
        ((place * nodes as u64) >> u32::BITS) as u32
    })
}

/// Every index below `n` once, in steps of the golden section of `n`: any stretch of them lies all over the others.
pub fn spread(n: usize) -> impl Iterator<Item = usize> {
    let golden = (n as f64 * 0.618_033_988_75) as usize;
    // There is one within a few steps: all primes and 1 are.
    let step = (golden.max(1)..).find(|step| gcd(*step, n) == 1);
    let step = step.expect("a number without a common divisor") as u128;
    (0..n as u128).map(move |i| (i * step % n as u128) as usize)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A permutation of the numbers of 32 bits, of which each bit changes by those below it.
fn scrambled(i: u32) -> u32 {
    let mut x = i.wrapping_add(0x9e37_79b9);
    for factor in [0x6c50_b47c, 0xb82f_1e52, 0xc7af_e638, 0x8d22_f6e6_u32] {
        x ^= x.wrapping_mul(factor);
    }
    x
}

/// From one state of SplitMix64 to the next.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64 (Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014), without its state: the
/// number that follows this one as a state. A bijection of which every bit changes by every other.
#[must_use]
pub fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// SplitMix64: as many numbers of 64 bits as are asked for.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// A number below `bound`, which is not 0. Smaller ones are likelier by a part in 2^64 / `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }
}

/// Which of `total` things are in a sample of `wanted`, ascending: one of each of `wanted` strata of equal size. All of
/// them where there are no more.
pub fn stratified(total: usize, wanted: usize) -> impl ExactSizeIterator<Item = usize> {
    let wanted = wanted.min(total);
    let start = move |stratum: usize| (stratum as u128 * total as u128 / wanted as u128) as usize;
    (0..wanted).map(move |stratum| {
        let size = start(stratum + 1) - start(stratum);
        let fraction = mix((stratum as u64).wrapping_mul(STEP)) >> u32::BITS;
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

    /// However many batches there are, of whatever length, all parts of them have their share.
    #[test]
    fn scattered_places_are_in_step_with_no_batches() {
        for length in [50, 100, 333] {
            for batches in 2..1200 {
                let mut counts = [0; 3];
                for node in scattered(batches * length).take(100) {
                    counts[node as usize % length * 3 / length] += 1;
                }
                assert!(
                    counts.iter().all(|count| *count >= 14),
                    "{batches} of {length}: {counts:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_spread_comes_once_and_from_all_over() {
        for n in [0, 1, 2, 3, 4, 10, 97, 610, 987, 4096, 30_030] {
            let all: Vec<usize> = spread(n).collect();
            let mut sorted = all.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..n), "{n}");
            for stretch in all.chunks_exact(64) {
                let mut counts = [0; 4];
                stretch.iter().for_each(|at| counts[at * 4 / n] += 1);
                assert!(
                    counts.iter().all(|count| (10..=22).contains(count)),
                    "{n}: {counts:?}"
                );
            }
        }
    }

    #[test]
    fn scattered_places_are_spread_evenly() {
        for nodes in [1000, 144 * 610, 1 << 20] {
            for wanted in [64, 100, 2048] {
                let mut counts = [0; 16];
                for node in scattered(nodes).take(wanted) {
                    counts[node as usize * 16 / nodes] += 1;
                }
                let share = wanted as i32 / 16;
                assert!(
                    counts
                        .iter()
                        .all(|count| (count - share).abs() <= share / 2),
                    "{wanted} of {nodes}: {counts:?}"
                );
            }
        }
    }

    /// The first numbers of the seed 1234567 of the reference implementation (Vigna's splitmix64.c).
    #[test]
    fn numbers_are_those_of_the_reference() {
        let mut numbers = SplitMix64::new(1_234_567);
        assert_eq!(numbers.draw(), 6_457_827_717_110_365_317);
        assert_eq!(numbers.draw(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn few_things_are_all_taken() {
        assert!(stratified(10, 256).eq(0..10));
        assert_eq!(stratified(0, 256).count(), 0);
        assert_eq!(stratified(10, 0).count(), 0);
    }
}
