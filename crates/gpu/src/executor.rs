//! Experts computed on a device.

use std::ops::Range;

use sws_format::PieceId;
use sws_kernels::Tier;
use sws_kernels::functional::{gate, gate_interleaved};
use sws_model::{ExpertBatch, ExpertExecutor, GateUp, Role, SourceError};

use crate::device::DeviceError;
use crate::exchange::DeviceProduct;
use crate::experts::VramExperts;

/// Rows that are computed together at most: what they need of the host's memory is planned.
pub(crate) const ROWS_TOGETHER: usize = 16;

impl ExpertExecutor for VramExperts {
    /// Computes the experts that are held. Others, and after an error of the device all, are returned as if their stand-ins
    /// were too inaccurate: they are served again, from the CPU's weights.
    fn compute(
        &mut self,
        batch: &ExpertBatch<'_>,
        outputs: &mut [f32],
    ) -> Result<Vec<u32>, SourceError> {
        let mut held = Vec::new();
        let mut refused = Vec::new();
        for &expert in batch.experts {
            match self.holds(PieceId::expert(batch.layer, expert)) {
                true => held.push(expert),
                false => refused.push(expert),
            }
        }
        let computed = match self.sample() {
            Ok(()) => self.compute_held(batch, &held, outputs),
            Err(error) => Err(error),
        };
        if let Err(error) = computed {
            self.fail(error);
            refused.extend(held);
        }
        Ok(refused)
    }
}

/// Rows of an expert among the outputs of its layer.
#[derive(Clone, Debug)]
struct ExpertRows {
    expert: u32,
    rows: Range<usize>,
}

impl ExpertRows {
    /// The tokens of these rows.
    fn tokens(&self, batch: &ExpertBatch<'_>) -> impl Iterator<Item = usize> {
        let before = self.rows.start - batch.rows(self.expert).start;
        batch.tokens(self.expert).skip(before).take(self.rows.len())
    }
}

impl VramExperts {
    /// Computes experts that are held, some rows at a time.
    fn compute_held(
        &mut self,
        batch: &ExpertBatch<'_>,
        experts: &[u32],
        outputs: &mut [f32],
    ) -> Result<(), DeviceError> {
        let mut together: Vec<ExpertRows> = Vec::new();
        let mut room = ROWS_TOGETHER;
        for &expert in experts {
            let mut rest = batch.rows(expert);
            while !rest.is_empty() {
                let rows = rest.start..rest.end.min(rest.start + room);
                rest.start = rows.end;
                room -= rows.len();
                together.push(ExpertRows { expert, rows });
                if room == 0 {
                    self.compute_rows(batch, &together, outputs)?;
                    together.clear();
                    room = ROWS_TOGETHER;
                }
            }
        }
        self.compute_rows(batch, &together, outputs)
    }

    /// Computes rows of experts that are held.
    fn compute_rows(
        &mut self,
        batch: &ExpertBatch<'_>,
        together: &[ExpertRows],
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

        let mut tokens: Vec<usize> = together.iter().flat_map(|part| part.tokens(batch)).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let row = |token: &usize| &batch.x[token * hidden..][..hidden];
        let inputs: Vec<&[f32]> = tokens.iter().map(row).collect();
        let mut products = Vec::new();
        for part in together {
            for &role in roles(batch.spec.gate_up) {
                for token in part.tokens(batch) {
                    let place = tokens.binary_search(&token).expect("a token of the batch");
                    products.push(matrix(part.expert, role, place));
                }
            }
        }
        let mut both = Vec::new();
        exchange.multiply(device, &inputs, &products, &mut both)?;

        let mut activated = Vec::new();
        let mut rest = both.as_slice();
        for part in together {
            let numbers = part.rows.len() * numbers_of(batch.spec.gate_up) * width;
            let own = rest.split_off(..numbers).expect("rows of all products");
            activate(batch, own, &mut activated);
        }

        let inputs: Vec<&[f32]> = activated.chunks_exact(width).collect();
        let mut products = Vec::with_capacity(inputs.len());
        for part in together {
            for _ in part.rows.clone() {
                products.push(matrix(part.expert, Role::Down, products.len()));
            }
        }
        let mut downs = Vec::new();
        exchange.multiply(device, &inputs, &products, &mut downs)?;
        let mut rest = downs.as_slice();
        for ExpertRows { rows, .. } in together {
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
