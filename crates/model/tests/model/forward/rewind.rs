//! Running ahead with wrong weights, and rewinding.

use sws_format::{PieceId, PieceKind};
use sws_kernels::Matrix;
use sws_model::{
    Chunk, Compute, FindRows, ForwardPass, ForwardState, KvPrecision, LogitRows, Ready,
    ResidentSource, Role, Routed, SourceError, TakeRow, WeightSource, Weights,
};

use crate::forward::support::Fixture;

/// The second has a window in every layer, the third and the fifth in every other; the sixth has
/// latents, the next five recurrent layers, and in the next one layers share the positions that
/// another has selected. Then there are aligned windows, and values shorter than keys. The next two
/// have several streams, and entries of pooled positions; then the sum of experts waits for the next
/// layer, and groups of positions are selected. Inkling has convolutions beside keys and values, and
/// layers visited several times. The
/// two of Kimi K3 keep earlier states; the last two look up rows by the tokens before.
const VARIANTS: [&str; 32] = [
    "mixtral_sharded",
    "mixtral_swa",
    "qwen2_moe_swa",
    "qwen3_moe_v5cfg",
    "gpt_oss",
    "deepseek_v3_v5cfg",
    "qwen3_next",
    "qwen3_5_moe",
    "granitemoehybrid",
    "nemotron_h",
    "kimi_linear",
    "glm_moe_dsa",
    "llama4_text",
    "mimo_v2_flash",
    "deepseek_v4",
    "deepseek_v4_v5cfg",
    "longcat_flash",
    "glm5_next",
    "glm5_next_shared",
    "hy_v4",
    "inkling",
    "inkling2",
    "inkling2_loop",
    "inkling2_loop_text",
    "inkling2_text",
    "kimi_k3",
    "kimi_k3_otherwise",
    "minimax_m3",
    "mistral_large4",
    "minimax_m3_v5cfg",
    "qwen4_exp",
    "qwen4_exp_text",
];

/// Longer than a ring of window + 63, so that rings wrap around within the chunk that is repeated.
const CHUNKS: [usize; 4] = [1, 5, 60, 100];

#[test]
fn rewind_undoes_three_layers_with_wrong_experts() {
    for name in VARIANTS {
        for chunk in CHUNKS {
            let fixture = Fixture::open(name);
            let layers = fixture.spec.visits();
            let expected = run(&fixture, chunk, None);
            for ahead_from in 0..layers {
                let found = run(&fixture, chunk, Some(ahead_from));
                assert!(found == expected, "{name}: chunk of {chunk} from layer {ahead_from}");
            }
        }
    }
}

/// Processes a prompt, then a chunk, then one more token; returns the logits of chunk and token.
/// Before layer `ahead_from` of the chunk it runs three layers ahead with wrong experts, if
/// necessary into the pass of the token that follows.
fn run(fixture: &Fixture, chunk: usize, ahead_from: Option<usize>) -> Vec<u32> {
    let spec = &fixture.spec;
    let tokens: Vec<u32> = fixture.golden().tokens.iter().copied().cycle().take(220).collect();
    let (prompt, rest) = tokens.split_at(90);
    let (chunk, next) = (&rest[..chunk], &rest[chunk..chunk + 1]);
    let model = ForwardPass::new(spec.clone());
    let mut source = Swapped { inner: fixture.source(), experts: None };
    let mut state = ForwardState::new(spec, usize::MAX, KvPrecision::F32);
    let sequence = state.add_sequence(spec);
    let mut logits = Vec::new();
    for (number, tokens) in [prompt, chunk, next].into_iter().enumerate() {
        model.begin(&mut state, &[Chunk { sequence, tokens }], &mut source).unwrap();
        for l in 0..spec.visits() {
            if number == 1 && ahead_from == Some(l) {
                let saved = state.save();
                source.experts = Some(spec.moes().next().unwrap().experts as u32);
                let before = state.hidden().to_vec();
                for ahead in l..l + 3 {
                    let layers = spec.visits();
                    if ahead == layers {
                        let batch = [Chunk { sequence, tokens: next }];
                        model.begin(&mut state, &batch, &mut source).unwrap();
                    }
                    model.layer(ahead % layers, &mut state, &mut source).unwrap();
                }
                assert_ne!(state.hidden(), before);
                source.experts = None;
                state.rewind(saved);
                assert_eq!(state.hidden(), before);
            }
            model.layer(l, &mut state, &mut source).unwrap();
        }
        let found = model.logits(LogitRows::All, &mut state, &mut source).unwrap();
        logits.extend(found.iter().map(|x| x.to_bits()));
    }
    logits
}

/// The selection of an earlier pass is not a selection of this one.
#[test]
fn a_pass_begins_with_nothing_selected() {
    let fixture = Fixture::open("glm_moe_dsa");
    let spec = &fixture.spec;
    let tokens: Vec<u32> = fixture.golden().tokens.iter().copied().cycle().take(100).collect();
    let model = ForwardPass::new(spec.clone());
    let mut source = fixture.source();
    let mut state = ForwardState::new(spec, usize::MAX, KvPrecision::F32);
    let sequence = state.add_sequence(spec);
    let (prompt, next) = tokens.split_at(99);
    model.begin(&mut state, &[Chunk { sequence, tokens: prompt }], &mut source).unwrap();
    (0..spec.visits()).for_each(|l| model.layer(l, &mut state, &mut source).unwrap());
    assert_eq!(state.selected(98).unwrap().len(), 8);
    model.begin(&mut state, &[Chunk { sequence, tokens: next }], &mut source).unwrap();
    assert!(state.selected(0).is_none());
    // What a saved pass copies of it is part of the budget: 8 positions of each token.
    assert_eq!(ForwardState::journal_bytes(spec, (1, 3), KvPrecision::F32), 3 * 8 * 4);
}

#[test]
fn saved_states_can_be_nested_and_kept() {
    for name in ["mixtral_swa", "qwen3_5_moe", "deepseek_v4_v5cfg"] {
        nested(name);
    }
}

fn nested(name: &str) {
    let fixture = Fixture::open(name);
    let spec = &fixture.spec;
    let tokens: Vec<u32> = fixture.golden().tokens.iter().copied().cycle().take(200).collect();
    let model = ForwardPass::new(spec.clone());
    let mut source = fixture.source();
    let mut state = ForwardState::new(spec, usize::MAX, KvPrecision::Bf16);
    let sequence = state.add_sequence(spec);
    let mut pass = |state: &mut ForwardState, tokens: &[u32]| {
        model.begin(state, &[Chunk { sequence, tokens }], &mut source).unwrap();
        (0..spec.visits()).for_each(|l| model.layer(l, state, &mut source).unwrap());
        let logits = model.logits(LogitRows::All, state, &mut source).unwrap();
        logits.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
    };
    pass(&mut state, &tokens[..100]);
    let outer = state.save();
    let expected = pass(&mut state, &tokens[100..150]);
    let inner = state.save();
    let after = pass(&mut state, &tokens[150..]);
    state.rewind(inner);
    assert_eq!(pass(&mut state, &tokens[150..]), after);
    let kept = state.save();
    state.keep(kept);
    state.rewind(outer);
    assert_eq!(state.len(sequence), 100);
    assert_eq!(pass(&mut state, &tokens[100..150]), expected);
    assert_eq!(pass(&mut state, &tokens[150..]), after);
}

/// Serves the next expert in place of each, if `experts` holds the number of experts.
struct Swapped {
    inner: ResidentSource,
    experts: Option<u32>,
}

struct Next<'a>(&'a mut dyn Weights, u32);

impl WeightSource for Swapped {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        self.inner.embed(tokens, rows)
    }

    fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        self.inner.look_up(layer, find, take)
    }

    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        self.inner.infrastructure(layer, pieces, compute)
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let experts = self.experts;
        self.inner.experts(layer, routed, &mut |ids, weights| match experts {
            Some(count) => ready(ids, &mut Next(weights, count)),
            None => ready(ids, weights),
        })
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.inner.head(compute)
    }
}

impl Weights for Next<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        self.0.vector(piece, role)
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        let PieceKind::Expert(expert) = piece.kind() else { panic!("{piece}") };
        let next = PieceId::expert(piece.layer().unwrap(), (expert + 1) % self.1);
        self.0.matrix(next, role)
    }

    fn blocks(
        &mut self,
        _: PieceId,
        _: Role,
        _: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        unreachable!("everything is in memory")
    }
}
