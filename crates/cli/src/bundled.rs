//! The bundled model as the program itself has it, for programs that were installed without its files.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use sws_format::MANIFEST_FILE;
use sws_os::image::OwnBytes;
use sws_store::user_cache;

/// The files, one behind the other.
static FILES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tale"));
/// A line for each file: its length and its path, with `/` between folders.
static INDEX: &str = include_str!(concat!(env!("OUT_DIR"), "/tale.index"));
/// Name of the directory, which differs between versions of the model.
const NAME: &str = env!("SWS_TALE");

/// Bytes that are copied at a time.
const STEP: usize = 1 << 20;

/// Bytes of the model in the program. They are read from its file, never through its memory.
pub(crate) fn bytes() -> u64 {
    FILES.len() as u64
}

/// The model in the user's cache. It is written there the first time.
pub(crate) fn in_cache() -> anyhow::Result<PathBuf> {
    let Some(cache) = user_cache() else {
        bail!(
            "the bundled model has no place to be written to; set HOME or XDG_CACHE_HOME, or name a model"
        )
    };
    let dir = cache.join("bundled").join(NAME);
    if !is_whole(&dir)
        && let Err(e) = write_to(&dir)
    {
        bail!(
            "the bundled model cannot be written to `{}`: {e}; make room there, or set XDG_CACHE_HOME to another directory",
            dir.display()
        );
    }
    Ok(dir)
}

/// True if all files are there, in full length. A model checks their contents itself.
fn is_whole(dir: &Path) -> bool {
    for (len, path) in entries() {
        match dir.join(path).metadata() {
            Ok(about) if about.is_file() && about.len() == len => {}
            _ => return false,
        }
    }
    dir.join(MANIFEST_FILE).is_file()
}

fn entries() -> impl Iterator<Item = (u64, &'static str)> {
    INDEX.lines().filter_map(|line| {
        let (len, path) = line.split_once(' ')?;
        Some((len.parse().ok()?, path))
    })
}

/// Writes the files to a new directory, which takes its name once it is whole.
fn write_to(dir: &Path) -> io::Result<()> {
    let parent = dir.parent().unwrap_or(dir);
    std::fs::create_dir_all(parent)?;
    let new = tempfile::Builder::new().prefix("new").tempdir_in(parent)?;
    let program = OwnBytes::of(FILES)?;
    let mut at = 0;
    let mut buffer = vec![0; STEP];
    for (len, path) in entries() {
        let path = new.path().join(path);
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let mut file = File::create_new(&path)?;
        let mut left = len as usize;
        while left > 0 {
            let part = &mut buffer[..left.min(STEP)];
            program.read_exact_at(part, at)?;
            file.write_all(part)?;
            at += part.len() as u64;
            left -= part.len();
        }
        file.sync_all()?;
    }
    // What is there is not whole, or another process has just made it.
    if dir.exists() && !is_whole(dir) {
        std::fs::remove_dir_all(dir)?;
    }
    match std::fs::rename(new.path(), dir) {
        Err(_) if is_whole(dir) => Ok(()),
        Err(e) => Err(e),
        Ok(()) => {
            // Nothing is left of it to remove.
            let _ = new.keep();
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_those_of_the_repository() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("cache").join(NAME);
        assert!(!is_whole(&dir));
        write_to(&dir).unwrap();
        assert!(is_whole(&dir));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shards/tales-moe");
        let mut sum = 0;
        for (len, path) in entries() {
            let written = std::fs::read(dir.join(path)).unwrap();
            assert!(written == std::fs::read(source.join(path)).unwrap(), "{path}");
            sum += len;
        }
        assert_eq!(sum, bytes());
        // A file that is cut off is written anew, and no other directory is left.
        std::fs::write(dir.join(MANIFEST_FILE), "{").unwrap();
        assert!(!is_whole(&dir));
        write_to(&dir).unwrap();
        assert!(is_whole(&dir));
        write_to(&dir).unwrap();
        assert_eq!(dir.parent().unwrap().read_dir().unwrap().count(), 1);
    }
}
