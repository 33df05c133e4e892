use proptest::prelude::*;

use super::learned::{AHEAD, TOKEN};
use super::*;
use sws_cache::history::dot;

const HIDDEN: usize = 24;
const EXPERTS: usize = 12;
const TOP_K: usize = 3;
/// The layers with experts. Dense layers come before the first and in between.
const LAYERS: [usize; 6] = [1, 2, 4, 5, 6, 7];

fn shape() -> DraftShape {
    let layers = LAYERS.to_vec();
    DraftShape { hidden: HIDDEN, layers, experts: EXPERTS, top_k: TOP_K, sequences: 2 }
}

const SIZE: DraftSize = DraftSize { rank: 2, tokens: 40, distances: 4 };

/// A model with random routers, whose states drift from layer to layer.
struct Toy {
    routers: Vec<Vec<f32>>,
    drift: f32,
    random: u64,
}

impl Gates for Toy {
    fn logits(&mut self, layer: usize, state: &[f32], logits: &mut [f32]) -> bool {
        let Ok(place) = LAYERS.binary_search(&layer) else { return false };
        for (state, logits) in state.chunks(HIDDEN).zip(logits.chunks_mut(EXPERTS)) {
            for (logit, row) in logits.iter_mut().zip(self.routers[place].chunks(HIDDEN)) {
                *logit = dot(row, state);
            }
        }
        true
    }
}

impl Toy {
    fn new(drift: f32) -> Toy {
        let mut toy = Toy { routers: Vec::new(), drift, random: 1 };
        toy.routers = (0..LAYERS.len()).map(|_| toy.numbers(EXPERTS * HIDDEN)).collect();
        toy
    }

    fn number(&mut self) -> f32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }

    /// Runs a token through all layers. `seen` gets for each layer the forecasts at every distance,
    /// and the choice.
    fn token(
        &mut self,
        draft: &mut MicroDraftModel,
        mut seen: impl FnMut(usize, usize, &[f32], &[u32]),
    ) {
        let token = (self.number().abs() * 20.0) as u32;
        draft.begin(&Pass::single(0, &[token]));
        let mut state = self.numbers(HIDDEN);
        let mut forecasts: Vec<Vec<(usize, Vec<f32>)>> = vec![Vec::new(); LAYERS.len()];
        for layer in 0..8 {
            let said = draft.entering(layer, &state, self).unwrap_or_default();
            let place = LAYERS.binary_search(&layer);
            if let Ok(place) = place {
                assert_eq!(said[0].layer_idx, layer);
                assert_eq!(said.len(), LAYERS.len() - place);
                forecasts[place].push((0, said[0].expert_probs.clone()));
            }
            for x in &mut state {
                *x += self.drift * self.number();
            }
            let Ok(place) = place else { continue };
            let mut logits = [0.0; EXPERTS];
            self.logits(layer, &state, &mut logits);
            let mut order: Vec<u32> = (0..EXPERTS as u32).collect();
            order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            order.truncate(TOP_K);
            for (distance, probs) in &forecasts[place] {
                seen(place, *distance, probs, &order);
            }
            draft.adapt(layer, &order, TOP_K);
            let said = draft.attended(layer, &state, self).unwrap();
            for (n, said) in said.iter().take(DEPTH).enumerate() {
                forecasts[place + 1 + n].push((n + 1, said.expert_probs.clone()));
            }
        }
    }
}

/// Routers that see nearly the final state find nearly all experts. The probabilities are soon
/// calibrated, whatever the initial weights.
#[test]
fn probabilities_become_calibrated() {
    for (drift, recalls) in [(0.15, [0.85, 0.7]), (0.4, [0.6, 0.4])] {
        let (mut toy, mut draft) = (Toy::new(drift), MicroDraftModel::new(shape(), SIZE));
        let mut outcomes = [(); 2].map(|()| crate::ForecastOutcome::default());
        for token in 0..3000 {
            toy.token(&mut draft, |_, distance, probs, chosen| {
                if token >= 1500 {
                    let outcome = &mut outcomes[usize::from(distance > 0)];
                    outcome.add(probs, chosen, &[], true);
                }
            });
        }
        for (outcome, least) in outcomes.iter().zip(recalls) {
            let score = outcome.score();
            assert!(score.recall[0] > least, "drift {drift}: {score:?}");
            assert!(score.calibration_error.unwrap()[0] < 0.02, "drift {drift}: {score:?}");
        }
    }
}

/// A draft with random projections, trained for 200 tokens.
fn taught() -> MicroDraftModel {
    let (mut toy, mut draft) = (Toy::new(0.2), MicroDraftModel::new(shape(), SIZE));
    for weight in &mut draft.learned.down {
        *weight = toy.number();
    }
    (0..200).for_each(|_| toy.token(&mut draft, |_, _, _, _| {}));
    draft
}

fn forecasts(draft: &MicroDraftModel) -> Vec<f32> {
    // Files do not contain the recent use of experts.
    let mut draft = draft.clone();
    draft.known.history = History::new(shape().history(), 1);
    let mut all = Vec::new();
    let mut toy = Toy::new(0.1);
    for _ in 0..5 {
        toy.token(&mut draft, |_, _, probs, _| all.extend_from_slice(probs));
    }
    all
}

#[test]
fn written_draft_reads_back() {
    let draft = taught();
    let bytes = draft.write("model");
    let read = MicroDraftModel::read(&bytes, &shape(), "model", usize::MAX).unwrap().unwrap();
    assert_eq!(read.size(), SIZE);
    assert_eq!(forecasts(&read), forecasts(&draft));

    let other = DraftShape { hidden: HIDDEN + 1, ..shape() };
    let refused = |bytes: &[u8], shape: &DraftShape, model: &str| {
        MicroDraftModel::read(bytes, shape, model, usize::MAX).unwrap_err().to_string()
    };
    for (shape, model) in [(&shape(), "another"), (&other, "model")] {
        assert!(refused(&bytes, shape, model).contains("another model"));
    }
    let mut nan = bytes.clone();
    let json = u64::from_le_bytes(*nan.first_chunk().unwrap()) as usize;
    nan[8 + json..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(refused(&nan, &shape(), "model").contains("`weights`"));
    assert!(refused(b"", &shape(), "model").contains("not a draft"));
}

/// A forecast that follows its router alone has the router's order, whatever the history, learns its
/// probabilities and nothing else, and stays so in a file. All other forecasts differ from their
/// routers.
#[test]
fn forecasts_follow_their_routers_alone_where_told() {
    let mut draft = taught();
    let (place, alone) = (3, [0, 2]);
    alone.iter().for_each(|&distance| draft.learned.follow_router(place, distance));
    let bytes = draft.write("model");
    let mut draft = MicroDraftModel::read(&bytes, &shape(), "model", usize::MAX).unwrap().unwrap();
    let order = |scores: &[f32]| {
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order
    };
    let head = |draft: &MicroDraftModel| draft.learned.weights(place, 2, true);
    let before = head(&draft);
    let mut toy = Toy::new(0.2);
    let mut same = [0; DEPTH + 1];
    for n in 0..40 {
        draft.begin(&Pass::single(n, &[n as u32 % 5]));
        let state = toy.numbers(HIDDEN);
        let mut logits = [0.0; EXPERTS];
        toy.logits(LAYERS[place], &state, &mut logits);
        for (from, &layer) in LAYERS[..=place].iter().enumerate() {
            let said = draft.entering(layer, &state, &mut toy).unwrap();
            if from == place {
                same[0] += usize::from(order(&said[0].expert_probs) == order(&logits));
            }
            draft.adapt(layer, &[1, 2, 3], TOP_K);
            let said = draft.attended(layer, &state, &mut toy).unwrap();
            if from < place {
                let distance = place - from;
                let probs = &said[distance - 1].expert_probs;
                same[distance] += usize::from(order(probs) == order(&logits));
            }
        }
    }
    for distance in 0..=place {
        assert_eq!(draft.learned.follows_router(place, distance), alone.contains(&distance));
        assert_eq!(same[distance] == 40, alone.contains(&distance), "{distance}: {same:?}");
    }
    let after = head(&draft);
    assert_eq!(after[2..], before[2..], "no other feature is learned");
    assert_ne!(after[..2], before[..2]);
}

#[test]
fn tighter_limits_drop_tokens_first() {
    let draft = taught();
    let bytes = draft.write("model");
    let all = SIZE.bytes(&shape());
    let mut sizes = Vec::new();
    for limit in (0..=all).rev().step_by(64) {
        match MicroDraftModel::read(&bytes, &shape(), "model", limit).unwrap() {
            Some(draft) => {
                assert!(draft.bytes() <= limit, "{:?} in {limit}", draft.size());
                forecasts(&draft);
                sizes.push(draft.size());
            }
            None => assert!(limit < 40_000, "{limit} bytes are enough for a history"),
        }
    }
    assert_eq!(sizes[0], SIZE);
    let last = DraftSize { rank: 0, tokens: 0, distances: 0 };
    assert!(sizes.iter().any(|size| size.tokens < SIZE.tokens && size.rank == SIZE.rank));
    assert_eq!(*sizes.last().unwrap(), last);
}

/// A frozen draft writes the same file again, although its history is updated.
#[test]
fn a_frozen_draft_learns_nothing() {
    let mut draft = taught();
    draft.set_adapting(Adapting::History);
    let before = draft.write("model");
    let steps = draft.known.history.steps(0);
    let mut toy = Toy::new(0.5);
    (0..20).for_each(|_| toy.token(&mut draft, |_, _, _, _| {}));
    assert!(draft.write("model") == before);
    assert_eq!(draft.known.history.steps(0), steps + 20);
    draft.set_adapting(Adapting::All);
    toy.token(&mut draft, |_, _, _, _| {});
    assert!(draft.write("model") != before);
}

#[test]
fn memory_matches_the_size_and_does_not_grow() {
    let mut toy = Toy::new(0.2);
    let mut draft = None;
    let made = allocation_counter::measure(|| draft = Some(MicroDraftModel::new(shape(), SIZE)));
    let mut draft = draft.unwrap();
    let says = SIZE.bytes(&shape()) as i64;
    assert!(made.bytes_current <= says + 4096, "{made:?} of {says}");
    assert!(made.bytes_current * 10 > says * 9, "{made:?} of {says}");
    // States and choices as an engine has them, made before allocations are counted.
    let tokens: Vec<(Vec<f32>, [u32; TOP_K])> =
        (0..100).map(|i| (toy.numbers(HIDDEN), [i % 12, (i + 3) % 12, (i * 5 + 1) % 12])).collect();
    let passes: Vec<Pass> = (0..100).map(|n| Pass::single(0, &[n % 7])).collect();
    let mut run = |draft: &mut MicroDraftModel| {
        for ((state, chosen), pass) in tokens.iter().zip(&passes) {
            draft.begin(pass);
            for layer in LAYERS {
                draft.entering(layer, state, &mut toy);
                draft.adapt(layer, chosen, TOP_K);
                draft.attended(layer, state, &mut toy);
            }
        }
    };
    run(&mut draft);
    let more = allocation_counter::measure(|| run(&mut draft));
    assert_eq!(more.count_total, 0, "{more:?}");
}

#[test]
fn plan_has_the_pieces_of_every_token_and_splits_experts() {
    let mut draft = taught();
    let (mut toy, state) = (Toy::new(0.1), vec![0.5; HIDDEN]);
    draft.confidence = 0.3;
    let plan = draft.select_and_plan(0, &state, &[4, 9, 4], &mut toy);
    // Layer 0 is dense and has no forecast, but the token gives one for all others.
    assert_eq!(plan.layers.len(), LAYERS.len());
    let plan = draft.select_and_plan(1, &state, &[4, 9, 4], &mut toy);
    let names: Vec<String> = plan.high_priority_pieces.iter().map(PieceId::to_string).collect();
    assert_eq!(names[..3], ["layer_1/norms", "layer_1/attention", "layer_1/router"]);
    for &piece in &plan.low_priority_pieces {
        assert!((0.05..0.3).contains(&plan.probability(piece)), "{piece}");
    }
    let experts = plan.high_priority_pieces.iter().filter(|p| p.to_string().contains("expert"));
    for &piece in experts {
        assert!(plan.probability(piece) >= 0.3, "{piece}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Passes of any length that end anywhere, layers in any order, routers present or missing:
    /// every probability is valid, and every selected expert exists.
    #[test]
    fn forecasts_are_always_probabilities(
        steps in prop::collection::vec((0usize..9, 0usize..12, any::<bool>(), 0u8..4), 1..120),
        scale in prop::sample::select(vec![0.0f32, 1.0, 1e30, f32::NAN]),
    ) {
        let mut draft = MicroDraftModel::new(shape(), SIZE);
        let mut toy = Toy::new(0.1);
        for (layer, tokens, gate, what) in steps {
            let state: Vec<f32> =
                toy.numbers(tokens * HIDDEN).into_iter().map(|x| x * scale).collect();
            let gates: &mut dyn Gates = if gate { &mut toy } else { &mut () };
            let said = match what {
                0 => {
                    draft.begin(&Pass::single(0, &vec![7; tokens]));
                    None
                }
                1 => draft.entering(layer, &state, gates),
                2 => draft.attended(layer, &state, gates),
                _ => {
                    let choices: Vec<u32> = (0..tokens * TOP_K).map(|i| i as u32 % 14).collect();
                    draft.adapt(layer, &choices, TOP_K);
                    None
                }
            };
            for said in said.unwrap_or_default() {
                prop_assert!(said.expert_probs.iter().all(|p| (0.0..=1.0).contains(p)), "{said:?}");
                prop_assert!(said.selected_experts.iter().all(|&e| (e as usize) < EXPERTS));
            }
        }
    }

    /// A damaged file is refused, or gives a draft that works.
    #[test]
    fn damaged_files_do_no_harm(at in any::<prop::sample::Index>(), bit in 0u8..8, cut in 0usize..3) {
        static BYTES: std::sync::LazyLock<Vec<u8>> =
            std::sync::LazyLock::new(|| {
                let mut draft = taught();
                draft.learned.follow_router(2, 1);
                draft.write("model")
            });
        let mut bytes = BYTES.clone();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if cut == 0 {
            bytes.truncate(at);
        }
        if let Ok(Some(draft)) = MicroDraftModel::read(&bytes, &shape(), "model", usize::MAX) {
            prop_assert!(forecasts(&draft).iter().all(|p| (0.0..=1.0).contains(p)));
        }
    }
}

#[test]
fn untrained_draft_is_saved_and_recalled() {
    let size = DraftSize { rank: 0, ..SIZE };
    let mut draft = MicroDraftModel::new(shape(), size);
    for n in 0..60u32 {
        draft.begin(&Pass::single(0, &[n % 3]));
        for &layer in &LAYERS {
            draft.entering(layer, &[0.5; HIDDEN], &mut ());
            draft.adapt(layer, &[n % 3, 4 + n % 3, 9], TOP_K);
        }
    }
    let mut saved = SavedTensors::default();
    draft.save(&mut saved);
    let mut next = MicroDraftModel::new(shape(), size);
    assert_ne!(next.learned(), draft.learned());
    next.recall(&saved).unwrap();
    assert_eq!(next.learned(), draft.learned());
    assert_eq!(
        (&next.known.counts, &next.known.tokens.ids),
        (&draft.known.counts, &draft.known.tokens.ids)
    );

    // Recalled into less memory, and from an empty file.
    let mut small = MicroDraftModel::new(shape(), DraftSize { tokens: 4, distances: 1, ..size });
    small.recall(&saved).unwrap();
    small.recall(&SavedTensors::default()).unwrap();
    assert_eq!(small.learned(), draft.learned());
    // A trained draft knows more: it ignores saved ones, and changes only by training.
    let mut trained = MicroDraftModel::new(shape(), SIZE);
    trained.recall(&saved).unwrap();
    assert_eq!(trained.known.steps, vec![0.0; LAYERS.len()]);
    let mut none = SavedTensors::default();
    trained.save(&mut none);
    assert!(none.is_empty());

    let mut damaged = SavedTensors::default();
    damaged.push("draft", Dtype::U8, &[3], vec![1, 2, 3]);
    assert!(next.recall(&damaged).is_err());
    assert_eq!(next.learned(), draft.learned());
}

/// A draft also learns from passes without a forecast query, and forecasts the next pass correctly.
/// Each layer has experts of its own.
#[test]
fn passes_without_queries_are_learned_from() {
    let mut draft = MicroDraftModel::new(shape(), DraftSize { rank: 0, ..SIZE });
    let experts = EXPERTS as u32;
    let used =
        |token: u32, place: u32| [0, 1, 2].map(|n| (n + 5 * (token % 2) + 2 * place) % experts);
    let chooses = |draft: &mut MicroDraftModel, token: u32| {
        for (place, &layer) in (0..).zip(&LAYERS) {
            draft.adapt(layer, &used(token, place), TOP_K);
        }
    };
    for n in 0..80u32 {
        draft.begin(&Pass::single(n as usize, &[n % 2]));
        if n % 4 == 0 {
            draft.entering(LAYERS[0], &[0.5; HIDDEN], &mut ());
        }
        chooses(&mut draft, n);
    }
    // The weights by token have grown in every layer: learned from its own odds.
    for place in 0..LAYERS.len() {
        let untrained = MicroDraftModel::new(shape(), DraftSize { rank: 0, ..SIZE });
        let token = |draft: &MicroDraftModel| draft.learned.weights(place, AHEAD, false)[TOKEN];
        assert!(token(&draft) > token(&untrained), "layer {place}: {}", token(&draft));
    }
    for token in [0, 1] {
        draft.begin(&Pass::single(80 + token as usize, &[token]));
        let said = draft.entering(LAYERS[0], &[0.5; HIDDEN], &mut ()).unwrap();
        for (place, said) in (0..).zip(said) {
            let (yes, no) = (used(token, place), used(token + 1, place));
            for expert in 0..experts {
                let p = said.expert_probs[expert as usize];
                match (yes.contains(&expert), no.contains(&expert)) {
                    (true, false) => assert!(p > 0.6, "{place}/{expert}: {p}"),
                    (false, true) => assert!(p < 0.4, "{place}/{expert}: {p}"),
                    _ => {}
                }
            }
        }
        chooses(&mut draft, token);
    }
}
