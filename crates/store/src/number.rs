//! Numbers of the models in a process.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of a model in this process. A [`PieceId`](crate::PieceId) names a piece within its
/// model; a structure that several models share, such as a cache, has both in its keys.
///
/// Each [`NVMeWeightStore`](crate::NVMeWeightStore) gets a number of its own when it is opened,
/// even if another is open on the same files: bytes verified by one store are not verified for the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelNumber(u32);

impl ModelNumber {
    /// Returns a number that is unique in this process.
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
    fn numbers_are_unique_across_threads() {
        let ask = || (0..100).map(|_| ModelNumber::next()).collect::<Vec<_>>();
        let numbers: Vec<ModelNumber> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 400);
    }
}
