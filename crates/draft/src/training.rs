//! Input and output types for training corrections. The caller implements the arithmetic.

/// Training samples. Rows are tokens.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// [rows, inputs]
    pub inputs: Vec<f32>,
    /// Margin of each expert of each upcoming layer above the selection threshold, when that
    /// layer's router is applied to the current state: [rows, targets, experts].
    pub margins: Vec<f32>,
    /// 1 for experts that were used, 0 for the others; same shape as `margins`.
    pub used: Vec<f32>,
}

impl Samples {
    /// Number of rows.
    pub fn rows_of(&self, training: &Training) -> usize {
        self.inputs.len() / training.inputs.max(1)
    }
}

/// Parameters of the training.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// Length of an input.
    pub inputs: usize,
    /// Number of upcoming layers.
    pub targets: usize,
    /// Experts per layer.
    pub experts: usize,
    /// Rank of the correction.
    pub rank: usize,
    /// Number of passes over the samples.
    pub epochs: usize,
    /// Seed of the initial weights and of the order of samples.
    pub seed: u64,
}

/// Result of the training.
#[derive(Clone, Debug)]
pub struct Trained {
    /// [rank, inputs]
    pub down: Vec<f32>,
    /// For each target: [experts, rank + 1] with the constant last, and the factor of its margins.
    pub targets: Vec<(Vec<f32>, f32)>,
    /// Mean loss on the held-out samples in nats per expert: before training, and at its lowest.
    pub losses: [f32; 2],
}
