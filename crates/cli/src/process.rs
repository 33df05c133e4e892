//! What the process takes beside the weights: measured, once everything else is there.

use std::alloc::System;

use cap::Cap;
use sws_engine::Process;
use sws_store::{MANIFEST_FILE, release_freed_memory};

use crate::model::Model;

/// Everything on the heap is counted here.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The most threads that read, whatever a probe says, and the stack that each has.
const READERS: u64 = 8;
const READER_STACK: u64 = 256 * KIB;
/// What a thread that computes uses of its stack, with much to spare.
const STACK: u64 = 512 * KIB;
/// What it has.
const WHOLE_STACK: u64 = 2 * MIB;
/// What the kernel keeps for a thread: its own stack, and the books about it.
const KERNEL_THREAD: u64 = 32 * KIB;
/// The same for an open file.
const KERNEL_FILE: u64 = 2 * KIB;
/// Pages that a control group is charged for in advance, on each CPU.
const CHARGED_AHEAD: u64 = 64 * 4 * KIB;
/// A first read of a file brings as much into the page cache.
const READAHEAD: u64 = 128 * KIB;
/// Files beside the weights that are read as a whole.
const SMALL_FILES: [&str; 6] = [
    MANIFEST_FILE,
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// What is on the heap.
pub(crate) fn heap() -> u64 {
    HEAP.allocated() as u64
}

/// Does something and counts what it leaves on the heap.
pub(crate) fn counted<T>(make: impl FnOnce() -> T) -> (T, u64) {
    let before = heap();
    let made = make();
    (made, heap().saturating_sub(before))
}

/// Measures the process, which must have read everything but weights and have started its threads
/// that compute. `tokenizer` is the part of the heap that the tokenizer takes.
pub(crate) fn measure(model: &Model, tokenizer: u64) -> Process {
    release_freed_memory();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix("kB"));
        line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0) * KIB
    };
    let computing = rayon::current_num_threads() as u64 + 1;
    // Where every mapping is made of huge pages, a stack is one, however little of it is used.
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let stack =
        if enabled.is_ok_and(|word| word.contains("[always]")) { WHOLE_STACK } else { STACK };
    let heap = heap();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let files = model.manifest.files.len() as u64;
    Process {
        program: program(),
        stacks: computing * stack + READERS * READER_STACK,
        heap: heap.saturating_sub(tokenizer),
        tokenizer,
        slack: field("RssAnon:").saturating_sub(heap),
        files: small_files(model),
        kernel: field("VmPTE:")
            + (computing + READERS) * KERNEL_THREAD
            + files * KERNEL_FILE
            + cpus * CHARGED_AHEAD
            + MIB,
        peak: field("VmHWM:"),
    }
}

/// The length of everything that is mapped from files and never written to: pages of it come as they
/// are touched, and stay.
fn program() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let lens = maps.lines().filter_map(|line| {
        // 7f00-7f20 r-xp 00000000 fe:00 1234 /usr/lib/libc.so.6
        let mut words = line.split_ascii_whitespace();
        let (range, rights) = (words.next()?, words.next()?);
        let path = words.nth(3)?;
        let (start, end) = range.split_once('-')?;
        let address = |word| u64::from_str_radix(word, 16).ok();
        (path.starts_with('/') && !rights.contains('w'))
            .then_some(address(end)?.checked_sub(address(start)?)?)
    });
    lens.sum()
}

/// What reading a model's small files brings into the page cache.
fn small_files(model: &Model) -> u64 {
    let lens = SMALL_FILES.iter().filter_map(|name| {
        let file = model.dir.join(name).metadata().ok()?;
        Some(file.len().next_multiple_of(4 * KIB))
    });
    // The headers of a checkpoint read in place; their readahead reaches into the weights.
    let sharded = model.dir.join(MANIFEST_FILE).exists();
    let headers = if sharded { 0 } else { headers(model) };
    lens.sum::<u64>() + headers
}

fn headers(model: &Model) -> u64 {
    let mut first: Vec<u64> = model.manifest.files.iter().map(|file| file.len).collect();
    let tensors = model.manifest.pieces.iter().flat_map(|piece| &piece.tensors);
    for extent in tensors.flat_map(|tensor| &tensor.parts) {
        let first = &mut first[extent.file as usize];
        *first = extent.offset.min(*first);
    }
    first.iter().map(|header| header + 2 * READAHEAD).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_the_heap_is_counted() {
        let (bytes, counted) = counted(|| vec![1u8; 3 << 20]);
        // Other tests allocate meanwhile.
        assert!(counted >= 2 << 20, "{counted}");
        assert!(heap() >= bytes.len() as u64);
    }

    #[test]
    fn the_program_is_at_least_as_long_as_what_is_there_of_it() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
        let here: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        assert!(program() >= here * KIB && program() < 400 * MIB, "{}", program());
    }
}
