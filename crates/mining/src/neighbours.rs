//! Lists of nearest neighbours.

use std::io::{self, Read, Write};

use laser_memory::OutOfMemory;

/// For each row of one set, its nearest rows of the other set with their cosines.
///
/// A list is ordered by cosine, highest first, then by position, lowest first, and holds at most
/// `k` entries; it is shorter only where fewer candidates exist.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbours {
    pub(crate) k: usize,
    /// Where the list of each row begins, and the last one ends; empty where all have capacity for `k`.
    starts: Vec<usize>,
    pub(crate) counts: Vec<u32>,
    /// The positions of all lists; entries at and after a row's count are unused.
    pub(crate) positions: Vec<u32>,
    /// The cosines, parallel to `positions`.
    pub(crate) cosines: Vec<f64>,
}

impl Neighbours {
    /// Empty lists of up to `k` neighbours for `rows` rows.
    ///
    /// # Errors
    /// No memory.
    pub fn empty(rows: usize, k: usize) -> Result<Self, OutOfMemory> {
        Self::with_starts(rows, k, rows.saturating_mul(k), Vec::new())
    }

    /// Empty lists of the given capacities. They take what the sum of these takes, however
    /// long one of them is; only what is as long as `k` can be merged or searched on.
    ///
    /// # Errors
    /// No memory.
    pub fn ragged(capacities: impl ExactSizeIterator<Item = usize>) -> Result<Self, OutOfMemory> {
        let rows = capacities.len();
        let mut starts = laser_memory::with_capacity(rows + 1)?;
        let (mut all, mut k) = (0usize, 0);
        starts.push(0);
        for capacity in capacities {
            all = all.saturating_add(capacity);
            k = k.max(capacity);
            starts.push(all);
        }
        Self::with_starts(rows, k, all, starts)
    }

    fn with_starts(
        rows: usize,
        k: usize,
        all: usize,
        starts: Vec<usize>,
    ) -> Result<Self, OutOfMemory> {
        Ok(Neighbours {
            k,
            starts,
            counts: laser_memory::filled(0, rows)?,
            positions: laser_memory::filled(0, all)?,
            cosines: laser_memory::filled(0.0, all)?,
        })
    }

    /// Where the list of `row` begins.
    #[inline]
    fn start(&self, row: usize) -> usize {
        if self.starts.is_empty() {
            row * self.k
        } else {
            self.starts[row]
        }
    }

    /// The greatest length of the list of `row`.
    #[inline]
    fn capacity(&self, row: usize) -> usize {
        if self.starts.is_empty() {
            self.k
        } else {
            self.starts[row + 1] - self.starts[row]
        }
    }

    /// The greatest length of a list.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of lists.
    pub fn rows(&self) -> usize {
        self.counts.len()
    }

    /// Rows of the other side that are the neighbours of `row`, the nearest first; at most `k`.
    pub fn positions(&self, row: usize) -> &[u32] {
        &self.positions[self.start(row)..][..self.counts[row] as usize]
    }

    /// Cosines of the neighbours of `row`, parallel to [`Neighbours::positions`].
    pub fn cosines(&self, row: usize) -> &[f64] {
        &self.cosines[self.start(row)..][..self.counts[row] as usize]
    }

    /// Mean cosine of `row` to its neighbours; NaN when it has none.
    pub fn mean(&self, row: usize) -> f64 {
        let cosines = self.cosines(row);
        cosines.iter().sum::<f64>() / cosines.len() as f64
    }

    /// [`Neighbours::mean`] of every row.
    ///
    /// # Errors
    /// No memory.
    pub fn means(&self) -> Result<Vec<f64>, OutOfMemory> {
        laser_memory::collect((0..self.rows()).map(|row| self.mean(row)))
    }

    /// Puts a candidate in its place in the list of `row`, if it belongs there. Returns whether
    /// the list changed.
    pub fn insert(&mut self, row: usize, position: u32, cosine: f64) -> bool {
        let (base, capacity) = (self.start(row), self.capacity(row));
        let count = self.counts[row] as usize;
        let before = |at: usize, lists: &Neighbours| {
            let other = lists.cosines[base + at];
            cosine > other || (cosine == other && position < lists.positions[base + at])
        };
        if count == capacity && (count == 0 || !before(count - 1, self)) {
            return false;
        }
        let mut at = count.min(capacity - 1);
        while at > 0 && before(at - 1, self) {
            self.positions[base + at] = self.positions[base + at - 1];
            self.cosines[base + at] = self.cosines[base + at - 1];
            at -= 1;
        }
        self.positions[base + at] = position;
        self.cosines[base + at] = cosine;
        self.counts[row] = (count + 1).min(capacity) as u32;
        true
    }

    /// The cosine that a candidate must reach to enter the list of `row`: the lowest of a full
    /// list, else negative infinity.
    pub(crate) fn threshold(&self, row: usize) -> f64 {
        let capacity = self.capacity(row);
        if self.counts[row] as usize == capacity {
            self.cosines[self.start(row) + capacity - 1]
        } else {
            f64::NEG_INFINITY
        }
    }

    /// Adds the neighbours that were found in another, disjoint set of candidates (a shard),
    /// whose position 0 is position `offset` here.
    ///
    /// The result is what one search over both sets gives, provided that both were searched with
    /// at least this `k`.
    ///
    /// # Panics
    /// When the two do not have the same number of rows.
    pub fn merge(&mut self, other: &Neighbours, offset: u32) {
        assert_eq!(
            self.rows(),
            other.rows(),
            "shards of different sets of rows"
        );
        for row in 0..other.rows() {
            for (&position, &cosine) in other.positions(row).iter().zip(other.cosines(row)) {
                self.insert(row, position + offset, cosine);
            }
        }
    }

    /// The lists of the given rows, in that order.
    ///
    /// # Errors
    /// No memory.
    pub fn gather(&self, rows: &[u32]) -> Result<Neighbours, OutOfMemory> {
        let mut lists = Neighbours::empty(rows.len(), self.k)?;
        for (to, &from) in rows.iter().enumerate() {
            lists.copy(to, self, from as usize);
        }
        Ok(lists)
    }

    /// Writes the lists for [`Neighbours::read`] on the same machine.
    ///
    /// # Errors
    /// Those of the writer.
    ///
    /// # Panics
    /// When the lists are ragged.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        assert!(self.starts.is_empty(), "lists of their own lengths");
        to.write_all(&(self.k as u64).to_ne_bytes())?;
        to.write_all(bytemuck::cast_slice(&self.counts))?;
        to.write_all(bytemuck::cast_slice(&self.positions))?;
        to.write_all(bytemuck::cast_slice(&self.cosines))
    }

    /// Reads the lists of `rows` rows, whose neighbours are among `others` rows.
    ///
    /// # Errors
    /// Those of the reader; [`io::ErrorKind::InvalidData`] for what cannot be such lists.
    pub fn read(from: &mut impl Read, rows: usize, others: usize) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let mut k = [0; 8];
        from.read_exact(&mut k)?;
        let k = usize::try_from(u64::from_ne_bytes(k)).map_err(|_| invalid())?;
        if k > others {
            return Err(invalid());
        }
        let mut lists = Neighbours::empty(rows, k)
            .map_err(|e| io::Error::new(io::ErrorKind::OutOfMemory, e))?;
        from.read_exact(bytemuck::cast_slice_mut(&mut lists.counts))?;
        from.read_exact(bytemuck::cast_slice_mut(&mut lists.positions))?;
        from.read_exact(bytemuck::cast_slice_mut(&mut lists.cosines))?;
        let short = lists.counts.iter().all(|&count| count as usize <= k);
        let known = (lists.positions.iter()).all(|&at| k == 0 || (at as usize) < others);
        if short && known {
            Ok(lists)
        } else {
            Err(invalid())
        }
    }

    pub(crate) fn copy(&mut self, to: usize, other: &Neighbours, from: usize) {
        debug_assert!(self.k == other.k && self.starts.is_empty() && other.starts.is_empty());
        self.counts[to] = other.counts[from];
        let (to, from) = (to * self.k, from * self.k);
        self.positions[to..to + self.k].copy_from_slice(&other.positions[from..from + self.k]);
        self.cosines[to..to + self.k].copy_from_slice(&other.cosines[from..from + self.k]);
    }
}
