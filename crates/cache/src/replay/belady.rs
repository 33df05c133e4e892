//! Belady's MIN: optimal eviction with perfect foresight.

use std::collections::{BTreeSet, HashMap};

use sws_format::{PieceId, PieceKind};

use crate::history::HistoryShape;

use crate::policy::{Policy, RouteLearner, RouterChoice, UseForecast};

/// Evicts the piece whose next use is furthest away.
#[derive(Debug)]
pub(super) struct Belady {
    shape: HistoryShape,
    /// For each layer and expert, the passes that use it, ascending, and the number of these passes
    /// that are over.
    uses: Vec<Vec<u32>>,
    elapsed: Vec<usize>,
    /// Slots by the next use of their pieces.
    order: BTreeSet<(u64, usize)>,
    next: HashMap<usize, u64>,
}

impl Belady {
    pub(super) fn new(shape: HistoryShape, uses: Vec<Vec<u32>>) -> Belady {
        let elapsed = vec![0; uses.len()];
        Belady { shape, uses, elapsed, order: BTreeSet::new(), next: HashMap::new() }
    }

    /// Index of the next layer that uses a piece, counted through all passes.
    fn next_use(&self, piece: PieceId) -> u64 {
        let PieceKind::Expert(expert) = piece.kind() else { return u64::MAX };
        let layer = piece.layer().unwrap_or(0) as usize;
        let place = layer * self.shape.experts + expert as usize;
        match self.uses[place].get(self.elapsed[place]) {
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

    fn victim(&mut self, _: PieceId, evictable: &dyn Fn(usize) -> bool) -> Option<usize> {
        self.order.iter().rev().map(|&(_, slot)| slot).find(|&slot| evictable(slot))
    }

    fn bytes(&self) -> usize {
        self.uses.iter().map(|uses| uses.len() * size_of::<u32>()).sum()
    }
}

impl RouteLearner for Belady {
    fn routed(&mut self, choice: &RouterChoice<'_>) {
        let mut distinct = choice.experts.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        for expert in distinct {
            self.elapsed[choice.layer as usize * self.shape.experts + expert as usize] += 1;
        }
    }
}

impl UseForecast for Belady {}
