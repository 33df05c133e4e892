//! What would be in memory if nothing had been read ahead.

use std::collections::{HashMap, HashSet};

use sws_store::PieceId;

/// What speculation has brought, and what would be there without it.
///
/// From the first speculative read on, what would be there is followed for itself: the same is demanded
/// of it, and the same policy decides what goes, without forecasts. To book as missed what was pushed out
/// last, as many pieces as were brought, is not enough: of 1,970 misses it left 16 unexplained on a disk so slow
/// that these were a third of what was saved.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// There, and not used yet.
    brought: HashSet<PieceId>,
    /// None while it is what is there.
    otherwise: Option<Otherwise>,
}

/// What would be there.
#[derive(Debug)]
struct Otherwise {
    slots: usize,
    /// And when it was used last, in uses.
    there: HashMap<PieceId, u64>,
    uses: u64,
}

impl Books {
    /// A read has begun into a slot, perhaps in the place of a piece. True if that one had been brought
    /// and was never used.
    pub(super) fn begun(
        &mut self,
        id: PieceId,
        speculative: bool,
        evicted: Option<PieceId>,
    ) -> bool {
        let unused = evicted.is_some_and(|evicted| self.brought.remove(&evicted));
        if speculative {
            self.brought.insert(id);
        }
        unused
    }

    /// So far `there` was in so many slots, with or without.
    pub(super) fn depart(&mut self, slots: usize, there: impl Iterator<Item = PieceId>) {
        self.otherwise.get_or_insert_with(|| {
            let there = there.map(|id| (id, 0)).collect();
            Otherwise { slots, there, uses: 0 }
        });
    }

    /// A piece is needed, or will not come, as its read was given up or has failed: whether it had been
    /// brought until then.
    pub(super) fn settle(&mut self, id: PieceId) -> bool {
        self.brought.remove(&id)
    }

    /// Whether a piece that is needed would be there; none if it would if it is. If not it comes, in the
    /// place of what `last` says of those that may go, or of what was used longest ago.
    pub(super) fn would_have(
        &mut self,
        id: PieceId,
        may_go: impl Fn(PieceId) -> bool,
        last: impl FnOnce(&dyn Fn(PieceId) -> bool) -> Option<PieceId>,
    ) -> Option<bool> {
        let Otherwise { slots, there, uses } = self.otherwise.as_mut()?;
        *uses += 1;
        let known = there.insert(id, *uses).is_some();
        if !known && there.len() > *slots {
            let may = |other: PieceId| there.contains_key(&other) && other != id && may_go(other);
            let oldest = || {
                let others = there.iter().filter(|(other, _)| may(**other));
                others.min_by_key(|&(&id, &used)| (used, id)).map(|(id, _)| *id)
            };
            if let Some(goes) = last(&may).or_else(oldest) {
                there.remove(&goes);
            }
        }
        Some(known)
    }

    /// Nothing is read ahead any more. Once what is there is what would be, that is forgotten.
    pub(super) fn rest(&mut self, len: usize, there: impl Fn(PieceId) -> bool) {
        let same = |without: &Otherwise| {
            without.there.len() == len && without.there.keys().all(|&id| there(id))
        };
        if self.brought.is_empty() && self.otherwise.as_ref().is_some_and(same) {
            self.otherwise = None;
        }
    }

    /// Nothing is known any more.
    pub(super) fn clear(&mut self) {
        *self = Books::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_there_goes_its_own_way() {
        let id = |n| PieceId::expert(0, n);
        let mut books = Books::default();
        let need = |books: &mut Books, n: u32, last: Option<u32>| {
            books.would_have(id(n), |_| true, |may| last.map(id).filter(|&last| may(last)))
        };
        assert!(!books.begun(id(1), false, Some(id(2))));
        assert_eq!(need(&mut books, 1, None), None, "nothing was brought");

        // 1, 3 and 4 are there; 5 is brought in the place of 4.
        books.depart(3, [1, 3, 4].into_iter().map(id));
        assert!(!books.begun(id(5), true, Some(id(4))));
        assert_eq!(need(&mut books, 4, None), Some(true));
        books.depart(3, std::iter::empty());
        assert_eq!(need(&mut books, 1, None), Some(true), "it goes on");
        // 5 would have to be read, in the place of 3, which was not used.
        assert!(books.settle(id(5)) && !books.settle(id(5)));
        assert_eq!(need(&mut books, 5, None), Some(false));
        assert_eq!(need(&mut books, 3, Some(1)), Some(false), "and this in the place that is said");
        books.rest(3, |piece| piece != id(4));
        assert_eq!(need(&mut books, 5, None), Some(true), "4 would be there");
        books.begun(id(6), true, None);
        assert!(books.begun(id(7), false, Some(id(6))), "6 was never used");
        assert!(!books.settle(id(6)));
        books.rest(3, |piece| piece != id(1));
        assert_eq!(need(&mut books, 5, None), None, "as it would be");
    }

    #[test]
    fn what_may_not_go_stays_beyond_the_slots() {
        let id = |n| PieceId::expert(0, n);
        let mut books = Books::default();
        books.depart(1, [id(1)].into_iter());
        let keep = |_: &dyn Fn(PieceId) -> bool| None;
        assert_eq!(books.would_have(id(2), |piece| piece != id(1), keep), Some(false));
        assert_eq!(books.would_have(id(1), |_| false, keep), Some(true));
        assert_eq!(books.would_have(id(2), |_| false, keep), Some(true));
    }
}
