//! `sws chat`.

use std::process::ExitCode;

use sws_model::text::{
    ChatOptions, ChatTemplate, Generation, Message, Position, TextStream, Tokenizer,
};
use sws_model::{ForwardError, check_tokens};
use sws_store::{Clock, Memory};

use super::{print, size};
use crate::backend::Needs;
use crate::generate::{Aside, End, generate};
use crate::interrupt::Interrupt;
use crate::lines::{Line, Lines};
use crate::live::Live;
use crate::model::Model;
use crate::running::{Running, pace};
use crate::terminal::{hint, is_broken_pipe, note};
use crate::{args, process};

const HELP: &str = "\
/help    this
/reset   begin a new conversation
/quit    leave; so does Ctrl-D
Ctrl-C stops an answer. A line that ends in \\ goes on in the next. A message that begins with / needs a
space before it.
";

pub(crate) fn run(args: &args::Chat) -> anyhow::Result<ExitCode> {
    let model = Model::open(args.model.model.as_deref())?;
    let Some(template) = model.chat_template()? else {
        return Err(model.says(
            &"there is no chat template, so this model was not made for conversation; let it continue a text with `sws run`",
        ));
    };
    let (tokenizer, tokenizer_bytes) = process::counted(|| model.tokenizer());
    let Some(mut tokenizer) = tokenizer? else {
        return Err(model.says(
            &"there is no tokenizer.json; put the one that was published with the weights beside them",
        ));
    };
    let system = args.system.clone().map(|content| message("system", content));
    let interrupt = Interrupt::of_an_answer()?;
    let generation = model.generation(&args.sampling.options())?;
    let encoding = Tokenizer::WORKING;
    let needs = Needs { tokenizer: tokenizer_bytes, encoding, ..Needs::new(&interrupt) };
    let mut running = Running::start(&model, &args.model, needs)?;
    let working = running.encoding_bytes().or(Memory::now().map(|memory| memory.available));
    tokenizer.bound(running.causal_lm()?.limit(), working.unwrap_or(u64::MAX));
    let mut chat = Chat {
        generation,
        running,
        interrupt,
        template,
        tokenizer,
        messages: system.iter().cloned().collect(),
        processed: Vec::new(),
        answers: 0,
    };
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
        // A command is known by its first character, so that a misspelt one is never sent.
        match (line.starts_with('/'), line.trim()) {
            (_, "") => {}
            (true, "/help" | "/?") => hint(format_args!("{HELP}")),
            (true, "/reset") => {
                chat.forget();
                chat.messages = system.iter().cloned().collect();
                note!("a new conversation");
            }
            (true, "/quit" | "/exit") => return Ok(ExitCode::SUCCESS),
            (true, words) => {
                note!(
                    "there is no command `{words}`; /help lists the commands, which take no words"
                );
            }
            (false, text) => {
                if let Err(error) = chat.answer(&model, text) {
                    // A person goes on without this message, a script has to know.
                    if !lines.is_terminal() || is_broken_pipe(&error) {
                        return Err(error);
                    }
                    note!("sws: {error}");
                }
            }
        }
    }
}

struct Chat {
    running: Running,
    generation: Generation,
    interrupt: Interrupt,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Vec<Message>,
    /// The tokens in the session.
    processed: Vec<u32>,
    /// How many were given, so that each has random numbers of its own.
    answers: u64,
}

impl Chat {
    fn answer(&mut self, model: &Model, text: &str) -> anyhow::Result<()> {
        self.messages.push(message("user", text.to_owned()));
        let answered = self.try_answer(model);
        match answered {
            Ok(answer) => self.messages.push(message("assistant", answer)),
            Err(error) => {
                self.messages.pop();
                self.forget();
                return Err(error);
            }
        }
        Ok(())
    }

    fn try_answer(&mut self, model: &Model) -> anyhow::Result<String> {
        let options = ChatOptions {
            add_generation_prompt: true,
            now: Clock::real().unix_seconds(),
            ..ChatOptions::default()
        };
        let prompt = self.template.render(&self.messages, &options).map_err(|e| model.says(&e))?;
        let ids = self.tokenizer.encode(&prompt, false).map_err(|e| model.says(&e))?;
        let lm = self.running.causal_lm()?;
        check_tokens(&ids, 0, lm.limit(), lm.vocab()).map_err(full)?;
        // Templates may leave out of the past what they showed before, such as thoughts.
        if !ids.starts_with(&self.processed) || ids.len() == self.processed.len() {
            self.forget();
        }
        let (seen, new) = ids.split_at(self.processed.len());

        let mut generation = self.generation.clone();
        generation.sampling.seed = generation.sampling.seed.wrapping_add(self.answers);
        self.answers += 1;
        let stream = TextStream::new(
            &self.tokenizer,
            Position::Start,
            &generation.stop_tokens,
            &generation.stop_strings,
        );
        let most = generation.max_new_tokens.unwrap_or(usize::MAX);
        let gauge = self.running.gauge();
        let live = Live::new(gauge.clone(), true);
        let lm = self.running.causal_lm()?;
        self.interrupt.heeded();
        let stream = Some(stream);
        let aside = Aside { interrupt: &self.interrupt, observer: &mut (), gauge, live };
        let made = generate(lm, (seen, new), &generation, most, stream, aside, &mut print)?;
        self.interrupt.heeded();
        print("\n")?;
        let len = lm.len();
        self.processed = ids;
        self.processed.extend(&made.tokens);
        self.processed.truncate(len);

        let metrics = self.running.metrics(&made);
        let memory = metrics
            .peak_rss_bytes
            .map_or(String::new(), |bytes| format!(", peak memory {}", size(bytes)));
        let end = match made.end {
            End::StopToken | End::StopString => "",
            End::Length => "; cut off by --max-new-tokens",
            End::Context => "; the context is full: /reset begins a new conversation",
            End::Interrupted => "; stopped",
        };
        note!(
            "[{}, {}{memory}{end}]",
            pace(metrics.prompt, "tokens read"),
            pace(metrics.generation, "written"),
        );
        Ok(made.text)
    }

    fn forget(&mut self) {
        if let Ok(lm) = self.running.causal_lm() {
            lm.clear();
        }
        self.processed.clear();
    }
}

fn full(error: ForwardError) -> anyhow::Error {
    match error {
        ForwardError::ContextFull { asked, limit, .. } => anyhow::anyhow!(
            "the conversation has {asked} tokens and the context {limit}; begin a new one with /reset, or give a larger --context if the model has one"
        ),
        error => error.into(),
    }
}

fn message(role: &str, content: String) -> Message {
    Message { role: role.to_owned(), content }
}
