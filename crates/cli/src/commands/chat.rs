//! `sws chat`.

use std::process::ExitCode;

use sws::{Conversation, End, Lacking, LoadedModel, Text};
use sws_model::ForwardError;

use super::{print, run, size};
use crate::answer::{follow, pace};
use crate::interrupt::Interrupt;
use crate::lines::{Line, Lines};
use crate::live::Live;
use crate::terminal::{hint, is_broken_pipe, note};
use crate::{args, limits, model};

const HELP: &str = "\
/help    this
/reset   begin a new conversation
/quit    leave; so does Ctrl-D
Ctrl-C stops an answer. A line that ends in \\ continues on the next. Put a space before a message
that begins with /.
";

pub(crate) fn run(args: args::Chat) -> anyhow::Result<ExitCode> {
    let model = match &args.model.model {
        Some(typed) => model::open_or_pull(Some(typed))?,
        None => match model::for_chat() {
            Some(model) => model,
            None => return tale(args),
        },
    };
    let threads = limits::threads(args.model.threads)?;
    let template = model.chat_template()?;
    let text = Text::open(&model)?;
    if text.tokenizer().is_none() {
        return Err(model.error(Lacking::Tokenizer).into());
    }
    let interrupt = Interrupt::of_an_answer()?;
    let mut conversation = Conversation::new(template, model.generation(&args.sampling.options())?);
    if let Some(system) = &args.system {
        conversation = conversation.system(system);
    }
    let text = text.while_loaded(None);
    let loader = model.with(args.model.options()).text(text).threads(&threads);
    let running = model::load(loader, &interrupt)?;
    let mut chat = Chat { running, interrupt, conversation };
    let mut lines = Lines::open()?;
    if lines.is_terminal() {
        note!("/help lists the commands");
    }
    loop {
        let line = match lines.next()? {
            Line::Text(line) => line,
            Line::Unreadable(why) => {
                note!("sws: {why}");
                continue;
            }
            Line::End => return Ok(ExitCode::SUCCESS),
        };
        // Every line that begins with `/` is a command, so that a misspelt one is never sent to the
        // model.
        match (line.starts_with('/'), line.trim()) {
            (_, "") => {}
            (true, "/help" | "/?") => hint(format_args!("{HELP}")),
            (true, "/reset") => {
                chat.conversation.reset();
                note!("a new conversation");
            }
            (true, "/quit" | "/exit") => return Ok(ExitCode::SUCCESS),
            (true, words) => {
                note!(
                    "there is no command `{words}`; /help lists the commands, which take no arguments"
                );
            }
            (false, text) => {
                if let Err(error) = chat.answer(text) {
                    // A person can continue without this message; a script must learn of the
                    // failure.
                    if !lines.is_terminal() || is_broken_pipe(&error) {
                        return Err(error);
                    }
                    note!("sws: {error}");
                }
            }
        }
    }
}

/// Tells a tale with the bundled model, which was not made for conversation.
fn tale(args: args::Chat) -> anyhow::Result<ExitCode> {
    note!(
        "sws: there is no model for conversation on this machine; `sws pull` lists some, of which"
    );
    note!("sws: `sws pull ID` downloads one. Until then, the bundled model tells a tale:");
    run::run(args::Run::of(args.model, args.sampling))
}

struct Chat {
    running: LoadedModel,
    interrupt: Interrupt,
    conversation: Conversation,
}

impl Chat {
    fn answer(&mut self, text: &str) -> anyhow::Result<()> {
        let Chat { running, interrupt, conversation } = self;
        let live = Live::new(running.gauge(), true);
        let generate = running.chat(conversation, text).map_err(full)?;
        interrupt.reset();
        let made = follow(generate, interrupt, live, &mut print);
        interrupt.reset();
        let made = made?;
        print("\n")?;
        let metrics = running.metrics(&made);
        let memory = metrics
            .peak_rss_bytes
            .map_or(String::new(), |bytes| format!(", peak memory {}", size(bytes)));
        let end = match made.end {
            End::StopToken | End::StopString => "",
            End::Length => "; cut off by --max-new-tokens",
            End::Context => "; the context is full: /reset begins a new conversation",
            End::Cancelled => "; stopped",
        };
        note!(
            "[{}, {}{memory}{end}]",
            pace(metrics.prompt, "tokens read"),
            pace(metrics.generation, "written"),
        );
        Ok(())
    }
}

fn full(error: sws::Error) -> anyhow::Error {
    match error {
        sws::Error::Forward(ForwardError::ContextFull { asked, limit, .. }) => anyhow::anyhow!(
            "the conversation has {asked} tokens and the context {limit}; begin a new one with /reset, or give a larger --context if the model has one"
        ),
        error => error.into(),
    }
}
