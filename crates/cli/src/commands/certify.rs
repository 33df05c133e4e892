//! `sws certify`.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use serde_json::json;
use sws::{Needs, TextCodec};
use sws_engine::{Certificate, CertificateOutcome, Difference};
use sws_format::Progress;
use sws_model::check_tokens;

use super::{print, print_json};
use crate::account::note_card_failure;
use crate::input::read_beginning;
use crate::interrupt::{Interrupt, Interrupted};
use crate::progress::{ProgressMeter, ProgressUnit};
use crate::{args, limits, model};

/// Size limit of a certificate. One of a million tokens is smaller.
const MAX_BYTES: u64 = 256 << 20;

pub(crate) fn run(mut args: args::Certify) -> anyhow::Result<ExitCode> {
    let threads = limits::threads(args.model.threads)?;
    let shown = args.file.display().to_string();
    if let Some(lossy) = args.model.advanced.backend.lossy() {
        bail!("a certificate cannot be checked by a run {lossy}; leave out --backend");
    }
    let certificate = named(Certificate::parse(&read(&args.file)?), &shown)?;
    let model = model::open_to_run(&args.model)?;
    let activations = args.model.advanced.activations;
    named(certificate.check(model.manifest(), activations), &shown)?;
    let tokens = [certificate.prompt(), certificate.tokens()].concat();
    let context = model.spec().context;
    let vocab = model.spec().vocab;
    named(check_tokens(&tokens, 0, context, vocab), &shown)?;
    if let Some(kv) = certificate.kv()
        && !args.model.keep_as(kv)
    {
        bail!("`{shown}` certifies a run with another --kv; leave out --kv");
    }

    let interrupt = Interrupt::of_the_program()?;
    let needs = Needs { positions: tokens.len(), ..Needs::default() };
    let loader = model.with(args.model.options()).needs(needs).threads(&threads);
    let mut running = model::load(loader.text(TextCodec::default()), &interrupt)?;
    let meter = ProgressMeter::quiet("computing again", ProgressUnit::Tokens);
    let total = certificate.tokens().len() as u64;
    let outcome = certificate.replay(model.spec(), running.causal_lm(), &mut |step| {
        meter.show(Progress { done: step as u64, total });
        !interrupt.is_requested()
    })?;
    meter.finish();
    note_card_failure(&running);

    let (words, code) = match outcome {
        CertificateOutcome::Agrees { steps } => {
            (format!("every bit agrees in all {steps} steps"), 0)
        }
        CertificateOutcome::Differs { step, what } => {
            let what = match what {
                Difference::Routes => "the routers choose different experts",
                Difference::Logits => "the logits differ",
                Difference::Token => "the same logits give a different token",
            };
            let of = if step == 0 { "the prompt".to_owned() } else { format!("token {step}") };
            (format!("first difference in step {step}, {of}: {what}"), 1)
        }
        CertificateOutcome::Stopped => return Err(Interrupted("nothing was decided").into()),
    };
    if args.json {
        let (step, what) = match outcome {
            CertificateOutcome::Differs { step, what } => {
                (Some(step), Some(format!("{what:?}").to_lowercase()))
            }
            _ => (None, None),
        };
        let steps = certificate.tokens().len();
        print_json(&json!({ "agrees": code == 0, "steps": steps, "step": step, "what": what }))?;
    } else {
        print(&format!("{shown}: {words}\n"))?;
    }
    Ok(ExitCode::from(code))
}

/// The result of looking at a certificate, whose error names it.
fn named<T>(result: Result<T, impl Display>, certificate: &str) -> anyhow::Result<T> {
    result.map_err(|error| anyhow!("`{certificate}`: {error}"))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    const REMEDY: &str = "give the file that `sws run --certify` wrote";
    let bytes = match read_beginning(path, MAX_BYTES + 1) {
        Ok(bytes) => bytes,
        Err(e) => bail!("`{shown}` cannot be read: {e}; {REMEDY}"),
    };
    if bytes.len() as u64 > MAX_BYTES {
        bail!("`{shown}` has more than {MAX_BYTES} bytes and is not a certificate; {REMEDY}");
    }
    Ok(bytes)
}
