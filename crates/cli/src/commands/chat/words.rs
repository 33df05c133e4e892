//! Commands of a chat: lines that begin with `/`.

use std::path::PathBuf;

use anyhow::{anyhow, bail};

pub(super) const HELP: &str = "\
/help           this
/reset          begin a new conversation
/system TEXT    replace the system message
/undo           remove the last question and its answer
/retry          answer the last question again
/think on|off   let the model think before it answers, or not
/save FILE      write the conversation to a file
/load FILE      continue a conversation from a file
/stats          where the time and bytes of the last answer went
/quit           leave; so does Ctrl-D
Ctrl-C stops an answer. A line that ends in \\ continues on the next. Put a
space before a message that begins with /.
";

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    Help,
    Reset,
    System(String),
    Undo,
    Retry,
    Think(bool),
    Save(PathBuf),
    Load(PathBuf),
    Stats,
    Quit,
}

impl Word {
    /// The command in a line. `None` if the line is a message. Every line that begins with `/` is a
    /// command, so that a misspelt one is never sent to the model.
    pub(super) fn of(line: &str) -> Option<anyhow::Result<Word>> {
        line.starts_with('/').then(|| Word::parse(line.trim_end()))
    }

    fn parse(line: &str) -> anyhow::Result<Word> {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let word = match (word, rest) {
            ("/help" | "/?", _) => Word::Help,
            ("/system", "") => bail!("/system needs the message"),
            ("/system", text) => Word::System(text.to_owned()),
            ("/think", "on") => Word::Think(true),
            ("/think", "off") => Word::Think(false),
            ("/think", other) => bail!("/think takes on or off, not `{other}`"),
            ("/save" | "/load", "") => bail!("{word} needs the name of a file"),
            ("/save", file) => Word::Save(path(file)),
            ("/load", file) => Word::Load(path(file)),
            (
                "/reset" | "/clear" | "/undo" | "/retry" | "/stats" | "/quit" | "/exit" | "/bye",
                rest,
            ) if !rest.is_empty() => {
                bail!("{word} takes nothing, not `{rest}`")
            }
            ("/reset" | "/clear", _) => Word::Reset,
            ("/undo", _) => Word::Undo,
            ("/retry", _) => Word::Retry,
            ("/stats", _) => Word::Stats,
            ("/quit" | "/exit" | "/bye", _) => Word::Quit,
            _ => return Err(anyhow!("there is no command `{word}`; /help lists the commands")),
        };
        Ok(word)
    }
}

/// The path of a typed file, whose `~` no shell has replaced.
fn path(typed: &str) -> PathBuf {
    match (typed.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(typed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_a_slash_are_commands_or_refused() {
        let refused = [
            "/nonesuch",
            "/save",
            "/load ",
            "/system",
            "/think",
            "/think maybe",
            "/undo 2",
            "/",
            "/Help",
        ];
        for line in refused {
            assert!(Word::of(line).unwrap().is_err(), "{line}");
        }
        let cases = [
            ("/help", Word::Help),
            ("/? quit", Word::Help),
            ("/clear  ", Word::Reset),
            ("/system  be kind ", Word::System("be kind".to_owned())),
            ("/think off", Word::Think(false)),
            ("/save a b.json", Word::Save(PathBuf::from("a b.json"))),
            ("/bye", Word::Quit),
        ];
        for (line, expected) in cases {
            assert_eq!(Word::of(line).unwrap().unwrap(), expected, "{line}");
        }
        for message in ["", " /help", "hello"] {
            assert!(Word::of(message).is_none(), "{message}");
        }
    }
}
