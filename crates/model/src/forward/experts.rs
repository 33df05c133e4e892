//! Experts on the CPU: the implementation of [`ExpertExecutor`] with weights in memory, or as they
//! arrive.

use sws_kernels::{PackedInput, ScratchPool, Tier};
use sws_store::PieceId;

use super::by_rows::each;
use super::judging::{Judging, norm};
use super::linear::{MAX, Product, multiply};
use super::mixer::add_bias;
use super::mlp::{activate, activated, gates_and_ups};
use super::work::{MlpWork, grown};
use crate::executor::{ExpertBatch, ExpertExecutor};
use crate::role::Role;
use crate::source::{Contribution, SourceError, Weights};

/// Experts are computed together up to this many rows in all: enough work for every thread, while
/// their data stays in the cache.
pub(super) const ROWS_TOGETHER: usize = 64;
/// Maximum number of experts computed together, each with up to two products at once.
pub(super) const TOGETHER: usize = MAX / 2;

/// Computes up to [`TOGETHER`] experts at once with the weights in reach.
pub(super) struct CpuExecutor<'a> {
    pub(super) tier: Tier,
    pub(super) weights: &'a mut dyn Weights,
    /// The rows `x` of the batch, packed, if they are.
    pub(super) input: Option<&'a PackedInput>,
    /// Room for the packed rows of each expert.
    pub(super) inputs: &'a mut Vec<PackedInput>,
    pub(super) mlp: &'a mut MlpWork,
    pub(super) scratch: &'a mut ScratchPool,
}

impl ExpertExecutor for CpuExecutor<'_> {
    fn compute(
        &mut self,
        batch: &ExpertBatch<'_>,
        outputs: &mut [f32],
    ) -> Result<Vec<u32>, SourceError> {
        let &ExpertBatch { experts, spec, hidden, .. } = batch;
        let total = batch.row_count();
        let width = spec.width;
        let gate_rows = spec.gate_rows();
        for list in [&mut *self.inputs, &mut self.mlp.packed] {
            if list.len() < experts.len() {
                list.resize_with(experts.len(), PackedInput::new);
            }
        }
        self.pack(batch, total);

        let MlpWork { gate, up, packed, bias } = &mut *self.mlp;
        let tier = self.tier;
        let weights = &mut *self.weights;
        let scratch = &mut *self.scratch;
        let gates = grown(gate, total * gate_rows);
        let ups = grown(up, total * width);
        let mut products = [const { None }; MAX];
        let mut to = [&mut *gates, &mut *ups];
        for ((pair, &expert), input) in products.chunks_mut(2).zip(experts).zip(&*self.inputs) {
            let rows = batch.rows(expert).len();
            let input = self.input.filter(|all| all.tokens() == rows).unwrap_or(input);
            for ((product, &(role, _)), to) in pair.iter_mut().zip(spec.gates()).zip(&mut to) {
                let y = to.split_off_mut(..rows * gate_rows).expect("total counts all rows");
                *product = Some(Product::new(id(batch, expert), role, input, y, gate_rows));
            }
        }
        multiply(tier, weights, &mut products, scratch)?;
        if spec.bias {
            let mut first = 0;
            for &expert in experts {
                let rows = batch.rows(expert).len();
                for (&(_, role), all) in spec.gates().iter().zip([&mut *gates, &mut *ups]) {
                    let bias = grown(bias, gate_rows);
                    read_bias(weights, id(batch, expert), role, bias)?;
                    add_bias(tier, bias, &mut all[first * gate_rows..][..rows * gate_rows]);
                }
                first += rows;
            }
        }

        let mut judging = Judging::default();
        let mut first = 0;
        for &expert in experts {
            let rows = batch.rows(expert);
            let end = first + rows.len();
            if weights.is_judged(id(batch, expert)) {
                for (row, place) in (first..).zip(rows) {
                    let both = gates_and_ups(spec, row, gates, ups);
                    judging.add(row, id(batch, expert), contribution(batch, place), both);
                }
            }
            first = end;
        }
        let mut activating = [const { None }; MAX];
        let activating = &mut activating[..experts.len()];
        let mut from_gates = &mut *gates;
        let mut from_ups = &mut *ups;
        for ((job, packed), &expert) in activating.iter_mut().zip(&mut *packed).zip(experts) {
            let rows = batch.rows(expert).len();
            let gates = from_gates.split_off_mut(..rows * gate_rows);
            let ups = from_ups.split_off_mut(..rows * width);
            *job = gates.zip(ups).map(|(gates, ups)| (packed, gates, ups));
        }
        each(activating, total * width, |job| {
            if let Some((packed, gates, ups)) = job {
                let activated = activate(tier, spec, gates, ups);
                packed.pack(tier, activated, activated.len() / width, width);
            }
        });
        let mut refused = Vec::new();
        judging.ask(weights, activated(spec, gates, ups), width, |piece| {
            let expert = experts.iter().find(|&&expert| id(batch, expert) == piece);
            refused.extend(expert);
        });

        // In the order of the outputs, so that slices of them can be borrowed one after another.
        let mut order = [0; MAX];
        let order = &mut order[..experts.len()];
        order.iter_mut().zip(0..).for_each(|(slot, i)| *slot = i);
        order.sort_unstable_by_key(|&i| experts[i]);
        let mut products = [const { None }; MAX];
        let mut left = &mut *outputs;
        let mut at = 0;
        for (product, &i) in products.iter_mut().zip(&*order) {
            let rows = batch.rows(experts[i]);
            let skipped = left.split_off_mut(..(rows.start - at) * hidden);
            let y = left.split_off_mut(..rows.len() * hidden);
            at = rows.end;
            let y = skipped.and(y).expect("outputs count all rows");
            *product = Some(Product::new(id(batch, experts[i]), Role::Down, &packed[i], y, hidden));
        }
        multiply(tier, weights, &mut products, scratch)?;
        if spec.bias {
            for &expert in experts {
                let bias = grown(bias, hidden);
                let rows = batch.rows(expert);
                read_bias(weights, id(batch, expert), Role::DownBias, bias)?;
                add_bias(tier, bias, &mut outputs[rows.start * hidden..rows.end * hidden]);
            }
        }
        Ok(refused)
    }
}

impl CpuExecutor<'_> {
    /// Packs the rows of each expert. Tokens keep their order, so an expert that all of them chose
    /// needs no copy.
    fn pack(&mut self, batch: &ExpertBatch<'_>, total: usize) {
        let hidden = batch.hidden;
        let tier = self.tier;
        let mut packing = [const { None }; MAX];
        let packing = &mut packing[..batch.experts.len()];
        for ((job, input), &expert) in packing.iter_mut().zip(&mut *self.inputs).zip(batch.experts)
        {
            *job = Some((input, &batch.places[batch.rows(expert)]));
        }
        let all = self.input.map(PackedInput::tokens);
        let top_k = batch.routed.top_k;
        each(packing, total * hidden, |job| {
            if let Some((input, places)) =
                job.take().filter(|(_, places)| Some(places.len()) != all)
            {
                let row = |i: usize| &batch.x[places[i] / top_k * hidden..][..hidden];
                input.pack_rows(tier, places.len(), hidden, row);
            }
        });
    }
}

fn id(batch: &ExpertBatch<'_>, expert: u32) -> PieceId {
    PieceId::expert(batch.layer, expert)
}

/// Widens a bias of an expert into `bias`.
fn read_bias(
    weights: &mut dyn Weights,
    piece: PieceId,
    role: Role,
    bias: &mut [f32],
) -> Result<(), SourceError> {
    if let Some(row) = weights.matrix(piece, role) {
        row.decode_row(0, bias);
        return Ok(());
    }
    weights.blocks(piece, role, &mut |_, row| row.decode_row(0, bias))
}

/// The measurements of an output that do not depend on its expert's weights. `row` is that of the
/// output.
fn contribution(batch: &ExpertBatch<'_>, row: usize) -> Contribution {
    let place = batch.places[row];
    let token = place / batch.routed.top_k;
    let row = |all: &'_ [f32]| norm(&all[token * batch.hidden..][..batch.hidden]);
    Contribution {
        input: row(batch.x),
        weight: f64::from(batch.routed.weights[place]),
        state: row(batch.state),
        ..Contribution::default()
    }
}
