//! `sws run --prompts`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail};
use serde::Serialize;
use sws::{End, Generated, Model, NEW_TOKENS, Needs, TextCodec};
use sws_engine::{Gauge, Metrics, PlanError, peak_memory};
use sws_format::Clock;
use sws_text::SAMPLER;

use super::structured::structured_output;
use super::{count, print, size};
use crate::exit::REFUSED;
use crate::input::{read_file, read_text};
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::live::Live;
use crate::terminal::note;
use crate::{args, limits, model};

/// A line of the output.
#[derive(Serialize)]
#[serde(untagged)]
enum PromptOutcome {
    Made {
        line: usize,
        tokens: Vec<u32>,
        text: String,
        end: End,
        seed: Option<u64>,
        sampler: &'static str,
        arithmetic: u32,
    },
    Failed {
        line: usize,
        error: String,
    },
}

impl PromptOutcome {
    fn of(line: usize, made: sws::Result<Generated>, seed: Option<u64>, arithmetic: u32) -> Self {
        match made {
            Ok(Generated { tokens, text, end, .. }) => {
                PromptOutcome::Made { line, tokens, text, end, seed, sampler: SAMPLER, arithmetic }
            }
            Err(error) => PromptOutcome::Failed { line, error: error.to_string() },
        }
    }
}

/// Counts of the texts that were printed.
#[derive(Debug, Default)]
struct PrintedTexts {
    all: usize,
    failed: usize,
    /// True if one was cancelled.
    is_interrupted: bool,
    /// New tokens.
    tokens: usize,
}

impl PrintedTexts {
    fn count(&mut self, made: &sws::Result<Generated>) {
        self.all += 1;
        match made {
            Ok(made) => {
                self.tokens += made.tokens.len();
                self.is_interrupted |= made.end == End::Cancelled;
            }
            Err(_) => self.failed += 1,
        }
    }

    fn exit_code(&self) -> ExitCode {
        ExitCode::from(match () {
            () if self.is_interrupted => INTERRUPTED,
            () if self.failed > 0 => REFUSED,
            () => 0,
        })
    }
}

pub(crate) fn run(args: &args::Run) -> anyhow::Result<ExitCode> {
    let threads = limits::threads(args.model.threads)?;
    let model = model::open_to_run(&args.model)?;
    if !args.model.advanced.backend.continues_several() {
        bail!(
            "--prompts continues several texts at once, which this --backend cannot; leave it out, or give one --prompt"
        );
    }
    // One seed for all texts, as each is the one that `--prompt` gives with this seed.
    let mut generation = args.sampling.generation(&model)?;
    let most = *generation.max_new_tokens.get_or_insert(NEW_TOKENS);
    let seed = generation.sampling.drawing_seed();
    let arithmetic = model.manifest().arithmetic();
    let loader = model.with(args.model.options());
    let text = loader.read_text()?.within(&model, args.model.ram);
    let prompts = prompts(args, &model, &text)?;
    let structure = structured_output(&args.structure, &model, &text, &generation)?;
    let interrupt = Interrupt::of_the_program()?;
    let longest = prompts.iter().map(|(_, tokens)| tokens.len()).max().unwrap_or(0);
    let positions = longest.saturating_add(most).min(model.spec().context);
    let texts = usize::from(args.parallel).min(prompts.len());
    let needs =
        Needs { positions, texts, heap: texts as u64 * structure.heap(), ..Needs::default() };
    let loader = loader.needs(needs).text(text).threads(&threads);
    let mut running = model::load(loader, &interrupt).map_err(|e| with_parallel(e, texts))?;

    let gauge = running.gauge();
    let live = RefCell::new(Live::new(gauge.clone(), false));
    let before = gauge.as_ref().map(Gauge::read);
    let clock = Clock::real();
    let started = clock.now();
    let (lines, prompts): (Vec<usize>, Vec<Vec<u32>>) = prompts.into_iter().unzip();
    let read: usize = prompts.iter().map(Vec::len).sum();
    let texts = running.continued_all(prompts, &generation)?;
    let texts = match structure.of_a_text() {
        Some(constraint) => texts.restricted_by(constraint.into()),
        None => texts,
    };
    let texts = texts.cancelled_by(interrupt.cancel()).reporting(|| {
        let mut live = live.borrow_mut();
        live.count();
        if live.is_due() {
            live.show();
        }
    });
    let mut ended = BTreeMap::new();
    let mut printed = PrintedTexts::default();
    for (number, made) in texts {
        ended.insert(number, made);
        while let Some(made) = ended.remove(&printed.all) {
            let line = lines[printed.all];
            printed.count(&made);
            let outcome = PromptOutcome::of(line, made, seed, arithmetic);
            live.borrow_mut().clear();
            print(&(serde_json::to_string(&outcome)? + "\n"))?;
        }
    }
    live.borrow_mut().clear();
    let time = clock.now() - started;
    let metrics = match (before, gauge) {
        (Some(before), Some(gauge)) if running.plan().is_some() => {
            Some(Metrics::between(&before, &gauge.read()))
        }
        _ => None,
    };
    note_totals(&printed, read, time, metrics.as_ref(), seed);
    Ok(printed.exit_code())
}

/// The failure to load a model, with a remedy if it is for so many texts at a time.
fn with_parallel(error: anyhow::Error, texts: usize) -> anyhow::Error {
    match error.downcast_ref() {
        Some(sws::Error::Model { cause, .. }) if texts > 1 && cause.is::<PlanError>() => anyhow!(
            "{error}; --parallel {texts} is for so many texts at a time, and fewer need less"
        ),
        _ => error,
    }
}

/// Notes counts and speed of all texts. `read` is the number of tokens of their prompts.
fn note_totals(
    printed: &PrintedTexts,
    read: usize,
    time: Duration,
    metrics: Option<&Metrics>,
    seed: Option<u64>,
) {
    let &PrintedTexts { all, failed, is_interrupted, tokens } = printed;
    let seconds = time.as_secs_f64();
    let streamed = match metrics {
        Some(metrics) => {
            let bytes: f64 = metrics.bytes_per_token.values().sum();
            format!(" ({} read a token)", size(bytes as u64))
        }
        None => String::new(),
    };
    let memory = match peak_memory() {
        Some(bytes) => format!(", peak memory {}", size(bytes)),
        None => String::new(),
    };
    let with_seed = match seed {
        Some(seed) => format!(", seed {seed}"),
        None => String::new(),
    };
    note!(
        "\nsws: {}: {read} prompt tokens and {tokens} new in {seconds:.1} s, {:.1} tok/s{streamed}{memory}{with_seed}{}",
        count(all, "text"),
        (read + tokens) as f64 / seconds.max(1e-9),
        if is_interrupted { "; interrupted" } else { "" },
    );
    if failed > 0 {
        note!("sws: {} failed; see `error` in the output", count(failed, "text"));
    }
}

/// The tokens of a prompt that the model can continue.
fn tokens_of(prompt: &str, model: &Model, text: &TextCodec) -> anyhow::Result<Vec<u32>> {
    let tokens = text.encode_first(model, prompt)?;
    model.check(&tokens)?;
    Ok(tokens)
}

/// The numbers of the lines, from 1, that are not blank, with their tokens.
fn prompts(
    args: &args::Run,
    model: &Model,
    text: &TextCodec,
) -> anyhow::Result<Vec<(usize, Vec<u32>)>> {
    let path = args.prompts.as_deref().unwrap_or(Path::new("-"));
    if text.tokenizer().is_none() {
        bail!(
            "`{}` has no tokenizer.json, which prompts need; copy the published one next to the weights",
            model.dir().display()
        );
    }
    let given = match path.to_str() {
        Some("-") => read_text(std::io::stdin().lock(), "standard input")?,
        _ => read_file(path, "name a file with a prompt a line")?,
    };
    let mut prompts = Vec::new();
    for (line, prompt) in (1..).zip(given.lines()) {
        if prompt.trim().is_empty() {
            continue;
        }
        match tokens_of(prompt, model, text) {
            Ok(tokens) => prompts.push((line, tokens)),
            Err(e) => bail!("line {line} of `{}`: {e}", path.display()),
        }
    }
    if prompts.is_empty() {
        bail!("`{}` has no prompts; write one on each line", path.display());
    }
    Ok(prompts)
}
