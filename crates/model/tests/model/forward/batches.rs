//! Many sequences in shared passes: each gets the bits that it has alone.

use std::collections::HashMap;

use proptest::prelude::*;
use sws_format::PieceKind;
use sws_model::{
    CausalLm, Chunk, Compute, FindRows, ForwardError, ForwardPass, KvPrecision, Observer,
    PassSource, Ready, ResidentSource, Routed, Sequences, SourceError, StepOutcome, TakeRow,
    WeightSource,
};

use crate::forward::support::{Fixture, variants};

/// Passes with this token fail.
const POISON: u32 = 3;

/// A source that fails for a token, and once after so many requests.
struct Flaky {
    inner: ResidentSource,
    fails_in: Option<usize>,
}

impl Flaky {
    fn request(&mut self) -> Result<&mut ResidentSource, SourceError> {
        match &mut self.fails_in {
            Some(0) => {
                self.fails_in = None;
                Err("a read failed".into())
            }
            Some(left) => {
                *left -= 1;
                Ok(&mut self.inner)
            }
            None => Ok(&mut self.inner),
        }
    }
}

impl WeightSource for Flaky {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        match tokens.contains(&POISON) {
            true => Err("poison".into()),
            false => self.request()?.embed(tokens, rows),
        }
    }

    fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        self.request()?.look_up(layer, find, take)
    }

    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        self.request()?.infrastructure(layer, pieces, compute)
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        self.request()?.experts(layer, routed, ready)
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.request()?.head(compute)
    }
}

impl Observer for Flaky {}
impl PassSource for Flaky {}

fn sequences(fixture: &Fixture, page: usize) -> Sequences<Flaky> {
    let source = Flaky { inner: fixture.source(), fails_in: None };
    let model = ForwardPass::new(fixture.spec.clone());
    Sequences::new(model, source, 200, KvPrecision::F32).with_pages(page)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[derive(Clone, Debug)]
enum Event {
    Add,
    Fork(usize),
    Remove(usize),
    Clear(usize),
    Truncate(usize, usize),
    /// Tokens for some sequences: where they begin in the text, how many, and if the last is poison.
    Step(Vec<(usize, usize, usize, bool)>, Option<usize>),
}

fn event() -> impl Strategy<Value = Event> {
    let chunk = (0..8usize, 0..100usize, prop_oneof![Just(1usize), 1..24usize]);
    let chunk = (chunk, prop::bool::weighted(0.05)).prop_map(|((s, at, n), bad)| (s, at, n, bad));
    prop_oneof![
        2 => Just(Event::Add),
        1 => (0..8usize).prop_map(Event::Fork),
        1 => (0..8usize).prop_map(Event::Remove),
        1 => (0..8usize).prop_map(Event::Clear),
        1 => (0..8usize, 0..60usize).prop_map(|(s, len)| Event::Truncate(s, len)),
        8 => (prop::collection::vec(chunk, 1..8), prop::option::weighted(0.2, 0..60usize))
            .prop_map(|(chunks, fails)| Event::Step(chunks, fails)),
    ]
}

/// Sequences beside the texts that they should have.
struct Beside<'f> {
    fixture: &'f Fixture,
    sequences: Sequences<Flaky>,
    texts: Vec<(usize, Vec<u32>)>,
    /// The largest number of tokens in a pass.
    room: usize,
    alone: HashMap<Vec<u32>, Vec<u32>>,
}

impl Beside<'_> {
    fn expected(&mut self, text: &[u32]) -> &Vec<u32> {
        let fixture = self.fixture;
        self.alone
            .entry(text.to_vec())
            .or_insert_with(|| bits(fixture.session().prefill(text).unwrap()))
    }

    fn happen(&mut self, event: &Event, text: &[u32]) -> Result<(), TestCaseError> {
        let count = self.texts.len();
        match *event {
            Event::Add if count < 8 => {
                let sequence = self.sequences.add();
                prop_assert!(self.texts.iter().all(|(other, _)| *other != sequence));
                self.texts.push((sequence, Vec::new()));
            }
            Event::Fork(which) if (1..8).contains(&count) => {
                let (from, text) = self.texts[which % count].clone();
                self.texts.push((self.sequences.state_mut().fork(from).unwrap(), text));
            }
            Event::Remove(which) if count > 0 => {
                let (sequence, _) = self.texts.swap_remove(which % count);
                self.sequences.state_mut().remove(sequence);
            }
            Event::Clear(which) if count > 0 => {
                let (sequence, text) = &mut self.texts[which % count];
                self.sequences.state_mut().clear(*sequence);
                text.clear();
            }
            Event::Truncate(which, len) if count > 0 => {
                let (sequence, text) = &mut self.texts[which % count];
                if self.sequences.state_mut().truncate(*sequence, len) {
                    text.truncate(len);
                }
            }
            Event::Step(ref chunks, fails_in) if count > 0 => {
                self.step(chunks, fails_in, text)?;
            }
            _ => {}
        }
        for (sequence, text) in &self.texts {
            prop_assert_eq!(self.sequences.state().len(*sequence), text.len());
        }
        Ok(())
    }

    fn step(
        &mut self,
        chunks: &[(usize, usize, usize, bool)],
        fails_in: Option<usize>,
        text: &[u32],
    ) -> Result<(), TestCaseError> {
        let mut batch: Vec<(usize, Vec<u32>)> = Vec::new();
        for &(which, at, tokens, poison) in chunks {
            let which = which % self.texts.len();
            if batch.iter().all(|(other, _)| *other != which) {
                let mut tokens: Vec<u32> =
                    text.iter().cycle().skip(at).take(tokens).copied().collect();
                if poison {
                    *tokens.last_mut().unwrap() = POISON;
                }
                batch.push((which, tokens));
            }
        }
        let chunk = |(which, tokens): &'_ (usize, Vec<u32>)| (self.texts[*which].0, tokens.clone());
        let owned: Vec<(usize, Vec<u32>)> = batch.iter().map(chunk).collect();
        let chunks: Vec<Chunk<'_>> =
            owned.iter().map(|(sequence, tokens)| Chunk { sequence: *sequence, tokens }).collect();
        self.sequences.source().fails_in = fails_in;
        let mut step = StepOutcome::default();
        self.sequences.step(&chunks, &mut (), &mut step);
        let outcomes: Vec<Result<Vec<u32>, String>> = (0..chunks.len())
            .map(|chunk| step.logits(chunk).map(bits).map_err(ToString::to_string))
            .collect();
        // A read that fails once is repeated, unless it was for one sequence alone: in a step of one, in one
        // that takes several passes, or after a pass with poison.
        let rows: usize = batch.iter().map(|(_, tokens)| tokens.len()).sum();
        let poison = batch.iter().any(|(_, tokens)| tokens.contains(&POISON));
        let mut unrepeated = usize::from(batch.len() == 1 || rows > self.room || poison);
        let lone = batch.len() == 1;
        for ((which, tokens), outcome) in batch.into_iter().zip(outcomes) {
            let (sequence, mut text) = self.texts[which].clone();
            let full = text.len() + tokens.len() > 200;
            match outcome {
                Ok(logits) => {
                    prop_assert!(!tokens.contains(&POISON) && !full);
                    text.extend(&tokens);
                    prop_assert!(logits == *self.expected(&text), "{} tokens", text.len());
                }
                Err(error) => {
                    if error == "a read failed" {
                        prop_assert!(unrepeated > 0);
                        unrepeated -= 1;
                    } else {
                        prop_assert!(tokens.contains(&POISON) || full, "{error}");
                    }
                    // Else it is as it was, as the next steps show.
                    if lone || self.sequences.state().len(sequence) != text.len() {
                        self.sequences.state_mut().clear(sequence);
                        text.clear();
                    }
                }
            }
            self.texts[which].1 = text;
        }
        self.sequences.source().fails_in = None;
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_interleaving_gives_each_sequence_its_own_bits(
        name in prop::sample::select(variants()),
        page in prop::sample::select(vec![64, 512, usize::MAX]),
        room in 1..60usize,
        events in prop::collection::vec(event(), 1..30),
    ) {
        let fixture = Fixture::open(&name);
        let text: Vec<u32> =
            fixture.golden().tokens.iter().map(|&t| if t == POISON { 4 } else { t }).collect();
        let sequences = sequences(&fixture, page);
        let mut model =
            Beside { fixture: &fixture, sequences, texts: Vec::new(), room, alone: HashMap::new() };
        model.sequences.set_chunk(room);
        for event in &events {
            model.happen(event, &text)?;
        }
    }
}

#[test]
fn a_chunk_that_cannot_be_continued_fails_alone() {
    let fixture = Fixture::open("mixtral");
    let tokens = fixture.golden().tokens;
    let mut sequences = sequences(&fixture, 64);
    let [good, unknown, full, removed] = [(); 4].map(|()| sequences.add());
    sequences.state_mut().remove(removed);
    let too_many = vec![5; 201];
    let mut step = StepOutcome::default();
    sequences.step(
        &[
            Chunk { sequence: unknown, tokens: &[fixture.spec.vocab as u32] },
            Chunk { sequence: good, tokens: &tokens[..7] },
            Chunk { sequence: full, tokens: &too_many },
            Chunk { sequence: removed, tokens: &[1] },
        ],
        &mut (),
        &mut step,
    );
    assert!(matches!(step.logits(0), Err(ForwardError::UnknownToken { .. })));
    assert!(matches!(step.logits(2), Err(ForwardError::ContextFull { .. })));
    assert!(matches!(step.logits(3), Err(ForwardError::Removed(number)) if *number == removed));
    assert_eq!(step.errors().map(|(chunk, _)| chunk).collect::<Vec<_>>(), [0, 2, 3]);
    let alone = bits(fixture.session().prefill(&tokens[..7]).unwrap());
    assert_eq!(bits(step.logits(1).unwrap()), alone);
    assert_eq!(sequences.add(), removed, "numbers are reused");
    sequences.step(&[], &mut (), &mut step);
    assert!(step.is_empty());
}
