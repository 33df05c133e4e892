//! Argmax and top-k in a defined order: larger numbers first, the lower index first among equals
//! (-0 and 0 are equal), NaN after every number.

use std::cmp::Ordering;

use super::lanes::maximum;

/// The index of the largest number, the first among equals. `None` if there is no number.
pub fn argmax(x: &[f32]) -> Option<usize> {
    let best = maximum(x);
    x.iter().position(|&v| v == best)
}

/// Writes the indices of the first `best.len()` elements of `x` in that order.
///
/// `best` must not be longer than `x`. One pass with a heap, so that a vocabulary need not be
/// sorted.
pub fn top_k(x: &[f32], best: &mut [u32]) {
    assert!(best.len() <= x.len(), "top_k: {} of {} elements", best.len(), x.len());
    let k = best.len();
    if k == 0 {
        return;
    }
    // A heap whose root is the last of the elements kept.
    for (slot, index) in best.iter_mut().zip(0..) {
        *slot = index;
    }
    for root in (0..k / 2).rev() {
        sift_down(x, best, root);
    }
    for index in k..x.len() {
        let index = index as u32;
        if order(x, index, best[0]) == Ordering::Less {
            best[0] = index;
            sift_down(x, best, 0);
        }
    }
    best.sort_unstable_by(|&a, &b| order(x, a, b));
}

/// `Less` if `a` comes before `b`.
fn order(x: &[f32], a: u32, b: u32) -> Ordering {
    let va = x[a as usize];
    let vb = x[b as usize];
    let by_value = vb.partial_cmp(&va).unwrap_or_else(|| va.is_nan().cmp(&vb.is_nan()));
    by_value.then(a.cmp(&b))
}

fn sift_down(x: &[f32], heap: &mut [u32], mut root: usize) {
    loop {
        let mut last = root;
        for child in [2 * root + 1, 2 * root + 2] {
            if child < heap.len() && order(x, heap[child], heap[last]) == Ordering::Greater {
                last = child;
            }
        }
        if last == root {
            return;
        }
        heap.swap(root, last);
        root = last;
    }
}
