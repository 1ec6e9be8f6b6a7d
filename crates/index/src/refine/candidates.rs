//! Candidates for the edges of a node.

use super::chooser::Chooser;
use super::lists::List;
use super::longest::Longest;
use crate::codec::Codec;
use crate::error::Result;
use crate::walk::{Guide, Walk};

/// Where candidates come from, whatever the edges on the lowest level are.
pub(super) struct Source<'a> {
    pub(super) codec: &'a Codec,
    pub(super) guide: &'a Guide,
    pub(super) longest: Longest,
    /// Nodes of the level above at which walks begin ([`Chooser::begin_across`]).
    pub(super) across: usize,
    /// See [`Chooser::distinguish`].
    pub(super) depths: &'a [u8],
}

/// Candidates of one node after the other, on one thread.
pub(super) struct Candidates<'a> {
    source: &'a Source<'a>,
    chooser: Chooser<'a>,
    /// Over the graphs of the longest.
    walks: Vec<Walk>,
}

impl<'a> Candidates<'a> {
    pub(super) fn new(source: &'a Source<'a>, graph: &'a [u8]) -> Result<Self> {
        let mut chooser = Chooser::new(source.codec, graph, source.guide)?;
        chooser.pass_by(source.longest.entries());
        chooser.begin_across(source.across);
        chooser.distinguish(source.depths);
        let walks = source.longest.walks(source.codec)?;
        Ok(Self {
            source,
            chooser,
            walks,
        })
    }

    /// Those of a node that has these edges: what a walk finds that keeps `width` of them, where the edges lead, and the longest.
    fn gather(&mut self, node: u32, edges: &[u32], width: usize) {
        let Source { codec, longest, .. } = self.source;
        self.chooser.begin(node);
        self.chooser.add_nearest(0, width);
        self.chooser.add(edges);
        longest.add(codec, &self.walks, node, &mut self.chooser);
    }

    /// Replaces the list of a node by the best of its candidates.
    pub(super) fn choose(&mut self, node: u32, list: &mut List<'_>, width: usize) {
        self.gather(node, list.edges(), width);
        self.chooser.choose(list, |_| 0);
    }

    /// Those of a node with their distances, the nearest first.
    pub(super) fn of(&mut self, node: u32, width: usize) -> Vec<(f32, u32)> {
        let edges = self.chooser.edges(node);
        self.gather(node, &edges, width);
        self.chooser.nearest_first()
    }
}
