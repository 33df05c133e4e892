//! Long prompts: each expert is read once in thousands of tokens.

use sws_engine::{Options, ResidentLoad, SlotClass, SpeculativeWeightStreamer};
use sws_model::{CausalLm, Chunk, ForwardPass, KvPrecision, ModelSpec, Session, StepOutcome};
use sws_store::ReaderKind;

use super::{least, options, spec, store};

/// The bundled model with room for longer texts. It was not trained on such, which no bit knows.
fn with_context(positions: usize) -> ModelSpec {
    ModelSpec { context: positions, ..spec() }
}

fn prompt(len: u32, step: u32) -> Vec<u32> {
    (0..len).map(|n| (n * step + n / 7) % 4096).collect()
}

/// The last logits of a resident model that takes the prompt in chunks of this many tokens.
fn in_chunks(positions: usize, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let (spec, store) = (with_context(positions), store(ReaderKind::Mmap));
    let source = ResidentLoad::new(&spec, &store).unwrap().load(|_| true).unwrap().unwrap();
    let mut session = Session::new(ForwardPass::new(spec), source, positions, KvPrecision::F32);
    session.set_chunk(chunk);
    session.prefill(tokens).unwrap().to_vec()
}

/// A streamer in which a quarter of the experts have slots, with chunks of this length, and the bytes of
/// all experts and of those in slots.
fn quarter(
    positions: usize,
    sequences: usize,
    chunk: usize,
) -> (SpeculativeWeightStreamer, [u64; 2]) {
    let experts = 8 * 32;
    let mut ram = least();
    let options = |ram| Options { context: Some(positions), sequences, ..options(ram) };
    let model = || ForwardPass::new(with_context(positions));
    loop {
        ram += 1 << 20;
        let planned =
            SpeculativeWeightStreamer::new(model(), store(ReaderKind::Mmap), options(ram));
        let Ok(planned) = planned else { continue };
        let mut plan = planned.plan().unwrap().clone();
        let [slots] = plan.slots[..] else { continue };
        if slots.count >= experts / 4 {
            // Activations are a larger part of this small model than the plan allows.
            plan.chunk = chunk;
            let store = store(ReaderKind::Mmap);
            let streamer = SpeculativeWeightStreamer::with_plan(model(), store, plan, options(ram));
            let all = SlotClass { count: experts, ..slots };
            return (streamer.unwrap(), [all, slots].map(|class| class.bytes()));
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_length_of_chunks() {
    let tokens = prompt(1300, 83);
    let expected = in_chunks(2048, &tokens, 512);
    for chunk in [1, 7, 600, 4096] {
        assert!(in_chunks(2048, &tokens, chunk) == expected, "chunks of {chunk}");
    }
}

/// With a quarter of the experts in memory, a prompt of 8,192 tokens in chunks of 4,096 reads less than
/// .3 of what it reads in chunks of 512.
#[test]
fn a_long_prompt_reads_each_expert_once_in_a_chunk() {
    let tokens = prompt(8192, 83);
    let runs = [512, 4096].map(|chunk| {
        let (mut streamer, [all, held]) = quarter(8192, 1, chunk);
        let logits = streamer.prefill(&tokens).unwrap().to_vec();
        let (read, later) = (streamer.counters().bytes[0], tokens.len() / chunk - 1);
        let expected = all + later as u64 * (all - held);
        assert!(read as f64 <= 1.05 * expected as f64, "{read} of {expected} in {chunk}");
        (logits, read)
    });
    let [(before, all), (after, few)] = runs;
    assert!(before == after);
    assert!(few as f64 <= 0.3 * all as f64, "{few} of {all}");
}

/// Several prompts share one reading of the experts, and keep their bits.
#[test]
fn prompts_that_wait_together_share_their_reads() {
    let (mut streamer, [all, _]) = quarter(2048, 4, 2048);
    let prompts = [500, 450, 400, 500].map(|len| prompt(len, 5 + len));
    let sequences: Vec<usize> =
        [0].into_iter().chain((1..4).map(|_| streamer.add_sequence().unwrap())).collect();
    let chunks: Vec<Chunk<'_>> = sequences
        .iter()
        .zip(&prompts)
        .map(|(&sequence, tokens)| Chunk { sequence, tokens })
        .collect();
    let mut step = StepOutcome::default();
    streamer.step(&chunks, &mut (), &mut step);
    for (number, tokens) in prompts.iter().enumerate() {
        assert!(step.logits(number).unwrap() == in_chunks(2048, tokens, 512), "{number}");
    }
    let [read, ..] = streamer.counters().bytes;
    assert!(read as f64 <= 1.05 * all as f64, "{read} of {all}");
}
