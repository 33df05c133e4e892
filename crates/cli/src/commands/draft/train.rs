//! `sws draft train`.

use std::process::ExitCode;

use anyhow::{Error, bail};
use serde::Serialize;
use std::sync::Mutex;
use sws::draft::{Trainer, path, trainer};
use sws_cache::SavedTensors;
use sws_cache::fit::{Fit, FitSequences as FitTo, Fitted};
use sws_draft::{
    DEPTH, Draft, DraftSize, Gates, Learned, MicroDraftModel, Samples, Trained, Training, margin,
};
use sws_format::{Pass, Progress};

use super::{DraftInput, RecordedSequence, check_interrupt, choice, limit_of, stopped, tokens};
use crate::args;
use crate::atomic_file::AtomicFile;
use crate::commands::{count, print_report, size};
use crate::interrupt::Interrupt;
use crate::progress::{ProgressMeter, ProgressUnit};
use crate::table::table;

/// One sequence in this many is held out.
const HELD_OUT: usize = 10;
/// Memory for the samples of one state of one layer, in bytes.
const SAMPLES: usize = 256 << 20;
/// Upper limit of the token table, whatever the vocabulary.
const MOST_TOKENS: usize = 1 << 16;

#[derive(Serialize)]
struct TrainReport {
    file: String,
    bytes: usize,
    tokens: usize,
    held_out_tokens: usize,
    rank: usize,
    epochs: usize,
    layers: Vec<TrainRow>,
    /// Forecasts for which the router alone has at least the recall on misses of the draft.
    routers_alone: Vec<Alone>,
    eviction: Eviction,
}

#[derive(Serialize)]
struct Alone {
    /// The layer that is forecast, from this many layers before it.
    layer: usize,
    distance: usize,
}

/// The correction of evictions.
#[derive(Serialize)]
struct Eviction {
    file: String,
    bytes: usize,
    /// For each layer, the loss on the held-out sequences, in nats per expert and span of time: before
    /// and after.
    losses: Vec<[f32; 2]>,
}

#[derive(Serialize)]
struct TrainRow {
    layer: usize,
    /// True for the state entering the layer, false for the input of its router.
    entering: bool,
    /// Loss on the held-out sequences, in nats per expert: of routers alone, then corrected.
    loss_before: f32,
    loss_after: f32,
}

pub(super) fn run(args: &args::DraftTrain) -> anyhow::Result<ExitCode> {
    let train = trainer()?;
    let mut recorded = DraftInput::open(&args.recorded)?;
    let interrupt = Interrupt::of_the_program()?;
    let out = match &args.out {
        Some(out) => out.clone(),
        None => path(&recorded.model),
    };
    // An unwritable path is refused before anything is computed.
    let mut file = AtomicFile::create_apart(&out)?;
    let eviction = match &args.eviction {
        Some(eviction) => eviction.clone(),
        None => sws::eviction::path(&out),
    };
    let mut eviction_file = AtomicFile::create_apart(&eviction)?;
    let sequences = recorded.sequences();
    if sequences.len() < 2 {
        bail!("there is one sequence, and one is held out; record more with `sws run --record`");
    }
    let sequences = DividedSequences::of(sequences);
    let shape = recorded.shape.clone();
    let rank = usize::from(args.rank);
    let draft_size = draft_size(args, &recorded)?;
    let mut learned = Learned::new(&shape, rank);
    let rows = train_corrections(train, args, &mut recorded, &sequences, &mut learned, &interrupt)?;
    let DividedSequences { learned_from, held_out } = sequences;

    let mut draft = MicroDraftModel::with(shape.clone(), draft_size, learned.clone());
    follow_all(&mut draft, &mut recorded, &learned_from, &interrupt)?;
    let routers_alone = choice::routers_alone(&draft, &mut recorded, &held_out, &interrupt)?;
    if !routers_alone.is_empty() {
        for &(place, distance) in &routers_alone {
            learned.follow_router(place, distance);
        }
        draft = MicroDraftModel::with(shape.clone(), draft_size, learned);
        follow_all(&mut draft, &mut recorded, &learned_from, &interrupt)?;
    }
    let fitted = fit_eviction(&mut recorded, args, &interrupt)?;
    let mut saved = SavedTensors::default();
    fitted.correction.save(&mut saved);

    let fingerprint = &recorded.model.manifest().model.fingerprint;
    let [bytes, eviction_bytes] = [draft.write(fingerprint), saved.write(fingerprint)];
    file.write(&bytes)?;
    eviction_file.write(&eviction_bytes)?;
    file.publish()?;
    eviction_file.publish()?;

    let mut alone = Vec::new();
    for (place, distance) in routers_alone {
        alone.push(Alone { layer: shape.layers[place], distance });
    }
    let report = TrainReport {
        file: out.display().to_string(),
        bytes: bytes.len(),
        tokens: tokens(&learned_from),
        held_out_tokens: tokens(&held_out),
        rank,
        epochs: args.epochs.into(),
        layers: rows,
        routers_alone: alone,
        eviction: Eviction {
            file: eviction.display().to_string(),
            bytes: eviction_bytes.len(),
            losses: fitted.losses,
        },
    };
    print_report(args.json, &report, TrainReport::text)
}

/// The sequences from which a draft is learned, and those on which it is judged.
struct DividedSequences {
    learned_from: Vec<RecordedSequence>,
    held_out: Vec<RecordedSequence>,
}

impl DividedSequences {
    fn of(sequences: Vec<RecordedSequence>) -> DividedSequences {
        let last = HELD_OUT.min(sequences.len()) - 1;
        let mut learned_from = Vec::new();
        let mut held_out = Vec::new();
        for (number, sequence) in sequences.into_iter().enumerate() {
            match number % HELD_OUT == last {
                true => held_out.push(sequence),
                false => learned_from.push(sequence),
            }
        }
        DividedSequences { learned_from, held_out }
    }
}

/// The size of a draft of the rank that is asked for.
fn draft_size(args: &args::DraftTrain, recorded: &DraftInput) -> anyhow::Result<DraftSize> {
    let shape = &recorded.shape;
    let rank = usize::from(args.rank);
    let vocab = recorded.model.spec().vocab.min(MOST_TOKENS);
    let wanted = DraftSize { rank, tokens: vocab.next_multiple_of(4), distances: DEPTH };
    let limit = limit_of(args.size).min(wanted.bytes(shape));
    match DraftSize::within(limit, shape, rank, vocab) {
        Some(size) if size.rank == rank => Ok(size),
        _ => bail!("a draft of rank {rank} does not fit into {}; lower --rank", size(limit as u64)),
    }
}

/// Trains the corrections of all states of all layers, each after its forecasts, and returns what they
/// lost before and after.
fn train_corrections(
    train: Trainer,
    args: &args::DraftTrain,
    recorded: &mut DraftInput,
    sequences: &DividedSequences,
    learned: &mut Learned,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<TrainRow>> {
    let DividedSequences { learned_from, held_out } = sequences;
    let shape = recorded.shape.clone();
    let places = shape.layers.len();
    let mut rows = Vec::new();
    let mut jobs: Vec<(usize, bool)> = Vec::new();
    for place in 0..places {
        jobs.push((place, false));
        if place + 1 < places {
            jobs.push((place, true));
        }
    }
    let meter = ProgressMeter::of("training", ProgressUnit::Tokens);
    let total = jobs.len() * usize::from(args.epochs) * tokens(learned_from);
    let done = Mutex::new(0);
    for (place, attended) in jobs {
        let training = Training {
            inputs: shape.hidden + shape.experts,
            targets: if attended { DEPTH.min(places - 1 - place) } else { 1 },
            experts: shape.experts,
            rank: args.rank.into(),
            epochs: args.epochs.into(),
            seed: args.seed,
        };
        let samples = collect(recorded, learned_from, &training, (place, attended), interrupt)?;
        let held = collect(recorded, held_out, &training, (place, attended), interrupt)?;
        let batches = samples.rows_of(&training);
        let mut step = || {
            let mut done = done.lock().expect("no holder panics");
            *done += 256.min(batches);
            meter.show(Progress { done: (*done).min(total) as u64, total: total as u64 });
            !interrupt.is_requested()
        };
        let trained = train(&training, &samples, &held, &mut step).map_err(Error::from_boxed)?;
        let Some(Trained { down, targets, losses }) = trained else {
            return Err(stopped());
        };
        learned.set_correction(&shape, place, attended, &down, &targets);
        let [loss_before, loss_after] = losses;
        let layer = shape.layers[place];
        rows.push(TrainRow { layer, entering: !attended, loss_before, loss_after });
    }
    meter.finish();
    Ok(rows)
}

/// Fits the correction of evictions to all recordings, in their order.
fn fit_eviction(
    recorded: &mut DraftInput,
    args: &args::DraftTrain,
    interrupt: &Interrupt,
) -> anyhow::Result<Fitted> {
    let shape = recorded.shape.clone();
    let layers = recorded.model.spec().layers.len();
    let mut trace = recorded.files[0].trace.clone();
    for states in &recorded.files[1..] {
        trace.append(&states.trace)?;
    }
    let mut ends = Vec::new();
    for states in &recorded.files {
        ends.push(ends.last().unwrap_or(&0) + states.trace.token_count());
    }
    let sequences: Vec<_> = trace.sequences().collect();
    let fit = Fit {
        hidden: shape.hidden,
        rank: args.rank.into(),
        epochs: args.epochs.into(),
        seed: args.seed,
        memory: SAMPLES,
    };
    let mut all = Vec::new();
    let mut state = |token: usize, place: usize, state: &mut [f32]| {
        check_interrupt(interrupt)?;
        let file = ends.partition_point(|&end| end <= token);
        let first = if file > 0 { ends[file - 1] } else { 0 };
        recorded.files[file].token(token - first, &mut all)?;
        // The last of the kinds of states: that which the routers saw.
        let from = all.len() - (layers - shape.layers[place]) * shape.hidden;
        state.copy_from_slice(&all[from..][..shape.hidden]);
        Ok::<(), Error>(())
    };
    let meter = ProgressMeter::of("fitting evictions", ProgressUnit::Tokens);
    let fitted = fit.run(FitTo::new(&trace, &sequences), &mut state, &mut |done, total| {
        meter.show(Progress { done: done as u64, total: total as u64 });
        !interrupt.is_requested()
    })?;
    meter.finish();
    fitted.ok_or_else(stopped)
}

/// Runs a new draft over sequences: what was not trained is learned online, as in a run of the model.
fn follow_all(
    draft: &mut MicroDraftModel,
    recorded: &mut DraftInput,
    sequences: &[RecordedSequence],
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    for sequence in sequences {
        follow(draft, recorded, sequence, interrupt)?;
    }
    Ok(())
}

/// Runs a draft over a sequence.
fn follow(
    draft: &mut MicroDraftModel,
    recorded: &mut DraftInput,
    sequence: &RecordedSequence,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let DraftInput { shape, routers, files, .. } = recorded;
    let states = &mut files[sequence.file];
    let layers = recorded.model.spec().layers.len();
    let mut both = Vec::new();
    for token in sequence.tokens.clone() {
        check_interrupt(interrupt)?;
        states.token(token, &mut both)?;
        draft.begin(&Pass::single(token, &states.trace.tokens()[token..=token]));
        let (entering, attended) = both.split_at(layers * shape.hidden);
        for (place, &layer) in shape.layers.iter().enumerate() {
            let at = layer * shape.hidden..(layer + 1) * shape.hidden;
            let chosen: Vec<u32> =
                states.trace.experts(token, place).iter().copied().map(u32::from).collect();
            draft.entering(layer, &entering[at.clone()], routers);
            draft.adapt(layer, &chosen, shape.top_k);
            draft.attended(layer, &attended[at], routers);
        }
    }
    Ok(())
}

/// Collects the samples of one state of one layer, evenly spaced over as many tokens as fit in
/// memory.
fn collect(
    recorded: &mut DraftInput,
    sequences: &[RecordedSequence],
    training: &Training,
    (place, attended): (usize, bool),
    interrupt: &Interrupt,
) -> anyhow::Result<Samples> {
    let DraftInput { model, shape, routers, files, .. } = recorded;
    let &Training { inputs, targets, experts, .. } = training;
    let most = SAMPLES / (4 * (inputs + 2 * targets * experts));
    let every = tokens(sequences).div_ceil(most).max(1);
    let layers = model.spec().layers.len();
    let mut samples = Samples::default();
    let mut both = Vec::new();
    let mut logits = vec![0.0; experts];
    let mut order = Vec::new();
    for sequence in sequences {
        let states = &mut files[sequence.file];
        for token in sequence.tokens.clone().step_by(every) {
            check_interrupt(interrupt)?;
            states.token(token, &mut both)?;
            let at = (usize::from(attended) * layers + shape.layers[place]) * shape.hidden;
            let state = &both[at..at + shape.hidden];
            let first = samples.inputs.len();
            samples.inputs.resize(first + inputs, 0.0);
            let (normed, before) = samples.inputs[first..].split_at_mut(shape.hidden);
            sws_draft::norm(state, normed);
            let last = if attended { Some(place) } else { place.checked_sub(1) };
            if let Some(last) = last {
                for &expert in states.trace.experts(token, last) {
                    before[usize::from(expert)] = 1.0;
                }
            }
            for target in 0..targets {
                let target = place + target + usize::from(attended);
                if !routers.logits(shape.layers[target], state, &mut logits) {
                    bail!("the router of layer {} is missing", shape.layers[target]);
                }
                let first = samples.margins.len();
                samples.margins.resize(first + experts, 0.0);
                margin(&logits, shape.top_k, &mut order, &mut samples.margins[first..]);
                samples.used.resize(first + experts, 0.0);
                for &expert in states.trace.experts(token, target) {
                    samples.used[first + usize::from(expert)] = 1.0;
                }
            }
        }
    }
    Ok(samples)
}

fn mean(losses: &[[f32; 2]], which: usize) -> f32 {
    losses.iter().map(|loss| loss[which]).sum::<f32>() / losses.len().max(1) as f32
}

impl TrainReport {
    fn text(&self) -> String {
        let heading = ["layer", "<state", "loss of routers", "corrected"];
        let mut rows = Vec::new();
        for row in &self.layers {
            let state = if row.entering { "entering" } else { "after attention" };
            rows.push(vec![
                row.layer.to_string(),
                state.to_owned(),
                format!("{:.4}", row.loss_before),
                format!("{:.4}", row.loss_after),
            ]);
        }
        let alone = match self.routers_alone.len() {
            0 => String::new(),
            alone => {
                let forecasts = count(alone, "forecast");
                format!(
                    "routers alone find as many of their misses: {forecasts} without correction\n"
                )
            }
        };
        let before = mean(&self.eviction.losses, 0);
        let after = mean(&self.eviction.losses, 1);
        format!(
            "{}\ntrained on {} tokens; losses, in nats per expert, are of {} held-out tokens\n{alone}`{}`: {}\n`{}`: {}, loss of the policy's forecasts {before:.4}, corrected {after:.4}\n",
            table(&heading, &rows),
            self.tokens,
            self.held_out_tokens,
            self.file,
            size(self.bytes as u64),
            self.eviction.file,
            size(self.eviction.bytes as u64),
        )
    }
}
