//! A level of a graph, and the linking of its nodes.

use std::sync::atomic::AtomicUsize;

use super::chooser::{Chooser, ENOUGH};
use super::lists::{List, Lists, Offers, write};
use super::members::Members;
use crate::codec::Codec;
use crate::error::Result;
use crate::table::Place;
use crate::walk::Walk;

/// A level of a graph whose edges are chosen.
#[derive(Clone, Copy)]
pub(super) struct Level<'a> {
    pub(super) codec: &'a Codec,
    pub(super) walk: &'a Walk,
    /// From the lowest, 0, up.
    pub(super) number: usize,
    pub(super) nodes: Members<'a>,
    /// Where tables are.
    pub(super) place: Place<'a>,
    pub(super) threads: usize,
    /// See [`Chooser::distinguish`].
    pub(super) depths: &'a [u8],
}

impl<'a> Level<'a> {
    /// The edges that there are.
    pub(super) fn lists(&self, graph: &[u8], pause: &dyn Fn()) -> Result<Lists<'a>> {
        Lists::of(
            self.walk,
            graph,
            (self.number, self.nodes),
            self.place,
            pause,
        )
    }

    /// Links every node to what its list has, and with those that have chosen it. `order` is the order to visit places in,
    /// `done` grows by one for each.
    pub(super) fn link(
        &self,
        bytes: &mut [u8],
        mut lists: Lists<'_>,
        order: &[u32],
        done: &AtomicUsize,
        pause: &dyn Fn(),
    ) -> Result<()> {
        let (graph, nodes): (&[u8], _) = (bytes, self.nodes);
        let guide = self.walk.guide();
        let offers = Offers::of(&lists, |node| nodes.place(node), pause)?;
        lists.rewrite(order, self.threads, done, pause, || {
            let mut chooser = Chooser::new(self.codec, graph, guide)?;
            chooser.distinguish(self.depths);
            let mut new = Vec::new();
            let offers = &offers;
            Ok(move |place: u32, list: &mut List<'_>| {
                let from = offers.to(place).iter().map(|&from| nodes.node(from));
                new.clear();
                new.extend(from.filter(|from| !list.edges().contains(from)));
                let rank = |node| offers.to(nodes.place(node) as u32).len().min(ENOUGH);
                chooser.accept(nodes.node(place), list, &new, rank);
            })
        })?;
        for (place, list) in lists.each() {
            let node = nodes.node(place as u32);
            write(bytes, self.walk.edges_at(bytes, node, self.number), list);
        }
        Ok(())
    }
}
