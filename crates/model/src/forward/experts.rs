//! Experts on the CPU: the implementation of [`ExpertExecutor`] for weights in memory, including
//! weights that are just arriving.

use sws_format::PieceId;
use sws_kernels::{PackedInput, ScratchPool, Tier};

use super::by_rows::each;
use super::judging::{Judging, norm};
use super::linear::{MAX, Product, multiply};
use super::mixer::add_bias;
use super::mlp::{activate, activated, gates_and_ups};
use crate::executor::{ExpertBatch, ExpertExecutor};
use crate::role::Role;
use crate::source::{Contribution, SourceError, Weights};
use crate::workspace::{MlpWork, grown};

/// Experts are computed together up to this many rows in all: enough work for every thread, while
/// their data stays in the cache.
pub(super) const ROWS_TOGETHER: usize = 64;
/// Maximum number of experts computed together, each with up to two products at once.
pub(super) const TOGETHER: usize = MAX / 2;

/// Computes up to [`TOGETHER`] experts at once with the weights in reach.
pub(super) struct CpuExecutor<'a> {
    pub(super) tier: Tier,
    pub(super) weights: &'a mut dyn Weights,
    /// The rows `x` of the batch, packed; `None` if they are not packed.
    pub(super) input: Option<&'a PackedInput>,
    /// Buffers for the packed rows of each expert.
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
        let total = batch.row_count();
        for list in [&mut *self.inputs, &mut self.mlp.packed] {
            if list.len() < batch.experts.len() {
                list.resize_with(batch.experts.len(), PackedInput::new);
            }
        }
        self.pack(batch, total);
        self.multiply_gates(batch, total)?;
        let judging = self.judge(batch, total);
        self.activate(batch, total);
        let refused = self.refused(batch, total, judging);
        self.multiply_downs(batch, outputs)?;
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
            if let Some((input, places)) = job.take()
                && Some(places.len()) != all
            {
                let row = |i: usize| &batch.x[places[i] / top_k * hidden..][..hidden];
                input.pack_rows(tier, places.len(), hidden, row);
            }
        });
    }

    /// Computes gates and ups of all experts.
    fn multiply_gates(&mut self, batch: &ExpertBatch<'_>, total: usize) -> Result<(), SourceError> {
        let &ExpertBatch { experts, spec, .. } = batch;
        let gate_rows = spec.gate_rows();
        let MlpWork { gate, up, bias, .. } = &mut *self.mlp;
        let weights = &mut *self.weights;
        let gates = grown(gate, total * gate_rows);
        let ups = grown(up, total * spec.width);
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
        multiply(self.tier, weights, &mut products, self.scratch)?;
        if spec.bias {
            let mut first = 0;
            for &expert in experts {
                let rows = batch.rows(expert).len();
                for (&(_, role), all) in spec.gates().iter().zip([&mut *gates, &mut *ups]) {
                    let bias = grown(bias, gate_rows);
                    read_bias(weights, id(batch, expert), role, bias)?;
                    add_bias(self.tier, bias, &mut all[first * gate_rows..][..rows * gate_rows]);
                }
                first += rows;
            }
        }
        Ok(())
    }

    /// Measures the gates and ups of stand-ins before their activation.
    fn judge(&mut self, batch: &ExpertBatch<'_>, total: usize) -> Judging {
        let &ExpertBatch { experts, spec, .. } = batch;
        let gates = &self.mlp.gate[..total * spec.gate_rows()];
        let ups = &self.mlp.up[..total * spec.width];
        let mut judging = Judging::default();
        let mut first = 0;
        for &expert in experts {
            let rows = batch.rows(expert);
            let end = first + rows.len();
            if self.weights.is_judged(id(batch, expert)) {
                for (row, place) in (first..).zip(rows) {
                    let both = gates_and_ups(spec, row, gates, ups);
                    judging.add(row, id(batch, expert), contribution(batch, place), both);
                }
            }
            first = end;
        }
        judging
    }

    /// Activates gates and ups, and packs the results of each expert.
    fn activate(&mut self, batch: &ExpertBatch<'_>, total: usize) {
        let &ExpertBatch { experts, spec, .. } = batch;
        let width = spec.width;
        let gate_rows = spec.gate_rows();
        let MlpWork { gate, up, packed, .. } = &mut *self.mlp;
        let mut from_gates = &mut gate[..total * gate_rows];
        let mut from_ups = &mut up[..total * width];
        let mut jobs = [const { None }; MAX];
        let jobs = &mut jobs[..experts.len()];
        for ((job, packed), &expert) in jobs.iter_mut().zip(packed).zip(experts) {
            let rows = batch.rows(expert).len();
            let gates = from_gates.split_off_mut(..rows * gate_rows);
            let ups = from_ups.split_off_mut(..rows * width);
            *job = gates.zip(ups).map(|(gates, ups)| (packed, gates, ups));
        }
        let tier = self.tier;
        each(jobs, total * width, |job| {
            if let Some((packed, gates, ups)) = job {
                let activated = activate(tier, spec, gates, ups);
                packed.pack(tier, activated, activated.len() / width, width);
            }
        });
    }

    /// The experts whose stand-ins are too inaccurate.
    fn refused(&mut self, batch: &ExpertBatch<'_>, total: usize, judging: Judging) -> Vec<u32> {
        let &ExpertBatch { experts, spec, .. } = batch;
        let gates = &self.mlp.gate[..total * spec.gate_rows()];
        let ups = &self.mlp.up[..total * spec.width];
        let mut refused = Vec::new();
        judging.ask(self.weights, activated(spec, gates, ups), spec.width, |piece| {
            let expert = experts.iter().find(|&&expert| id(batch, expert) == piece);
            refused.extend(expert);
        });
        refused
    }

    /// Computes the outputs of all experts.
    fn multiply_downs(
        &mut self,
        batch: &ExpertBatch<'_>,
        outputs: &mut [f32],
    ) -> Result<(), SourceError> {
        let &ExpertBatch { experts, spec, hidden, .. } = batch;
        let MlpWork { packed, bias, .. } = &mut *self.mlp;
        let weights = &mut *self.weights;
        // Experts in the order of their outputs, so that slices of the outputs can be borrowed one
        // after another.
        let mut order = [0; MAX];
        let order = &mut order[..experts.len()];
        for (slot, i) in order.iter_mut().zip(0..) {
            *slot = i;
        }
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
        multiply(self.tier, weights, &mut products, self.scratch)?;
        if spec.bias {
            for &expert in experts {
                let bias = grown(bias, hidden);
                let rows = batch.rows(expert);
                read_bias(weights, id(batch, expert), Role::DownBias, bias)?;
                add_bias(self.tier, bias, &mut outputs[rows.start * hidden..rows.end * hidden]);
            }
        }
        Ok(())
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

/// Measurements for an output that do not depend on the expert's weights. `row` is the row of the
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
