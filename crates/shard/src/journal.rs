//! Journal of finished files, so that killed work can resume: one line per file, each with a
//! checksum.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sws_format::{JOURNAL, open_regular};
use sws_os::open::{is_link, no_link};
use xxhash_rust::xxh3::xxh3_64;

use super::ShardError;

/// Maximum number of bytes read of a journal; `sws` writes no longer ones. A line with all
/// checksums of a piece has a few kilobytes, and the experts of the largest published model make
/// 100 MB.
const MAX_BYTES: u64 = 1 << 30;

/// An append-only file of JSON lines. The first identifies the job.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Begins a journal, or continues one of the same job. Returns its entries.
    ///
    /// Damaged lines are ignored, and a torn line at the end is cut off. Without an intact first
    /// line the journal begins anew.
    pub(super) fn open<J, L>(dir: &Path, job: &J) -> Result<(Journal, Vec<L>), ShardError>
    where
        J: Serialize + DeserializeOwned + PartialEq,
        L: DeserializeOwned,
    {
        let path = dir.join(JOURNAL);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // Opening a pipe in its place would block forever, and a link could lead to a foreign file.
        let mut file = match no_link(&mut options).open(&path) {
            Ok(file) => file,
            Err(e) if is_link(&e) => return Err(foreign(dir)),
            Err(e) => return Err(ShardError::writing(&path)(e)),
        };
        if !file.metadata().map_err(ShardError::reading(&path))?.is_file() {
            return Err(foreign(dir));
        }
        let mut bytes = Vec::new();
        let read = (&mut file).take(MAX_BYTES).read_to_end(&mut bytes);
        read.map_err(ShardError::reading(&path))?;

        let mut entries = Vec::new();
        let mut valid = 0;
        if let Some((json, len)) = line(&bytes) {
            match serde_json::from_slice::<J>(json) {
                Ok(found) if found == *job => valid = len,
                _ => return Err(ShardError::OtherJob { dir: dir.to_owned() }),
            }
            let mut at = valid;
            while let Some(len) = bytes[at..].iter().position(|&b| b == b'\n') {
                let found = line(&bytes[at..]);
                at += len + 1;
                if let Some((json, _)) = found
                    && let Ok(entry) = serde_json::from_slice(json)
                {
                    entries.push(entry);
                    valid = at;
                }
            }
        }
        let mut journal = Journal { path, file };
        journal.file.set_len(valid as u64).map_err(ShardError::writing(&journal.path))?;
        journal.file.seek(SeekFrom::End(0)).map_err(ShardError::writing(&journal.path))?;
        if valid == 0 {
            journal.append([job])?;
        }
        Ok((journal, entries))
    }

    /// True if the directory has a journal with an intact first line. Without it, no work was
    /// begun.
    pub(super) fn begun(dir: &Path) -> bool {
        let Ok(file) = open_regular(dir.join(JOURNAL)) else { return false };
        let mut bytes = Vec::new();
        file.take(1 << 20).read_to_end(&mut bytes).is_ok() && line(&bytes).is_some()
    }

    /// The job of the journal in a directory, if its line is intact.
    pub(super) fn job<J: DeserializeOwned>(dir: &Path) -> Option<J> {
        let mut bytes = Vec::new();
        open_regular(dir.join(JOURNAL)).ok()?.take(1 << 20).read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(line(&bytes)?.0).ok()
    }

    /// Appends lines and syncs them.
    pub(super) fn append<L: Serialize>(
        &mut self,
        entries: impl IntoIterator<Item = L>,
    ) -> Result<(), ShardError> {
        let mut text = String::new();
        for entry in entries {
            let json = serde_json::to_string(&entry)
                .map_err(io::Error::from)
                .map_err(ShardError::writing(&self.path))?;
            text.push_str(&format!("{:016x} {json}\n", xxh3_64(json.as_bytes())));
        }
        self.file.write_all(text.as_bytes()).map_err(ShardError::writing(&self.path))?;
        self.file.sync_data().map_err(ShardError::writing(&self.path))
    }

    /// Removes the journal when the work is done. Another process that found all work done may have
    /// removed it already.
    pub(super) fn remove(self) -> Result<(), ShardError> {
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(ShardError::writing(&self.path)(e)),
            _ => Ok(()),
        }
    }
}

/// Error for something that has the journal's name, but is not a journal.
fn foreign(dir: &Path) -> ShardError {
    ShardError::Foreign { dir: dir.to_owned(), name: JOURNAL.to_owned() }
}

/// Returns the JSON of the first line and the length of the line, if it is intact.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.iter().position(|&b| b == b'\n')?;
    let (sum, json) = bytes[..end].split_at_checked(17)?;
    let sum = std::str::from_utf8(sum.strip_suffix(b" ")?).ok()?;
    let intact = u64::from_str_radix(sum, 16).ok()? == xxh3_64(json);
    intact.then_some((json, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        // A parser that is off by one in the last place reads the first as 0.0011138212867081165.
        let numbers = [0.0011138212867081163, f64::MIN_POSITIVE, 0.1 + 0.2, 1e300 / 3.0];
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open::<_, f64>(dir.path(), &7u32).unwrap();
        journal.append(numbers).unwrap();
        assert_eq!(Journal::open::<_, f64>(dir.path(), &7u32).unwrap().1, numbers);
    }

    #[test]
    fn torn_or_damaged_lines_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let write = || {
            let _ = std::fs::remove_file(dir.path().join(JOURNAL));
            let (mut journal, none) = Journal::open::<_, u32>(dir.path(), &7u32).unwrap();
            assert!(none.is_empty());
            journal.append([1u32, 2]).unwrap();
            journal.append([3u32]).unwrap();
        };
        write();
        let path = dir.path().join(JOURNAL);
        let whole = std::fs::read(&path).unwrap();
        let ends: Vec<usize> = (0..whole.len()).filter(|&i| whole[i] == b'\n').collect();
        let reopen = || Journal::open::<_, u32>(dir.path(), &7u32).unwrap().1;
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let lines = ends.iter().filter(|&&end| end < cut).count();
            assert_eq!(Journal::begun(dir.path()), lines > 0);
            assert_eq!(reopen(), [1, 2, 3][..lines.saturating_sub(1)], "cut at {cut}");
            // A line appended after a torn one is read again.
            let (mut journal, before) = Journal::open::<_, u32>(dir.path(), &7u32).unwrap();
            journal.append([9u32]).unwrap();
            assert_eq!(reopen().len(), before.len() + 1);
        }
        for at in ends[0] + 1..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, &bytes).unwrap();
            let line = ends.iter().filter(|&&end| end < at).count() as u32;
            // Without the end of a line, the next one belongs to it.
            let lost = if whole[at] == b'\n' { line..=line + 1 } else { line..=line };
            let left: Vec<u32> = (1..=3).filter(|number| !lost.contains(number)).collect();
            assert_eq!(reopen(), left, "flipped at {at}");
            let (mut journal, _) = Journal::open::<_, u32>(dir.path(), &7u32).unwrap();
            journal.append([9u32]).unwrap();
            assert_eq!(reopen(), [left, vec![9]].concat(), "flipped at {at}");
        }
        for at in 0..=ends[0] {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, &bytes).unwrap();
            assert!(!Journal::begun(dir.path()));
            assert!(reopen().is_empty(), "flipped at {at}");
        }
        write();
        assert!(matches!(
            Journal::open::<_, u32>(dir.path(), &8u32),
            Err(ShardError::OtherJob { .. })
        ));
    }
}
