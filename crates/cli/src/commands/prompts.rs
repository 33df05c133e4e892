//! `sws run --prompts`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
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
    let mut running = match model::load(loader, &interrupt) {
        Ok(running) => running,
        Err(e) => match e.downcast_ref() {
            Some(sws::Error::Model { cause, .. }) if texts > 1 && cause.is::<PlanError>() => {
                bail!("{e}; --parallel {texts} is for so many texts at a time, and fewer need less")
            }
            _ => return Err(e),
        },
    };

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
    let mut shown = 0;
    let mut new = 0;
    let mut failed = 0;
    let mut cancelled = false;
    for (number, made) in texts {
        ended.insert(number, made);
        while let Some(made) = ended.remove(&shown) {
            let line = lines[shown];
            let outcome = match made {
                Ok(Generated { tokens, text, end, .. }) => {
                    new += tokens.len();
                    cancelled |= end == End::Cancelled;
                    PromptOutcome::Made {
                        line,
                        tokens,
                        text,
                        end,
                        seed,
                        sampler: SAMPLER,
                        arithmetic,
                    }
                }
                Err(error) => {
                    failed += 1;
                    PromptOutcome::Failed { line, error: error.to_string() }
                }
            };
            live.borrow_mut().clear();
            print(&(serde_json::to_string(&outcome)? + "\n"))?;
            shown += 1;
        }
    }
    live.borrow_mut().clear();
    let seconds = (clock.now() - started).as_secs_f64();
    let streamed = match (before, gauge) {
        (Some(before), Some(gauge)) if running.plan().is_some() => {
            let metrics = Metrics::between(&before, &gauge.read());
            let bytes: f64 = metrics.bytes_per_token.values().sum();
            format!(" ({} read a token)", size(bytes as u64))
        }
        _ => String::new(),
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
        "\nsws: {}: {read} prompt tokens and {new} new in {seconds:.1} s, {:.1} tok/s{streamed}{memory}{with_seed}{}",
        count(shown, "text"),
        (read + new) as f64 / seconds.max(1e-9),
        if cancelled { "; interrupted" } else { "" },
    );
    if failed > 0 {
        note!("sws: {} failed; see `error` in the output", count(failed, "text"));
    }
    Ok(ExitCode::from(match () {
        () if cancelled => INTERRUPTED,
        () if failed > 0 => REFUSED,
        () => 0,
    }))
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
