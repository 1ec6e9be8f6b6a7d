//! [`Merges`]: byte-pair merges of the tokens of a piece (Sennrich et al., ACL 2016), the one of the least rank
//! first, of several the leftmost.

use super::table::Table;

/// No token.
pub(super) const NONE: u16 = u16::MAX;

/// Tokens of a piece that counts as short.
const SHORT: usize = 16;

/// Stands for the rank of a merge that there is not.
const NEVER: i16 = i16::MAX;

/// The merges of a tokenizer.
#[derive(Debug)]
pub(super) struct Merges {
    /// Rank of the merge of two tokens.
    ranks: Table,
    /// Result of each merge.
    results: Vec<u16>,
}

/// A key for two tokens; never 0.
#[inline]
fn pair(left: u16, right: u16) -> u64 {
    1 << 32 | u64::from(left) << 16 | u64::from(right)
}

impl Merges {
    /// From left and right token and result, in the order of their ranks; fewer than [`NONE`], of different
    /// results.
    pub fn new(merges: &[[u16; 3]]) -> Self {
        let ranks = merges.iter().enumerate();
        Self {
            ranks: Table::new(
                ranks.map(|(rank, [left, right, _])| (pair(*left, *right), rank as u16)),
            ),
            results: merges.iter().map(|[.., result]| *result).collect(),
        }
    }

    /// The rank of a merge, in the order of signed numbers, of which processors without newer
    /// instructions find the least faster.
    #[inline]
    fn rank(&self, left: u16, right: u16) -> i16 {
        match self.ranks.get(pair(left, right)) {
            Some(rank) => (rank ^ 0x8000) as i16,
            None => NEVER,
        }
    }

    #[inline]
    fn result(&self, rank: i16) -> u16 {
        self.results[usize::from(rank as u16 ^ 0x8000)]
    }

    /// Appends what becomes of the tokens of a piece, which are spent.
    pub fn apply(&self, tokens: &mut [u16], ids: &mut Vec<u32>) {
        match tokens {
            [left, right] => match self.rank(*left, *right) {
                NEVER => ids.extend([u32::from(*left), u32::from(*right)]),
                rank => ids.push(u32::from(self.result(rank))),
            },
            _ if tokens.len() <= SHORT => self.short(tokens, ids),
            _ => self.long(tokens, ids),
        }
    }

    /// Of [`SHORT`] tokens at most: the least of all ranks is looked for at every step.
    fn short(&self, piece: &[u16], ids: &mut Vec<u32>) {
        let n = piece.len();
        let mut tokens = [NONE; SHORT];
        tokens[..n].copy_from_slice(piece);
        // The rank of the merge of each token with the one behind it, and where those before and behind are.
        let mut ranks = [NEVER; SHORT];
        let mut before: [u8; SHORT + 1] = std::array::from_fn(|i| i.wrapping_sub(1) as u8);
        let mut behind: [u8; SHORT] = std::array::from_fn(|i| i as u8 + 1);
        for i in 0..n - 1 {
            ranks[i] = self.rank(tokens[i], tokens[i + 1]);
        }
        loop {
            let best = ranks.iter().fold(NEVER, |least, rank| least.min(*rank));
            if best == NEVER {
                break;
            }
            let mut places = 0u32;
            for (i, rank) in ranks.iter().enumerate() {
                places |= u32::from(*rank == best) << i;
            }
            let at = places.trailing_zeros() as usize % SHORT;
            let right = usize::from(behind[at]) % SHORT;
            let next = usize::from(behind[right]);
            tokens[at] = self.result(best);
            ranks[right] = NEVER;
            tokens[right] = NONE;
            behind[at] = next as u8;
            before[next.min(SHORT)] = at as u8;
            if at > 0 {
                let left = usize::from(before[at]) % SHORT;
                ranks[left] = self.rank(tokens[left], tokens[at]);
            }
            ranks[at] = if next < n {
                self.rank(tokens[at], tokens[next])
            } else {
                NEVER
            };
        }
        // No token is NONE.
        ids.extend(
            tokens
                .iter()
                .filter(|id| **id != NONE)
                .map(|id| u32::from(*id)),
        );
    }

    /// Of any number: time and memory grow with its square at worst, in steps of a vector.
    fn long(&self, tokens: &mut [u16], ids: &mut Vec<u32>) {
        let mut n = tokens.len();
        let mut ranks: Vec<i16> = tokens
            .windows(2)
            .map(|pair| self.rank(pair[0], pair[1]))
            .collect();
        while n > 1 {
            let best = ranks[..n - 1].iter().copied().min().unwrap_or(NEVER);
            if best == NEVER {
                break;
            }
            let at = ranks[..n - 1].iter().position(|r| *r == best).unwrap_or(0);
            tokens[at] = self.result(best);
            tokens.copy_within(at + 2..n, at + 1);
            ranks.copy_within(at + 1..n - 1, at);
            n -= 1;
            if at > 0 {
                ranks[at - 1] = self.rank(tokens[at - 1], tokens[at]);
            }
            if at + 1 < n {
                ranks[at] = self.rank(tokens[at], tokens[at + 1]);
            }
        }
        ids.extend(tokens[..n].iter().map(|id| u32::from(*id)));
    }
}
