//! `sws run`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use serde::Serialize;
use sws::{End, Generated, Model, NEW_TOKENS, Needs, Piece, RunMetrics, TextCodec};
use sws_engine::{Certificate, Witness};
use sws_format::Pass;
use sws_model::{Observer, Routed, SourceError};
use sws_text::{Generation, SAMPLER, Sampling, SettingOf};

use super::print;
use super::structured::structured_output;
use crate::account::{account, card_failure, closing, ending};
use crate::answer::follow;
use crate::atomic_file::AtomicFile;
use crate::input::{read_file, read_text};
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::live::Live;
use crate::record::RunRecorder;
use crate::terminal::{hint, note};
use crate::watch::{self, WantedViews, Watcher};
use crate::{args, limits, logs, model};

/// Default prompt.
const OPENING: &str = "Once upon a time";
const STDIN: &str = "the prompt on standard input";

/// The output of `--json`.
#[derive(Serialize)]
pub(super) struct RunOutcome {
    tokens: Vec<u32>,
    /// `None` without a tokenizer.
    text: Option<String>,
    /// What the model thought, in a conversation.
    #[serde(rename = "thoughts", skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    end: End,
    /// `None` if the text depends on no seed.
    seed: Option<u64>,
    /// Name of the algorithm that turns a seed into a text.
    sampler: &'static str,
    /// Version of the arithmetic of the model's products.
    arithmetic: u32,
    /// Its settings and their origins.
    sampling: BTreeMap<&'static str, SettingOf>,
    metrics: RunMetrics,
}

impl RunOutcome {
    /// The outcome of a continued text.
    fn of_text(
        model: &Model,
        made: Generated,
        has_text: bool,
        generation: &Generation,
        metrics: RunMetrics,
    ) -> RunOutcome {
        let Generated { tokens, text, end, .. } = made;
        let text = has_text.then_some(text);
        let seed = generation.sampling.drawing_seed();
        let sampling = generation.settings().into_iter().map(|it| (it.name, it)).collect();
        RunOutcome {
            tokens,
            text,
            reasoning: None,
            end,
            seed,
            sampler: SAMPLER,
            arithmetic: model.manifest().arithmetic(),
            sampling,
            metrics,
        }
    }

    /// The outcome of an answer.
    pub(super) fn of_answer(
        model: &Model,
        made: Generated,
        generation: &Generation,
        metrics: RunMetrics,
    ) -> RunOutcome {
        let reasoning = Some(made.reasoning.clone());
        RunOutcome { reasoning, ..RunOutcome::of_text(model, made, true, generation, metrics) }
    }

    pub(super) fn print(&self) -> anyhow::Result<()> {
        print(&(serde_json::to_string(self)? + "\n"))
    }
}

pub(crate) fn run(mut args: args::Run) -> anyhow::Result<ExitCode> {
    let wanted = WantedViews { screen: args.watch, report: args.report.is_some() };
    if wanted.screen {
        watch::check()?;
    }
    let threads = limits::threads(args.model.threads)?;
    let model = model::open_or_pull(&args.model, "sws run MODEL --prompt TEXT")?;
    let mut generation = args.sampling.generation(&model)?;
    let loader = model.with(args.model.options());
    let text = loader.read_text()?.within(&model, args.model.ram);
    let has_text = text.tokenizer().is_some();
    let tokens_only = args.json && generation.stop_strings.is_empty();
    if !has_text && !tokens_only {
        return Err(model.error(
            "there is no tokenizer.json, which is needed to turn ids into text; copy the published one next to the weights, or give --tokens and --json without --stop",
        ).into());
    }
    let TextStart { tokens: prompt, text: opening, is_shown } = start(&mut args, &model, &text)?;
    model.check(&prompt)?;
    let structure = structured_output(&args.structure, &model, &text, &generation)?;
    let most = *generation.max_new_tokens.get_or_insert(NEW_TOKENS);
    // Installed before the files are created: a signal that is not handled would leave them behind.
    let interrupt = Interrupt::of_the_program()?;
    let report = args.report.as_deref().map(AtomicFile::create_apart).transpose()?;
    let mut watchers = Watchers::new(&args, &model, &prompt)?;
    watchers.check_apart(report.as_ref(), [Some(model.dir()), args.prompt_file.as_deref()])?;
    let positions = prompt.len().saturating_add(most).min(model.spec().context);
    let heap = wanted.bytes(&model, most) + structure.heap();
    let needs = Needs { positions, heap, ..Needs::default() };
    let loader = loader.needs(needs).text(text).threads(&threads);
    let mut running = model::load(loader, &interrupt)?;
    if is_shown && !args.json {
        print(&opening)?;
    }

    let has_shown = Cell::new(is_shown && !args.json);
    let mut show = |piece: &Piece| {
        if args.json {
            return Ok(());
        }
        has_shown.set(true);
        print(&piece.text)
    };
    let live = Live::new(running.gauge(), !args.json).of(Some(most), model::budget(&running));
    let mut watcher = Watcher::begin(wanted, &running, &opening, &interrupt)?;
    let generate = running.continued(prompt.clone(), &generation)?;
    let generate = match watchers.is_empty() {
        true => generate,
        false => generate.observed_by(&mut watchers),
    };
    let generate = match structure.of_a_text() {
        Some(constraint) => generate.restricted_by(&*constraint),
        None => generate,
    };
    let made = follow(generate, &interrupt, live, &mut watcher, &mut show);
    if made.is_err() && has_shown.get() {
        // The line of the text ends before that of the error.
        let _ = print("\n");
    }
    let made = made?;
    let metrics = running.metrics(&made);
    // Dropped before the outputs are complete: saving the learned statistics takes memory, and may
    // fail for lack of it.
    drop(running);
    watchers.finish(&args, &model, &generation.sampling, &prompt, &made)?;
    if let Some(mut file) = report
        && let Some(watcher) = watcher
    {
        watcher.write_page(&mut file)?;
        file.publish()?;
    }

    let end = made.end;
    if !args.json {
        print("\n")?;
    }
    if logs::is_verbose() {
        hint(format_args!("\n{}", account(&made, &metrics)));
    }
    if !args.json {
        hint(format_args!("\n"));
    }
    note!("{}", closing(&made, &metrics));
    if let Some(why) = card_failure(&metrics) {
        note!("sws: experts stay on the CPU: {why}");
    }
    if let Some(line) = ending(&made, &generation.sampling, "") {
        note!("{line}");
    }
    if args.json {
        RunOutcome::of_text(&model, made, has_text, &generation, metrics).print()?;
    }
    Ok(ExitCode::from(if end == End::Cancelled { INTERRUPTED } else { 0 }))
}

/// Observers of a run: the recorder of routes, and the witness of a certificate.
struct Watchers {
    recorder: Option<RunRecorder>,
    witness: Option<(Witness, AtomicFile)>,
}

impl Watchers {
    /// True if nothing is observed.
    fn is_empty(&self) -> bool {
        self.recorder.is_none() && self.witness.is_none()
    }

    /// Opens the output files, so that unwritable ones are refused before anything is computed.
    fn new(args: &args::Run, model: &Model, prompt: &[u32]) -> anyhow::Result<Watchers> {
        let recorder = match &args.record {
            Some(path) => Some(RunRecorder::create(path, model.spec(), args.record_hidden)?),
            None => None,
        };
        let witness = match &args.certify {
            Some(path) => {
                if let Some(lossy) = args.model.advanced.backend.lossy() {
                    bail!("no certificate can be made of a run {lossy}; leave out --backend");
                }
                if args.sampling.has_dry() {
                    bail!(
                        "a certificate says nothing of DRY; leave out --dry-multiplier or --certify"
                    );
                }
                Some((Witness::new(model.spec(), prompt), AtomicFile::create_apart(path)?))
            }
            None => None,
        };
        if let (Some(recorder), Some((_, certificate))) = (&recorder, &witness)
            && recorder.file().is_same(certificate)
        {
            bail!("--record and --certify name the same file; name two");
        }
        Ok(Watchers { recorder, witness })
    }

    /// Refuses outputs that would replace each other, or an input.
    fn check_apart(
        &self,
        report: Option<&AtomicFile>,
        inputs: [Option<&Path>; 2],
    ) -> anyhow::Result<()> {
        let recording = self.recorder.as_ref().map(RunRecorder::file);
        let certificate = self.witness.as_ref().map(|(_, file)| file);
        let others = [recording, certificate];
        for output in others.into_iter().chain([report]).flatten() {
            for input in inputs.into_iter().flatten() {
                output.check_apart(input)?;
            }
        }
        if let Some(report) = report
            && others.into_iter().flatten().any(|other| report.is_same(other))
        {
            bail!("--report names the file of another output; name another");
        }
        Ok(())
    }

    fn finish(
        self,
        args: &args::Run,
        model: &Model,
        sampling: &Sampling,
        prompt: &[u32],
        made: &Generated,
    ) -> anyhow::Result<()> {
        if let Some(recorder) = self.recorder {
            recorder.finish(&[prompt, &made.tokens].concat())?;
        }
        if let Some((witness, mut file)) = self.witness
            && !made.tokens.is_empty()
        {
            let sampling = sampling.clone();
            let tokens = &made.tokens;
            let certificate = Certificate::new(
                model.manifest(),
                args.model.advanced.activations,
                args.model.kv(),
                sampling,
                prompt,
                tokens,
                witness,
            );
            file.write(certificate.to_json().as_bytes())?;
            file.publish()?;
        }
        Ok(())
    }
}

impl Observer for Watchers {
    fn layer_begins(
        &mut self,
        pass: &Pass,
        layer: usize,
        hidden: &[f32],
    ) -> Result<(), SourceError> {
        match &mut self.recorder {
            Some(recorder) => recorder.layer_begins(pass, layer, hidden),
            None => Ok(()),
        }
    }

    fn attended(
        &mut self,
        pass: &Pass,
        layer: usize,
        state: &[f32],
        shared: &[f32],
    ) -> Result<(), SourceError> {
        match &mut self.recorder {
            Some(recorder) => recorder.attended(pass, layer, state, shared),
            None => Ok(()),
        }
    }

    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        if let Some(recorder) = &mut self.recorder {
            recorder.routed(pass, layer, routed)?;
        }
        match &mut self.witness {
            Some((witness, _)) => witness.routed(pass, layer, routed),
            None => Ok(()),
        }
    }

    fn logits(&mut self, first: usize, logits: &[f32]) {
        if let Some((witness, _)) = &mut self.witness {
            witness.logits(first, logits);
        }
    }
}

/// The beginning of a text.
struct TextStart {
    tokens: Vec<u32>,
    /// Its text; empty if only the tokens are known.
    text: String,
    /// True if the text belongs before the new text on standard output.
    is_shown: bool,
}

fn start(args: &mut args::Run, model: &Model, text: &TextCodec) -> anyhow::Result<TextStart> {
    if let Some(tokens) = args.tokens.take() {
        return Ok(TextStart { tokens, text: String::new(), is_shown: false });
    }
    if text.tokenizer().is_none() {
        bail!(
            "`{}` has no tokenizer.json, so it takes token ids only; give --tokens",
            model.dir().display()
        );
    }
    let typed = args.prompt.take();
    let piped = match &args.prompt_file {
        Some(path) => Some(from_file(path)?),
        None if typed.is_none() => piped()?,
        None => None,
    };
    if let Some(prompt) = piped {
        let tokens = text.encode_first(model, &prompt)?;
        return Ok(TextStart { tokens, text: prompt, is_shown: false });
    }
    // Nobody has typed the default, so that it is shown wherever the text goes.
    let is_shown = typed.is_none() || std::io::stdout().is_terminal();
    let prompt = match typed {
        Some(prompt) => prompt,
        None => OPENING.to_owned(),
    };
    let tokens = text.encode_first(model, &prompt)?;
    Ok(TextStart { tokens, text: prompt, is_shown })
}

/// Reads standard input, unless it is a terminal, or empty.
fn piped() -> anyhow::Result<Option<String>> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let text = without_line_end(read_text(stdin.lock(), STDIN)?);
    Ok(if text.is_empty() { None } else { Some(text) })
}

/// Reads a prompt from a file, or from standard input.
fn from_file(path: &Path) -> anyhow::Result<String> {
    if path == "-" {
        return Ok(without_line_end(read_text(std::io::stdin().lock(), STDIN)?));
    }
    Ok(without_line_end(read_file(path, "give another file")?))
}

/// Removes the line end that shells and editors add.
fn without_line_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}
