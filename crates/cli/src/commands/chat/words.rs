//! Commands of a chat: lines that begin with `/`.

use std::path::PathBuf;

use anyhow::{anyhow, bail};

pub(super) const HELP: &str = "\
/help           this
/reset          begin a new conversation
/system TEXT    replace the system message
/compact        forget the oldest questions and answers, for more room
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
pub(super) enum ChatCommand {
    Help,
    Reset,
    System(String),
    Compact,
    Undo,
    Retry,
    Think(bool),
    Save(PathBuf),
    Load(PathBuf),
    Stats,
    Quit,
}

impl ChatCommand {
    /// The command in a line. `None` if the line is a message. Every line that begins with `/` is a
    /// command, so that a misspelt one is never sent to the model.
    pub(super) fn of(line: &str) -> Option<anyhow::Result<ChatCommand>> {
        line.starts_with('/').then(|| ChatCommand::parse(line.trim_end()))
    }

    fn parse(line: &str) -> anyhow::Result<ChatCommand> {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let word = match (word, rest) {
            ("/help" | "/?", _) => ChatCommand::Help,
            ("/system", "") => bail!("/system needs the message"),
            ("/system", text) => ChatCommand::System(text.to_owned()),
            ("/think", "on") => ChatCommand::Think(true),
            ("/think", "off") => ChatCommand::Think(false),
            ("/think", other) => bail!("/think takes on or off, not `{other}`"),
            ("/save" | "/load", "") => bail!("{word} needs the name of a file"),
            ("/save", file) => ChatCommand::Save(path(file)),
            ("/load", file) => ChatCommand::Load(path(file)),
            (
                "/reset" | "/clear" | "/compact" | "/undo" | "/retry" | "/stats" | "/quit"
                | "/exit" | "/bye",
                rest,
            ) if !rest.is_empty() => {
                bail!("{word} takes nothing, not `{rest}`")
            }
            ("/reset" | "/clear", _) => ChatCommand::Reset,
            ("/compact", _) => ChatCommand::Compact,
            ("/undo", _) => ChatCommand::Undo,
            ("/retry", _) => ChatCommand::Retry,
            ("/stats", _) => ChatCommand::Stats,
            ("/quit" | "/exit" | "/bye", _) => ChatCommand::Quit,
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
            assert!(ChatCommand::of(line).unwrap().is_err(), "{line}");
        }
        let cases = [
            ("/help", ChatCommand::Help),
            ("/? quit", ChatCommand::Help),
            ("/clear  ", ChatCommand::Reset),
            ("/compact", ChatCommand::Compact),
            ("/system  be kind ", ChatCommand::System("be kind".to_owned())),
            ("/think off", ChatCommand::Think(false)),
            ("/save a b.json", ChatCommand::Save(PathBuf::from("a b.json"))),
            ("/bye", ChatCommand::Quit),
        ];
        for (line, expected) in cases {
            assert_eq!(ChatCommand::of(line).unwrap().unwrap(), expected, "{line}");
        }
        for message in ["", " /help", "hello"] {
            assert!(ChatCommand::of(message).is_none(), "{message}");
        }
    }
}
