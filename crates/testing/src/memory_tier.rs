//! A tier of experts in memory. It may take time, fail, and lose experts.

use std::collections::BTreeMap;
use std::time::Duration;

use sws_engine::{ExpertTier, TierTensor, TierUsage};
use sws_format::{Clock, PieceId};
use sws_kernels::functional::gate;
use sws_kernels::{MatmulScratch, Matrix, Tier, matmul};
use sws_model::{ExpertBatch, ExpertExecutor, HeldTensor, Role, SourceError};

use crate::random::Random;

/// A tensor with copies of its parts.
type Copied = (HeldTensor, Vec<Vec<u8>>);

/// A tier in memory, of experts with gates, ups and downs in a matrix each.
#[derive(Debug)]
pub struct MemoryTier {
    traits: TierTraits,
    held: BTreeMap<PieceId, Vec<Copied>>,
    calls: u64,
}

/// What a tier is like.
#[derive(Clone, Debug, Default)]
pub struct TierTraits {
    /// Number of experts that it has room for.
    pub slots: usize,
    /// The call of its executor from which on it holds no expert any more.
    pub fails_at: Option<u64>,
    /// Its time, if that is virtual.
    pub pace: Option<TierPace>,
    /// Loses experts at random, and refuses others.
    pub fickle: Option<Random>,
}

/// Virtual time that a tier takes.
#[derive(Clone, Debug)]
pub struct TierPace {
    /// The clock of the run.
    pub clock: Clock,
    /// Time of an expert, beside that which it takes on the CPU.
    pub compute: Duration,
    /// Time of a copy.
    pub copy: Duration,
}

impl MemoryTier {
    /// A tier without experts.
    pub fn new(traits: TierTraits) -> MemoryTier {
        MemoryTier { traits, held: BTreeMap::new(), calls: 0 }
    }

    fn multiply(&self, id: PieceId, role: Role, x: &[f32]) -> Vec<f32> {
        let (held, parts) = self.held[&id].iter().find(|(held, _)| held.role == role).unwrap();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let matrix = Matrix::new(held.encoding, held.rows, held.cols, &parts).unwrap();
        let mut y = vec![0.0; held.rows];
        matmul(Tier::best(), &matrix, x, 1, &mut y, &mut MatmulScratch::new());
        y
    }

    fn has_failed(&self) -> bool {
        self.traits.fails_at.is_some_and(|at| self.calls >= at)
    }

    /// True with a chance of `per_mille` of a thousand, if it is fickle.
    fn chance(&mut self, per_mille: u32) -> bool {
        self.traits.fickle.as_mut().is_some_and(|random| random.chance(per_mille))
    }

    /// Loses an expert now and then.
    fn lose(&mut self) {
        if self.chance(100)
            && let Some(random) = &mut self.traits.fickle
        {
            let number = random.below(self.held.len() as u64) as usize;
            if let Some(lost) = self.held.keys().nth(number).copied() {
                self.held.remove(&lost);
            }
        }
    }
}

impl ExpertTier for MemoryTier {
    fn holds(&self, expert: PieceId) -> bool {
        self.held.contains_key(&expert)
    }

    fn has_room(&self) -> bool {
        self.held.len() < self.traits.slots && !self.has_failed()
    }

    fn takes(&self, tensors: &[TierTensor<'_>]) -> bool {
        let plain = [Role::Gate, Role::Up, Role::Down];
        let has = |role| tensors.iter().any(|tensor| tensor.held.role == role);
        !self.has_failed() && tensors.len() == plain.len() && plain.into_iter().all(has)
    }

    fn promote(&mut self, expert: PieceId, tensors: &[TierTensor<'_>]) -> bool {
        if let Some(TierPace { clock, copy, .. }) = &self.traits.pace {
            clock.sleep(*copy);
        }
        self.lose();
        // The expert that made room may have been lost before.
        if self.held.len() >= self.traits.slots || self.chance(100) {
            return false;
        }
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
        TierUsage {
            held: self.held.len() as u64,
            slots: self.traits.slots as u64,
            ..Default::default()
        }
    }
}

impl ExpertExecutor for MemoryTier {
    fn compute(
        &mut self,
        batch: &ExpertBatch<'_>,
        outputs: &mut [f32],
    ) -> Result<Vec<u32>, SourceError> {
        self.calls += 1;
        self.lose();
        if self.has_failed() {
            self.held.clear();
        }
        let mut refused = Vec::new();
        for &expert in batch.experts {
            let id = PieceId::expert(batch.layer, expert);
            if !self.holds(id) {
                refused.push(expert);
                continue;
            }
            if let Some(TierPace { clock, compute, .. }) = &self.traits.pace {
                clock.sleep(*compute);
            }
            for (row, token) in batch.rows(expert).zip(batch.tokens(expert)) {
                let x = &batch.x[token * batch.hidden..][..batch.hidden];
                let mut gates = self.multiply(id, Role::Gate, x);
                let ups = self.multiply(id, Role::Up, x);
                gate(Tier::best(), batch.spec.activation, &mut gates, &ups);
                let y = self.multiply(id, Role::Down, &gates);
                outputs[row * batch.hidden..][..batch.hidden].copy_from_slice(&y);
            }
        }
        Ok(refused)
    }
}
