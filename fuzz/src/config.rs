//! Any bytes as a `config.json`, or as one with the keys of a GGUF file.

use sws_kernels::Tier;
use sws_model::{ForwardState, KvPrecision, ModelSpec, PassSize};

/// True if the config was accepted.
pub(crate) fn check(data: &[u8]) -> bool {
    let Ok(spec) = ModelSpec::parse(data) else { return false };
    assert_eq!(ModelSpec::parse(data).ok().as_ref(), Some(&spec));
    assert!((1..=1 << 16).contains(&spec.layers.len()), "{} layers", spec.layers.len());
    assert!(spec.hidden > 0 && spec.vocab > 0 && spec.context > 0);
    for moe in spec.moes() {
        assert!((1..=1 << 16).contains(&moe.experts) && (1..=moe.experts).contains(&moe.top_k));
    }
    // Sizes are computed before the config is trusted, so they must not overflow.
    let positions = spec.context.min(1 << 20);
    ForwardState::cache_bytes(&spec, positions, KvPrecision::F32);
    ForwardState::journal_bytes(&spec, (2, 8), KvPrecision::F32);
    let (strip, packings) = (PassSize::STRIP, Default::default());
    let size = PassSize { tokens: 8, logits: 8, positions, threads: 2, strip, packings };
    spec.work_bytes(Tier::PORTABLE, size);
    spec.parameters();
    true
}
