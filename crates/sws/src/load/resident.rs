//! Loading all weights into memory.

use sws_engine::{ResidentLoad, StreamError};
use sws_format::remedy;
use sws_model::ResidentSource;
use tracing::info;

use crate::{Error, Loader, Result};

/// Loads all weights, with every byte verified and every number checked.
pub(crate) fn load(loader: &mut Loader<'_>) -> Result<ResidentSource> {
    let model = loader.model;
    let cancel = loader.cancel.clone();
    let failed = |error| match error {
        StreamError::Fetch(error) => error.into(),
        StreamError::Layout(error) => error.into(),
        StreamError::Load(error) => model.error(error),
        StreamError::Memory { cause, .. } => {
            model.error(format!("{cause}; {}", remedy(&cause, "close other programs")))
        }
        error => model.error(error),
    };
    let store = model.store_with(loader.open_reader()?, loader.open_mirrors()?)?;
    let weights = ResidentLoad::new(model.spec(), &store).map_err(failed)?;
    let otherwise = "shard it in a smaller encoding (`sws shard --encoding q4`)";
    model.check_memory(weights.needed(), otherwise)?;
    info!("all {} bytes of weights are loaded", weights.needed());
    let report = |progress| {
        let goes_on = !cancel.is_cancelled();
        if goes_on {
            loader.report(progress);
        }
        goes_on
    };
    weights.load(report).map_err(failed)?.ok_or(Error::Cancelled)
}
