//! How far a merge is.

/// What a merge is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It reads entries to decide how they are stored.
    Sampling,
    /// It adds entries to the graph.
    Loading,
    /// It looks for the neighbours of new nodes once more.
    Refining,
    /// It writes the pages of a segment.
    Writing,
}

impl Phase {
    /// As progress reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sampling => "sampling vectors",
            Self::Loading => "loading vectors",
            Self::Refining => "refining graph",
            Self::Writing => "writing segment",
        }
    }
}

/// How far a merge is with the segments that it makes into one.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// What it is at.
    pub phase: Phase,
    /// Entries that this phase has done.
    pub done: usize,
    /// Entries of the new segment.
    pub total: usize,
}
