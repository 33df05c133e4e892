//! What the process takes beside the model, as the system tells it.

use std::path::Path;

use sws_store::{MANIFEST_FILE, Manifest, SMALL_FILES, release_freed_memory};

use super::ledger::Process;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The most threads that read, and the stack that each has.
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
impl Process {
    /// Measures this process, which should have everything but the weights of the model in `dir`: what
    /// it takes later is what a plan does not know of.
    ///
    /// Where the system tells nothing of a process, only what can be known is counted.
    pub fn measure(dir: &Path, manifest: &Manifest) -> Process {
        release_freed_memory();
        let field = |name| status(name).unwrap_or(0);
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        // Those that compute may not have been started yet; one of the others waits for them.
        let threads = field_count("Threads:").max(cores + 1);
        // Where every mapping is made of huge pages, a stack is one, however little of it is used.
        let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        let stack =
            if enabled.is_ok_and(|word| word.contains("[always]")) { WHOLE_STACK } else { STACK };
        Process {
            program: mapped(Path::new("/proc/self/maps")),
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
}

/// What reading a model's small files brings into the page cache.
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

/// The length of everything that is mapped from files and never written to: pages of it come as they
/// are touched, and stay.
fn mapped(maps: &Path) -> u64 {
    let maps = std::fs::read_to_string(maps).unwrap_or_default();
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

/// A line of what the system says of this process: `Name:   123 kB`.
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
    fn what_is_mapped_from_files_is_counted_once_and_only_what_is_read() {
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
