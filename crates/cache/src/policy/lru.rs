//! The baseline: evicts the least recently used piece.

use lru::LruCache;

use sws_format::PieceId;

use super::{Policy, RouteLearner, UseForecast};

/// A forecast of at least this probability counts as a use.
const PROBABLE: f32 = 0.5;

/// Evicts the least recently used piece.
#[derive(Debug)]
pub struct Lru(LruCache<usize, ()>);

impl Lru {
    /// An empty policy.
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

    fn victim(&mut self, _: PieceId, evictable: &dyn Fn(usize) -> bool) -> Option<usize> {
        self.0.iter().rev().map(|(&slot, ())| slot).find(|&slot| evictable(slot))
    }

    /// Counts two links, a key and an entry in a table with a load factor of at least one half.
    fn bytes(&self) -> usize {
        self.0.len() * (3 * size_of::<usize>() + 2 * (size_of::<usize>() + 1))
    }
}

impl RouteLearner for Lru {}

impl UseForecast for Lru {
    fn is_needed_later(&mut self, _: PieceId, _: PieceId, _: PieceId, probability: f32) -> bool {
        probability >= PROBABLE
    }

    fn set_forecast(&mut self, slot: usize, _: PieceId, probability: f32) {
        if probability >= PROBABLE {
            self.0.promote(&slot);
        }
    }
}
