//! Whether what is new in a graph is worth what it costs for all of it.

/// Where less than one in this many nodes is new, as in a merge of a few rows, nothing is done for them that costs something for
/// each of the others as well.
const NEW: usize = 16;

/// Whether so few of all nodes of a graph are new.
pub(crate) fn are_few(new: usize, all: usize) -> bool {
    new < all / NEW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sixteenth_is_not_few() {
        assert!(are_few(99, 1600) && are_few(0, 16));
        assert!(!are_few(0, 0) && !are_few(1, 1) && !are_few(100, 1600));
    }
}
