//! Any text as an answer in each format: it reads the same whole and split in two.

use sws_text::{ChatTemplate, ReplyFormat, ReplyPart, ReplyReader, ToolSchemas};

/// Markers of templates that show tools.
const MARKERS: [&str; 9] = [
    "<think></think><tool_call>",
    "<tool_call><function=",
    "<think></think><tool_call><arg_key>",
    "<minimax:tool_call>",
    "<｜DSML｜function_calls>",
    "<think></think><｜tool▁call▁begin｜>",
    "<|tool_call_begin|>",
    "[THINK][/THINK][TOOL_CALLS]",
    "<|channel|><|message|>",
];

/// The first byte chooses the format, the second the place of the split. Returns true for an answer
/// with a call.
pub(crate) fn check(data: &[u8]) -> bool {
    let [format, split, text @ ..] = data else { return false };
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let markers = MARKERS[usize::from(*format) % MARKERS.len()];
    let template = format!("{markers}{{{{ tools }}}}");
    let template = ChatTemplate::from_files(None, Some(template.as_bytes())).unwrap().unwrap();
    let reader = || ReplyFormat::of(&template).reader("", Some(ToolSchemas::default()));
    let at = text.len() * usize::from(*split) / 256;
    let at = (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let (one, other) = text.split_at(at);
    let whole = read(reader(), &[text]);
    assert_eq!(read(reader(), &[one, other]), whole);
    whole.iter().any(|part| matches!(part, ReplyPart::Call(_)))
}

/// The parts of an answer, of which neighbours are joined.
fn read(mut reader: ReplyReader, pieces: &[&str]) -> Vec<ReplyPart> {
    let mut parts = Vec::new();
    pieces.iter().for_each(|piece| reader.push(piece, &mut parts));
    reader.finish(true, &mut parts);
    let mut joined: Vec<ReplyPart> = Vec::new();
    for part in parts {
        match (joined.last_mut(), &part) {
            (Some(ReplyPart::Text(text)), ReplyPart::Text(more))
            | (Some(ReplyPart::Reasoning(text)), ReplyPart::Reasoning(more)) => text.push_str(more),
            _ => joined.push(part),
        }
    }
    joined
}
