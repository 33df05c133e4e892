//! `sws forward`.

use std::process::ExitCode;

use serde_json::json;
use sws::{Needs, TextCodec};
use sws_format::{Header, Pass, Progress};
use sws_model::{ModelSpec, Observer, Routed, SourceError};
use sws_text::SampleError;

use super::{print, print_json};
use crate::account::note_card_failure;
use crate::atomic_file::AtomicFile;
use crate::interrupt::{Interrupt, Interrupted};
use crate::progress::{ProgressMeter, ProgressUnit};
use crate::record::{moe_layers, most_experts};
use crate::terminal::note;
use crate::{args, limits, model};

/// Tokens whose logits are in memory at a time. The output does not depend on it.
const CHUNK: usize = 64;

pub(crate) fn run(args: &args::Forward) -> anyhow::Result<ExitCode> {
    let threads = limits::threads(args.model.threads)?;
    let model = model::open_to_run(&args.model)?;
    model.check(&args.tokens)?;
    let shapes = Shapes::of(model.spec(), args.tokens.len());
    // Installed before the file is created: a signal that is not handled would leave the file
    // behind.
    let interrupt = Interrupt::of_the_program()?;
    let mut file = match args.json {
        true => AtomicFile::create_apart(&args.out)?,
        false => AtomicFile::create(&args.out)?,
    };
    file.check_apart(model.dir())?;
    let is_stdout = file.is_stdout();
    file.write(&shapes.header(args.routes))?;

    let positions = args.tokens.len();
    let needs = Needs { positions, all_logits: true, ..Needs::default() };
    let loader = model.with(args.model.options()).needs(needs).threads(&threads);
    let mut running = model::load(loader.text(TextCodec::default()), &interrupt)?;
    let lm = running.causal_lm();
    let meter = ProgressMeter::quiet("processing", ProgressUnit::Tokens);
    let mut pass = Collector {
        routes: vec![0; if args.routes { shapes.routes() } else { 0 }],
        shapes,
        layers: moe_layers(model.spec()),
        bytes: Vec::new(),
        wrong: None,
    };
    let mut done = 0;
    for tokens in args.tokens.chunks(CHUNK) {
        if interrupt.is_requested() {
            return Err(Interrupted("nothing was written").into());
        }
        pass.bytes.clear();
        lm.score(tokens, &mut pass)?;
        if let Some(wrong) = pass.wrong.take() {
            return Err(model.error(wrong).into());
        }
        file.write(&pass.bytes)?;
        done += tokens.len();
        meter.show(Progress { done: done as u64, total: args.tokens.len() as u64 });
    }
    meter.finish();
    note_card_failure(&running);
    let routes: Vec<u8> = pass.routes.iter().copied().flat_map(u32::to_le_bytes).collect();
    file.write(&routes)?;
    file.publish()?;

    let logits = [shapes.tokens, shapes.vocab];
    let routes = args.routes.then_some([shapes.layers, shapes.tokens, shapes.top_k]);
    if args.json {
        print_json(&json!({ "out": args.out, "logits": logits, "routes": routes }))?;
    } else {
        let routes = match routes {
            Some(shape) => format!(", routes {shape:?}"),
            None => String::new(),
        };
        let line = format!("{}: logits {logits:?}{routes}", args.out.display());
        match is_stdout {
            true => note!("{line}"),
            false => print(&(line + "\n"))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Dimensions of the output tensors.
#[derive(Clone, Copy)]
struct Shapes {
    tokens: usize,
    vocab: usize,
    /// Layers with experts. `experts` is the largest number of experts in one of them.
    layers: usize,
    experts: usize,
    top_k: usize,
}

impl Shapes {
    fn of(spec: &ModelSpec, tokens: usize) -> Shapes {
        let layers = spec.routings().count();
        let experts = most_experts(spec);
        Shapes { tokens, vocab: spec.vocab, layers, experts, top_k: spec.max_top_k() }
    }

    fn routes(&self) -> usize {
        self.layers * self.tokens * self.top_k
    }

    /// Header of the safetensors file: everything before the tensor data.
    fn header(&self, routes: bool) -> Vec<u8> {
        let &Shapes { tokens, vocab, layers, experts, top_k } = self;
        let mut tensors = vec![("logits", "F32", vec![tokens, vocab], 4 * tokens * vocab)];
        if routes {
            tensors.push(("routes", "U32", vec![layers, tokens, top_k], 4 * self.routes()));
        }
        let metadata = routes.then(|| json!({ "experts": experts.to_string() }));
        Header::write(metadata, tensors, 8)
    }
}

/// Observer that collects the logits and routes of a pass.
struct Collector {
    shapes: Shapes,
    layers: Vec<Option<usize>>,
    /// Logits of a chunk, as bytes.
    bytes: Vec<u8>,
    /// [layers, tokens, k]; empty unless routes are requested.
    routes: Vec<u32>,
    /// The first logit that is not a number.
    wrong: Option<SampleError>,
}

impl Observer for Collector {
    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        let first = pass.first_position();
        let Shapes { tokens, top_k, .. } = self.shapes;
        if let Some(layer) = self.layers[layer]
            && let Some(rows) = self.routes.get_mut((layer * tokens + first) * top_k..)
        {
            let rows = rows.chunks_exact_mut(top_k);
            for (row, choices) in rows.zip(routed.choices.chunks_exact(routed.top_k)) {
                row[..routed.top_k].copy_from_slice(choices);
            }
        }
        Ok(())
    }

    fn logits(&mut self, _: usize, logits: &[f32]) {
        if self.wrong.is_none() {
            self.wrong = SampleError::of(logits);
        }
        self.bytes.extend(logits.iter().copied().flat_map(f32::to_le_bytes));
    }
}
