//! The feed-forward block of a layer: one MLP, or experts.

use sws_kernels::functional::{Activation, add, axpy, gate, sigmoid};
use sws_kernels::{Input, ThreadScratch, Tier};
use sws_store::{PieceId, PieceKind};

use super::attention::add_bias;
use super::judging::{Judging, norm};
use super::linear::{MAX, Product, Threads, multiply};
use super::router;
use super::work::{ExpertWork, MlpWork, Workspace, by_rows, each, grown};
use super::{ForwardError, Model};
use crate::role::Role;
use crate::source::{Contribution, Routed, SourceError, WeightSource, Weights};
use crate::spec::{MlpSpec, MoeSpec, SharedSpec};
use crate::state::State;

impl Model {
    /// Computes the MLP of a dense layer, into `work.branch`.
    pub(super) fn dense(
        &self,
        l: usize,
        spec: MlpSpec,
        state: &mut State,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let (tier, hidden) = (self.tier, self.spec.hidden);
        let piece = PieceId::new(l as u32, PieceKind::Mlp);
        let Workspace { input, branch, mlp, scratch, .. } = &mut state.work;
        source.infrastructure(l, &[PieceKind::Mlp], &mut |weights| {
            let y = grown(branch, input.tokens() * hidden);
            let block = Block { tier, piece, spec };
            gated_mlp(block, weights, input, mlp, y, scratch)
        })?;
        Ok(())
    }

    /// Selects the experts of a layer, into `work.routed`.
    pub(super) fn route(&self, spec: &MoeSpec, state: &mut State) {
        let Workspace { input, router, routed, experts, .. } = &mut state.work;
        let logits = &mut router[..input.tokens() * spec.experts];
        router::select(self.tier, spec, logits, routed);
        group(routed, experts);
    }

    /// Computes the shared expert of a layer, into `work.experts.shared`.
    pub(super) fn shared_expert(
        &self,
        l: usize,
        shared: SharedSpec,
        state: &mut State,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let (tier, hidden) = (self.tier, self.spec.hidden);
        let Workspace { input, mlp, experts, scratch, .. } = &mut state.work;
        let tokens = input.tokens();
        let piece = PieceId::new(l as u32, PieceKind::SharedExpert);
        let y = grown(&mut experts.shared, tokens * hidden);
        let gates = grown(&mut experts.shared_gate, tokens);
        source.infrastructure(l, &[PieceKind::SharedExpert], &mut |weights| {
            let spec = MlpSpec { width: shared.width, bias: false };
            let block = Block { tier, piece, spec };
            gated_mlp(block, weights, input, mlp, y, scratch)?;
            if shared.gated {
                let product = Product::new(piece, Role::SharedGate, input, &mut *gates, 1);
                multiply(tier, Threads::All, weights, &mut [Some(product)], scratch)?;
                sigmoid(tier, gates);
                by_rows(y, hidden, |first, rows| {
                    for (row, gate) in rows.chunks_exact_mut(hidden).zip(&gates[first..]) {
                        row.iter_mut().for_each(|y| *y *= gate);
                    }
                });
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Computes the chosen experts of a layer and adds the output of the shared one, into
    /// `work.branch`.
    pub(super) fn moe(
        &self,
        l: usize,
        spec: MoeSpec,
        state: &mut State,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let (tier, hidden) = (self.tier, self.spec.hidden);
        let Workspace { x, input, branch, routed, mlp, experts, scratch, .. } = &mut state.work;
        let tokens = state.hidden.len() / hidden;
        grown(&mut experts.outputs, tokens * spec.top_k * hidden);
        let x = &x[..tokens * hidden];
        source.experts(l, routed, &mut |ready, weights| {
            let mut rest = ready;
            while !rest.is_empty() {
                let some = together(rest, routed, experts);
                let (now, later) = rest.split_at(some);
                let (layer, width, state) = (l as u32, spec.width, &*state.hidden);
                let input = &*input;
                let batch = Batch { tier, layer, hidden, width, routed, x, input, state };
                batch.compute(now, weights, mlp, experts, scratch)?;
                rest = later;
            }
            Ok(())
        })?;
        assert!(experts.done.iter().all(|&done| done), "the source has left out an expert");
        let y = grown(branch, tokens * hidden);
        sum(tier, routed, experts, hidden, y);
        if spec.shared.is_some() {
            let shared = &experts.shared;
            by_rows(y, hidden, |first, rows| {
                add(tier, &shared[first * hidden..][..rows.len()], rows);
            });
        }
        Ok(())
    }
}

/// An MLP that every token goes through.
struct Block {
    tier: Tier,
    piece: PieceId,
    spec: MlpSpec,
}

/// down(silu(gate · x) · (up · x)).
fn gated_mlp(
    Block { tier, piece, spec }: Block,
    weights: &mut dyn Weights,
    x: &Input,
    work: &mut MlpWork,
    y: &mut [f32],
    scratch: &mut Vec<ThreadScratch>,
) -> Result<(), SourceError> {
    let (tokens, width) = (x.tokens(), spec.width);
    let gates = grown(&mut work.gate, tokens * width);
    let ups = grown(&mut work.up, tokens * width);
    let mut products = [
        Some(Product::new(piece, Role::Gate, x, &mut *gates, width)),
        Some(Product::new(piece, Role::Up, x, &mut *ups, width)),
    ];
    multiply(tier, Threads::All, weights, &mut products, scratch)?;
    if spec.bias {
        add_bias(tier, weights.vector(piece, Role::GateBias), gates);
        add_bias(tier, weights.vector(piece, Role::UpBias), ups);
    }
    activate(tier, width, gates, ups);
    if work.packed.is_empty() {
        work.packed.push(Input::new());
    }
    work.packed[0].pack(tier, gates, tokens, width);
    let hidden = y.len() / tokens;
    let down = Product::new(piece, Role::Down, &work.packed[0], &mut *y, hidden);
    multiply(tier, Threads::All, weights, &mut [Some(down)], scratch)?;
    if spec.bias {
        add_bias(tier, weights.vector(piece, Role::DownBias), y);
    }
    Ok(())
}

fn activate(tier: Tier, width: usize, gates: &mut [f32], ups: &[f32]) {
    by_rows(gates, width, |first, gates| {
        gate(tier, Activation::Silu, gates, &ups[first * width..][..gates.len()]);
    });
}

/// Sorts the choices by expert, then by token.
pub(super) fn group(routed: &Routed, work: &mut ExpertWork) {
    let ExpertWork { starts, rows, by_token, found, done, .. } = work;
    rows.clear();
    rows.extend(0..routed.choices.len());
    rows.sort_unstable_by_key(|&place| (routed.choices[place], place));
    starts.clear();
    for (row, &place) in rows.iter().enumerate() {
        if row == 0 || routed.choices[place] != routed.choices[rows[row - 1]] {
            starts.push(row);
        }
    }
    starts.push(rows.len());
    by_token.resize(rows.len(), 0);
    found.clear();
    found.resize(rows.len() / routed.top_k, 0);
    for (row, place) in rows.iter().enumerate() {
        let token = place / routed.top_k;
        by_token[token * routed.top_k + found[token]] = row;
        found[token] += 1;
    }
    done.clear();
    done.resize(routed.distinct.len(), false);
}

/// The index of an expert in `Routed::distinct`.
fn place_of(routed: &Routed, expert: u32) -> usize {
    let place = routed.distinct.binary_search(&expert);
    place.unwrap_or_else(|_| panic!("the source serves expert {expert}, which no token chose"))
}

/// Experts are computed together up to this many rows in all: enough work for every thread, while
/// their data stays in the cache.
pub(super) const ROWS_TOGETHER: usize = 64;
/// Maximum number of experts computed together, each with two products at once.
pub(super) const TOGETHER: usize = MAX / 2;

/// Number of experts at the front of `ready` that are computed together.
fn together(ready: &[u32], routed: &Routed, work: &ExpertWork) -> usize {
    let mut rows = 0;
    let few = ready.iter().take(TOGETHER).take_while(|&&expert| {
        let place = place_of(routed, expert);
        rows += work.starts[place + 1] - work.starts[place];
        rows <= ROWS_TOGETHER
    });
    few.count().max(1)
}

/// Some experts of a layer.
struct Batch<'a> {
    tier: Tier,
    layer: u32,
    hidden: usize,
    width: usize,
    routed: &'a Routed,
    /// The normed hidden state: [tokens, hidden].
    x: &'a [f32],
    /// The same, packed.
    input: &'a Input,
    /// The hidden state to which the experts' outputs are added: [tokens, hidden].
    state: &'a [f32],
}

impl Batch<'_> {
    /// Computes at most [`TOGETHER`] experts, each for the tokens that chose it.
    fn compute(
        &self,
        ready: &[u32],
        weights: &mut dyn Weights,
        mlp: &mut MlpWork,
        work: &mut ExpertWork,
        scratch: &mut Vec<ThreadScratch>,
    ) -> Result<(), SourceError> {
        let &Batch { tier, hidden, width, routed, input: all, .. } = self;
        let piece = |expert: u32| PieceId::expert(self.layer, expert);
        let ExpertWork { starts, rows, done, outputs, inputs, .. } = work;
        let span = |expert: u32| {
            let place = place_of(routed, expert);
            starts[place]..starts[place + 1]
        };
        for &expert in ready {
            let done = &mut done[place_of(routed, expert)];
            assert!(!std::mem::replace(done, true), "the source serves expert {expert} twice");
        }
        let total: usize = ready.iter().map(|&expert| span(expert).len()).sum();
        for list in [&mut *inputs, &mut mlp.packed] {
            if list.len() < ready.len() {
                list.resize_with(ready.len(), Input::new);
            }
        }

        let mut packing = [const { None }; MAX];
        let packing = &mut packing[..ready.len()];
        for ((job, input), &expert) in packing.iter_mut().zip(&mut *inputs).zip(ready) {
            *job = Some((input, &rows[span(expert)]));
        }
        each(packing, total * hidden, |job| {
            // Tokens keep their order, so an expert that all of them chose needs no copy.
            if let Some((input, rows)) = job.take().filter(|(_, rows)| rows.len() < all.tokens()) {
                let row = |i: usize| &self.x[rows[i] / routed.top_k * hidden..][..hidden];
                input.pack_rows(tier, rows.len(), hidden, row);
            }
        });
        let gates = grown(&mut mlp.gate, total * width);
        let ups = grown(&mut mlp.up, total * width);
        let mut products = [const { None }; MAX];
        let (mut to_gates, mut to_ups) = (&mut *gates, &mut *ups);
        for ((pair, &expert), input) in products.chunks_mut(2).zip(ready).zip(&*inputs) {
            let rows = span(expert).len();
            let input = if rows < all.tokens() { input } else { all };
            let gate = to_gates.split_off_mut(..rows * width).expect("total counts all rows");
            let up = to_ups.split_off_mut(..rows * width).expect("total counts all rows");
            pair[0] = Some(Product::new(piece(expert), Role::Gate, input, gate, width));
            pair[1] = Some(Product::new(piece(expert), Role::Up, input, up, width));
        }
        multiply(tier, Threads::All, weights, &mut products, scratch)?;

        let mut judging = Judging::default();
        let mut first = 0;
        for &expert in ready {
            if weights.is_judged(piece(expert)) {
                for (row, &place) in (first..).zip(&rows[span(expert)]) {
                    let [gates, ups] = [&*gates, &*ups].map(|all| &all[row * width..][..width]);
                    judging.add(row, piece(expert), self.contribution(place), gates, ups);
                }
            }
            first += span(expert).len();
        }
        let mut activating = [const { None }; MAX];
        let activating = &mut activating[..ready.len()];
        let (mut from_gates, mut from_ups) = (&mut *gates, &*ups);
        for ((job, packed), &expert) in activating.iter_mut().zip(&mut mlp.packed).zip(ready) {
            let len = span(expert).len() * width;
            let gates = from_gates.split_off_mut(..len).expect("total counts all rows");
            let ups = from_ups.split_off(..len).expect("total counts all rows");
            *job = Some((packed, gates, ups));
        }
        each(activating, total * width, |job| {
            if let Some((packed, gates, ups)) = job {
                activate(tier, width, gates, ups);
                packed.pack(tier, gates, gates.len() / width, width);
            }
        });
        judging.ask(weights, gates, width, |refused| {
            let refused = ready.iter().find(|&&expert| piece(expert) == refused);
            if let Some(&expert) = refused {
                done[place_of(routed, expert)] = false;
            }
        });
        // In the order of the outputs, so that slices of them can be borrowed one after another.
        let mut order = [0; MAX];
        let order = &mut order[..ready.len()];
        order.iter_mut().zip(0..).for_each(|(slot, i)| *slot = i);
        order.sort_unstable_by_key(|&i| ready[i]);
        let mut products = [const { None }; MAX];
        let (mut outputs, mut at) = (&mut outputs[..], 0);
        for (product, &i) in products.iter_mut().zip(&*order) {
            let rows = span(ready[i]);
            let skipped = outputs.split_off_mut(..(rows.start - at) * hidden);
            let y = outputs.split_off_mut(..rows.len() * hidden);
            at = rows.end;
            let y = skipped.and(y).expect("outputs count all rows");
            let piece = piece(ready[i]);
            *product = Some(Product::new(piece, Role::Down, &mlp.packed[i], y, hidden));
        }
        multiply(tier, Threads::All, weights, &mut products, scratch)
    }

    /// The measurements of a choice that do not depend on its expert's weights.
    fn contribution(&self, place: usize) -> Contribution {
        let row =
            |all: &'_ [f32]| norm(&all[place / self.routed.top_k * self.hidden..][..self.hidden]);
        Contribution {
            input: row(self.x),
            weight: f64::from(self.routed.weights[place]),
            state: row(self.state),
            ..Contribution::default()
        }
    }
}

/// y = Σ weight · output for each token, in ascending order of experts. The sum does not depend on
/// when, or with which other tokens, the outputs were computed.
fn sum(tier: Tier, routed: &Routed, work: &ExpertWork, hidden: usize, y: &mut [f32]) {
    let ExpertWork { rows, by_token, outputs, .. } = work;
    by_rows(y, hidden, |first, y| {
        y.fill(0.0);
        let own = by_token[first * routed.top_k..].chunks_exact(routed.top_k);
        for (y, own) in y.chunks_exact_mut(hidden).zip(own) {
            for &row in own {
                let output = &outputs[row * hidden..][..hidden];
                axpy(tier, routed.weights[rows[row]], output, y);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of these numbers shows its order: a number that is added to 1e8 before it is
    /// subtracted again is lost.
    #[test]
    fn outputs_are_summed_in_ascending_order_of_experts() {
        // The experts that the router selects for outputs of 1e8, -1e8 and 1, and the sum.
        let cases = [
            ([0, 1, 2], 1.0),
            ([1, 0, 2], 1.0),
            ([1, 2, 0], 0.0),
            ([2, 1, 0], 0.0),
            ([0, 2, 1], 0.0),
            ([2, 0, 1], 0.0),
        ];
        for (choices, expected) in cases {
            let routed = Routed {
                top_k: 3,
                choices: choices.to_vec(),
                weights: vec![1e8, -1e8, 1.0],
                distinct: vec![0, 1, 2],
            };
            let mut work = ExpertWork { outputs: vec![1.0; 3], ..ExpertWork::default() };
            group(&routed, &mut work);
            let mut y = [f32::NAN];
            sum(Tier::best(), &routed, &work, 1, &mut y);
            assert_eq!(y, [expected], "{choices:?}");
        }
    }
}
