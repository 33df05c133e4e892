//! Notifications about the progress of a pass.

use sws_format::Pass;

use crate::routed::{Routed, SourceError};

/// Follows a pass. The owner of the layer loop notifies every observer of each event; an error ends
/// the pass.
///
/// Layers have the numbers of their [visits](crate::ModelSpec::visits): a layer that a pass visits
/// several times has several. A [`PassSource`](crate::PassSource) gets those of the layers.
///
/// A layer that is computed ahead, and again later, is reported once. Only a
/// [`PassSource`](crate::PassSource) is notified both times.
pub trait Observer: Send {
    /// A pass has begun: its tokens are embedded.
    fn pass_begins(&mut self, pass: &Pass) -> Result<(), SourceError> {
        let _ = pass;
        Ok(())
    }

    /// `hidden` [tokens, hidden] is about to enter a layer.
    fn layer_begins(
        &mut self,
        pass: &Pass,
        layer: usize,
        hidden: &[f32],
    ) -> Result<(), SourceError> {
        let _ = (pass, layer, hidden);
        Ok(())
    }

    /// The router of a layer selects experts from `state` [tokens, hidden].
    fn routing(&mut self, pass: &Pass, layer: usize, state: &[f32]) -> Result<(), SourceError> {
        let _ = (pass, layer, state);
        Ok(())
    }

    /// The router of a layer has selected experts; the shared expert, if there is one, comes next.
    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        let _ = (pass, layer, routed);
        Ok(())
    }

    /// The attention of a layer with experts has produced `state` [tokens, hidden], from which its
    /// router has selected; where branches are parallel, that has selected from the state before.
    /// `shared` is the output of its shared expert, empty if it has none. The experts come next.
    fn attended(
        &mut self,
        pass: &Pass,
        layer: usize,
        state: &[f32],
        shared: &[f32],
    ) -> Result<(), SourceError> {
        let _ = (pass, layer, state, shared);
        Ok(())
    }

    /// True if the final states of a scored sequence are wanted in place of its logits.
    fn takes_states(&self) -> bool {
        false
    }

    /// The final states [tokens, width] of the next tokens of a scored sequence, behind the final norm.
    fn states(&mut self, width: usize, states: &[f32]) {
        let _ = (width, states);
    }

    /// The logits [tokens, vocab] of the tokens at the positions from `first` on.
    fn logits(&mut self, first: usize, logits: &[f32]) {
        let _ = (first, logits);
    }
}

/// Observes nothing.
impl Observer for () {}
