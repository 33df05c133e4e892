//! Experts that are computed elsewhere give the same bits.

use sws_format::{PieceId, PieceKind};
use sws_kernels::functional::{Activation, add, gate, gate_interleaved};
use sws_kernels::{MatmulScratch, Matrix, Tier, matmul};
use sws_model::{
    CausalLm, Compute, ExpertBatch, ExpertExecutor, FindRows, ForwardPass, GateUp, KvPrecision,
    Observer, PassSource, Ready, ResidentSource, Role, Routed, Session, SourceError, TakeRow,
    WeightSource, Weights,
};

use crate::forward::support::{Fixture, variants};

#[test]
fn experts_computed_elsewhere_give_the_same_bits() {
    let mut tried = 0;
    for name in variants() {
        let fixture = Fixture::open(&name);
        if fixture.spec.max_top_k() == 0 {
            continue;
        }
        let tokens = fixture.golden().tokens;
        let bits = |lm: &mut dyn CausalLm| {
            let chunks = [&tokens[..30], &tokens[30..31], &tokens[31..]];
            let bits = chunks.map(|chunk| lm.prefill(chunk).unwrap().to_vec());
            bits.concat().into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        };
        let expected = bits(&mut fixture.session());
        for one_in in [1, 2] {
            let source = Divided { inner: fixture.source(), one_in };
            let model = ForwardPass::new(fixture.spec.clone());
            let mut session = Session::new(model, source, usize::MAX, KvPrecision::F32);
            assert_eq!(bits(&mut session), expected, "{name}, one expert in {one_in}");
        }
        tried += 1;
    }
    assert!(tried >= 10, "{tried}");
}

/// Threads wait for one another at five places of a layer, however many experts a token uses: the queries, keys and
/// values, the outputs of attention, the router, the gates and ups of all experts, and their downs.
#[test]
fn a_token_divides_all_experts_together() {
    for (name, top_k) in [("mixtral", 2), ("qwen3_moe", 3), ("qwen3_moe_v5cfg", 1)] {
        let fixture = Fixture::open(name);
        assert_eq!(fixture.spec.max_top_k(), top_k, "{name}");
        let mut session = fixture.session();
        session.prefill(&[1, 2, 3]).unwrap();
        let before = session.state().divisions();
        session.decode(4).unwrap();
        let layers = fixture.spec.layers.len() as u64;
        assert_eq!(session.state().divisions() - before, 5 * layers + 1, "{name}");
    }
}

/// Has one expert in so many computed elsewhere, before the others and in descending order.
struct Divided {
    inner: ResidentSource,
    one_in: u32,
}

impl WeightSource for Divided {
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
        let one_in = self.one_in;
        self.inner.experts(layer, routed, &mut |experts, weights| {
            let (mut there, here): (Vec<u32>, Vec<u32>) =
                experts.iter().partition(|&expert| expert.is_multiple_of(one_in));
            there.reverse();
            ready(&there, &mut Elsewhere(weights))?;
            ready(&here, weights)
        })
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.inner.head(compute)
    }
}

impl Observer for Divided {}

impl PassSource for Divided {}

/// Computes experts row by row, by its own code. Its weights are out of the caller's reach.
struct Elsewhere<'a>(&'a mut dyn Weights);

impl Weights for Elsewhere<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        panic!("{piece} {role:?}")
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        panic!("{piece} {role:?}")
    }

    fn executor(&mut self) -> Option<&mut dyn ExpertExecutor> {
        Some(self)
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        _: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        panic!("{piece} {role:?}")
    }
}

impl ExpertExecutor for Elsewhere<'_> {
    fn compute(
        &mut self,
        batch: &ExpertBatch<'_>,
        outputs: &mut [f32],
    ) -> Result<Vec<u32>, SourceError> {
        let hidden = batch.hidden;
        for &expert in batch.experts {
            let piece = PieceId::expert(batch.layer, expert);
            assert_eq!(batch.rows(expert).len(), batch.tokens(expert).len());
            for (row, token) in batch.rows(expert).zip(batch.tokens(expert)) {
                let x = &batch.x[token * hidden..][..hidden];
                let linear = |weights, bias, x: &[f32]| {
                    let bias = batch.spec.bias.then_some(bias);
                    self.linear(piece, weights, bias, x)
                };
                let both = match batch.spec.gate_up {
                    GateUp::Separate => {
                        [linear(Role::Gate, Role::GateBias, x), linear(Role::Up, Role::UpBias, x)]
                            .concat()
                    }
                    GateUp::Halves | GateUp::Interleaved => {
                        linear(Role::GateUp, Role::GateUpBias, x)
                    }
                    GateUp::Ups => linear(Role::Up, Role::UpBias, x),
                };
                let activated = activated(batch.spec.gate_up, batch.spec.activation, &both);
                let y = linear(Role::Down, Role::DownBias, &activated);
                outputs[row * hidden..][..hidden].copy_from_slice(&y);
            }
        }
        Ok(Vec::new())
    }
}

impl Elsewhere<'_> {
    fn linear(&self, piece: PieceId, weights: Role, bias: Option<Role>, x: &[f32]) -> Vec<f32> {
        let weights = self.0.matrix(piece, weights).unwrap();
        let mut y = vec![0.0; weights.row_count()];
        matmul(Tier::PORTABLE, &weights, x, 1, &mut y, &mut MatmulScratch::new());
        if let Some(bias) = bias {
            let mut row = vec![0.0; y.len()];
            self.0.matrix(piece, bias).unwrap().decode_row(0, &mut row);
            add(Tier::PORTABLE, &row, &mut y);
        }
        y
    }
}

fn activated(gate_up: GateUp, activation: Activation, both: &[f32]) -> Vec<f32> {
    if gate_up == GateUp::Ups {
        return both.iter().map(|&x| activation.at(x, 0.0)).collect();
    }
    let mut y = vec![0.0; both.len() / 2];
    match gate_up {
        GateUp::Interleaved => gate_interleaved(Tier::PORTABLE, activation, both, &mut y),
        GateUp::Separate | GateUp::Halves | GateUp::Ups => {
            let (gates, ups) = both.split_at(both.len() / 2);
            y.copy_from_slice(gates);
            gate(Tier::PORTABLE, activation, &mut y, ups);
        }
    }
    y
}
