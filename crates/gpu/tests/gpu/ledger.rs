//! The ledger of a device's memory never exceeds its limit.

use proptest::prelude::*;
use sws_gpu::{VramLedger, VramLine};

proptest! {
    #[test]
    fn no_more_than_the_limit(limit in 0u64..1000, takes in prop::collection::vec((0usize..3, 0u64..300), 0..40)) {
        let mut ledger = VramLedger::new(limit);
        let mut taken: Vec<(VramLine, u64)> = Vec::new();
        for (line, bytes) in takes {
            let line = VramLine::ALL[line];
            let before = ledger.clone();
            if ledger.take(line, bytes) {
                taken.push((line, bytes));
            } else {
                prop_assert!(before.used() + bytes > limit);
                prop_assert_eq!(&ledger, &before);
                if let Some((line, bytes)) = taken.pop() {
                    ledger.give(line, bytes);
                }
            }
            let sum: u64 = taken.iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(ledger.used(), sum);
            prop_assert!(ledger.used() <= limit && ledger.most() <= limit);
            prop_assert_eq!(ledger.left(), limit - sum);
        }
    }
}

#[test]
fn auto_leaves_room() {
    for (memory, limit) in
        [(0, 0), (1 << 30, 0), (8 << 30, 7 << 30), (24 << 30, (24 << 30) - (24 << 30) / 10)]
    {
        assert_eq!(VramLedger::auto(memory), limit, "{memory}");
    }
}
