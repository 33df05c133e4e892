//! Experts of a tier have the bits of those in memory, and a tier that fails changes no bit.

use std::collections::BTreeMap;

use sws_draft::NoDraft;
use sws_format::PieceId;
use sws_kernels::functional::gate;
use sws_kernels::{MatmulScratch, Matrix, Tier, matmul};
use sws_model::{ExpertBatch, ExpertExecutor, HeldTensor, Role, SourceError};

use super::{Fixture, PROMPT};
use crate::experts::{ExpertTier, TierTensor, TierUsage};

/// A tensor with copies of its parts.
type Copied = (HeldTensor, Vec<Vec<u8>>);

/// A tier in memory, which may lose all of its experts at some call.
#[derive(Debug, Default)]
struct MemoryTier {
    slots: usize,
    held: BTreeMap<PieceId, Vec<Copied>>,
    calls: u64,
    fails_at: Option<u64>,
}

impl MemoryTier {
    fn multiply(&self, id: PieceId, role: Role, x: &[f32]) -> Vec<f32> {
        let (held, parts) = self.held[&id].iter().find(|(held, _)| held.role == role).unwrap();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let matrix = Matrix::new(held.encoding, held.rows, held.cols, &parts).unwrap();
        let mut y = vec![0.0; held.rows];
        matmul(Tier::best(), &matrix, x, 1, &mut y, &mut MatmulScratch::new());
        y
    }

    fn has_failed(&self) -> bool {
        self.fails_at.is_some_and(|at| self.calls >= at)
    }
}

impl ExpertTier for MemoryTier {
    fn holds(&self, expert: PieceId) -> bool {
        self.held.contains_key(&expert)
    }

    fn has_room(&self) -> bool {
        self.held.len() < self.slots && !self.has_failed()
    }

    fn takes(&self, _: &[TierTensor<'_>]) -> bool {
        !self.has_failed()
    }

    fn promote(&mut self, expert: PieceId, tensors: &[TierTensor<'_>]) -> bool {
        let copied = |tensor: &TierTensor<'_>| {
            let count = tensor.held.encoding.parts().len();
            (tensor.held, tensor.parts[..count].iter().map(|part| part.to_vec()).collect())
        };
        self.held.insert(expert, tensors.iter().map(copied).collect());
        true
    }

    fn demote(&mut self, expert: PieceId) {
        self.held.remove(&expert);
    }

    fn executor(&mut self) -> &mut dyn ExpertExecutor {
        self
    }

    fn usage(&self) -> TierUsage {
        TierUsage { held: self.held.len() as u64, slots: self.slots as u64, ..Default::default() }
    }
}

impl ExpertExecutor for MemoryTier {
    fn compute(
        &mut self,
        batch: &ExpertBatch<'_>,
        outputs: &mut [f32],
    ) -> Result<Vec<u32>, SourceError> {
        self.calls += 1;
        if self.has_failed() {
            self.held.clear();
            return Ok(batch.experts.to_vec());
        }
        for &expert in batch.experts {
            let id = PieceId::expert(batch.layer, expert);
            for (row, token) in batch.rows(expert).zip(batch.tokens(expert)) {
                let x = &batch.x[token * batch.hidden..][..batch.hidden];
                let mut gates = self.multiply(id, Role::Gate, x);
                let ups = self.multiply(id, Role::Up, x);
                gate(Tier::best(), batch.spec.activation, &mut gates, &ups);
                let y = self.multiply(id, Role::Down, &gates);
                outputs[row * batch.hidden..][..batch.hidden].copy_from_slice(&y);
            }
        }
        Ok(Vec::new())
    }
}

#[test]
fn bits_do_not_depend_on_a_tier_or_its_failure() {
    let tales = Fixture::tales();
    for slots in [32, 64, 256] {
        for (there, fails_at) in
            [(1, None), (64, None), (256, None), (64, Some(1)), (64, Some(9)), (256, Some(40))]
        {
            let mut session = tales.streaming(slots, Box::new(NoDraft));
            let tier = MemoryTier { slots: there, fails_at, ..MemoryTier::default() };
            session.source().assembler.set_tier(Box::new(tier));
            let run = tales.generate(&mut session, PROMPT.len()).unwrap();
            assert_eq!(run, tales.truth, "{slots} slots, {there} on the tier, {fails_at:?}");
            let counts = session.source().assembler.tier_counts().unwrap();
            let case = format!("{slots} slots: {counts:?}");
            assert!(counts.copies > 0 && counts.usage.held <= there as u64, "{case}");
            assert_eq!(counts.usage.held > 0, fails_at.is_none(), "{case}");
            assert!(counts.hits > 0 || there == 1 || fails_at == Some(1), "{case}");
        }
    }
}
