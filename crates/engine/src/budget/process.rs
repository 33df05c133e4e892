//! Memory of the process apart from the model, as reported by the system.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use sws_format::{MANIFEST_FILE, Manifest, SMALL_FILES};
use sws_store::release_freed_memory;

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
        let field = |name| status(name).unwrap_or(0);
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        // Compute threads may not have been started yet; one more thread waits for them.
        let threads = field_count("Threads:").max(cores + 1);
        // If every mapping consists of huge pages, a whole stack is resident after its first use.
        let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        let stack =
            if enabled.is_ok_and(|word| word.contains("[always]")) { WHOLE_STACK } else { STACK };
        ProcessMemory {
            program: mapped(Path::new("/proc/self/maps"))
                .saturating_sub(UNTOUCHED.load(Ordering::Relaxed)),
            stacks: threads * stack + READERS * READER_STACK,
            heap: field("RssAnon:"),
            tokenizer: 0,
            slack: 0,
            files: small_files(dir, manifest),
            kernel: field("VmPTE:")
                + (threads + READERS) * KERNEL_THREAD
                + manifest.files.len() as u64 * KERNEL_FILE
                + cores * CHARGED_AHEAD
                + MIB,
            peak: field("VmHWM:"),
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
    let lens = SMALL_FILES.iter().chain([&MANIFEST_FILE]).filter_map(|name| {
        let file = dir.join(name).metadata().ok()?;
        Some(file.len().next_multiple_of(4 * KIB))
    });
    // The headers of a checkpoint read in place; their readahead reaches into the weights.
    let sharded = dir.join(MANIFEST_FILE).exists();
    let headers = if sharded { 0 } else { headers(manifest) };
    lens.sum::<u64>() + headers
}

fn headers(manifest: &Manifest) -> u64 {
    let mut first: Vec<u64> = manifest.files.iter().map(|file| file.len).collect();
    let tensors = manifest.pieces.iter().flat_map(|piece| &piece.tensors);
    for extent in tensors.flat_map(|tensor| &tensor.parts) {
        let first = &mut first[extent.file as usize];
        *first = extent.offset.min(*first);
    }
    first.iter().map(|header| header + 2 * READAHEAD).sum()
}

fn field_count(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// Length of all read-only mappings of files. Their pages become resident when touched, and stay.
fn mapped(maps: &Path) -> u64 {
    let maps = std::fs::read_to_string(maps).unwrap_or_default();
    let lens = maps.lines().filter_map(|line| {
        // 7f00-7f20 r-xp 00000000 fe:00 1234 /usr/lib/libc.so.6
        let mut words = line.split_ascii_whitespace();
        let range = words.next()?;
        let rights = words.next()?;
        let path = words.nth(3)?;
        let (start, end) = range.split_once('-')?;
        let address = |word| u64::from_str_radix(word, 16).ok();
        (path.starts_with('/') && !rights.contains('w'))
            .then_some(address(end)?.checked_sub(address(start)?)?)
    });
    lens.sum()
}

/// Value in bytes of a line `Name:   123 kB` in this process's status.
pub(crate) fn status(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_read_only_file_mappings_are_counted() {
        let maps = "\
00400000-00500000 r-xp 00000000 fe:00 12 /usr/bin/a
00500000-00600000 rw-p 00100000 fe:00 12 /usr/bin/a
7f000000-7f001000 r--p 00000000 fe:00 13 /usr/lib/a name.so
7f001000-7f003000 rw-p 00000000 00:00 0
7f003000-7f004000 r-xp 00000000 00:00 0 [vdso]
broken
";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), maps).unwrap();
        assert_eq!(mapped(file.path()), (1 << 20) + 4096);
        assert_eq!(mapped(Path::new("/nowhere")), 0);
    }
}
