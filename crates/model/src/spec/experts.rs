//! Mixtures of experts and their routers.

use super::{MlpSpec, SharedSpec};

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSpec {
    /// Number of routed experts.
    pub experts: usize,
    /// Number of further choices of the router that return their input, and have no weights. They
    /// come after the experts.
    pub identities: usize,
    /// Number of shared experts that the router scores, too, after all others; together they are
    /// `shared`, of which each has as many activations and a matrix down of its own. The weights of
    /// the chosen and of these are divided by one sum and multiplied by a number of the layer; those
    /// of shared ones weigh their activations.
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
    /// Elements of a projection of the normed state, which routed experts read in its place; another
    /// matrix brings the sum of their outputs back. None if they read the state.
    pub latent: Option<usize>,
    /// True if the sum of their outputs is normed before that matrix, by the kind of the layer's norm.
    pub latent_norm: bool,
    /// True if the sum of the experts is added to the state at the end of the next layer.
    pub added_later: bool,
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
    /// number of each expert.
    SoftmaxScaled,
    /// The experts with the largest logits, weighted by the softmax of these logits alone.
    SoftmaxOfChosen,
    /// Two experts, one after the other: that with the largest logit x, weighted by the softmax over
    /// the experts left whose logits y are near it, (x - y) / max(|y|, x) ≤ `reach`.
    Near {
        /// The largest relative distance.
        reach: f32,
    },
    /// The experts with the largest ranks, weighted by their scores.
    Ranked(RankedRouter),
    /// The experts that a table gives for the token, weighted by their scores.
    Table(RankedRouter),
}

/// A choice by ranks. A rank is a score plus the correction, and -inf in a group that is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedRouter {
    /// The function that turns logits into scores.
    pub scores: RouterScores,
    /// True if each expert has a number that is added to its score.
    pub correction: bool,
    /// The groups from which experts are chosen; None if all experts are one.
    pub groups: Option<ExpertGroups>,
    /// The division of the weights of the chosen experts.
    pub renormalise: Renormalise,
    /// The factor by which weights are multiplied in the end.
    pub scale: f32,
}

/// The division of the weights of a token's experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Renormalise {
    /// None.
    None,
    /// By their sum and a small number.
    Sum {
        /// The number.
        plus: f32,
    },
    /// By their sum, or by this number where the sum is smaller.
    AtLeast(f32),
}

/// The function that turns a router's logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// √(ln(1 + e^logit)) of each logit.
    RootSoftplus,
    /// The sigmoid of each logit, while experts are ranked by the logits themselves.
    SigmoidOfRanks,
}

/// Groups of consecutive experts, all of the same size. Experts are chosen from the best groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups, a divisor of the number of experts.
    pub count: usize,
    /// Number of groups that experts are chosen from.
    pub kept: usize,
    /// The measure of a group.
    pub by: GroupMeasure,
}

/// The measure by which groups of experts are compared. Among equals the first is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupMeasure {
    /// The largest score plus correction.
    Best,
    /// The sum of the two largest.
    BestTwo,
}

/// The largest number of groups accepted; it bounds memory on the stack.
pub(crate) const MAX_GROUPS: usize = 256;

impl RankedRouter {
    /// The sigmoids of the experts with the largest sums of sigmoid and correction, divided by their
    /// sum.
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
    /// Experts, of which each token uses `top_k`, and nothing beside them.
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
            latent_norm: false,
            added_later: false,
        }
    }

    /// Choices of the router.
    pub const fn ranked(&self) -> usize {
        self.experts + self.identities
    }

    /// Rows of its matrix: its choices, and shared experts that it scores.
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

    /// True if a table gives the experts of every token.
    pub const fn has_table(&self) -> bool {
        matches!(self.router, Router::Table(_))
    }

    /// Rows of that table, in a model with so many tokens.
    pub(crate) fn table_rows(&self, vocab: usize) -> Option<usize> {
        self.has_table().then_some(vocab)
    }
}
