//! Texts that a user gives, of limited size.

use std::io::Read;
use std::path::Path;

use anyhow::{anyhow, bail};
use sws_format::open_named;

/// Size limit of a prompt, in bytes. No context holds as many.
const MAX_PROMPT: u64 = 64 << 20;

/// Reads a text of limited size from a file that an option names. `remedy` ends the error of one
/// that cannot be opened.
pub(crate) fn read_file(path: &Path, remedy: &str) -> anyhow::Result<String> {
    let name = format!("`{}`", path.display());
    let file = open_named(path).map_err(|e| anyhow!("{name} cannot be read: {e}; {remedy}"))?;
    read_text(file, &name)
}

/// Reads a text of limited size. `name` names it in errors.
pub(crate) fn read_text(from: impl Read, name: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let unreadable = |e| anyhow!("{name} cannot be read: {e}; give another");
    from.take(MAX_PROMPT + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_PROMPT {
        bail!("{name} has more than {MAX_PROMPT} bytes; give less of it");
    }
    String::from_utf8(bytes)
        .map_err(|_| anyhow!("{name} is not UTF-8; convert it with `iconv -t UTF-8`"))
}
