//! Conversations in files: JSON with `messages`, in the form that servers take.

use std::fs::File;
use std::path::Path;

use anyhow::{anyhow, bail};
use serde::{Deserialize, Serialize};
use sws::Message;

use super::read_text;
use crate::atomic_file::AtomicFile;

#[derive(Deserialize)]
struct Saved {
    messages: Vec<Message>,
}

#[derive(Serialize)]
struct Saving<'a> {
    messages: &'a [Message],
}

/// Reads a conversation.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Message>> {
    let name = format!("`{}`", path.display());
    let file = File::open(path).map_err(|e| anyhow!("{name} cannot be read: {e}"))?;
    let text = read_text(file, &name)?;
    let Saved { messages } = serde_json::from_str(&text).map_err(|e| {
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
    if path.exists() && own != Some(path) {
        bail!("`{}` exists; name a new file", path.display());
    }
    let mut file = AtomicFile::create(path)?;
    let text = serde_json::to_string_pretty(&Saving { messages })? + "\n";
    file.write(text.as_bytes())?;
    file.publish()
}
