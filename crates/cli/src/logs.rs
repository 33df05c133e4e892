//! Logs: what the program decides and asks for, on standard error.
//!
//! They have no prompts, texts and tokens. Paths and addresses are for `-vv` only, and addresses never
//! have their queries, which may be signed.

use std::fmt::{self, Write};
use std::io::IsTerminal;
use std::sync::OnceLock;

use anyhow::bail;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::terminal::{erase_line, note};

/// Variable that sets the level where there is no `-v`.
const VARIABLE: &str = "SWS_LOG";
/// Its values, from the fewest messages to the most.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// Number of `-v`.
static VERBOSE: OnceLock<u8> = OnceLock::new();

/// Switches logs on, as `-v` and the environment say. Without either they cost nothing.
pub(crate) fn start(verbose: u8) -> anyhow::Result<()> {
    let _ = VERBOSE.set(verbose);
    let set = match std::env::var_os(VARIABLE) {
        Some(value) => parsed(&value.to_string_lossy())?,
        None => LevelFilter::OFF,
    };
    let level = match verbose {
        0 => set,
        1 => set.max(LevelFilter::INFO),
        2 => set.max(LevelFilter::DEBUG),
        _ => LevelFilter::TRACE,
    };
    if level == LevelFilter::OFF {
        return Ok(());
    }
    if tracing::subscriber::set_global_default(LogSubscriber(level)).is_err() {
        bail!("logs cannot be started twice; leave out -v and {VARIABLE}");
    }
    Ok(())
}

/// True if the account of a text is wanted.
pub(crate) fn is_verbose() -> bool {
    matches!(VERBOSE.get(), Some(1..))
}

fn parsed(value: &str) -> anyhow::Result<LevelFilter> {
    if value.is_empty() {
        return Ok(LevelFilter::OFF);
    }
    for (name, level) in LEVELS {
        if value.eq_ignore_ascii_case(name) {
            return Ok(level);
        }
    }
    let names = LEVELS.map(|(name, _)| name).join(", ");
    bail!("the variable {VARIABLE} is `{value}`, which is no level; set one of {names}")
}

/// Writes a line for each event of this workspace.
struct LogSubscriber(LevelFilter);

impl Subscriber for LogSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let crate_name = metadata.target().split("::").next().unwrap_or("");
        *metadata.level() <= self.0 && crate_name.starts_with("sws")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine::default();
        event.record(&mut line);
        if std::io::stderr().is_terminal() {
            // A bar, which is drawn again soon.
            erase_line();
        }
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        note!("{level}: {}{}", line.message, line.fields);
    }

    // There are no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A message and its fields.
#[derive(Default)]
struct LogLine {
    message: String,
    fields: String,
}

impl Visit for LogLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, ", {name} {value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names() {
        assert_eq!(parsed("").unwrap(), LevelFilter::OFF);
        assert_eq!(parsed("Debug").unwrap(), LevelFilter::DEBUG);
        assert!(LevelFilter::OFF < LevelFilter::INFO && LevelFilter::INFO < LevelFilter::DEBUG);
        let refused = parsed("loud").unwrap_err().to_string();
        for word in ["SWS_LOG", "loud", "info"] {
            assert!(refused.contains(word), "{refused}");
        }
    }
}
