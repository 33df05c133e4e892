//! Texts that a user gives, of limited size.

use std::io::Read;
use std::path::Path;

use anyhow::bail;
use sws_format::{open_named, open_regular};

/// Size limit of a prompt, in bytes. No context holds as many.
const MAX_PROMPT: u64 = 64 << 20;

/// Reads a text of limited size from a file that an option names. `remedy` ends the error of one
/// that cannot be opened.
pub(crate) fn read_file(path: &Path, remedy: &str) -> anyhow::Result<String> {
    let name = format!("`{}`", path.display());
    match open_named(path) {
        Ok(file) => read_text(file, &name),
        Err(e) => bail!("{name} cannot be read: {e}; {remedy}"),
    }
}

/// Reads a text of limited size. `name` names it in errors.
pub(crate) fn read_text(from: impl Read, name: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    if let Err(e) = from.take(MAX_PROMPT + 1).read_to_end(&mut bytes) {
        bail!("{name} cannot be read: {e}; give another");
    }
    if bytes.len() as u64 > MAX_PROMPT {
        bail!("{name} has more than {MAX_PROMPT} bytes; give less of it");
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(_) => bail!("{name} is not UTF-8; convert it with `iconv -t UTF-8`"),
    }
}

/// Reads the beginning of a regular file, of so many bytes at most.
pub(crate) fn read_beginning(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
