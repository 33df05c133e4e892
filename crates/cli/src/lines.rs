//! Input lines of a conversation: from a terminal, with editing, or from any other input.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{anyhow, bail};
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};
use sws_os::signal::{Signal, SignalListener, end_by};
use sws_os::terminal::{StdStream, TerminalSettings, is_background};

use crate::watch::restore;

/// Size limit of a line, in bytes. No context holds as many.
const MOST_BYTES: u64 = 64 << 20;

/// Stands before and after a message of several lines.
const QUOTES: &str = "\"\"\"";

/// Ends bracketed paste mode, which the editor has switched on.
const PASTES_ARE_TYPED: &[u8] = b"\x1b[?2004l\r\n";

/// Source of messages.
pub(crate) enum InputLines {
    /// A terminal, with line editing and history.
    Editor { editor: Box<Editor<(), MemHistory>>, editing: Arc<AtomicBool> },
    /// Any other input.
    Plain(std::io::Stdin),
}

/// Outcome of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputLine {
    Text(String),
    /// A line that is not UTF-8, or longer than any context; with the message for the user.
    Unreadable(&'static str),
    End,
}

impl InputLines {
    pub(crate) fn open() -> anyhow::Result<InputLines> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() || !std::io::stdout().is_terminal() {
            return Ok(InputLines::Plain(stdin));
        }
        let editing = Arc::new(AtomicBool::new(false));
        if let Err(e) = restore_when_ended(Arc::clone(&editing)) {
            bail!("the terminal cannot be used: {e}; send the lines by a pipe");
        }
        let editor = Editor::with_history(Config::default(), MemHistory::new())?;
        Ok(InputLines::Editor { editor: Box::new(editor), editing })
    }

    /// True if input comes from a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, InputLines::Editor { .. })
    }

    /// Returns the next message. A line that ends in `\` continues on the next, and what stands between
    /// `"""` and `"""` is one message.
    pub(crate) fn next(&mut self) -> anyhow::Result<InputLine> {
        let message = message(|prompt| self.line(prompt))?;
        if let (InputLines::Editor { editor, .. }, InputLine::Text(text)) = (self, &message) {
            // A missing history entry is only an inconvenience.
            let _ = editor.add_history_entry(text.as_str());
        }
        Ok(message)
    }

    fn line(&mut self, prompt: &str) -> anyhow::Result<InputLine> {
        match self {
            InputLines::Editor { editor, editing } => {
                editing.store(true, Ordering::SeqCst);
                let line = editor.readline(prompt);
                editing.store(false, Ordering::SeqCst);
                match line {
                    Ok(line) => Ok(InputLine::Text(line)),
                    Err(ReadlineError::Interrupted) => Ok(InputLine::Text(String::new())),
                    Err(ReadlineError::Eof) => Ok(InputLine::End),
                    Err(ReadlineError::Io(e)) if e.kind() == std::io::ErrorKind::InvalidData => {
                        Ok(InputLine::Unreadable("that message is not UTF-8; type it again"))
                    }
                    Err(error) => Err(anyhow!("the terminal cannot be read: {error}; try again")),
                }
            }
            InputLines::Plain(stdin) => read_line(&mut stdin.lock()),
        }
    }
}

/// A message from lines, each of which is asked for with a prompt.
fn message(
    mut next: impl FnMut(&'static str) -> anyhow::Result<InputLine>,
) -> anyhow::Result<InputLine> {
    let mut text = String::new();
    let mut is_quoted = false;
    loop {
        let prompt = if text.is_empty() && !is_quoted { "> " } else { ". " };
        let line = match next(prompt)? {
            InputLine::Text(line) => line,
            // Input may end within a message.
            InputLine::End if !text.is_empty() => return Ok(InputLine::Text(text)),
            other => return Ok(other),
        };
        let mut line = line.as_str();
        if text.is_empty()
            && !is_quoted
            && let Some(rest) = line.trim_start().strip_prefix(QUOTES)
        {
            (is_quoted, line) = (true, rest);
        }
        let begun = match is_quoted {
            true => line.trim_end().strip_suffix(QUOTES),
            false if line.ends_with('\\') => None,
            false => Some(line),
        };
        if let Some(end) = begun {
            text.push_str(end);
            return Ok(InputLine::Text(text));
        }
        text.push_str(if is_quoted { line } else { line.strip_suffix('\\').unwrap_or(line) });
        text.push('\n');
    }
}

fn read_line(from: &mut impl BufRead) -> anyhow::Result<InputLine> {
    let mut bytes = Vec::new();
    from.take(MOST_BYTES).read_until(b'\n', &mut bytes).map_err(unreadable)?;
    if bytes.is_empty() {
        return Ok(InputLine::End);
    }
    if bytes.len() as u64 == MOST_BYTES && !bytes.ends_with(b"\n") {
        from.skip_until(b'\n').map_err(unreadable)?;
        return Ok(InputLine::Unreadable(
            "that message is longer than any context; send less of it",
        ));
    }
    let Ok(line) = String::from_utf8(bytes) else {
        return Ok(InputLine::Unreadable(
            "that message is not UTF-8; convert it with `iconv -t UTF-8`",
        ));
    };
    Ok(InputLine::Text(line.trim_end_matches(['\n', '\r']).to_owned()))
}

fn unreadable(error: std::io::Error) -> anyhow::Error {
    anyhow!("standard input cannot be read: {error}; send the lines by a pipe")
}

/// Restores the present terminal settings when a signal ends the program during line editing. The
/// editor has switched off echo by then, and the shell would inherit that.
///
/// SIGINT needs no handling here: the editor treats it as Ctrl-C.
fn restore_when_ended(editing: Arc<AtomicBool>) -> std::io::Result<()> {
    let before = TerminalSettings::of(StdStream::In)?;
    let mut signals = SignalListener::new(&[Signal::Terminate, Signal::HangUp, Signal::Quit])?;
    let wait = move || {
        while let Some(signal) = signals.wait() {
            // A background process that changes the terminal would be stopped instead of ended.
            if editing.load(Ordering::SeqCst) && !is_background(StdStream::In) {
                // Errors are ignored, as the program is about to end.
                let _ = before.set(StdStream::In);
                let _ = std::io::stdout().write_all(PASTES_ARE_TYPED);
            }
            restore();
            end_by(signal);
        }
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(wait).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_several_lines() {
        let cases: [(&[&str], &str); 7] = [
            (&["one"], "one"),
            (&["one\\", "two"], "one\ntwo"),
            (&["\"\"\"one", "two\\", "", "three\"\"\"", "four"], "one\ntwo\\\n\nthree"),
            (&["\"\"\"", "one", "\"\"\" "], "\none\n"),
            (&["\"\"\"one\"\"\""], "one"),
            (&["say \"\"\""], "say \"\"\""),
            (&["\"\"\"cut off"], "cut off\n"),
        ];
        for (lines, expected) in cases {
            let mut left = lines.iter();
            let next = |_| {
                Ok(left.next().map_or(InputLine::End, |line| InputLine::Text((*line).to_owned())))
            };
            assert_eq!(message(next).unwrap(), InputLine::Text(expected.to_owned()), "{lines:?}");
        }
        assert_eq!(message(|_| Ok(InputLine::End)).unwrap(), InputLine::End);
    }

    #[test]
    fn lines_that_are_not_utf8_are_skipped_and_reported() {
        let mut input = &b"hello\r\n\xff\xfe\nagain\n"[..];
        let mut next = || read_line(&mut input).unwrap();
        assert_eq!(next(), InputLine::Text("hello".to_owned()));
        assert!(matches!(next(), InputLine::Unreadable(_)));
        assert_eq!(next(), InputLine::Text("again".to_owned()));
        assert_eq!(next(), InputLine::End);
    }
}
