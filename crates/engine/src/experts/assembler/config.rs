//! Configuration of the assembler.

use sws_cache::policy::Policy;
use sws_draft::Draft;

/// Configuration of a [`DynamicAssembler`](super::DynamicAssembler).
#[derive(Debug)]
pub struct AssemblerConfig {
    /// Picks the victims of the cache.
    pub policy: Box<dyn Policy>,
    /// Forecasts experts.
    pub draft: Box<dyn Draft>,
    /// Lowest probability at which a forecast is followed.
    pub confidence: f32,
    /// True to speculate. Otherwise the draft is not queried, and the next layer of a prompt is
    /// read only once its router has chosen.
    pub speculation: bool,
    /// True to follow forecasts only while they pay; otherwise they are always followed.
    pub governed: bool,
}

/// Mechanisms of the engine that can be switched off, to measure their worth. The arithmetic stays
/// the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ablations {
    /// True to compute experts as they arrive, rather than once all of a layer are resident.
    pub arrival_order: bool,
    /// True to promote a prefetch to a demanded read once a router has selected its expert.
    pub promotion: bool,
    /// True to follow the forecasts of a draft only while they pay, rather than always.
    pub governed: bool,
    /// True to run ahead on stand-ins while a pass waits for experts.
    pub run_ahead: bool,
}

impl Default for Ablations {
    /// Every mechanism is on.
    fn default() -> Ablations {
        Ablations { arrival_order: true, promotion: true, governed: true, run_ahead: true }
    }
}
