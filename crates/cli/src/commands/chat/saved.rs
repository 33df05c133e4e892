//! Conversations in files: JSON with `messages`, in the form that servers take.

use std::path::Path;

use anyhow::{anyhow, bail};
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
    let SavedChat { messages } = serde_json::from_str(&text).map_err(|e| {
        anyhow!("{name} is no conversation ({e}); give a file that /save has written")
    })?;
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

/// Writes a conversation. A file that is there is only replaced if it is `own`.
pub(super) fn write(path: &Path, messages: &[Message], own: Option<&Path>) -> anyhow::Result<()> {
    let is_own = |path: &Path, own: &Path| {
        path.canonicalize().is_ok_and(|path| own.canonicalize().is_ok_and(|own| own == path))
    };
    if path.exists() && !own.is_some_and(|own| is_own(path, own)) {
        bail!("`{}` exists; name a new file", path.display());
    }
    let mut file = AtomicFile::create(path)?;
    let text = serde_json::to_string_pretty(&Saving { messages })? + "\n";
    file.write(text.as_bytes())?;
    file.publish()
}
