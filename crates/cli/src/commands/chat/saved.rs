//! Conversations in files: JSON with `messages`, in the form that servers take.

use std::path::Path;

use anyhow::bail;
use serde::{Deserialize, Serialize};
use sws::Message;

use super::read_file;
use crate::atomic_file::AtomicFile;

#[derive(Deserialize)]
struct SavedChat {
    messages: Vec<Message>,
}

#[derive(Serialize)]
struct Saving<'a> {
    messages: &'a [Message],
}

/// Reads a conversation.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Message>> {
    let name = format!("`{}`", path.display());
    let text = read_file(path, "give another file")?;
    let messages = match serde_json::from_str(&text) {
        Ok(SavedChat { messages }) => messages,
        Err(e) => bail!("{name} is no conversation ({e}); give a file that /save has written"),
    };
    let other = messages.iter().find(|message| !ROLES.contains(&message.role.as_str()));
    if let Some(message) = other {
        bail!(
            "{name} has a message of role `{}`; the roles are {}",
            message.role,
            ROLES.join(", "),
        );
    }
    Ok(messages)
}

const ROLES: [&str; 3] = ["system", "user", "assistant"];

/// True if both paths lead to the same file.
fn is_same(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// Writes a conversation. A file that is there is only replaced if it is `own`.
pub(super) fn write(path: &Path, messages: &[Message], own: Option<&Path>) -> anyhow::Result<()> {
    if path.exists() && !own.is_some_and(|own| is_same(path, own)) {
        bail!("`{}` exists; name a new file", path.display());
    }
    let mut file = AtomicFile::create(path)?;
    let text = serde_json::to_string_pretty(&Saving { messages })? + "\n";
    file.write(text.as_bytes())?;
    file.publish()
}
