//! Server-sent events.

use serde_json::Value;

/// Appends an event of a stream.
pub(crate) fn event(out: &mut String, data: &Value) {
    out.push_str("data: ");
    out.push_str(&data.to_string());
    out.push_str("\n\n");
}

/// Appends a comment, which clients skip.
pub(crate) fn comment(out: &mut String, words: &str) {
    out.push_str(": ");
    out.push_str(words);
    out.push_str("\n\n");
}

/// Appends an event with a name, which is also the type of its data.
pub(crate) fn named(out: &mut String, name: &str, mut data: Value) {
    data["type"] = name.into();
    out.push_str("event: ");
    out.push_str(name);
    out.push('\n');
    event(out, &data);
}
