//! Mixtures of experts and their routers.

use super::{MlpSpec, Norm, SharedSpec};

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSpec {
    /// Number of routed experts.
    pub experts: usize,
    /// Number of identity choices of the router, which return their input and have no matrices.
    /// They come after the experts.
    pub identities: usize,
    /// Number of shared experts that the router also scores, after all other choices. Together they
    /// form `shared`; each has an equal part of its activations, and a down matrix of its own. The
    /// weights of chosen and shared experts are divided by a common sum, and multiplied by a number
    /// of the layer. The weight of a shared expert multiplies its activations.
    pub shared_scored: usize,
    /// Number of routed experts per token.
    pub top_k: usize,
    /// The computation of an expert.
    pub expert: MlpSpec,
    /// The rule by which experts are chosen and weighted.
    pub router: Router,
    /// True if the router's logits have a bias.
    pub router_bias: bool,
    /// True if weights multiply the inputs of experts instead of their outputs.
    pub weighted_inputs: bool,
    /// The expert that every token uses in addition.
    pub shared: Option<SharedSpec>,
    /// Size of a projection of the normed state that routed experts read. Another matrix projects
    /// the sum of their outputs back. `None` if experts read the state itself.
    pub latent: Option<usize>,
    /// The norm of that projection.
    pub latent_input: Option<Norm>,
    /// The norm of outputs before that matrix.
    pub latent_norm: LatentNorm,
    /// True if the sum of the experts is added to the state at the end of the next layer.
    pub added_later: bool,
}

/// The norm of the outputs of experts that read a projection of the state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatentNorm {
    /// None.
    None,
    /// That of the layer, of the sum of the outputs.
    OfSum,
    /// Of each output, before it is multiplied by its weight. All experts share the weights.
    OfEach(Norm),
}

/// The rule that turns the router's logits into a choice of experts and their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Router {
    /// The experts with the largest softmax probabilities over all experts.
    Softmax {
        /// True if the weights of the chosen experts are divided by their sum.
        renormalise: bool,
    },
    /// The experts with the largest softmax probabilities, divided by their sum and multiplied by a
    /// factor of each expert.
    SoftmaxScaled,
    /// The experts with the largest logits, weighted by the softmax of these logits alone.
    SoftmaxOfChosen,
    /// Two experts, one after the other. Each is the one with the largest logit x among the
    /// remaining experts, weighted by the softmax over those whose logits y are near x: (x - y) /
    /// max(|y|, x) ≤ `reach`.
    Near {
        /// The largest relative distance.
        reach: f32,
    },
    /// The experts with the largest ranks, weighted by their scores.
    Ranked(RankedRouter),
    /// The experts that a table selects by token, weighted by their scores.
    Table(RankedRouter),
}

/// A choice by ranks. A rank is a score plus the correction, or -inf in a dropped group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedRouter {
    /// The function that turns logits into scores.
    pub scores: RouterScores,
    /// True if each expert has a correction, which is added to its score.
    pub correction: bool,
    /// The groups from which experts are chosen; `None` if there is only one group.
    pub groups: Option<ExpertGroups>,
    /// The division of the weights of the chosen experts.
    pub renormalise: Renormalise,
    /// The final factor of the weights.
    pub scale: f32,
}

/// The division of the weights of a token's experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Renormalise {
    /// None.
    None,
    /// Division by their sum plus a small number.
    Sum {
        /// The small number.
        plus: f32,
    },
    /// Division by their sum, or by this number if the sum is smaller.
    AtLeast(f32),
}

/// The function that turns a router's logits into scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RouterScores {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// The sigmoid of each logit times this number.
    SigmoidOfScaled(f32),
    /// √(ln(1 + e^logit)) of each logit.
    RootSoftplus,
    /// The sigmoid of each logit. Experts are ranked by the logits themselves.
    SigmoidOfRanks,
}

/// Groups of consecutive experts, all of the same size. Experts are chosen from the best groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups, a divisor of the number of experts.
    pub count: usize,
    /// Number of groups from which experts are chosen.
    pub kept: usize,
    /// The measure by which groups are compared.
    pub by: GroupMeasure,
}

/// The measure by which groups of experts are compared. Among equals the first is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupMeasure {
    /// The largest score plus correction.
    Best,
    /// The sum of the two largest scores plus corrections.
    BestTwo,
}

/// The largest number of groups accepted; it bounds memory on the stack.
pub(crate) const MAX_GROUPS: usize = 256;

impl RankedRouter {
    /// A router that chooses the experts with the largest sums of sigmoid and correction. Their
    /// weights are the sigmoids, divided by their sum.
    pub const fn sigmoid() -> RankedRouter {
        RankedRouter {
            scores: RouterScores::Sigmoid,
            correction: true,
            groups: None,
            renormalise: Renormalise::Sum { plus: 0.0 },
            scale: 1.0,
        }
    }
}

impl MoeSpec {
    /// A mixture of experts, of which each token uses `top_k`, without further parts.
    pub const fn of((experts, top_k): (usize, usize), expert: MlpSpec, router: Router) -> MoeSpec {
        MoeSpec {
            experts,
            identities: 0,
            shared_scored: 0,
            top_k,
            expert,
            router,
            router_bias: false,
            weighted_inputs: false,
            shared: None,
            latent: None,
            latent_input: None,
            latent_norm: LatentNorm::None,
            added_later: false,
        }
    }

    /// Number of choices of the router.
    pub const fn ranked(&self) -> usize {
        self.experts + self.identities
    }

    /// Number of rows of the router's matrix: its choices, and the shared experts that it scores.
    pub const fn scored(&self) -> usize {
        self.ranked() + self.shared_scored
    }

    /// True if the router has a correction.
    pub const fn has_correction(&self) -> bool {
        match self.router {
            Router::Softmax { .. }
            | Router::SoftmaxScaled
            | Router::SoftmaxOfChosen
            | Router::Near { .. } => false,
            Router::Ranked(router) => router.correction,
            Router::Table(_) => false,
        }
    }

    /// True if a table selects the experts of every token.
    pub const fn has_table(&self) -> bool {
        matches!(self.router, Router::Table(_))
    }

    /// Number of rows of that table, in a model with this vocabulary.
    pub(crate) fn table_rows(&self, vocab: usize) -> Option<usize> {
        self.has_table().then_some(vocab)
    }
}
