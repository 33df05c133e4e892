//! The assembler as one half of a weight source.

use sws_model::{Ready, Routed, SourceError};

use super::DynamicAssembler;
use crate::infra::Infrastructure;
use crate::source::ExpertSource;

impl ExpertSource for DynamicAssembler {
    fn tokens(&mut self, tokens: &[u32]) -> Result<(), SourceError> {
        DynamicAssembler::tokens(self, tokens);
        Ok(())
    }

    fn entering(&mut self, layer: usize, hidden: &[f32]) -> Result<(), SourceError> {
        Ok(DynamicAssembler::entering(self, layer, hidden)?)
    }

    fn routed(
        &mut self,
        layer: usize,
        routed: &Routed,
        _: &mut Infrastructure,
    ) -> Result<(), SourceError> {
        Ok(DynamicAssembler::routed(self, layer, routed)?)
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        infrastructure: &mut Infrastructure,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        DynamicAssembler::experts(self, layer, routed, &mut |experts, weights| {
            ready(experts, weights)?;
            Ok(infrastructure.read_ahead()?)
        })
    }

    fn interrupt(&mut self) {
        self.abandon();
    }
}
