//! `sws chat`.

mod saved;
mod screen;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use sws::{
    Conversation, End, Generated, Lacking, LoadedModel, Message, Model, Needs, RunMetrics, Threads,
};
use sws_model::ForwardError;
use sws_text::Generation;

use super::run::RunOutcome;
use super::structured::{StructuredOutput, structured_output};
use super::{print, run, size};
use crate::account::{account, card_failure, closing, ending};
use crate::answer::follow;
use crate::atomic_file::AtomicFile;
use crate::input::{read_file, read_text};
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::lines::{InputLine, InputLines};
use crate::live::Live;
use crate::terminal::{hint, is_broken_pipe, note};
use crate::watch::{self, WantedViews, Watcher};
use crate::{args, limits, logs, model};
use screen::AnswerScreen;
use words::ChatCommand;

pub(crate) fn run(mut args: args::ChatArgs) -> anyhow::Result<ExitCode> {
    if args.watch {
        watch::check()?;
    }
    // Room for their stacks is tried on the heap, which is limited while a model's files are read.
    let threads = limits::threads(args.model.threads)?;
    let model = match &args.model.model {
        Some(_) => model::open_or_pull(&args.model, "sws chat MODEL QUESTION")?,
        None => match model::for_chat() {
            Some(mut model) => {
                model::spread(&mut model, &args.model.advanced.also)?;
                model
            }
            None if args.question.is_some() || args.load.is_some() || args.system.is_some() => {
                bail!(
                    "there is no model for conversation on this machine; `sws pull` lists some to begin with"
                )
            }
            None => {
                drop(threads);
                return tale(args);
            }
        },
    };
    let question = question(args.question.take())?;
    let mut chat = ChatSession::load(&args, &model, &threads)?;
    if let Some(question) = question {
        let end = chat.answer(&question, "")?;
        if args.json
            && let Some((made, metrics)) = chat.last
        {
            RunOutcome::of_answer(&model, made, &chat.generation, metrics).print()?;
        }
        return Ok(ExitCode::from(if end == End::Cancelled { INTERRUPTED } else { 0 }));
    }
    let mut lines = InputLines::open()?;
    if lines.is_terminal() {
        let name = model.name();
        let limit = chat.running.limit();
        let ram = match model::budget(&chat.running) {
            Some(budget) => format!(", budget {}", size(budget)),
            None => String::new(),
        };
        note!("model {name}{ram}, context {limit} tokens");
        note!("{}", chat.generation.described());
        note!("/help lists the commands");
    }
    loop {
        let line = match lines.next()? {
            InputLine::Text(line) => line,
            InputLine::Unreadable(why) => {
                note!("sws: experts stay on the CPU: {why}");
                continue;
            }
            InputLine::End => return Ok(ExitCode::SUCCESS),
        };
        let done = match ChatCommand::of(&line) {
            None if line.trim().is_empty() => Ok(()),
            None => chat.answer(line.trim(), FULL).map(drop),
            Some(Ok(ChatCommand::Quit)) => return Ok(ExitCode::SUCCESS),
            Some(Ok(word)) => chat.obey(word),
            Some(Err(error)) => Err(error),
        };
        // A person can go on after a failure; a script must learn of it.
        match done {
            Ok(()) => {}
            Err(error) if lines.is_terminal() && !is_broken_pipe(&error) => note!("sws: {error}"),
            Err(error) => return Err(error),
        }
    }
}

/// The text of the question that was typed.
fn question(typed: Option<String>) -> anyhow::Result<Option<String>> {
    let Some(mut text) = typed else { return Ok(None) };
    if text == "-" {
        text = read_text(std::io::stdin().lock(), "the question on standard input")?;
    }
    match text.trim() {
        "" => bail!("the question is empty; leave it out for a conversation"),
        text => Ok(Some(text.to_owned())),
    }
}

/// Tells a tale with the bundled model, which was not made for conversation.
fn tale(args: args::ChatArgs) -> anyhow::Result<ExitCode> {
    note!(
        "sws: there is no model for conversation on this machine; `sws pull` lists some, of which"
    );
    note!("sws: `sws pull ID` downloads one. Until then, the bundled model tells a tale:");
    let args::ChatArgs { watch, report, .. } = args;
    run::run(args::Run { watch, report, ..args::Run::of(args.model, args.sampling) })
}

struct ChatSession {
    running: LoadedModel,
    interrupt: Interrupt,
    conversation: Conversation,
    /// Settings of the conversation; the seed is that of its first answer.
    generation: Generation,
    /// The last answer and its cost.
    last: Option<(Generated, RunMetrics)>,
    /// The file that /save and /load have used.
    file: Option<PathBuf>,
    wanted: WantedViews,
    /// The pictures of all answers, where a page of them is written.
    watcher: Option<Watcher>,
    report: Option<PathBuf>,
    /// The structure of all answers.
    structure: StructuredOutput,
    /// True to end answers that repeat themselves.
    ends_repeats: bool,
    /// True to forget the oldest questions where the context is full.
    shifts: bool,
    /// True if answers are not shown.
    is_quiet: bool,
}

impl ChatSession {
    fn load(
        args: &args::ChatArgs,
        model: &Model,
        threads: &Threads,
    ) -> anyhow::Result<ChatSession> {
        let template = model.chat_template()?;
        let loader = model.with(args.model.options());
        let text = loader.read_text()?;
        if text.tokenizer().is_none() {
            return Err(model.error(Lacking::Tokenizer).into());
        }
        let interrupt = Interrupt::of_an_answer()?;
        if let Some(report) = &args.report {
            // Refused before anything is computed, as far as that can be known.
            let page = AtomicFile::create_apart(report)?;
            page.check_apart(model.dir())?;
            if page.is_stream() {
                bail!(
                    "`{}` is a pipe or a device, and the page of a chat is written anew after each answer; name a file",
                    report.display()
                );
            }
        }
        let thinks = !args.no_think && template.thinks();
        let generation = args.sampling.of_conversation(model, thinks)?;
        let generation_limit = generation.max_new_tokens.unwrap_or(usize::MAX);
        let mut conversation = Conversation::new(template, generation.clone());
        if let Some(file) = &args.load {
            conversation.set_messages(saved::read(file)?);
        }
        if let Some(system) = &args.system {
            conversation.set_system(system);
        }
        let thinking = (args.think || args.no_think).then_some(args.think);
        // No error: the choice may be that of the configuration, for other models.
        if let Some(think) = thinking
            && !conversation.set_thinking(think)
        {
            note!("sws: {NO_SWITCH}");
        }
        let structure = structured_output(&args.structure, model, &text, &generation)?;
        let text = text.while_loaded(None);
        let wanted = WantedViews { screen: args.watch, report: args.report.is_some() };
        // A page is of several answers.
        let tokens = if wanted.report { usize::MAX } else { generation_limit };
        let heap = wanted.bytes(model, tokens) + structure.heap();
        let needs = Needs { heap, ..Needs::default() };
        let loader = loader.needs(needs).text(text).threads(threads);
        let running = model::load(loader, &interrupt)?;
        Ok(ChatSession {
            running,
            interrupt,
            conversation,
            generation,
            last: None,
            file: args.load.clone(),
            wanted,
            watcher: None,
            report: args.report.clone(),
            structure,
            ends_repeats: !args.no_loop_guard,
            shifts: args.shift,
            is_quiet: args.json,
        })
    }

    /// Does what a command says.
    fn obey(&mut self, word: ChatCommand) -> anyhow::Result<()> {
        match word {
            ChatCommand::Help => hint(format_args!("{}", words::HELP)),
            ChatCommand::Reset => {
                self.conversation.reset();
                note!("a new conversation");
            }
            ChatCommand::System(text) => {
                self.conversation.set_system(text);
                note!("the system message is changed");
            }
            ChatCommand::Think(think) => {
                if !self.conversation.set_thinking(think) {
                    bail!("{NO_SWITCH}");
                }
                note!(
                    "the model is asked to {}",
                    if think { "think first" } else { "answer at once" }
                );
            }
            ChatCommand::Compact => match self.make_room("")? {
                0 => note!("nothing is forgotten: there is room"),
                count => note!("{}", forgotten(count)),
            },
            ChatCommand::Undo => match self.conversation.undo() {
                Some(question) => {
                    let line = question.lines().next().unwrap_or("");
                    let shown: String = line.chars().take(60).collect();
                    let more = if shown == question { "" } else { ".." };
                    note!("removed the question `{shown}{more}`, and its answer");
                }
                None => bail!("there is no question to remove"),
            },
            ChatCommand::Retry => {
                let before = self.conversation.messages().to_vec();
                let Some(question) = self.conversation.undo() else {
                    bail!("there is no question to answer again");
                };
                // The earlier answer stays unless there is a new one.
                let end = self.answer(&question, FULL);
                if let Err(_) | Ok(End::Cancelled) = end {
                    self.conversation.set_messages(before);
                }
                return end.map(drop);
            }
            ChatCommand::Save(file) => {
                saved::write(&file, self.conversation.messages(), self.file.as_deref())?;
                note!("saved {} to `{}`", messages(self.conversation.messages()), file.display());
                self.file = Some(file);
            }
            ChatCommand::Load(file) => {
                let loaded = saved::read(&file)?;
                note!("a conversation of {}", messages(&loaded));
                self.conversation.set_messages(loaded);
                self.file = Some(file);
            }
            ChatCommand::Stats => match &self.last {
                Some((made, metrics)) => hint(format_args!("{}", account(made, metrics))),
                None => bail!("there is no answer yet"),
            },
            // It ends the loop.
            ChatCommand::Quit => {}
        }
        Ok(())
    }

    /// Answers a message, and shows the answer. `full_context` says what to do about one.
    fn answer(&mut self, text: &str, full_context: &str) -> anyhow::Result<End> {
        if self.shifts {
            let count = self.make_room(text)?;
            if count > 0 {
                note!("{}", forgotten(count));
            }
        }
        let ChatSession { running, interrupt, conversation, wanted, watcher, is_quiet, .. } = self;
        let live = Live::new(running.gauge(), !*is_quiet).of(None, model::budget(running));
        interrupt.reset();
        match watcher {
            Some(watcher) if wanted.report => watcher.again(text, interrupt)?,
            _ => *watcher = Watcher::begin(*wanted, running, &format!("{text}\n\n"), interrupt)?,
        }
        let mut screen = AnswerScreen::default();
        let mut show = |piece: &_| if *is_quiet { Ok(()) } else { screen.show(piece) };
        let constraint = match self.structure.is_free() {
            true => None,
            false => {
                let prompt = running.chat_prompt(conversation, text)?;
                self.structure.of_an_answer(running.text(), prompt.text())
            }
        };
        let made = match running.chat(conversation, text) {
            Ok(mut answer) => {
                if self.ends_repeats {
                    answer = answer.ending_repeats();
                }
                if let Some(constraint) = constraint {
                    answer = answer.restricted_by(&*constraint);
                }
                follow(answer, interrupt, live, watcher, &mut show)
            }
            Err(error) => Err(full(error, full_context)),
        };
        if let Some(watcher) = watcher {
            watcher.close();
        }
        interrupt.reset();
        if let Some(report) = &self.report
            && let Some(watcher) = watcher
        {
            let mut page = AtomicFile::create_apart(report)?;
            watcher.write_page(&mut page)?;
            page.publish()?;
        }
        let made = made?;
        if !self.is_quiet {
            print("\n")?;
        }
        let metrics = running.metrics(&made);
        if logs::is_verbose() {
            hint(format_args!("{}", account(&made, &metrics)));
        }
        note!("{}", closing(&made, &metrics));
        if let Some(why) = card_failure(&metrics) {
            note!("sws: experts stay on the CPU: {why}");
        }
        if let Some(line) = ending(&made, &self.generation.sampling, full_context) {
            note!("{line}");
        }
        let end = made.end;
        self.last = Some((made, metrics));
        Ok(end)
    }
}

impl ChatSession {
    /// Forgets the oldest questions and answers until a question has room, and its answer a quarter of the
    /// context. Returns the number of questions.
    fn make_room(&mut self, question: &str) -> anyhow::Result<usize> {
        let limit = self.running.limit();
        let most = limit - limit / 4;
        let mut count = 0;
        while self.running.chat_tokens(&self.conversation, question)? > most
            && self.conversation.forget_oldest()
        {
            count += 1;
        }
        Ok(count)
    }
}

/// A line about questions that were forgotten.
fn forgotten(count: usize) -> String {
    let what = match count {
        1 => "question is".to_owned(),
        count => format!("{count} questions are"),
    };
    format!("the oldest {what} forgotten, with the answers")
}

fn messages(of: &[Message]) -> String {
    match of.len() {
        1 => "1 message".to_owned(),
        count => format!("{count} messages"),
    }
}

const NO_SWITCH: &str = "this model's template has no switch for reasoning, so it stays as it is";

/// Remedy for a full context in a conversation.
const FULL: &str = ": /compact forgets the oldest questions (--shift does so by itself), /undo removes the last, /reset begins a new conversation";

fn full(error: sws::Error, remedy: &str) -> anyhow::Error {
    let or = if remedy.is_empty() { ": give" } else { ", or give" };
    match error {
        sws::Error::Forward(ForwardError::ContextFull { asked, limit, .. }) => anyhow!(
            "the conversation has {asked} tokens and the context {limit}{remedy}{or} a larger --context if the model has one"
        ),
        error => error.into(),
    }
}
