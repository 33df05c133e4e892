//! Any bytes as a `config.json`.

use sws_model::{KvPrecision, ModelSpec, State};

/// True if they were accepted.
pub(crate) fn check(data: &[u8]) -> bool {
    let Ok(spec) = ModelSpec::parse(data) else { return false };
    assert_eq!(ModelSpec::parse(data).ok().as_ref(), Some(&spec));
    assert!((1..=1 << 16).contains(&spec.layers.len()), "{} layers", spec.layers.len());
    assert!(spec.hidden > 0 && spec.vocab > 0 && spec.context > 0);
    for moe in spec.moes() {
        assert!((1..=1 << 16).contains(&moe.experts) && (1..=moe.experts).contains(&moe.top_k));
    }
    // Sizes are computed before they are believed.
    State::cache_bytes(&spec, spec.context.min(1 << 20), KvPrecision::F32);
    true
}
