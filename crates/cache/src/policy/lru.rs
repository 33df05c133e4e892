//! The baseline: what was used longest ago.

use lru::LruCache;

use sws_store::PieceId;

use super::Policy;

/// What is as probable as this is as good as used.
const PROBABLE: f32 = 0.5;

/// Gives up what was used longest ago.
#[derive(Debug)]
pub struct Lru(LruCache<usize, ()>);

impl Lru {
    /// One that has seen nothing.
    pub fn new() -> Lru {
        Lru(LruCache::unbounded())
    }
}

impl Default for Lru {
    fn default() -> Lru {
        Lru::new()
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn arrived(&mut self, slot: usize, _: PieceId) {
        self.0.put(slot, ());
    }

    fn used(&mut self, slot: usize, _: PieceId) {
        self.0.promote(&slot);
    }

    fn left(&mut self, slot: usize, _: PieceId) {
        self.0.pop(&slot);
    }

    fn victim(&mut self, _: PieceId, may: &dyn Fn(usize) -> bool) -> Option<usize> {
        self.0.iter().rev().map(|(&slot, ())| slot).find(|&slot| may(slot))
    }

    fn later(&mut self, _: PieceId, _: PieceId, _: PieceId, probability: f32) -> bool {
        probability >= PROBABLE
    }

    fn foreseen(&mut self, slot: usize, _: PieceId, probability: f32) {
        if probability >= PROBABLE {
            self.0.promote(&slot);
        }
    }

    /// Two links, a key and a place in a table with a load of at least a half.
    fn bytes(&self) -> usize {
        self.0.len() * (3 * size_of::<usize>() + 2 * (size_of::<usize>() + 1))
    }
}
