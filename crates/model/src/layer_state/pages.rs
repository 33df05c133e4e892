//! Pages of rows, for all states that are addressed by position.

use std::sync::Arc;

use sws_kernels::functional::{CacheLayout, LEAST_PAGE, Page, Zero, zeroed};

/// The number of positions per page, if `asked` are requested.
pub(super) fn positions_per_page(asked: usize) -> usize {
    asked.max(LEAST_PAGE).checked_next_power_of_two().unwrap_or(1 << (usize::BITS - 1))
}

/// Positions in the pages of `page` that hold `capacity` of them.
pub(super) fn positions_held(capacity: usize, page: usize) -> usize {
    if capacity <= page { capacity } else { capacity.next_multiple_of(page) }
}

/// Adds pages of `len` values until there are `needed`.
pub(super) fn grow<E: Zero>(pages: &mut Vec<Page<E>>, needed: usize, len: usize) {
    // `push` would double the capacity, and the budget relies on the exact length.
    pages.reserve_exact(needed.saturating_sub(pages.len()));
    while pages.len() < needed {
        pages.push(zeroed(len));
    }
}

/// Drops the pages that are shared with another sequence.
pub(super) fn drop_shared<E>(pages: &mut Vec<Page<E>>) {
    pages.retain_mut(|page| Arc::get_mut(page).is_some());
}

/// A piece of memory that states share until one of them writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SharedPage {
    address: usize,
    pub(crate) bytes: u64,
}

/// Bytes held, including shared pages.
pub(super) fn bytes<E>(pages: &[Page<E>]) -> u64 {
    pages.iter().map(bytes_of).sum()
}

/// Calls `each` with every page.
pub(super) fn each_page<E>(pages: &[Page<E>], each: &mut dyn FnMut(SharedPage)) {
    for page in pages.iter().filter(|page| !page.is_empty()) {
        each(SharedPage { address: page.as_ptr().addr(), bytes: bytes_of(page) });
    }
}

/// Bytes of new pages, and of copies of shared ones, when the positions from `len` to `end` are written.
pub(super) fn growth<E>(pages: &[Page<E>], layout: &CacheLayout, len: usize, end: usize) -> u64 {
    if end <= len {
        return 0;
    }
    let new = layout.pages(end).saturating_sub(pages.len());
    let page = layout.page_len().expect("the formula has counted it before") * size_of::<E>();
    // A ring continues at its beginning.
    let first = if end > layout.capacity { 0 } else { len / layout.page };
    let copied = pages.iter().skip(first).map(shared_bytes).sum::<u64>();
    (new * page) as u64 + copied
}

/// Bytes of a page if others share it.
pub(super) fn shared_bytes<E>(page: &Page<E>) -> u64 {
    if Arc::strong_count(page) > 1 { bytes_of(page) } else { 0 }
}

fn bytes_of<E>(page: &Page<E>) -> u64 {
    size_of_val(&**page) as u64
}
