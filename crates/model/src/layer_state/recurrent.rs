//! A test double for layers whose state is not addressed by position: a decaying sum behind a short
//! convolution.

/// The state of such a layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Recurrent {
    sum: [f32; 4],
    /// The last inputs, the newest first.
    window: [f32; 3],
}

impl Recurrent {
    /// Processes one more position.
    pub(super) fn append(&mut self, x: f32) {
        self.window.rotate_right(1);
        self.window[0] = x;
        let x = 0.5 * self.window[0] + 0.25 * self.window[1] - self.window[2];
        for (sum, decay) in self.sum.iter_mut().zip([0.5, 0.75, 0.9, 1.0]) {
            *sum = decay * *sum + x;
        }
    }

    /// All numbers of the state.
    pub(super) fn numbers(&self) -> Vec<f32> {
        [&self.sum[..], &self.window].concat()
    }

    pub(super) fn bytes(&self) -> u64 {
        size_of::<Recurrent>() as u64
    }
}
