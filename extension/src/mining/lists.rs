//! Neighbours as ids, as tables and queries hold them.

use laser_mining::{Neighbourhoods, Neighbours, Side};

/// The neighbours of one side.
#[derive(Default)]
pub struct Lists {
    /// The ids of the rows, ascending.
    pub ids: Vec<i64>,
    /// For each of them the ids of its neighbours with their cosines.
    pub lists: Vec<Vec<(i64, f64)>>,
}

impl Lists {
    /// Appends the neighbours of a row; its id is greater than those before it.
    pub fn push(&mut self, id: i64, list: Vec<(i64, f64)>) {
        self.ids.push(id);
        self.lists.push(list);
    }

    /// As positions among the given ids, which ascend.
    ///
    /// # Errors
    /// The id of a neighbour that is not among them.
    pub fn resolve(&self, others: &[i64]) -> Result<Neighbours, i64> {
        let k = self.lists.iter().map(Vec::len).max().unwrap_or(0);
        let mut found = Neighbours::empty(self.ids.len(), k);
        for (row, list) in self.lists.iter().enumerate() {
            for &(id, cosine) in list {
                let position = others.binary_search(&id).map_err(|_| id)?;
                found.insert(row, position as u32, cosine);
            }
        }
        Ok(found)
    }
}

/// The lists of both sides as positions of each other.
///
/// # Errors
/// The id of a neighbour in the lists of a side that has no list in those of the other one.
pub fn resolve(forward: &Lists, backward: &Lists) -> Result<Neighbourhoods, (Side, i64)> {
    let resolve =
        |side, lists: &Lists, others: &Lists| lists.resolve(&others.ids).map_err(|id| (side, id));
    Ok(Neighbourhoods {
        forward: resolve(Side::Source, forward, backward)?,
        backward: resolve(Side::Target, backward, forward)?,
    })
}
