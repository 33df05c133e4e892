//! Pages of rows, as all states that are addressed by position keep them.

use std::sync::Arc;

use sws_kernels::functional::{LEAST_PAGE, Page, Zero, zeroed};

/// The number of positions per page when `asked` are asked for.
pub(super) fn positions_per_page(asked: usize) -> usize {
    asked.max(LEAST_PAGE).checked_next_power_of_two().unwrap_or(1 << (usize::BITS - 1))
}

/// Positions in the pages of `page` that hold `capacity` of them.
pub(super) fn positions_held(capacity: usize, page: usize) -> usize {
    if capacity <= page { capacity } else { capacity.next_multiple_of(page) }
}

/// Adds pages of `len` numbers until there are `needed`.
pub(super) fn grow<E: Zero>(pages: &mut Vec<Page<E>>, needed: usize, len: usize) {
    // Avoids the doubling of `push`: a budget counts on the length.
    pages.reserve_exact(needed.saturating_sub(pages.len()));
    while pages.len() < needed {
        pages.push(zeroed(len));
    }
}

/// Drops the pages that are shared with another sequence.
pub(super) fn drop_shared<E>(pages: &mut Vec<Page<E>>) {
    pages.retain_mut(|page| Arc::get_mut(page).is_some());
}
