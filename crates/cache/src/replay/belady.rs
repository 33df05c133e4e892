//! The optimum, for who knows what comes.

use std::collections::{BTreeSet, HashMap};

use crate::history::Shape;
use sws_store::{PieceId, PieceKind};

use crate::policy::{Choice, Policy};

/// Gives up what is used again last.
#[derive(Debug)]
pub(super) struct Belady {
    shape: Shape,
    /// For each layer and expert the passes that use it, ascending, and how many of them are over.
    uses: Vec<Vec<u32>>,
    over: Vec<usize>,
    /// Slots by when their pieces are used again.
    order: BTreeSet<(u64, usize)>,
    next: HashMap<usize, u64>,
}

impl Belady {
    pub(super) fn new(shape: Shape, uses: Vec<Vec<u32>>) -> Belady {
        let over = vec![0; uses.len()];
        Belady { shape, uses, over, order: BTreeSet::new(), next: HashMap::new() }
    }

    /// The next layer of a pass, all passes counted through, that uses a piece.
    fn next_use(&self, piece: PieceId) -> u64 {
        let PieceKind::Expert(expert) = piece.kind() else { return u64::MAX };
        let layer = piece.layer().unwrap_or(0) as usize;
        let place = layer * self.shape.experts + expert as usize;
        match self.uses[place].get(self.over[place]) {
            Some(&pass) => u64::from(pass) * self.shape.layers as u64 + layer as u64,
            None => u64::MAX,
        }
    }
}

impl Policy for Belady {
    fn name(&self) -> &'static str {
        "belady"
    }

    fn arrived(&mut self, slot: usize, piece: PieceId) {
        let next = self.next_use(piece);
        self.order.insert((next, slot));
        self.next.insert(slot, next);
    }

    fn used(&mut self, slot: usize, piece: PieceId) {
        self.left(slot, piece);
        self.arrived(slot, piece);
    }

    fn left(&mut self, slot: usize, _: PieceId) {
        if let Some(next) = self.next.remove(&slot) {
            self.order.remove(&(next, slot));
        }
    }

    fn routed(&mut self, choice: &Choice<'_>) {
        let mut distinct = choice.experts.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        for expert in distinct {
            self.over[choice.layer as usize * self.shape.experts + expert as usize] += 1;
        }
    }

    fn victim(&mut self, _: PieceId, may: &dyn Fn(usize) -> bool) -> Option<usize> {
        self.order.iter().rev().map(|&(_, slot)| slot).find(|&slot| may(slot))
    }

    fn bytes(&self) -> usize {
        self.uses.iter().map(|uses| uses.len() * size_of::<u32>()).sum()
    }
}
