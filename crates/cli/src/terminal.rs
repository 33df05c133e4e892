//! Output for people: messages, tables, the text of models.
//!
//! Names, messages and text may come from untrusted files, and a terminal obeys the control
//! characters in them: an escape sequence can rename the window or write the clipboard. Messages
//! are always escaped, since a log may be read on a terminal later. Standard output is escaped only
//! if it is a terminal.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead, ErrorKind, IsTerminal, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::anyhow;
use sws_format::remedy;
use sws_os::terminal::{self, StdStream};
use sws_watch::screen::column_after;

/// Most bytes of an answer to a question.
const ANSWER: u64 = 100;
/// Bytes of messages that are kept while they are held back: the latest.
pub(crate) const MOST_HELD: usize = 64 << 10;

/// Messages held back while a screen covers the terminal; `None` while none does.
static HELD: Mutex<Option<HeldMessages>> = Mutex::new(None);

/// The column of the cursor, if all output of this program goes to one terminal.
static COLUMN: Mutex<usize> = Mutex::new(0);

fn column() -> MutexGuard<'static, usize> {
    COLUMN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes note of a text that was shown on a terminal.
fn moved(text: &str, by: StdStream) {
    if let Some(columns) = columns(by) {
        let mut column = column();
        *column = column_after(text, *column, columns);
    }
}

/// True if standard error is a terminal whose cursor can be moved.
pub(crate) fn can_draw() -> bool {
    io::stderr().is_terminal() && !is_dumb()
}

/// True if the terminal is said to show nothing but lines of text.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").unwrap_or_default() == "dumb"
}

/// True unless the user wants no colours.
pub(crate) fn has_colours() -> bool {
    std::env::var_os("NO_COLOR").unwrap_or_default().is_empty()
}

/// Columns of a terminal; `None` if it is none, or does not tell.
pub(crate) fn columns(of: StdStream) -> Option<usize> {
    terminal::columns(of).map(usize::from)
}

/// True if the cursor waits behind the last column of the terminal. It forgets this where it is moved
/// and returned, and the next character would replace the last.
pub(crate) fn is_line_full() -> bool {
    columns(StdStream::Err).is_some_and(|columns| *column() >= columns)
}

/// True if the cursor stands behind a text on the terminal.
pub(crate) fn is_within_line() -> bool {
    columns(StdStream::Err).is_some() && *column() > 0
}

fn held() -> MutexGuard<'static, Option<HeldMessages>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Messages for later.
#[derive(Debug, Default)]
struct HeldMessages {
    text: String,
    /// Lines that are no longer kept.
    left_out: usize,
}

/// Words on the terminal that stand there while something lasts, and are erased when this is dropped.
pub(crate) struct Meanwhile {
    is_shown: bool,
}

impl Meanwhile {
    pub(crate) fn new(words: &str) -> Meanwhile {
        let is_shown = can_draw();
        if is_shown {
            let _ = write!(io::stderr(), "{words}");
        }
        Meanwhile { is_shown }
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[2K");
        }
    }
}

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
    let mut held = held();
    match &mut *held {
        Some(held) => held.add(&escaped(&words)),
        None => {
            let words = escaped(&words);
            let _ = io::stderr().write_all(words.as_bytes());
            moved(&words, StdStream::Err);
        }
    }
}

/// Holds messages back until [`release`].
pub(crate) fn hold() {
    held().get_or_insert_default();
}

/// Writes the messages that were held back.
pub(crate) fn release() {
    let Some(HeldMessages { text, left_out }) = held().take() else { return };
    let mut err = io::stderr().lock();
    if is_within_line() && left_out + text.len() > 0 {
        let _ = writeln!(err);
        *column() = 0;
    }
    if left_out > 0 {
        let _ = writeln!(err, "sws: {left_out} lines before these are left out");
    }
    let _ = err.write_all(text.as_bytes());
}

impl HeldMessages {
    fn add(&mut self, words: &str) {
        self.text.push_str(words);
        // Not at every line, as the rest is moved.
        if self.text.len() > 2 * MOST_HELD {
            let from = self.text.len() - MOST_HELD;
            let line_end = self.text.as_bytes()[from..].iter().position(|&byte| byte == b'\n');
            let kept = match line_end {
                Some(end) => from + end + 1,
                None => self.text.len(),
            };
            self.left_out += self.text.drain(..kept).filter(|&c| c == '\n').count();
        }
    }
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
    write_now(&mut out, text.as_bytes()).map_err(refused)?;
    moved(&text, StdStream::Out);
    Ok(())
}

/// Writes a control sequence of the program's own to standard output.
pub(crate) fn raw(sequence: &'static str) -> anyhow::Result<()> {
    write_now(&mut io::stdout().lock(), sequence.as_bytes()).map_err(refused)
}

/// Writes to the terminal on standard error, ignoring errors.
pub(crate) fn draw(text: &str) {
    let _ = write_now(&mut io::stderr().lock(), text.as_bytes());
}

fn write_now(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Erases the line of the cursor on a terminal, unless a screen covers it.
pub(crate) fn erase_line() {
    if held().is_some() {
        return;
    }
    // A text stays.
    let _ = match is_within_line() {
        true => io::stderr().write_all(b"\n"),
        false => io::stderr().write_all(b"\r\x1b[2K"),
    };
    *column() = 0;
}

/// True if the reader of standard output has closed it, which is no error.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<io::Error>(), Some(e) if e.kind() == ErrorKind::BrokenPipe)
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

/// True for characters that a terminal would obey rather than show.
fn is_obeyed(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || turns(c)
}

/// Escapes all control characters except line feeds and tabs, and those that turn the direction.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_obeyed(c) {
            true => plain.extend(c.escape_default()),
            false => plain.push(c),
        }
    }
    Cow::Owned(plain)
}

/// The first characters of a stranger's text, without control characters.
pub(crate) fn without_controls(text: &str, most: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_messages_are_held() {
        let mut held = HeldMessages::default();
        for number in 0..40_000 {
            held.add(&format!("line {number} ü\n"));
        }
        assert!((MOST_HELD / 2..=2 * MOST_HELD).contains(&held.text.len()));
        assert_eq!(held.text.lines().count() + held.left_out, 40_000);
        let first = held.text.lines().next().unwrap();
        assert_eq!(first, format!("line {} ü", held.left_out));
        assert!(held.text.ends_with("line 39999 ü\n"));
        held.add(&"x".repeat(3 * MOST_HELD));
        assert_eq!(held.text, "", "a line without an end that is too long for all");
    }

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
