//! Output for people: messages, tables, the text of models.
//!
//! Names, messages and text may come from untrusted files, and a terminal obeys the control
//! characters in them: an escape sequence can rename the window or write the clipboard. Messages
//! are always escaped, since a log may be read on a terminal later. Standard output is escaped only
//! if it is a terminal.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead, ErrorKind, IsTerminal, Read, Write};

use anyhow::anyhow;
use sws_store::remedy;

/// Most bytes of an answer to a question.
const ANSWER: u64 = 100;

/// Writes a line to standard error.
macro_rules! note {
    ($($words:tt)*) => {
        $crate::terminal::hint(format_args!("{}\n", format_args!($($words)*)))
    };
}
pub(crate) use note;

/// Writes to standard error without a line end. If it is closed or full, the program continues with
/// the same exit code.
pub(crate) fn hint(words: fmt::Arguments<'_>) {
    let words = words.to_string();
    let _ = io::stderr().write_all(escaped(&words).as_bytes());
}

/// Asks a question on standard error. True if a line with a yes comes from standard input.
pub(crate) fn yes(question: &str) -> anyhow::Result<bool> {
    hint(format_args!("{question}"));
    let mut answer = String::new();
    io::stdin().lock().take(ANSWER).read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

/// Writes to standard output and flushes it.
pub(crate) fn show(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let text = if out.is_terminal() { escaped(text) } else { Cow::Borrowed(text) };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(refused)
}

/// Writes a control sequence of the program's own to standard output.
pub(crate) fn raw(sequence: &'static str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(sequence.as_bytes()).and_then(|()| out.flush()).map_err(refused)
}

/// Erases the line of the cursor on a terminal.
pub(crate) fn erase_line() {
    let _ = io::stderr().write_all(b"\r\x1b[2K");
}

/// True if the reader of standard output has closed it, which is no error.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
}

fn refused(error: io::Error) -> anyhow::Error {
    if error.kind() == ErrorKind::BrokenPipe {
        return error.into();
    }
    let remedy = remedy(&error, "send it somewhere else");
    anyhow!("standard output cannot be written: {error}; {remedy}")
}

/// True for characters that turn the direction of what follows, so that a name reads as another.
fn turns(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes all control characters except line feeds and tabs, and those that turn the direction.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| (c.is_control() && c != '\n' && c != '\t') || turns(c);
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match obeyed(c) {
            true => plain.extend(c.escape_default()),
            false => plain.push(c),
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_never_reach_a_terminal() {
        let cases = [
            ("two\nlines\tand ünïcode 😀", "two\nlines\tand ünïcode 😀"),
            ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("a\rb\x7f\0", "a\\rb\\u{7f}\\u{0}"),
            ("a\u{202e}fdp.exe", "a\\u{202e}fdp.exe"),
        ];
        for (text, expected) in cases {
            assert_eq!(escaped(text), expected);
        }
        let all: String = (0..=0x10_ffff).filter_map(char::from_u32).collect();
        let left: Vec<char> = escaped(&all).chars().filter(|c| c.is_control()).collect();
        assert_eq!(left, ['\t', '\n']);
    }
}
