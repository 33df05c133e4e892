//! Memory of the process apart from the model, as reported by the system.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use sws_format::{MANIFEST_FILE, Manifest, SMALL_FILES};
use sws_os::process::{are_all_pages_huge, mapped_files, memory, release_freed_memory};

use super::ledger::ProcessMemory;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Maximum number of reader threads, and the stack of each.
const READERS: u64 = 8;
const READER_STACK: u64 = 256 * KIB;
/// Reader threads of a further drive.
const DRIVE_READERS: u64 = 4;
/// Heap of a file on a further drive: its path, and its place among the open ones.
const DRIVE_FILE: u64 = 384;
/// Stack that a compute thread uses, with a generous margin.
const STACK: u64 = 512 * KIB;
/// Stack that a compute thread has.
const WHOLE_STACK: u64 = 2 * MIB;
/// Kernel memory of a thread: its kernel stack and its data structures.
const KERNEL_THREAD: u64 = 32 * KIB;
/// Kernel memory of an open file.
const KERNEL_FILE: u64 = 2 * KIB;
/// Bytes that a control group is charged in advance on each CPU.
const CHARGED_AHEAD: u64 = 64 * 4 * KIB;
/// Bytes that the first read of a file brings into the page cache.
const READAHEAD: u64 = 128 * KIB;

/// Bytes of the program that are never touched.
static UNTOUCHED: AtomicU64 = AtomicU64::new(0);

/// Declares that so many bytes of the program's file are data that is never touched in memory, so that
/// no plan counts them.
pub fn leave_out_of_plans(bytes: u64) {
    UNTOUCHED.store(bytes, Ordering::Relaxed);
}

impl ProcessMemory {
    /// Measures this process, which should hold everything but the weights of the model in `dir`: a
    /// plan does not know of later allocations.
    ///
    /// On systems that report nothing about a process, only the known parts are counted.
    pub fn measure(dir: &Path, manifest: &Manifest) -> ProcessMemory {
        release_freed_memory();
        let memory = memory();
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        // Compute threads may not have been started yet; one more thread waits for them.
        let threads = memory.threads.unwrap_or(0).max(cores + 1);
        // If every mapping consists of huge pages, a whole stack is resident after its first use.
        let stack = if are_all_pages_huge() { WHOLE_STACK } else { STACK };
        ProcessMemory {
            program: mapped_files().saturating_sub(UNTOUCHED.load(Ordering::Relaxed)),
            stacks: threads * stack + READERS * READER_STACK,
            heap: memory.anonymous.unwrap_or(0),
            tokenizer: 0,
            slack: 0,
            files: small_files(dir, manifest),
            kernel: memory.page_tables.unwrap_or(0)
                + (threads + READERS) * KERNEL_THREAD
                + manifest.files.len() as u64 * KERNEL_FILE
                + cores * CHARGED_AHEAD
                + MIB,
            peak: memory.peak.unwrap_or(0),
        }
    }

    /// Adds the readers of a copy of the model on another drive, which has so many files.
    #[must_use]
    pub fn with_drive(self, files: u64) -> ProcessMemory {
        ProcessMemory {
            stacks: self.stacks + DRIVE_READERS * READER_STACK,
            slack: self.slack + files * DRIVE_FILE,
            kernel: self.kernel + DRIVE_READERS * KERNEL_THREAD + files * KERNEL_FILE,
            ..self
        }
    }
}

/// Bytes that reading a model's small files brings into the page cache.
fn small_files(dir: &Path, manifest: &Manifest) -> u64 {
    // The headers of a checkpoint read in place; their readahead reaches into the weights.
    let sharded = dir.join(MANIFEST_FILE).exists();
    let mut bytes = if sharded { 0 } else { headers(manifest) };
    for name in SMALL_FILES.iter().chain([&MANIFEST_FILE]) {
        if let Ok(file) = dir.join(name).metadata() {
            bytes += file.len().next_multiple_of(4 * KIB);
        }
    }
    bytes
}

fn headers(manifest: &Manifest) -> u64 {
    let mut first: Vec<u64> = manifest.files.iter().map(|file| file.len).collect();
    for piece in &manifest.pieces {
        for extent in piece.tensors.iter().flat_map(|tensor| &tensor.parts) {
            let first = &mut first[extent.file as usize];
            *first = extent.offset.min(*first);
        }
    }
    first.iter().map(|header| header + 2 * READAHEAD).sum()
}
