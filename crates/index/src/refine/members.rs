//! The nodes of a level, and the places of each among them.

/// The nodes of a level. Each has a place among them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Members<'a> {
    /// The lowest level has this number of nodes: all, in their order.
    All(usize),
    /// Nodes in ascending order.
    Some(&'a [u32]),
}

impl Members<'_> {
    /// How many there are.
    pub(super) fn len(self) -> usize {
        match self {
            Self::All(count) => count,
            Self::Some(nodes) => nodes.len(),
        }
    }

    /// Which node is at a place.
    pub(super) fn node(self, place: u32) -> u32 {
        match self {
            Self::All(_) => place,
            Self::Some(nodes) => nodes[place as usize],
        }
    }

    /// The place of a node.
    pub(super) fn place(self, node: u32) -> usize {
        match self {
            Self::All(_) => node as usize,
            Self::Some(nodes) => nodes
                .binary_search(&node)
                .expect("edges stay on their level"),
        }
    }
}
