//! Any text as an answer in each format: it reads the same whole and split in two.

use sws_text::{ChatTemplate, ReplyFormat, ReplyPart, ReplyReader, ToolSchemas};

const TEMPLATES: [&[u8]; 9] = [
    b"<think></think><tool_call>",
    b"<tool_call><function=",
    b"<think></think><tool_call><arg_key>",
    b"<minimax:tool_call>",
    "<｜DSML｜function_calls>".as_bytes(),
    "<think></think><｜tool▁call▁begin｜>".as_bytes(),
    b"<|tool_call_begin|>",
    b"[THINK][/THINK][TOOL_CALLS]",
    b"<|channel|><|message|>",
];

/// The first byte chooses the format, the second the place of the split. Returns true for an answer
/// with a call.
pub(crate) fn check(data: &[u8]) -> bool {
    let [format, split, text @ ..] = data else { return false };
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let template = TEMPLATES[usize::from(*format) % TEMPLATES.len()];
    let template = ChatTemplate::from_files(None, Some(template)).unwrap().unwrap();
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
