//! Experts computed on a device.

use sws_format::PieceId;
use sws_kernels::Tier;
use sws_kernels::functional::{gate, gate_interleaved};
use sws_model::{ExpertBatch, ExpertExecutor, GateUp, Role, SourceError};

use crate::device::DeviceError;
use crate::exchange::DeviceProduct;
use crate::experts::VramExperts;

impl ExpertExecutor for VramExperts {
    /// Computes the experts that are held. Others, and after an error of the device all, are returned as if their stand-ins
    /// were too inaccurate: they are served again, from the CPU's weights.
    fn compute(
        &mut self,
        batch: &ExpertBatch<'_>,
        outputs: &mut [f32],
    ) -> Result<Vec<u32>, SourceError> {
        let is_held = |expert: &&u32| self.holds(PieceId::expert(batch.layer, **expert));
        let (held, mut refused): (Vec<u32>, Vec<u32>) = batch.experts.iter().partition(is_held);
        let computed = self.sample().and_then(|()| self.compute_held(batch, &held, outputs));
        if let Err(error) = computed {
            self.fail(error);
            refused.extend(held);
        }
        Ok(refused)
    }
}

impl VramExperts {
    /// Computes experts that are held.
    fn compute_held(
        &mut self,
        batch: &ExpertBatch<'_>,
        experts: &[u32],
        outputs: &mut [f32],
    ) -> Result<(), DeviceError> {
        let VramExperts { device, exchange, held, .. } = self;
        let device = &mut **device;
        let hidden = batch.hidden;
        let width = batch.spec.width;
        let matrix = |expert, role, input| {
            let found = held[&PieceId::expert(batch.layer, expert)].matrix(role);
            let (matrix, weights) = found.expect("all matrices of an expert");
            DeviceProduct { matrix, weights, input }
        };

        let mut tokens: Vec<usize> = experts.iter().flat_map(|&it| batch.tokens(it)).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let row = |token: &usize| &batch.x[token * hidden..][..hidden];
        let inputs: Vec<&[f32]> = tokens.iter().map(row).collect();
        let place = |token: usize| tokens.binary_search(&token).expect("a token of the batch");
        let gates = |&expert: &u32| {
            let of = move |&role| {
                batch.tokens(expert).map(move |token| matrix(expert, role, place(token)))
            };
            roles(batch.spec.gate_up).iter().flat_map(of)
        };
        let products: Vec<DeviceProduct<'_>> = experts.iter().flat_map(gates).collect();
        let mut both = Vec::new();
        exchange.multiply(device, &inputs, &products, &mut both)?;

        let mut activated = Vec::new();
        let mut rest = both.as_slice();
        for &expert in experts {
            let numbers = batch.rows(expert).len() * numbers_of(batch.spec.gate_up) * width;
            let own = rest.split_off(..numbers).expect("rows of all products");
            activate(batch, own, &mut activated);
        }

        let inputs: Vec<&[f32]> = activated.chunks_exact(width).collect();
        let rows = experts.iter().flat_map(|&it| batch.rows(it).map(move |_| it));
        let downs = rows.zip(0..).map(|(expert, input)| matrix(expert, Role::Down, input));
        let products: Vec<DeviceProduct<'_>> = downs.collect();
        let mut downs = Vec::new();
        exchange.multiply(device, &inputs, &products, &mut downs)?;
        let mut rest = downs.as_slice();
        for &expert in experts {
            let rows = batch.rows(expert);
            let own = rest.split_off(..rows.len() * hidden).expect("rows of all products");
            outputs[rows.start * hidden..rows.end * hidden].copy_from_slice(own);
        }
        Ok(())
    }
}

/// The matrices of gates and ups.
const fn roles(gate_up: GateUp) -> &'static [Role] {
    match gate_up {
        GateUp::Separate => &[Role::Gate, Role::Up],
        GateUp::Halves | GateUp::Interleaved => &[Role::GateUp],
        GateUp::Ups => &[Role::Up],
    }
}

/// Numbers of gates and ups for each number behind their activation.
const fn numbers_of(gate_up: GateUp) -> usize {
    match gate_up {
        GateUp::Separate | GateUp::Halves | GateUp::Interleaved => 2,
        GateUp::Ups => 1,
    }
}

/// Appends the activations of the gates and ups of an expert's rows.
fn activate(batch: &ExpertBatch<'_>, both: &[f32], to: &mut Vec<f32>) {
    let tier = Tier::best();
    let spec = batch.spec;
    let first = to.len();
    match spec.gate_up {
        GateUp::Ups => to.extend(both.iter().map(|up| spec.activation.at(*up, 0.0))),
        GateUp::Separate => {
            let (gates, ups) = both.split_at(both.len() / 2);
            to.extend(gates);
            gate(tier, spec.activation, &mut to[first..], ups);
        }
        GateUp::Halves => {
            for row in both.chunks_exact(2 * spec.width) {
                let (gates, ups) = row.split_at(spec.width);
                let first = to.len();
                to.extend(gates);
                gate(tier, spec.activation, &mut to[first..], ups);
            }
        }
        GateUp::Interleaved => {
            to.resize(first + both.len() / 2, 0.0);
            gate_interleaved(tier, spec.activation, both, &mut to[first..]);
        }
    }
}
