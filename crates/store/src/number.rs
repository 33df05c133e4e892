//! Which of the models in a process something belongs to.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of a model in this process. A [`PieceId`](crate::PieceId) names a piece within its
/// model; whatever is shared by several, such as a cache, has both in its keys.
///
/// Each [`NVMeWeightStore`](crate::NVMeWeightStore) that is opened has a number of its own, whether or
/// not another was opened on the same files: what one has verified says nothing about the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelNumber(u32);

impl ModelNumber {
    /// One that nothing else in this process has.
    pub fn next() -> ModelNumber {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        ModelNumber(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for ModelNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model_{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_are_alike_whoever_asks() {
        let ask = || (0..100).map(|_| ModelNumber::next()).collect::<Vec<_>>();
        let numbers: Vec<ModelNumber> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 400);
    }
}
