//! The length of the sequences of a model that is entirely in memory.

use sws_model::ForwardState;
use sws_store::SystemMemory;

use crate::{Loader, Result, Warning};

/// Maximum sequence length requested. Fails if it exceeds the context of the model.
pub(super) fn requested_context(loader: &Loader<'_>) -> Result<usize> {
    let made_for = loader.model.spec().context;
    match loader.options.context.unwrap_or(made_for) {
        asked if asked > made_for => Err(loader.model.error(format!(
            "the model was made for {made_for} positions and {asked} were asked for; lower --context"
        ))),
        asked => Ok(asked),
    }
}

/// Maximum sequence length: the requested one, or, with a warning, as many positions as remaining
/// memory can hold a KV cache for.
pub(super) fn affordable_context(loader: &mut Loader<'_>) -> Result<usize> {
    let wanted = requested_context(loader)?;
    let Some(SystemMemory { available, holder, .. }) = SystemMemory::now() else {
        return Ok(wanted);
    };
    let texts = loader.needs.texts as u64;
    let spec = loader.model.spec();
    let mut fits = 0;
    let mut too_many = wanted.saturating_add(1);
    while too_many - fits > 1 {
        let between = fits + (too_many - fits) / 2;
        let cached = texts * ForwardState::cache_bytes(spec, between, loader.options.kv);
        match cached <= available {
            true => fits = between,
            false => too_many = between,
        }
    }
    if fits < wanted {
        loader.warnings.push(Warning::Context { wanted, fits, holder });
    }
    Ok(fits)
}
